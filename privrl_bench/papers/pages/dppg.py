"""Blocks of the DPPG paper and of its learner, from runs.csv and curves.csv.gz."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np
from scipy.stats import sem, t

from privrl_bench.papers.items import finished_runs, read_trivial
from privrl_bench.papers.pages.store import (
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
    paper_table,
    runs_table,
    seeds,
    spent,
    spread,
    steps,
    stored,
    theirs,
    users,
    without_repeats,
)
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import compact

# --- the paper's table 1


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


@block("dppg/learner_check")
def _learner_check() -> str:
    def key(run: Run) -> tuple[int, float]:
        return list(TASKS).index(run.env), -run.epsilon

    columns = {"epsilon": spent, "users of a run": users, "steps": steps, "seeds": seeds}
    columns |= {"mean": lambda runs: f"{fmean(finals(runs)):.0f}", "min": least, "max": most}
    return runs_table("task", by_task(grouped(stored("dppg/learner_check"), key)), columns)


@block("dppg/learner")
def _tried() -> str:
    """Returns with some words and without them."""
    every = {run.folder.name: run for run in stored("dppg/learner")}
    pairs = [[run, every[f"{name}out"]] for name, run in every.items() if f"{name}out" in every]

    def words(pair: Group) -> str:
        return f"`{' '.join(x for x in pair[0].overrides if x not in pair[1].overrides)}`"

    columns: dict[str, Callable[[Group], str]] = {"words": words, "epsilon": spent, "steps": steps}
    columns |= {"with them": lambda pair: least(pair[:1]), "without": lambda pair: least(pair[1:])}
    return runs_table("task", by_task(pairs), columns)


@block("dppg/fig1")
def _regret() -> str:
    """Regret on RiverSwim, with the median in brackets: a row for each setting of a p."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for line in committed("dppg/fig1"):
        name, _, p = line["panel"].partition(", p = ")
        regret = f"{line['regret']} ({line['median regret']})"
        cells.setdefault((p, line["line"]), {})[name] = regret
    names = ("DPPG-KL", "DPPG-L2", "UCB-VI")
    found = sorted(cells.items(), key=lambda one: one[0][0])
    lines = [[*key, *(of.get(name, "") for name in names)] for key, of in found]
    return compact(["p", "setting", *names], without_repeats(lines))


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


def _gains(runs: Group) -> np.ndarray:
    """Scores of the seeds less that of the start model."""
    return np.array(finals(runs)) - _start_of(runs)


def share(gains: np.ndarray, whole: np.ndarray) -> str:
    """Mean gain in percent of another mean, with a 95 % interval over seeds (delta method, Student's t)."""
    ratio, freedom = gains.mean() / whole.mean(), min(len(gains), len(whole)) - 1
    half = t.ppf(0.975, freedom) * np.hypot(sem(gains), ratio * sem(whole)) / whole.mean()
    return f"{100 * ratio:.0f} ± {100 * half:.0f} %"


_TEXTS: dict[str, Callable[[Group], str]] = {
    "perplexity": lambda runs: _last(runs, "eval/perplexity", 1),
    "KL, nats": lambda runs: _last(runs, "eval/kl", 0),
}


@block("dppg/fig7")
def _texts() -> str:
    found = {label: chosen("dppg/fig7", key) for label, key in LINES.items()}
    columns = {"epsilon": spent, "seeds": seeds, "mean score": _score}
    columns |= {"gain": lambda runs: f"{_gains(runs).mean():.2f}"}
    ppo = found["PPO"]
    columns |= {
        "of PPO's": lambda runs: "100 %" if runs is ppo else share(*map(_gains, (runs, ppo)))
    }
    return runs_table("", found.items(), columns | _TEXTS)


@block("dppg/fig7-start")
def _start() -> str:
    runs = chosen("dppg/fig7", LINES["PPO"])
    return f"{_start_of(runs):.2f}, and perplexity {_start_of(runs, 'eval/perplexity'):.1f}"


@block("dppg/rlhf-epsilon")
def _by_epsilon() -> str:
    lines = []
    for cohort, words in (("128", ""), ("512", "privacy.users_per_round=512,")):
        for z in ("0.5", "1", "2"):
            runs = chosen("dppg/rlhf-epsilon", f"{_TEXT}z={z},{words}seed")
            more = (show(runs) for show in _TEXTS.values())
            lines.append([cohort, z, spent(runs), seeds(runs), _score(runs), *more])
    names = ["users in a round", "z", "epsilon", "seeds", "mean score", *_TEXTS]
    return compact(names, lines)


# --- correlated noise beside independent noise

NOISES = ("independent noise", "correlated noise")


@block("dppg/correlated-fig2")
def _beside() -> str:
    """Final return of formal runs with either noise, by task and z, where one of them is correlated."""
    found = {
        (line["panel"], line["z"], line["line"].removeprefix("formal, ")): line
        for line in committed("dppg/fig2")
    }
    rows = []
    for (panel, z, name), line in found.items():
        if name == NOISES[1]:
            both = [found.get((panel, z, noise), {}).get("return", "") for noise in NOISES]
            rows.append([panel, z, line["epsilon"], line["seeds"], *both])
    return compact(["task", "z", "epsilon", "seeds", *NOISES], without_repeats(rows))
