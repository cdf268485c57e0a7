"""Blocks of docs/scaling.md, from outputs/paper/speed/scaling.json (bench_workers.py, predict_time.py)."""

from __future__ import annotations

import json
from typing import Any

from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.pages.store import BLOCKS, STORE
from privrl_bench.reporting.table_writer import compact


def _found() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORE / "speed" / "scaling.json").read_text())
    return found


def workers() -> str:
    """A round with one and with two workers."""
    lines = []
    for row in _found()["workers"]:
        one, two = row["workers"]["1"], row["workers"]["2"]
        users = f", {row['users']:,} users" if row["users"] else ""
        ratios = f"{two['ratio']:.2f} ({two['ratios'][0]:.2f} to {two['ratios'][-1]:.2f})"
        speeds = [f"{x['steps_per_second']:,.0f}" for x in (one, two)]
        lines.append([f"{row['env']}{users}", *speeds, ratios])
    return compact(["", "steps/s, one worker", "two workers", "ratio"], lines)


def prediction() -> str:
    """Time and cost on c cores."""
    found = _found()["prediction"]
    lines = [
        [
            f"{row['cores']}",
            f"{row['round_seconds']:.1f} s",
            f"{row['hours']:.1f} h",
            f"{row['hours'] * row['cores']:.0f}",
        ]
        for row in found["runs"]
    ]
    return compact(["cores", "a round", "1,000 rounds", "core hours"], lines)


def check() -> str:
    """The prediction of a round that was measured."""
    found = _found()["prediction"]["check"]
    return (
        f"{found['users']:,} users on two cores: predicted {found['predicted']:.1f} s, measured "
        f"{found['measured']:.1f} s"
    )


def million() -> str:
    """Rounds of very many users."""
    lines = [
        [
            name,
            shown_epsilon(row["epsilon"]),
            f"{row['delta']:g}",
            row["status"],
            f"{row['peak_gb']:.2f} GB",
            f"{row['steps'] / row['seconds']:,.0f}",
        ]
        for name, row in _found()["users"].items()
    ]
    return compact(["cohort", "epsilon", "delta", "status", "peak memory", "steps/s"], lines)


BLOCKS |= {
    "scaling/workers": workers,
    "scaling/prediction": prediction,
    "scaling/check": check,
    "scaling/million": million,
}
