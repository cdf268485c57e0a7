"""Speed: blocks of docs/speed.md and docs/scaling.md, from the files of outputs/paper/speed/."""

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
    for name, row in _found()["workers"].items():
        one, two = row["1"], row["2"]
        low, high = two["ratio_range"]
        speeds = [f"{x['steps_per_second']:,.0f}" for x in (one, two)]
        lines.append([name, *speeds, f"{two['ratio']:.2f} ({low:.2f} to {high:.2f})"])
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


def speed() -> str:
    """Steps per second of training, and the ratio to a plain Gymnasium loop."""
    speeds = json.loads((STORE / "speed" / "speed.json").read_text())["speeds"]
    found = {env: speeds[env]["dppg"] for env in ("cartpole", "hopper", "halfcheetah")}
    rate = {env: f"{one['steps_per_second']:,.0f}" for env, one in found.items()}
    ratio = {env: f"{one['ratio']:.2f}" for env, one in found.items()}
    return (
        f"CartPole {rate['cartpole']} steps/s; Hopper {rate['hopper']}, {ratio['hopper']} times the "
        "rate of stepping the same environments in a plain Gymnasium loop without learning; "
        f"HalfCheetah {rate['halfcheetah']}, {ratio['halfcheetah']} times."
    )


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


BLOCKS |= {
    "speed/summary": speed,
    "speed/environments": speeds,
    "scaling/workers": workers,
    "scaling/prediction": prediction,
    "scaling/check": check,
    "scaling/million": million,
}
