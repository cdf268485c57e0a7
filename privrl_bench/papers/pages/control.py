"""Blocks and figures of DPPG on control tasks, beside DPPG without noise and PPO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import ttest_ind

from privrl_bench.functional.statistics import iqm_ci
from privrl_bench.papers import items, run_figures
from privrl_bench.papers.items import PaperFigure, finished_runs, read_trivial
from privrl_bench.papers.pages.store import (
    STORE,
    TASKS,
    Group,
    block,
    digits_of,
    finals,
    interval,
    least,
    most,
    rounds_of,
    seeds,
    spent,
    steps,
    users,
    without_repeats,
    z_of,
)
from privrl_bench.reporting.table_writer import compact

CONTROL, DPSGD = "dppg/control", "dppg/dpsgd"
PAIR = ("acrobot", "dosing0")  # panels of README.md and the home page
_OF_README = (0.1, 1.0, 4.0)  # epsilons
_FAR = 0.25  # seeds that differ by more of the way from random actions to PPO: median and IQM, too


@dataclass(frozen=True)
class Task:
    """The runs of one task.

    Attributes:
        private: Private runs of each epsilon, the largest first.
        without: DPPG without noise.
        ppo: PPO with the steps of the runs at epsilon 1.
        random: Mean return of random actions.
        rule: Best mean return of policies that do not learn.
    """

    env: str
    private: Sequence[Group]
    without: Group
    ppo: Group
    random: float
    rule: float

    def share(self, value: float) -> float:
        """How far a return is from random actions (0) to PPO's mean (1)."""
        return (value - self.random) / (float(np.mean(finals(self.ppo))) - self.random)


@cache
def described(name: str = CONTROL) -> PaperFigure:
    """The item in dppg.yaml."""
    item = items.paper("dppg").item(name.partition("/")[2], "paper")
    assert isinstance(item, PaperFigure)
    return item


@cache
def tasks() -> tuple[Task, ...]:
    """Every task whose runs are all there, in the order of the item."""
    item, found = described(), []
    runs, trivial = finished_runs(STORE / CONTROL, item), read_trivial(STORE / CONTROL)
    for panel in item.panels:
        env = panel.lines[0].settings[0].env
        private, *others = ([runs[one] for one in line.settings] for line in panel.lines)
        if all(len(runs[one]) == one.seeds for line in panel.lines for one in line.settings):
            (without,), (ppo,) = others
            names = (one.removesuffix(")").partition(" (") for one in trivial[env].split("; "))
            returns = {name: float(mean.split()[0]) for mean, _, name in names}
            known = (returns["random"], max(returns.values()))
            found.append(Task(env, private[::-1], without, ppo, *known))
    return tuple(found)


def epsilon_of(runs: Group) -> float:
    """The epsilon that was asked for."""
    return float(dict(word.split("=", 1) for word in runs[0].overrides)["privacy.epsilon"])


def _median(runs: Group) -> str:
    return f"{np.median(finals(runs)):.{digits_of(runs)}f}"


def _iqm(runs: Group) -> str:
    iqm, _, _ = iqm_ci(np.array(finals(runs))[:, None], np.random.default_rng(0))
    return f"{iqm:.{digits_of(runs)}f}"


def _table(rows: Iterable[tuple[Task, Group]], columns: dict[str, Callable[..., str]]) -> str:
    """A table of runs; a column gets the task and its runs."""
    lines = [
        [TASKS[task.env], *(show(task, runs) for show in columns.values())] for task, runs in rows
    ]
    return compact(["task", *columns], without_repeats(lines))


def _returns(task: Task, runs: Group) -> str:
    """Mean with its interval; median and interquartile mean where seeds differ much."""
    shares = [task.share(value) for value in finals(runs)]
    more = f"; median {_median(runs)}, IQM {_iqm(runs)}"
    return interval(runs) + (more if max(shares) - min(shares) > _FAR else "")


def _of_ppo(task: Task, runs: Group) -> str:
    return f"{task.share(float(np.mean(finals(runs)))):.0%}"


@block("readme")
def _readme() -> str:
    """One row for each task and epsilon."""
    rows = [(task, runs) for task in tasks() for runs in reversed(task.private)]
    columns: dict[str, Callable[..., str]] = {
        "epsilon": lambda task, runs: spent(runs),
        "users of a run": lambda task, runs: users(runs),
        "steps": lambda task, runs: steps(runs),
        "seeds": lambda task, runs: seeds(runs),
        "return": _returns,
        "rule": lambda task, runs: f"{task.rule:z.{digits_of(runs)}f}",
        "PPO": lambda task, runs: _returns(task, task.ppo),
        "of PPO": _of_ppo,
    }
    return _table([row for row in rows if epsilon_of(row[1]) in _OF_README], columns)


@block(CONTROL)
def _control() -> str:
    """Every group of runs: PPO, DPPG without noise, and private DPPG from much epsilon to little."""
    rows = [(task, runs) for task in tasks() for runs in (task.ppo, task.without, *task.private)]
    columns: dict[str, Callable[..., str]] = {
        "algorithm": lambda task, runs: "PPO" if runs is task.ppo else "DPPG",
        "epsilon": lambda task, runs: spent(runs),
        "z": lambda task, runs: z_of(runs),
        "users of a run": lambda task, runs: users(runs),
        "rounds": lambda task, runs: f"{rounds_of(runs[0]):,}",
        "steps": lambda task, runs: steps(runs),
        "seeds": lambda task, runs: seeds(runs),
        "return ± 95 % interval": lambda task, runs: interval(runs),
        "median": lambda task, runs: _median(runs),
        "IQM": lambda task, runs: _iqm(runs),
        "min": lambda task, runs: least(runs),
        "max": lambda task, runs: most(runs),
        "of PPO": _of_ppo,
    }
    return _table(rows, columns)


@block("dppg/noise")
def _noise() -> str:
    """What noise costs at epsilon 1: DPPG without noise minus private, with Welch's interval."""
    parts = []
    for task in tasks():
        (runs,) = (one for one in task.private if epsilon_of(one) == 1.0)
        samples, digits = (finals(task.without), finals(runs)), digits_of(runs)
        cost = np.mean(samples[0]) - np.mean(samples[1])
        shown = f"{TASKS[task.env]} {cost:,.{digits}f}"
        if max(map(np.std, samples)) > 0:  # of returns that do not vary there is no interval
            low, high = ttest_ind(*samples, equal_var=False).confidence_interval()
            shown += f" ({low:,.{digits}f} to {high:,.{digits}f})"
        parts.append(shown)
    return ", ".join(parts)


@block(DPSGD)
def _dpsgd() -> str:
    """DPPG beside DP-SGD on the policy gradient, by user."""
    item = described(DPSGD)
    runs = finished_runs(STORE / DPSGD, item)
    columns = {"epsilon": spent, "users of a run": users, "steps": steps, "return": interval}
    lines = [
        [panel.label, line.label, *(show(runs[one]) for show in columns.values())]
        for panel in item.panels
        for line in panel.lines
        for one in line.settings
        if len(runs[one]) == one.seeds
    ]
    return compact(["task", "method", *columns], without_repeats(lines))


def draw_pair(path: Path) -> Path:
    """Draw the panels of `PAIR`. Returns the path."""
    item = described()
    panels = [one for one in item.panels if one.lines[0].settings[0].env in PAIR]
    run_figures.draw_epsilon(
        replace(item, panels=panels), finished_runs(STORE / CONTROL, item), path
    )
    return path.with_suffix(".svg")
