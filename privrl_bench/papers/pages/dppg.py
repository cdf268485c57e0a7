"""Blocks of the DPPG paper and of DPPG at small epsilon, and its figures, from runs.csv and curves.csv.gz."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import ttest_ind

from privrl_bench.composition.compose import compose
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.papers.frontier import Point, best, points, predict, rounds_by_rule
from privrl_bench.papers.items import finished_runs, read_trivial
from privrl_bench.papers.pages.store import (
    BLOCKS,
    STORE,
    TASKS,
    Group,
    block,
    by_task,
    chosen,
    committed,
    digits_of,
    finals,
    grouped,
    interval,
    least,
    most,
    noted,
    paper_table,
    rounds_of,
    runs_table,
    seeds,
    spent,
    spread,
    status,
    steps,
    stored,
    theirs,
    users_of,
    without_repeats,
    z_of,
)
from privrl_bench.privacy.accounting.calibrate import z_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.runs import Run, flatten, number
from privrl_bench.reporting.style import (
    MARKERS,
    REFERENCE,
    LineMark,
    dots,
    epsilon_axis,
    figure,
    legend,
    level,
    lightness,
    looks,
    returns_of,
    shade,
)
from privrl_bench.reporting.table_writer import ABSENT, compact

# --- the paper's table 1, and this project's own settings


def _printed_of(runs: Group) -> str:
    """The number of DPPG's table 1 with the task and z of these runs, `-` if it has none."""
    which = (runs[0].env, f"DPPG z = {z_of(runs)}")
    cells = (cell for cell in paper_table("dppg").cells if (cell.env, cell.label) == which)
    return next(map(theirs, cells), ABSENT)


FORMAL = {  # start of the runs' keys -> the return that was asked of this project
    "dppg/cartpole/z=1,": "475",
    "dppg/cartpole/z=3,": "350",
    "dppg/acrobot/": "-90",
    "dppg/pendulum/": "a curve",
    "dppg/hopper/": "650",
    "dppg/halfcheetah/": "1,000",
}


@block("dppg/formal-intervals")
def _formal_intervals() -> str:
    lines, groups = [], [chosen("dppg/formal", start) for start in FORMAL]
    for runs, asked in zip(groups, FORMAL.values(), strict=True):
        values = finals(runs)
        line = [TASKS[runs[0].env], z_of(runs), seeds(runs), spread(values)]
        line += [f"{min(values):.1f}", f"{max(values):.1f}", spent(runs), asked]
        lines.append([*line, _printed_of(runs).partition(" ")[0]])
    head = ["task", "z", "seeds", "return ± 95 % interval over seeds", "min", "max", "epsilon"]
    head += ["asked of this project", "the paper's, not formal"]
    return noted(compact(head, lines), groups)


@block("dppg/table1")
def _table1() -> str:
    table, folder = paper_table("dppg"), STORE / "dppg/table1"
    runs, trivial = finished_runs(folder, table), read_trivial(folder)
    lines = []
    for cell in table.cells:
        ours, formal = runs[cell.paper_like], runs.get(cell.formal, [])
        cost = f" ({spent(ours, digits=3)})" if cell.formal else ""
        lines.append(
            [
                TASKS[cell.env],
                cell.label,
                theirs(cell, digits_of(ours)),
                interval(ours) + cost,
                f"{interval(formal)} ({spent(formal, digits=3)})" if formal else "",
                trivial[cell.env].partition(" ")[0] if cell.label == "PPO" else "",
            ]
        )
    head = ["task", "method", "paper", "as the paper does it (epsilon)", "formal (epsilon)"]
    return compact([*head, "trivial"], without_repeats(lines))


FACTORS = {  # recorded words beside those of `+paper=dppg` -> what they change
    "": "as the paper does it, here",
    "env.reward_scaling=none": "raw rewards",
    "algo.time_limit=terminate": "time limits as terminations",
    "algo.advantage_scope=minibatch": "advantages normalised per minibatch",
    "algo.local_adam=seeded": "local Adam seeded from the last release",
}
_ALWAYS = ("algo=dppg", "paper=dppg", "+paper=dppg", "env=", "privacy.z=", "seed=", "rounds=")


