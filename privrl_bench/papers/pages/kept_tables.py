"""Blocks of items whose runs were not kept, from their table.md and JSON files.

Each function of `BLOCKS` returns the text of one block.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from privrl_bench.metrics import shown_epsilon, shown_measured
from privrl_bench.papers.pages.store import BLOCKS, STORE
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.table_writer import compact, parsed


def committed(item: str, **wanted: str) -> list[dict[str, str]]:
    """Lines of an item's table.md with these cells; for items whose runs were not kept."""
    lines = parsed((STORE / item / "table.md").read_text())
    return [one for one in lines if all(one[key] == value for key, value in wanted.items())]


# --- Doulazmi and Odonnat, whose runs were not kept


def solved(item: str, panel: str, columns: Sequence[str], first: str) -> str:
    """Lines of the panels whose names begin with `panel`, each once: sigma, and these columns."""
    names = {"median": "median episode", "mean episode": "mean"}
    found = {one["line"]: one for one in committed(item) if one["panel"].startswith(panel)}
    lines = [
        [label.removeprefix("sigma "), *(line[name] for name in columns)]
        for label, line in found.items()
    ]
    return compact([first, *(names.get(name, name) for name in columns)], lines)


def central() -> str:
    """REINFORCE with noise on gradients. Its epsilon is computed, so that it is rounded up."""
    lines = parsed(solved("dp-rl/fig3", "REINFORCE", CENTRAL, GRADIENTS))
    for line in lines:
        sigma = line[GRADIENTS].partition(",")[0]
        if float(sigma):
            event = ReleaseEvent("gaussian", float(sigma) / 2, "zero_out", sampling="fixed")
            line["epsilon"] = shown_epsilon(ledger_epsilon([event], 1e-5))
    return compact(list(lines[0]), [list(line.values()) for line in lines])


CENTRAL = ("solved", "median", "quartiles", "mean episode", "epsilon")
LATE = ("solved", "median", "quartiles", "mean episode", "last 100 episodes", "epsilon")
GRADIENTS = "noise on gradients, their sigma"
BLOCKS |= {
    "dp-rl/fig3": central,
    "dp-rl/fig6": lambda: solved(
        "dp-rl/fig6", "REINFORCE", ("solved", "median", "quartiles", "epsilon"), "sigma"
    ),
    "dp-rl/fig3-dqn": lambda: solved("dp-rl/fig3", "DQN", LATE, f"{GRADIENTS}, as in their text"),
    "dp-rl/fig3-code": lambda: solved(
        "dp-rl/fig3-code",
        "DQN, noise as in their code",
        LATE,
        f"{GRADIENTS}, as in their code",
    ),
    "dp-rl/fig6-dqn": lambda: solved("dp-rl/fig6", "DQN", LATE[:-1], "sigma"),
}


# --- GPOPE, whose runs were not kept


def errors(
    item: str, panels: Sequence[str], names: Sequence[str], rows: Sequence[str], level: str
) -> str:
    """Errors by n (rows) and line (columns), rounds in brackets; `level` has one error for all n."""
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
            found[level, rows[0]].partition(" ")[0],
        ]
        for n in rows
    ]
    return compact(["n", *names, level], cells)


def error_of(line: dict[str, Any]) -> str:
    """The error of a line."""
    return next(value for key, value in line.items() if key.endswith("mean ± std"))


LEVEL = "theta = 0 (does nothing)"
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
        LEVEL,
    ),
    "gpope/fig2": lambda: errors("gpope/fig2", ["mountain car"], RIVALS, SIZES, LEVEL),
    "gpope/fig3": lambda: errors("gpope/fig3", ["on-policy"], [*HIV[:3], LSTD], SIZES, LEVEL),
    "gpope/fig4": lambda: errors("gpope/fig4", ["HIV"], HIV, PATIENTS, LEVEL),
}


# --- DQN, audit, speed


def people() -> str:
    """Final return of DQN whose unit is a person, by z."""
    lines = [
        [line["z"], line["epsilon"], line["return (mean ± 95 % CI)"], line["min"], line["max"]]
        for line in reversed(committed("dp-rl/dqn-people"))
    ]
    return compact(["z", "epsilon", "final return, five seeds", "min", "max"], lines)


def averaging() -> str:
    """Return with and without an average of the released policies."""
    lines = [
        [line["algo"], line["z"], line["epsilon"], line["variant"].split("=")[1].removesuffix(".0"),
         line["seeds"], line["return (mean ± 95 % CI)"], line["min"], line["max"]]
        for line in reversed(committed("dp-rl/averaging"))
    ]  # fmt: skip
    return compact(
        ["", "z", "epsilon", "`algo.averaging`", "seeds", "return ± 95 % interval", "min", "max"],
        lines,
    )


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


BLOCKS |= {
    "dp-rl/dqn-people": people,
    "dp-rl/averaging": averaging,
    "audit/canary": audit,
    "audit/others": audit_others,
}
