"""Compare private training with a treatment rule, a non-private policy and no control, on newly drawn patients.

    python compare.py --scale smoke     # minutes, one seed, few users: shows that everything runs
    python compare.py --scale rules     # a minute: the rules only, on the days of `paper`
    python compare.py --scale paper     # half an hour on a core: five seeds, up to 10,000 users

Training runs are run folders under `--out`; rerun to resume. All controllers are evaluated on the same patients
and days, without random actions. Written: `results.csv` (a line for each run), and `results.png` and `.svg`:
return against epsilon and against the number of users.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import privrl_bench as pb
from privrl_bench.reporting import style
from privrl_insulin.baseline import (
    Controller,
    basal_bolus,
    basal_only,
    evaluate,
    with_corrections,
)

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": [0],
        "users": [500, 1000],
        "epsilons": [2.0, 8.0],
        "ppo_steps": 20_000,
        "days": 30,
    },
    "paper": {
        "seeds": [0, 1, 2, 3, 4],
        "users": [300, 1000, 3000, 10_000],
        "epsilons": [0.1, 0.25, 0.5, 1.0, 4.0],
        "ppo_steps": 500_000,
        "days": 500,
    },
}
SCALES["rules"] = SCALES["paper"] | {"seeds": []}
MAIN_USERS = {"smoke": 1000, "paper": 10_000, "rules": 10_000}  # of the sweep over epsilon
MAIN_EPSILON = {"smoke": 8.0, "paper": 4.0, "rules": 4.0}  # of the sweep over users
RULES = {
    "basal-bolus": basal_bolus,
    "corrections after 2 h": with_corrections(4),
    "corrections after 3 h": with_corrections(6),
    "basal only": basal_only,
}
SCORES = ("returns", "in_range", "low", "very_low")
MARKS = {
    "private": style.LineMark("dppg"),
    "poisson": style.LineMark("dppg"),
    "no noise": style.LineMark("dppg", status="none"),
    "ppo": style.LineMark("ppo", status="none"),
    "basal-bolus": style.LineMark("reinforce", status="none"),
    "corrections after 3 h": style.LineMark("a2c", status="none"),
    "basal only": style.LineMark("dqn", status="none"),
}
LINES = ("private", "poisson")  # that depend on epsilon and on the number of users
COLUMNS = ("controller", "epsilon", "delta", "status", "users", "seed", *SCORES)


@dataclass(frozen=True)
class Setting:
    """One training run.

    Attributes:
        controller: Its name in the table; part of the folder's name.
        users: Number of patients who take part.
        seed: Of the run.
        words: As on the command line.
        epsilon: That is asked for; None: without privacy.
    """

    controller: str
    users: int
    seed: int
    words: tuple[str, ...]
    epsilon: float | None = None

    @property
    def folder(self) -> str:
        """The name of the run folder."""
        asked = "" if self.epsilon is None else f",epsilon={self.epsilon:g}"
        return f"{self.controller},users={self.users}{asked},seed={self.seed}"


def private(users: int, epsilon: float | None, seed: int, poisson: bool = False) -> Setting:
    """Return a run of DPPG.

    Args:
        users: Number of declared users.
        epsilon: Of the whole run; None: the same training without noise.
        seed: Of the run.
        poisson: Users join each round at random, so that a user may be in several rounds. False: each is
            used once.

    Returns:
        The run.
    """
    cohort = max(users // 78, 32)  # of about 78 rounds, as tuned for 10,000 users
    words = ["algo=dppg", f"env.kwargs.users={users}", f"privacy.users_per_round={cohort}"]
    words.append("privacy.z=0" if epsilon is None else f"privacy.epsilon={epsilon:g}")
    words += [f"rounds={users // cohort}", "privacy.noise=secure"]  # users are declared
    words += ["privacy=poisson"] if poisson else []
    kind = "no noise" if epsilon is None else "poisson" if poisson else "private"
    return Setting(kind, users, seed, tuple(words), epsilon)


def settings(scale: str) -> Iterator[Setting]:
    """Yield the training runs of a scale, each once."""
    of, users, epsilon = SCALES[scale], MAIN_USERS[scale], MAIN_EPSILON[scale]
    for seed in of["seeds"]:
        for one in of["epsilons"]:
            yield private(users, one, seed)
        for count in of["users"]:
            if count != users:
                yield private(count, epsilon, seed)
        yield private(users, None, seed)
        yield private(users, epsilon, seed, poisson=True)
        words = ("algo=ppo", "env.kwargs.users=null", f"total_steps={of['ppo_steps']}")
        yield Setting("ppo", of["ppo_steps"] // 48, seed, words)


def train(setting: Setting, out: Path, more: Sequence[str] = ()) -> Any:
    """Train one run, or resume or load it.

    Args:
        setting: The run.
        out: Folder of all runs.
        more: Further words.

    Returns:
        The run, see `privrl_bench.run`.

    Raises:
        privrl_bench.RunFailed: Training failed; the next call resumes.
    """
    common = ("plugins=[privrl_insulin]", "env=insulin", "log=none", "eval.every=0")
    folder = str((out / "runs" / setting.folder).resolve()).replace(",", "\\,").replace("=", "\\=")
    words = [*common, *setting.words, *more, f"seed={setting.seed}", f"hydra.run.dir={folder}"]
    return pb.run(words, quiet=True)


def greedy(folder: Path) -> Controller:
    """Return the controller of a finished run: the most likely dose."""
    policy = pb.load_policy(folder)
    return lambda _, obs: float(policy.act(obs, greedy=True)[0])


def rows(scale: str, out: Path, more: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each controller and run; trains what is missing."""
    days = SCALES[scale]["days"]
    for name, rule in RULES.items():
        yield {"controller": name, **evaluate(rule, days).means()}
    for setting in settings(scale):
        run = train(setting, out, more)
        yield {
            "controller": setting.controller,
            "epsilon": run.epsilon,
            "delta": run.summary.get("delta"),
            "status": run.guarantee_status,
            "users": setting.users,
            "seed": setting.seed,
            **evaluate(greedy(run.folder), days).means(),
        }