@block("dppg/learner")
def _learner() -> str:
    return noted("", [stored("dppg/learner")]).strip()


@block("dppg/causes")
def _causes() -> str:
    """Cells below the paper's interval: the paper's runs with one factor changed."""

    def factor(run: Run) -> str:
        return " ".join(word for word in run.overrides if not word.startswith(_ALWAYS))

    def key(run: Run) -> tuple[str, str, int]:
        return run.env, f"{run.z:g}", list(FACTORS).index(factor(run))

    def cell(runs: Group) -> str:
        return f"{TASKS[runs[0].env]}, z = {z_of(runs)} (paper: {_printed_of(runs)})"

    columns: dict[str, Callable[[Group], str]] = {
        "runs": lambda runs: FACTORS[factor(runs[0])],
        "seeds": seeds,
        "final evaluation ± 95 % interval over seeds": lambda runs: spread(finals(runs)),
        "min": lambda runs: f"{min(finals(runs)):.1f}",
        "max": lambda runs: f"{max(finals(runs)):.1f}",
        "training episodes, last tenth of the run": lambda runs: spread(
            [run.training_return for run in runs]
        ),
    }
    groups = grouped(stored("dppg/causes"), key)
    return runs_table("cell", [(cell(runs), runs) for runs in groups], columns)


# --- small epsilon, beside PPO and DPPG without noise

SMALL, GAP = "dppg/small_epsilon", "dppg/gap"
# Of the README's table: task and the largest epsilon, the smallest that solves it or the one asked for.
ROWS = {
    **{"cartpole": 0.14, "acrobot": 1.0, "dosing0": 1.0},
    **{"pendulum": 4.4, "hopper": 4.4, "halfcheetah": 4.4},
}
# Its epsilons, and that of Dosing for the other task. CartPole has 500 in every run.
NOISE = {
    **{"acrobot": 1.0, "dosing0": 1.0, "dosing1": 1.0},
    **{"pendulum": 4.378, "hopper": 4.378, "halfcheetah": 4.378},
}
_SAME = 0.01  # relative difference: rounds of another size end at another step


def _epsilon(run: Run) -> float:
    return number(run.summary["epsilon"])


def _steps(run: Run) -> float:
    return number(run.summary["steps"])


def noiseless(env: str) -> list[Run]:
    """DPPG's runs without noise."""
    return [run for run in stored(GAP) if (run.env, run.algo) == (env, "dppg")]


def private(env: str) -> list[Run]:
    """Private runs with the users and rounds of those without noise."""
    sizes = {(users_of(run), rounds_of(run)) for run in noiseless(env)[:1]}
    own = [run for run in stored(SMALL) if run.env == env]
    return [run for run in own if (users_of(run), rounds_of(run)) in sizes]


def ppo(env: str, beside: Group) -> list[list[Run]]:
    """PPO's runs on a task, those of the same number of steps together, nearest to the others first."""
    groups = grouped((r for r in stored(GAP) if (r.env, r.algo) == (env, "ppo")), _steps)
    return sorted(groups, key=lambda group: abs(_steps(group[0]) - _steps(beside[0])))


def _with_steps(groups: Iterable[Group], beside: Group, show: Callable[[Group], str]) -> str:
    """Each group's returns, with its steps where they are not those of the other runs."""
    cells = []
    for group in groups:
        equal = abs(_steps(group[0]) / _steps(beside[0]) - 1) < _SAME
        cells.append(show(group) + ("" if equal else f", {steps(group)} steps"))
    return "; ".join(cells)


def _counted(runs: Group) -> str:
    return f"{interval(runs)} ({len(runs)})"


def _users(runs: Group) -> str:
    return f"{users_of(runs[0]):,}"


def _rounds(runs: Group) -> str:
    return f"{rounds_of(runs[0]):,}"


@block(SMALL)
def _small_epsilon() -> str:
    def key(run: Run) -> tuple[int, float, int, int]:
        return list(TASKS).index(run.env), _epsilon(run), users_of(run), -rounds_of(run)

    columns = {"epsilon": spent, "z": z_of, "users of a run": _users, "rounds": _rounds}
    columns |= {"steps": steps, "seeds": seeds, "return ± 95 % interval over seeds": interval}
    columns |= {"min": least, "max": most, "status": status}
    return runs_table("task", by_task(grouped(stored(SMALL), key)), columns)


