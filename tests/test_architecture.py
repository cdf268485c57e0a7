"""What the import contracts of pyproject.toml cannot say: who makes releases, and how large things are.

The contracts themselves (layers, Hydra, torch, optional parts) are checked by `lint-imports` in `make lint`.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "privrl_bench"
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
FUNCTION_LINES = 60
DRAWS = (
    "packs/imitations/fresh_noise_per_round.py",
    "packs/imitations/per_transition.py",
    "packs/offline/model_based/ensemble.py",
)


def named(path):
    return str(path.relative_to(ROOT))


def every_file(check):
    """A test of one file as one test of all, which names every file that fails."""

    def test():
        failed = []
        for path in FILES:
            try:
                check(path)
            except AssertionError as error:
                failed.append(f"{named(path)}: {error}")
        assert not failed, "\n".join(failed)

    test.__doc__ = check.__doc__
    return test


def inside_privacy(path):
    return path.relative_to(ROOT).parts[0] == "privacy"


def nodes(path, *kinds):
    return (node for node in ast.walk(TREES[path]) if isinstance(node, kinds))


def called(path):
    """Names of the functions and classes that a file calls."""
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in nodes(path, ast.Call)
    }


@every_file
def test_only_the_gate_makes_releases_and_noise(path):
    if inside_privacy(path):
        return
    made = called(path)
    assert not made & {"Released", "Guarantee"}
    assert "Ledger" not in made or named(path) == "training/plan.py"
    assert not made & {"SeededNoise", "SecureNoise", "clip_rows"}
    # Initial weights and action noise are drawn in models, first states in envs, noise in mechanisms.
    if path.relative_to(ROOT).parts[0] not in ("models", "envs") and named(path) not in DRAWS:
        gaussian = {
            "randn",
            "randn_like",
            "normal_",
            "normal",
            "standard_normal",
            "gauss",
            "rsample",
        }
        assert not made & gaussian, "Gaussian draws belong to the gate"


@every_file
def test_no_module_uses_private_names_of_the_gate(path):
    if inside_privacy(path):
        return
    imports = [
        node
        for node in nodes(path, ast.Import, ast.ImportFrom)
        if "privacy" in (getattr(node, "module", None) or "".join(a.name for a in node.names))
    ]
    names = {node.attr for node in nodes(path, ast.Attribute)}
    names |= {alias.name for node in imports for alias in node.names}
    names |= {node.value for node in nodes(path, ast.Constant) if isinstance(node.value, str)}
    assert not names & {"_GATE", "_content"}
    assert not [a.asname for node in imports for a in node.names if a.asname], "an alias hides it"
    assert not [node for node in nodes(path, ast.ImportFrom) if node.level], "relative import"


@every_file
def test_no_comparison_with_the_name_of_a_mechanism_or_a_sampling(path):
    """Outside privacy/ the mechanism and the sampler say what they are: `PrivacyConfig`'s objects."""
    if inside_privacy(path):
        return
    for node in nodes(path, ast.Compare):
        for side in (node.left, *node.comparators):
            name = getattr(side, "attr", getattr(side, "id", ""))
            assert name not in ("mechanism", "sampling"), f"line {node.lineno}: compares a {name}"


@every_file
def test_who_the_users_are_and_what_is_judged_is_asked_of_their_classes(path):
    """Outside users/ and evaluation/ no kind of data or product is named, but in an algorithm's traits."""
    top = path.relative_to(ROOT).parts[0]
    if top in ("users", "evaluation", "packs") or path.stem.endswith(("_settings", "traits")):
        return
    named_there = {getattr(node.value, "id", "") for node in nodes(path, ast.Attribute)}
    assert "Data" not in named_there
    # What texts are; reports read configurations that other versions have written.
    if top in ("envs", "models", "reporting") or named(path) == "config/schema/env.py":
        return
    for node in nodes(path, ast.Compare):
        sides = [getattr(side, "value", None) for side in (node.left, *node.comparators)]
        assert "text" not in sides, f"line {node.lineno}: asks whether this is a text"


@every_file
def test_functions_are_short(path):
    for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
        length = (node.end_lineno or 0) - node.lineno + 1
        assert length <= FUNCTION_LINES, f"{node.name}: {length} lines"


@every_file
def test_the_core_names_no_pack(path):
    """Not by import either: `composition/plugins.py` finds packs by their folder."""
    if path.relative_to(ROOT).parts[0] in ("packs", "papers"):
        return
    for node in nodes(path, ast.Import, ast.ImportFrom):
        names = [getattr(node, "module", None) or "", *(one.name for one in node.names)]
        assert not [n for n in names if n.startswith(("privrl_bench.pa", "packs", "papers"))], names
    for node in nodes(path, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
        assert not text.startswith(("privrl_bench.packs", "privrl_bench.papers")), text


def test_the_top_level_is_small():
    top = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "__main__"}
    assert len(top) <= 4, top


def test_no_dispatch_on_the_class_of_a_collector_or_an_evaluator():
    classes = {
        node.name
        for path in FILES
        if path.relative_to(ROOT).parts[0] in ("users", "evaluation")
        for node in nodes(path, ast.ClassDef)
    }
    for path in FILES:
        for call in nodes(path, ast.Call):
            if getattr(call.func, "id", "") == "isinstance":
                asked = {getattr(node, "id", "") for node in ast.walk(call.args[1])}
                assert not asked & classes, f"{named(path)} line {call.lineno}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "privrl_bench.config.schema, privrl_bench.metrics",
            ("torch", "wandb", "gymnasium", "hydra", "dp_accounting", "matplotlib"),
        ),
        (
            "privrl_bench.training.runner",
            (
                *("transformers", "tokenizers", "peft", "hydra"),
                *("privrl_bench.packs", "privrl_bench.papers"),
            ),
        ),
        ("privrl_bench.packs.offline.datasets.minari_files", ("minari", "h5py")),
    ],
)
def test_importing_stays_light(module, absent):
    code = f"import sys, {module}\nprint([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