def draw(table: Sequence[dict[str, Any]], users: int, epsilon: float, path: Path) -> None:
    """Draw the figure.

    Args:
        table: Rows of `rows`.
        users: Number of users of the left panel.
        epsilon: That was asked for in the right panel.
        path: Of the PNG file.
    """
    looks = dict(zip(MARKS, style.looks(list(MARKS.values())), strict=True))
    with style.figure(path, 2, vector=True) as panels:
        for axes, key in zip(panels, ("epsilon", "users"), strict=True):
            kept = [
                row
                for row in table
                if row["controller"] in LINES
                and (
                    row["users"] == users
                    if key == "epsilon"
                    else math.isclose(row["epsilon"], epsilon, rel_tol=0.05)
                )
            ]
            label = (
                f"epsilon, {users:,} users" if key == "epsilon" else f"users, epsilon {epsilon:g}"
            )
            style.epsilon_axis(axes, [row[key] for row in kept], label)
            axes.set_ylabel("return of a day")
            for at, name in enumerate(LINES):
                own = [row for row in kept if row["controller"] == name]
                _dots(axes, looks[name], name, own, key, (at, len(LINES)))
            for name in [name for name in MARKS if name not in LINES]:
                values = [row["returns"] for row in table if row["controller"] == name]
                if values:
                    style.level(axes, looks[name], name, float(np.mean(values)))
        style.legend(panels)


def draw_table(file: Path, path: Path) -> None:
    """Draw the figure of a table of the scale `paper`.

    Args:
        file: `results.csv`.
        path: Of the PNG file; the SVG file is beside it.
    """
    numbers = ("epsilon", "users", *SCORES)
    with file.open(encoding="utf-8", newline="") as lines:
        table = [
            row | {key: float(row[key] or math.nan) for key in numbers}
            for row in csv.DictReader(lines)
        ]
    draw(table, MAIN_USERS["paper"], MAIN_EPSILON["paper"], path)


def _dots(
    axes: Any,
    look: style.Look,
    label: str,
    chosen: Sequence[dict[str, Any]],
    key: str,
    turn: tuple[int, int],
) -> None:
    """Mean over seeds, smallest and largest return at every place."""
    if not chosen:
        return
    # Cohorts are integers: the epsilon of a run differs from the one asked for in the third digit.
    places = {row[key] if key == "users" else float(f"{row[key]:.2g}") for row in chosen}
    groups = {
        x: [row["returns"] for row in chosen if math.isclose(row[key], x, rel_tol=0.05)]
        for x in sorted(places)
    }
    means = [float(np.mean(values)) for values in groups.values()]
    ends = ([min(v) for v in groups.values()], [max(v) for v in groups.values()])
    style.dots(axes, look, label, list(groups), np.array(means), ends, turn)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description="Compare controllers of insulin.")
    parser.add_argument("--scale", choices=sorted(SCALES), default="smoke")
    parser.add_argument("--out", type=Path, default=Path("outputs/insulin"))
    parser.add_argument("words", nargs="*", help="of every run, such as hardware.workers=1")
    given = parser.parse_args()
    out = given.out / given.scale
    out.mkdir(parents=True, exist_ok=True)
    table = []
    with (out / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows(given.scale, out, given.words):
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
            file.flush()
            print(
                ", ".join(
                    f"{k} {row[k]:.4g}" if isinstance(row[k], float) else str(row[k]) for k in row
                )
            )
            table.append(row)
    draw(table, MAIN_USERS[given.scale], MAIN_EPSILON[given.scale], out / "results.png")
    print(out / "results.png")


if __name__ == "__main__":
    main()
