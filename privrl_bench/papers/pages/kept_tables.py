"""Blocks that are read from committed tables (table.md) and JSON files."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from privrl_bench.metrics import shown_epsilon, shown_measured
from privrl_bench.papers.datasize import error_of
from privrl_bench.papers.pages.store import BLOCKS, STORE, block, committed, selected
from privrl_bench.reporting.table_writer import compact

# --- Doulazmi and Odonnat


def solved(item: str, panel: str, columns: Sequence[str], first: str) -> str:
    """Lines of the panels whose names begin with `panel`, each once: sigma, and these columns."""
    names = {"median": "median episode", "mean episode": "mean"}
    lines = {one["line"]: one for one in committed(item) if one["panel"].startswith(panel)}
    shown: dict[str, Any] = {first: lambda line: line["line"].removeprefix("sigma ")}
    shown |= {names.get(name, name): name for name in columns}
    return selected(lines.values(), shown)


SPEED = ("solved", "median", "quartiles")
LATE = (*SPEED, "mean episode", "last 100 episodes", "epsilon")
GRADIENTS = "noise on gradients, their sigma"
BLOCKS |= {
    "dp-rl/fig3": lambda: solved("dp-rl/fig3", "REINFORCE", (*LATE[:4], "epsilon"), GRADIENTS),
    "dp-rl/fig6": lambda: solved("dp-rl/fig6", "REINFORCE", (*SPEED, "epsilon"), "sigma"),
    "dp-rl/fig3-dqn": lambda: solved("dp-rl/fig3", "DQN", LATE, f"{GRADIENTS}, as in their text"),
    "dp-rl/fig3-code": lambda: solved(
        "dp-rl/fig3-code", "DQN, noise as in their code", LATE, f"{GRADIENTS}, as in their code"
    ),
    "dp-rl/fig6-dqn": lambda: solved("dp-rl/fig6", "DQN", LATE[:-1], "sigma"),
}


# --- GPOPE


LEVEL = "theta = 0 (does nothing)"  # it has one error for all n


def errors(item: str, panels: Sequence[str], names: Sequence[str], rows: Sequence[str]) -> str:
    """Errors by n (rows) and line (columns), rounds in brackets."""
    lines = [line for panel in panels for line in committed(item, panel=panel)]
    several = len({line["rounds"] for line in lines if line["rounds"] != "1"}) > 1
    found = {
        (line["line"], line["n"]): error_of(line)
        + (f" ({line['rounds']})" if several and line["rounds"] != "1" else "")
        for line in lines
    }
    cells = [
        [
            f"{int(n):,}",
            *(found[name, n] for name in names),
            found[LEVEL, rows[0]].partition(" ")[0],
        ]
        for n in rows
    ]
    return compact(["n", *names, LEVEL], cells)


RIVALS = ("DP-LSW, epsilon 1", "DP-LSW, epsilon 0.1")
CHAIN = ("GPOPE", "DP-LSL", "DP-LSW")
HIV = ("GPOPE, epsilon 10", "GPOPE, epsilon 1", "GPOPE, epsilon 0.1", "WIS-LSTD, not private")
SIZES, PATIENTS, LSTD = ("100", "1000", "10000"), ("50", "200", "1000"), "LSTD, not private"
BLOCKS |= {
    "gpope/fig1": lambda: errors(
        "gpope/fig1",
        ["chain, epsilon 1", "chain, epsilon 0.1"],
        [*(f"{name}, epsilon {e}" for e in ("1", "0.1") for name in CHAIN), LSTD],
        SIZES,
    ),
    "gpope/fig2": lambda: errors("gpope/fig2", ["MountainCar"], RIVALS, SIZES),
    "gpope/fig3": lambda: errors("gpope/fig3", ["on-policy"], [*HIV[:3], LSTD], SIZES),
    "gpope/fig4": lambda: errors("gpope/fig4", ["HIV"], HIV, PATIENTS),
}


# --- audits


def attack(name: str) -> dict[str, Any]:
    """The first finding of an audit, with the epsilon of each form of bound."""
    finding = json.loads((STORE / "audit" / name / "audit.json").read_text())["findings"][0]
    return finding | {bound["form"]: bound["epsilon"] for bound in finding["bounds"]}


def audit() -> str:
    """Lower bounds on epsilon by the canary attack."""
    lines = []
    for z in ("0.5", "1", "2"):
        found = attack(f"z{z}")
        bounds = [shown_measured(found[form]) for form in ("gdp", "direct")]
        share = f"{found['ratio']:.3f}"
        lines.append([z, shown_epsilon(found["claim"]), bounds[0], share, bounds[1]])
    return compact(["z", "claimed epsilon", "lower bound", "share", "direct bound"], lines)


def audit_others() -> str:
    """Lower bounds of the one-run attack, and on the paper's own setting."""
    one, paper = attack("one_run"), attack("all_paper")
    return (
        f"One-run at z = 1: {shown_measured(one['one-run'], 3)} of {shown_epsilon(one['claim'])}. "
        "`+paper=dppg` at z = 1, where a unit is nine releases: "
        f"{shown_measured(paper['gdp'])} of {shown_epsilon(paper['claim'])}."
    )


