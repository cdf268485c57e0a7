"""Speed: blocks of docs/speed.md and docs/scaling.md and a figure, from the files of outputs/paper/speed/."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.pages.store import BLOCKS, STORE
from privrl_bench.reporting.style import MARKERS, PALETTE, RC
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


def picture(found: dict[str, Any], folder: Path) -> Path:
    """Draw speed.svg: shares, speed over replicas, memory. Returns its path."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        figure = Figure(figsize=(6.9, 2.2), layout="constrained")
        FigureCanvasAgg(figure)
        bars, speed, memory = figure.subplots(1, 3, width_ratios=[1.3, 1, 1])
        left = np.zeros(len(found["shares"]))
        for colour, part in enumerate(list(next(iter(found["shares"].values())))):
            widths = np.array([100 * row[part] for row in found["shares"].values()])
            bars.barh(
                list(found["shares"]),
                widths,
                left=left,
                label=part,
                color=PALETTE[colour % len(PALETTE)],
            )
            left = left + widths
        bars.set(xlabel="share of a run's wall time [%]", title="one run, one core", xlim=(0, 100))
        bars.invert_yaxis()
        bars.grid(visible=False)
        bars.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        for at, u in enumerate(sorted({row["users"] for row in found["scaling"]})):
            drawn: Any = {"marker": MARKERS[at], "color": PALETTE[at], "label": f"{u}"}
            rows = [row for row in found["scaling"] if row["users"] == u]
            r = [row["replicas"] for row in rows]
            speed.plot(r, [row["steps_per_second"] / 1e3 for row in rows], **drawn)
            size = [row["replicas"] * row["users"] * row["steps"] for row in rows]
            used = [row["bytes"] / 2**20 or math.nan for row in rows]
            memory.plot(size, used, **drawn)
        speed.set(xlabel="replicas R", xscale="log", title="CartPole, one core, all replicas")
        speed.set(ylabel="1,000 environment steps/s", ylim=0)
        memory.set(xlabel="R x U x T", ylabel="peak memory above imports [MiB]", title="memory")
        memory.set(xscale="log", yscale="log")
        for axes in (speed, memory):
            axes.legend(title="users U")
        figure.savefig(folder / "speed.svg", metadata={"Date": None})
    return folder / "speed.svg"


BLOCKS |= {
    "speed/summary": speed,
    "speed/environments": speeds,
    "scaling/workers": workers,
    "scaling/prediction": prediction,
    "scaling/check": check,
    "scaling/million": million,
}