@block("dppg/learner_check")
def _learner_check() -> str:
    def key(run: Run) -> tuple[int, float]:
        return list(TASKS).index(run.env), -_epsilon(run)

    columns = {"epsilon": spent, "users of a run": _users, "steps": steps, "seeds": seeds}
    columns |= {"mean": lambda runs: f"{fmean(finals(runs)):.0f}", "min": least, "max": most}
    return runs_table("task", by_task(grouped(stored("dppg/learner_check"), key)), columns)


@block("readme")
def _readme() -> str:
    """One row for each task, at an epsilon that means something: the largest that `ROWS` allows."""
    groups = []
    for env, allowed in ROWS.items():
        runs = [r for r in stored(SMALL) if r.env == env and _epsilon(r) <= allowed + 1e-6]
        groups.append([run for run in runs if _epsilon(run) == max(map(_epsilon, runs))])
    columns = {"epsilon": spent, "users of a run": _users, "steps": steps, "seeds": seeds}
    columns |= {"return": interval}
    columns |= {"PPO": lambda runs: _with_steps(ppo(runs[0].env, runs), runs, interval)}
    columns |= {"of PPO": _of_ppo}
    return runs_table("task", by_task(groups), columns)


def _of_ppo(runs: Group) -> str:
    """How far from random actions to PPO of the nearest number of steps, on average."""
    env = runs[0].env
    trivial = read_trivial(STORE / "dppg/table1") | read_trivial(STORE / "primorl/table1")
    policies = {what.partition("(")[2]: what.split()[0] for what in trivial[env].split("; ")}
    least = float(policies["random)"])
    mine, theirs = (float(np.mean(finals(some))) for some in (runs, ppo(env, runs)[0]))
    return f"{(mine - least) / (theirs - least):.0%}"


@block(GAP)
def _gap() -> str:
    """The gap between DPPG and PPO at equal steps: the part of the learner and the part of the noise."""
    lines = []
    for env in TASKS:
        without = noiseless(env)
        for runs in grouped(private(env), lambda run: -_epsilon(run)):
            pooled, digits = ppo(env, without), digits_of(runs)
            means = [float(np.mean(finals(some))) for some in (pooled[0], without, runs)]
            parts = [means[0] - means[2], means[0] - means[1], means[1] - means[2]]
            line = [TASKS[env], steps(runs), _with_steps(pooled, runs, _counted)]
            line += [_counted(without), spent(runs), _counted(runs)]
            lines.append([*line, *[f"{x:.{digits}f}" for x in parts]])
    head = ["task", "steps", "PPO", "DPPG, z = 0", "epsilon", "DPPG"]
    return compact([*head, "gap", "learner", "noise"], without_repeats(lines))


@block("dppg/noise")
def _noise() -> str:
    parts = []
    for env, epsilon in NOISE.items():
        runs = [run for run in private(env) if abs(_epsilon(run) - epsilon) < _SAME]
        samples, digits = (finals(noiseless(env)), finals(runs)), digits_of(runs)
        low, high = ttest_ind(*samples, equal_var=False).confidence_interval()
        cost = np.mean(samples[0]) - np.mean(samples[1])
        shown = f"{cost:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"
        parts.append(f"{TASKS[env]} {shown} at {spent(runs)}")
    return ", ".join(parts)


# --- the measured frontier, and runs that did not make it

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
USERS = (1_000, 10_000, 100_000, 1_000_000)
DELTA = 1e-5


def z_of_release(epsilon: float, delta: float = DELTA) -> float:
    """Noise multiplier of a user's only release, under zero-out.

    >>> z_of_release(1.0)
    3.731
    """
    return z_for(
        epsilon, lambda z: ReleaseEvent("gaussian", z, "zero_out", sampling="fixed"), 1, delta
    )


@cache
def measured(env: str) -> tuple[Point, ...]:
    """The points of an environment with today's default settings."""
    settings = dict(flatten(asdict(compose(["algo=dppg", f"env={env}"]))))
    return tuple(points("dppg", env, settings, STORE))


