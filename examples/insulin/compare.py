"""Compare private training with treatment rules, a non-private policy and no control, on newly drawn patients.

    python compare.py --scale smoke     # minutes, one seed, few users: shows that everything runs
    python compare.py --scale rules     # seconds: the rules only, on the days of `paper`
    python compare.py --scale paper     # more than an hour on a core: five seeds, up to 10,000 users

All policies are evaluated on the same patients and days, without random actions. Written: `results.csv` (a row
for each rule and run, with its intervals over days), and `results.png` and `.svg`: return against epsilon and
against the number of users, drawn from the table. Printed: the table in Markdown. Rerun to resume: rows of the
table are kept (`--again` computes them anew), and training runs are run folders under `--out`.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import privrl_bench as pb
from privrl_bench.composition.compose import compose
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.reporting import style
from privrl_bench.training.provenance import provenance
from privrl_insulin.baseline import MEASURES, RULES, Controller, evaluate

SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        "seeds": [1000],
        "users": [500, 1000],
        "epsilons": [2.0, 8.0],
        "ppo_steps": 20_000,
        "days": 30,
    },
    "paper": {
        "seeds": [1000, 1001, 1002, 1003, 1004],
        "users": [300, 1000, 3000, 10_000],
        "epsilons": [0.1, 0.25, 0.5, 1.0, 4.0],
        "ppo_steps": 500_000,
        "days": 500,
    },
}
SCALES["rules"] = SCALES["paper"] | {"seeds": []}
MAIN_USERS = {"smoke": 1000, "paper": 10_000, "rules": 10_000}  # of the sweep over epsilon
MAIN_EPSILON = {"smoke": 8.0, "paper": 4.0, "rules": 4.0}  # of the sweep over users
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
COMMON = ("plugins=[privrl_insulin]", "env=insulin", "log=none", "eval.every=0")
KEY = ("controller", "users", "asked", "seed", "days")  # says which row it is; `asked`: an epsilon
ENDS = ("", "_low", "_high")  # mean, and its 95 % interval over days
COLUMNS = (
    *(*KEY, "steps", "epsilon", "delta", "status", "adjacency", "returns"),
    *(measure + end for measure in MEASURES for end in ENDS),
    *("words", "commit", "processor", "versions"),
)


@dataclass(frozen=True)
class Setting:
    """A rule, or one training run.

    Attributes:
        controller: Its name in the table; part of the folder's name.
        users: Number of declared patients who take part; None: none are declared.
        seed: Of the run.
        words: As on the command line.
        epsilon: That is asked for; None: without privacy.
    """

    controller: str
    users: int | None = None
    seed: int | None = None
    words: tuple[str, ...] = ()
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
    """Yield the rules and the training runs of a scale, each once."""
    yield from map(Setting, RULES)
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
        yield Setting("ppo", None, seed, words)


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
    folder = str((out / "runs" / setting.folder).resolve()).replace(",", "\\,").replace("=", "\\=")
    words = [*COMMON, *setting.words, *more, f"seed={setting.seed}", f"hydra.run.dir={folder}"]
    return pb.run(words, quiet=True)


def greedy(folder: Path) -> Controller:
    """Return the controller of a finished run: the most likely dose."""
    policy = pb.load_policy(folder)
    return lambda _, obs: float(policy.act(obs, greedy=True)[0])


def row_of(setting: Setting, days: int, out: Path, more: Sequence[str] = ()) -> dict[str, str]:
    """Evaluate a rule or a run, which is trained if it is missing.

    Args:
        setting: The rule or the run.
        days: Number of days.
        out: Folder of all runs.
        more: Further words of the run.

    Returns:
        The row of the table; a column without a value is empty.
    """
    row: dict[str, Any] = {}
    if setting.controller in RULES:
        controller, made = RULES[setting.controller], provenance(compose(COMMON))
    else:
        run = train(setting, out, more)
        controller, made = greedy(run.folder), run.provenance
        row = {
            "steps": run.summary["steps"],
            "epsilon": run.epsilon,
            "status": run.guarantee_status,
            "words": " ".join(more),
        }
        row |= {"delta": run.summary.get("delta"), "adjacency": run.guarantee.get("adjacency")}
    versions = {"simglucose": version("simglucose"), **made["versions"]}
    row |= dict(zip(KEY, key_of(setting, days), strict=True))
    row |= evaluate(controller, days).summary()
    row |= {"commit": f"{made['commit'] or ''}{'-dirty' * bool(made['dirty'])}"}
    row |= {"processor": made["processor"]}
    row |= {"versions": "; ".join(f"{name} {at}" for name, at in versions.items() if at)}
    return {name: _text(row.get(name)) for name in COLUMNS}


def key_of(setting: Setting, days: int) -> tuple[str, ...]:
    """Return the values of `KEY` in the setting's row."""
    values = (setting.controller, setting.users, setting.epsilon, setting.seed, days)
    return tuple(map(_text, values))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def read(file: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows of a table by `KEY`; none if there is no file.

    Raises:
        SystemExit: The file has other columns.
    """
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise SystemExit(f"{file} has other columns than this comparison writes")
        return {tuple(row[name] for name in KEY): row for row in reader}


def markdown(table: Iterable[dict[str, str]]) -> Iterator[str]:
    """Yield a line for each controller, population and epsilon: means over seeds, also of intervals' ends.

    The last column has the mean risk index with its 95 % interval over seeds (Student's t), and its range.
    """
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in table:
        groups.setdefault(tuple(row[name] for name in KEY[:3]), []).append(row)
    named = ("risk index", "70-180 mg/dl", "below 70", "below 54", "risk index over seeds")
    yield f"| controller | population | epsilon | seeds | {' | '.join(named)} |"
    yield "|---" * 9 + "|"
    for key, found in groups.items():
        cells = [
            *(part or "-" for part in key),
            str(sum(row["seed"] != "" for row in found) or "-"),
        ]
        for name in MEASURES:
            mean, low, high = (np.mean([float(row[name + end]) for row in found]) for end in ENDS)
            if name == "risk":
                cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            else:
                cells.append(f"{100 * mean:.1f} % ({100 * low:.1f} to {100 * high:.1f})")
        risk = [float(row["risk"]) for row in found]
        mean, half = mean_ci(risk)
        ends = f"{mean:.2f} ± {half:.2f} ({min(risk):.2f} to {max(risk):.2f})"
        cells.append(ends if len(risk) > 1 else "-")
        yield f"| {' | '.join(cells)} |"


def draw_table(file: Path, path: Path, scale: str = "paper") -> None:
    """Draw the figure of a table.

    Args:
        file: `results.csv`.
        path: Of the PNG file; the SVG file is beside it.
        scale: Of the table.
    """
    users, epsilon = MAIN_USERS[scale], MAIN_EPSILON[scale]
    numbers = ("epsilon", "users", "returns")
    with file.open(encoding="utf-8", newline="") as lines:
        table = [
            row | {key: float(row[key] or math.nan) for key in numbers}
            for row in csv.DictReader(lines)
        ]
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
    parser.add_argument("--csv", type=Path, help="the table; default: OUT/SCALE/results.csv")
    parser.add_argument("--again", action="store_true", help="evaluate what the table has anew")
    parser.add_argument("words", nargs="*", help="of every run, such as hardware.workers=1")
    given = parser.parse_args()
    out, days = given.out / given.scale, SCALES[given.scale]["days"]
    out.mkdir(parents=True, exist_ok=True)
    file = given.csv or out / "results.csv"
    table = read(file)
    if others := sorted({row["days"] for row in table.values()} - {str(days)}):
        parser.error(f"--csv: {file} has rows of {', '.join(others)} days, this scale has {days}")
    for setting in settings(given.scale):
        key = key_of(setting, days)
        if key in table and not given.again:
            words = table[key]["words"]
            if setting.controller not in RULES and words != " ".join(given.words):
                parser.error(f"words: {file} has runs with {words or 'no words'}; give --again")
            continue
        row = table[key] = row_of(setting, days, out, given.words)
        with file.with_suffix(".tmp").open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table.values())
        file.with_suffix(".tmp").replace(file)
        print(
            ", ".join(f"{name} {row[name]}" for name in (*KEY, "epsilon", *MEASURES) if row[name])
        )
    print(*markdown(table.values()), sep="\n")
    draw_table(file, out / "results.png", given.scale)
    print(out / "results.png")


if __name__ == "__main__":
    main()