BLOCKS |= {"audit/canary": audit, "audit/others": audit_others}


@block("checks/sb3")
def sb3() -> str:
    """The table of scripts/compare_sb3.py."""
    lines = committed("checks/sb3")
    return compact(list(lines[0]), [list(line.values()) for line in lines])


# --- speed: of docs/speed.md and docs/scaling.md


def _found() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORE / "speed" / "scaling.json").read_text())
    return found


def workers() -> str:
    """A round with one and with two workers."""
    lines = []
    for name, row in _found()["workers"].items():
        one, two = row["1"], row["2"]
        low, high = two["ratio_range"]
        speeds = [f"{x['steps_per_second']:,.0f}" for x in (one, two)]
        lines.append([name, *speeds, f"{two['ratio']:.2f} ({low:.2f} to {high:.2f})"])
    return compact(["", "steps/s, one worker", "two workers", "ratio"], lines)


def speeds() -> str:
    """Steps per second of environments alone and in training, with their ratios."""
    data = json.loads((STORE / "speed" / "speed.json").read_text())["speeds"]
    names = {"cartpole": "CartPole", "hopper": "Hopper", "halfcheetah": "HalfCheetah"}
    lines = []
    for env, name in names.items():
        cells = [f"{data[env]['gymnasium']['steps_per_second']:,.0f}"]
        for key in ("slots", "dppg"):
            one = data[env][key]
            low, high = one["ratio_range"]
            ratio = f"({one['ratio']:.2f}, {low:.2f} to {high:.2f})"
            cells.append(f"{one['steps_per_second']:,.0f} {ratio}")
        lines.append([name, *cells])
    head = ["", "Gymnasium loop, steps/s", "our slots alone", "DPPG, training"]
    return compact(head, lines)


BLOCKS |= {"speed/environments": speeds, "scaling/workers": workers}


# --- learning and evaluation from logs: of docs/results/logs.csv


_TASKS = {"cartpole": "CartPole", "acrobot": "Acrobot", "dosing0": "Dosing-0, five levels"}


def _of_logs() -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows over seeds, by task, algorithm, epsilon and whose value it is."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with (STORE.parents[1] / "docs/results/logs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in ("task", "algo", "epsilon", "of"))
            found.setdefault(key, []).append(row)
    return found


def _around(numbers: Sequence[float], digits: int = 0) -> str:
    """Mean and range."""
    mean, low, high = np.mean(numbers), min(numbers), max(numbers)
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@block("logs/returns")
def learned_from_logs() -> str:
    """Returns of what was learned, and of who acted."""
    rows, lines = _of_logs(), []
    columns = list(dict.fromkeys(key[2] for key in rows if not key[3] and key[2] != "-"))
    for task, algo in dict.fromkeys(key[:2] for key in rows if not key[3]):
        if algo != "behaviour":
            acted = np.mean([float(x["number"]) for x in rows[task, "behaviour", "-", ""]])
            cells = [rows.get((task, algo, epsilon, ""), []) for epsilon in columns]
            shown = [_around([float(x["number"]) for x in cell]) if cell else "" for cell in cells]
            lines.append([_TASKS[task], f"{acted:.0f}", f"`{algo}`", *shown])
    heads = ["without noise" if x == "inf" else f"epsilon {x}" for x in columns]
    return compact(["task", "who acted", "algorithm", *heads], lines)


@block("logs/values")
def values_from_logs() -> str:
    """Estimated values at epsilon 1 beside the truth."""
    rows, lines = _of_logs(), []
    estimators = list(dict.fromkeys(key[1] for key in rows if key[3]))
    for task, of in dict.fromkeys((key[0], key[3]) for key in rows if key[3]):
        cells = [rows[task, name, "1", of] for name in estimators]
        truth = _around([float(x["truth"]) for x in cells[0]], 1)
        shown = []
        for cell in cells:
            errors = [abs(float(x["number"]) - float(x["truth"])) for x in cell if x["number"]]
            without = (
                f"; {len(cell) - len(errors)} without value" if len(errors) < len(cell) else ""
            )
            shown.append(f"{np.median(errors):.1f}{without}" if errors else "no value")
        lines.append([_TASKS[task], f"`{of}`", truth, *shown])
    return compact(["task", "policy of", "truth", *(f"`{x}`" for x in estimators)], lines)