@cache
def environments() -> list[str]:
    """Those with measured runs of the default values at several noises, in the order of the tables."""
    return [env for env in TASKS if len({one.noise for one in measured(env)} - {0.0}) > 1]


@block("dppg/frontier")
def _frontier() -> str:
    lines = []
    for env in environments():
        for users in USERS:
            found = [best(measured(env), users, z_of_release(epsilon)) for epsilon in EPSILONS]
            cells = [ABSENT if one is None else f"{one.mean:.0f} ({one.rounds})" for one in found]
            lines.append([TASKS[env], f"{users:,}", *cells])
    head = ["task", "users", *(f"epsilon {shown_epsilon(one)}" for one in EPSILONS)]
    return compact(head, without_repeats(lines))


@block("dppg/split_rule")
def _rule() -> str:
    lines = []
    for env in environments():
        if len({one.rounds for one in measured(env)}) > 1:  # else there is nothing to choose from
            lost = regrets(env)
            lines.append([TASKS[env], str(len(lost)), f"{np.mean(lost):.1f}", f"{max(lost):.1f}"])
    return compact(["task", "users and epsilons", "mean return lost", "most"], lines)


def regrets(env: str) -> list[float]:
    """Return of the best split less that of the rule, for 1,000 to 1,000,000 users and every epsilon."""
    found, clip = [], compose(["algo=dppg", f"env={env}"]).privacy.clip
    choices = sorted({one.rounds for one in measured(env)})
    for users in np.geomspace(1e3, 1e6, 13).astype(int).tolist():
        for z in map(z_of_release, EPSILONS):
            top = best(measured(env), users, z)
            ruled = predict(measured(env), users, z, rounds_by_rule(choices, users, z, clip))
            if top is not None and ruled is not None:
                found.append(top.mean - ruled.mean)
    return found


@block("dppg/frontier_check")
def _check() -> str:
    def key(run: Run) -> tuple[str, float, int, int]:
        return run.env, float(run.z or 0.0), users_of(run), rounds_of(run)

    def predicted(runs: Group) -> str:
        env, z, users, rounds = key(runs[0])
        one = predict(measured(env), users, z, rounds)
        return ABSENT if one is None else f"{one.mean:.1f} ({one.low:.1f} to {one.high:.1f})"

    def found(runs: Group) -> str:
        values = finals(runs)
        return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    columns = {"epsilon": spent, "users": _users, "rounds": lambda runs: str(rounds_of(runs[0]))}
    columns |= {"seeds": seeds, "predicted": predicted, "measured": found}
    return runs_table("task", by_task(grouped(stored("dppg/frontier_check"), key)), columns)


@block("dppg/preview_check")
def _previews() -> str:
    lines = []
    for runs in grouped(
        stored("dppg/preview_check"), lambda run: (run.z or 0.0, run.guarantee_status != "none")
    ):
        real, values = status(runs) != "none", finals(runs)
        what = "256 users a round" if real else "64 users a round, the noise of 256"
        cells = [f"{np.mean(values):.1f}", f"{min(values):.1f}", f"{max(values):.1f}"]
        lines.append([z_of(runs), what, spent(runs) if real else ABSENT, seeds(runs), *cells])
    return compact(["z", "cohort", "epsilon", "seeds", "mean return", "min", "max"], lines)


BLOCKS["dppg/tuning"] = lambda: (STORE / "dppg" / "tuning" / "table.md").read_text().strip()

# --- language models

_TEXT = "dppg_text/sentiment_small/"
LINES = {  # label -> beginning of the keys of its runs
    "PPO": "ppo_text/sentiment_small/seed",
    "DPPG z = 0.01": f"{_TEXT}z=0.01,algo.",
    "DPPG z = 0.01, values for z = 0.5": f"{_TEXT}z=0.01,seed",
    "DPPG z = 0.5": f"{_TEXT}z=0.5,",
}


def _start_of(runs: Group, name: str | None = None) -> float:
    """Mean over seeds of a metric before training."""
    return float(np.mean([run.curve(name)[1][0] for run in runs]))


def _last(runs: Group, name: str, digits: int) -> str:
    """Least and largest last value of a metric."""
    values = [run.curve(name)[1][-1] for run in runs]
    digits = 0 if max(values) >= 100 else digits
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


