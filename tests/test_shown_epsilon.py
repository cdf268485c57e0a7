"""One function shows every epsilon, rounded up (`metrics.shown_epsilon`; measured ones down)."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrl_bench.metrics import shown_epsilon, shown_measured

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "privrl_bench").rglob("*.py")),
    *sorted((ROOT / "scripts").rglob("*.py")),
    *sorted((ROOT / "hydra_plugins").rglob("*.py")),
]
SHOWN = {"shown_epsilon", "shown_measured"}
NUMBERS = {"short", "round", "str", "format", "number"}  # other ways to make text of a number
ABOUT = re.compile(r"epsilon(?!_label)|\bbudget\b")
BEFORE = re.compile(r"\bepsilon\W{0,6}$")  # words right before a number


def name_of(call):
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def about_epsilon(node):
    """Whether a value is an epsilon, and not only made from one."""
    if isinstance(node, ast.Call):
        return name_of(node) in {"max", "min", "float"} and any(map(about_epsilon, node.args))
    if isinstance(node, ast.BinOp | ast.Compare | ast.IfExp):
        return False
    return bool(ABOUT.search(ast.unparse(node)))


def bad_formats(source):
    """Lines that show an epsilon by other means, with the expression."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    before = part.value
                    continue
                call = isinstance(part.value, ast.Call) and name_of(part.value)
                number = part.format_spec is not None or call in NUMBERS
                if call not in SHOWN and number:
                    shown = [part.value, *(part.value.args if call in NUMBERS else [])]
                    if any(map(about_epsilon, shown)) or BEFORE.search(before):
                        yield f"{node.lineno}: {ast.unparse(part.value)}"
                before = ""
        elif (
            isinstance(node, ast.Call)
            and name_of(node) in {"short", "format"}
            and any(map(about_epsilon, node.args))
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "source",
    [
        'f"epsilon {short(x)}"',
        'f"epsilon >= {bound:.4g}"',
        'f"{run.epsilon:.3g} at delta"',
        'f"{max(run.epsilon for run in some):.4g}"',
        "f\"costs {summary['epsilon']:.2f}\"",
        'f"more than {budget:g}"',
        "cells.append(short(row.epsilon_paper))",
    ],
)
def test_the_test_finds_other_formats(source):
    assert list(bad_formats(source))


@pytest.mark.parametrize(
    "source",
    [
        'f"epsilon {shown_epsilon(x)}"',
        'f"z = {calibrated_z(plan, budget):g}"',
        'f"{x / epsilon:.3f}"',
    ],
)
def test_the_test_leaves_other_numbers_alone(source):
    assert not list(bad_formats(source))


def test_every_epsilon_is_shown_by_one_function():
    assert not [(path, bad) for path in FILES for bad in bad_formats(path.read_text())]


@given(st.floats(1e-12, 1e12), st.integers(2, 6))
def test_up_and_down(value, digits):
    close = 10.0 ** (1 - digits) * 1.01
    assert value * (1 - 1e-11) <= float(shown_epsilon(value, digits)) <= value * (1 + close)
    assert value * (1 - close) <= float(shown_measured(value, digits)) <= value * (1 + 1e-11)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(91.81729, "91.82"), (1.27106, "1.272"), (8.0, "8"), (0.3, "0.3"), (17102.4, "1.711e+04")],
)
def test_known_answers(value, shown):
    assert shown_epsilon(value) == shown