def _score(runs: Group) -> str:
    return spread(finals(runs), 2)


def _gain(runs: Group) -> float:
    """Mean score less that of the start model."""
    return float(np.mean(finals(runs))) - _start_of(runs)


_TEXTS: dict[str, Callable[[Group], str]] = {
    "perplexity": lambda runs: _last(runs, "eval/perplexity", 1),
    "KL, nats": lambda runs: _last(runs, "eval/kl", 0),
}


@block("dppg/fig7")
def _texts() -> str:
    found = {label: chosen("dppg/fig7", key) for label, key in LINES.items()}
    columns = {"epsilon": spent, "seeds": seeds, "mean score": _score}
    columns |= {"gain": lambda runs: f"{_gain(runs):.2f}"}
    columns |= {"of PPO's": lambda runs: f"{100 * _gain(runs) / _gain(found['PPO']):.0f} %"}
    return runs_table("", found.items(), columns | _TEXTS)


@block("dppg/fig7-start")
def _start() -> str:
    runs = chosen("dppg/fig7", LINES["PPO"])
    return f"{_start_of(runs):.2f}, and perplexity {_start_of(runs, 'eval/perplexity'):.1f}"


@block("dppg/rlhf-epsilon")
def _by_epsilon() -> str:
    lines = []
    for users, words in (("128", ""), ("512", "privacy.users_per_round=512,")):
        for z in ("0.01", "0.1", "0.5", "1", "2"):
            runs = chosen("dppg/rlhf-epsilon", f"{_TEXT}z={z},{words}seed")
            more = (show(runs) for show in _TEXTS.values())
            lines.append([users, z, spent(runs), seeds(runs), _score(runs), *more])
    names = ["users in a round", "z", "epsilon", "seeds", "mean score", *_TEXTS]
    return compact(names, lines)


# --- correlated noise beside independent noise

NOISES = ("independent noise", "correlated noise")


def beside(item: str, prefix: str = "") -> str:
    """Final return with either noise, by environment and z, where one of them is correlated."""
    found = {
        (line["panel"], line["z"], line["line"].removeprefix(prefix)): line
        for line in committed(item)
    }
    rows = []
    for (panel, z, name), line in found.items():
        if name == NOISES[1]:
            both = [found.get((panel, z, noise), {}).get("return", "") for noise in NOISES]
            rows.append([panel, z, line["epsilon"], line["seeds"], *both])
    return compact(["task", "z", "epsilon", "seeds", *NOISES], without_repeats(rows))


@block("dppg/correlation")
def _correlations() -> str:
    lines = committed("dppg/correlation")
    values = list(dict.fromkeys(line["privacy.correlation"] for line in lines))
    panels: dict[str, dict[str, str]] = {}
    for line in lines:
        panels.setdefault(line["panel"], {})[line["privacy.correlation"]] = line["return"]
    rows = [[panel, *(found.get(value, "") for value in values)] for panel, found in panels.items()]
    return compact(["task", *values], rows)


BLOCKS |= {
    "dppg/correlated-fig2": lambda: beside("dppg/fig2", "formal, "),
    "dppg/correlated-low-epsilon": lambda: beside("dppg/correlated-low-epsilon"),
    "dppg/correlated-mujoco": lambda: beside("dppg/correlated-mujoco"),
}


# --- figures of return against epsilon: of small_epsilon and gap, and of the measured frontier

Dot = tuple[float, float, float]  # epsilon, mean, half width of the 95 % interval


def lines_of(env: str) -> list[list[Dot]]:
    """Points of a task, a line for each number of steps; of several splits at an epsilon the best."""
    groups: dict[tuple[int, float, int, int], list[float]] = {}
    for run in stored(SMALL):
        if run.env == env:
            steps = round(number(run.summary["steps"]), -5)  # whole rounds differ a little
            epsilon = number(run.summary["epsilon"])
            key = (int(steps), epsilon, rounds_of(run), users_of(run))
            groups.setdefault(key, []).append(run.final_value)
    best: dict[int, dict[float, list[float]]] = {}
    for (steps, epsilon, *_), values in sorted(groups.items(), key=lambda one: fmean(one[1])):
        best.setdefault(steps, {})[epsilon] = values
    return [
        [(epsilon, *mean_ci(values)) for epsilon, values in sorted(line.items())]
        for _, line in sorted(best.items())
    ]


def draw_small(path: Path, only: Sequence[str] = ()) -> Path:
    """Draw return against epsilon, a panel for each task. Returns its path.

    Runs of a task with the same number of steps are one line. Dotted: without privacy, and before training.

    Args:
        path: of the figure.
        only: the tasks; empty: all that have results.
    """
    drawn = [env for env in TASKS if sum(map(len, lines_of(env))) > 1 or finals(noiseless(env))]
    tasks = list(only) or drawn
    marks = [LineMark("dppg"), LineMark("ppo", status="none"), LineMark("dppg", status="none")]
    private, not_private, without = looks(marks)
    with figure(path, len(tasks), row_height=1.2) as places:
        for axes, env in zip(places, tasks, strict=True):
            axes.set_xscale("log")
            returns_of(axes, env)
            for line in lines_of(env):
                epsilon, mean, half = (np.array(column) for column in zip(*line, strict=True))
                dots(axes, private, "DPPG, formal", epsilon, mean, (mean - half, mean + half))
            epsilon_axis(axes, [0.1, 10.0], "epsilon")
            for look, label, values in (
                (without, "DPPG without noise", finals(noiseless(env))),
                (not_private, "PPO, not private", of_ppo(env)),
                (REFERENCE, "before training", begins(env)),
            ):
                if values:
                    level(axes, look, label, float(np.mean(values)))
            axes.set_ylabel("return")
            axes.set_title(TASKS[env])
        legend(places)
    return path


def of_ppo(env: str) -> list[float]:
    """Final returns of PPO's runs with as many steps as DPPG's runs without noise, or nearly as many."""
    groups = ppo(env, noiseless(env) or [run for run in stored(SMALL) if run.env == env])
    return finals(groups[0]) if groups else []


def begins(env: str) -> list[float]:
    """Returns of the initial policies, before any data."""
    return [float(run.curve()[1][0]) for run in stored(SMALL) if run.env == env]


# --- the measured frontier


def predicted(measured: Sequence[Point], users: int, epsilon: float) -> float:
    """Mean return of the best split of so many users; NaN: none was measured."""
    found = best(measured, users, z_of_release(epsilon))
    return math.nan if found is None else found.mean


def draw_frontier(
    measured: Sequence[Point], task: str, reference: float | None, path: Path
) -> None:
    """Draw return against users, a line for each epsilon, and against epsilon, a line for each number of users.

    Args:
        measured: points of one algorithm and environment.
        task: title.
        reference: return without privacy, a dashed line; None: not known.
        path: of the picture.
    """
    with figure(path, 2) as (by_users, by_epsilon):
        users = [round(10**exponent) for exponent in np.arange(3, 6.01, 0.125)]
        _lines(by_users, users, EPSILONS, lambda n, e: predicted(measured, n, e), "epsilon {:g}")
        by_users.set_xlabel("users of the run, each once")
        epsilons = list(np.geomspace(0.25, 16.0, 25))
        _lines(by_epsilon, epsilons, USERS, lambda e, n: predicted(measured, n, e), "{:,} users", 5)
        epsilon_axis(by_epsilon, epsilons, f"epsilon at delta {DELTA:g}")
        for one in (by_users, by_epsilon):
            if reference is not None:
                level(one, REFERENCE, "without privacy (z = 0)", reference)
            one.set_ylabel("predicted return")
            one.set_title(task)
        legend((by_users, by_epsilon))


def _lines(
    axes: Any, xs: Sequence[Any], lines: Sequence[Any], value: Any, label: str, first: int = 0
) -> None:
    """One line for each of `lines`, lighter from first to last, on a logarithmic axis; markers from `first`."""
    axes.set_xscale("log")
    for at, line in enumerate(lines):
        colour = shade("dppg", lightness(line, lines))
        drawn = {
            "color": colour,
            "marker": MARKERS[(at + first) % len(MARKERS)],
            "markevery": (at, 8),
        }
        axes.plot(xs, [value(x, line) for x in xs], **drawn, label=label.format(line))
