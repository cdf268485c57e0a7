"""A search: draw, train and score its runs, keep the best, release it with the guarantee of all."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from privrl_bench.composition.compose import compose
from privrl_bench.config.folder_names import folder_name
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.metrics import CLOCK, shown_epsilon
from privrl_bench.packs.tuning.best_of_runs import RunCount
from privrl_bench.packs.tuning.search_plan import SearchPlan, plan_search, search_epsilon
from privrl_bench.packs.tuning.settings import read_search
from privrl_bench.packs.tuning.trials import (
    ENDED,
    SearchState,
    Train,
    Trial,
    open_search,
    run_quietly,
    run_trials,
    score_job,
    trials_of,
)
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee
from privrl_bench.training.crash import Outcome
from privrl_bench.training.folder import RunDir, never_left_running, write_atomic, write_json
from privrl_bench.training.plan import make_plan
from privrl_bench.training.sweep import Job, interruption
from privrl_bench.training.trained_policy import FILE
from privrl_bench.training.writable import check_folder

FOLDER = "hydra.run.dir"
# Of one run, or of the machine while several ran: how many did is secret.
LEFT_OUT = ("ledger", "epsilon_paper", *CLOCK)
FOLDERS = ("adapter", "model")  # of language models


def search(words: Sequence[str], say: Callable[[str], None]) -> Outcome:
    """Run a search, or resume it, or load it if it is done.

    Guarantee: that of `SearchPlan.guarantee`, or more if runs were repeated: see `search_plan.py`.

    Args:
        words: of `privrl tune`.
        say: receives the lines for the terminal.

    Returns:
        How it ended; its folder holds the kept policy and summary.json, as a run folder does.

    Raises:
        ConfigError: bad input; nothing was trained.
    """
    given = [word for word in words if word.lstrip("+").partition("=")[0] != FOLDER]
    places = [word.partition("=")[2].strip("'\"") for word in words if word not in given]
    if places and not places[-1]:
        raise ConfigError(FOLDER, "must not be empty; give a folder")
    plan = plan_search(read_search(given))
    config = plan.runs[0].given[0]
    if config.plan_only:
        raise ConfigError("plan_only", "privrl tune trains; --plan shows what a search costs")
    pairs = [(k.lstrip("+"), value) for k, _, value in (word.partition("=") for word in given)]
    named = folder_name(config.algo.name, config.env.name, pairs, config.seed)
    folder = Path(places[-1]) if places else Path("outputs/tune", named)
    check_folder(FOLDER, folder)
    for line in [*plan.lines(), f"folder  {folder}"]:
        say(line)
    with RunDir(folder).lock():
        state = open_search(plan, folder)
        if RunDir(folder).status().get("status") == "done":
            say("done before; nothing was trained")
            summary = json.loads((folder / "summary.json").read_text())
            return Outcome("done", folder=str(folder), summary=summary)
        with never_left_running([RunDir(folder)], private=True):
            result = run_search(plan, state, folder)
        RunDir(folder).set_status(result.status, result.reason)
    return result


def lines_of(result: Outcome) -> list[str]:
    """What the command prints at the end of a search."""
    if not result.summary:
        return [f"{result.status}: {result.reason}"]
    summary, measure = result.summary, objective_of(result.summary)
    searched = summary["search"]
    noised = "noised score" if searched["scored"] != "public" else "score"
    return [
        f"kept    {' '.join(searched['kept'])}; {noised} {searched['score']:.4g}",
        f"done    {measure.name} {measure.show(summary[measure.name]['mean'])}",
        f"        epsilon {shown_epsilon(summary['epsilon'])} at delta {summary['delta']:g} with "
        f"tuning ({summary['guarantee']['status']})",
        f"        results: {result.folder}",
    ]


def run_search(
    plan: SearchPlan, state: SearchState, folder: Path, train: Train = run_quietly
) -> Outcome:
    """Train and score the runs that were drawn, and release the best.

    Args:
        plan: of the search.
        state: what was drawn.
        folder: of the search.
        train: see `trials.run_trials`.
    """

    def ended(status: str, reason: str, code: int) -> Outcome:
        return Outcome(status, reason, str(folder), code)

    resume = "interrupted; rerun the same command to resume"
    trials = trials_of(plan, state, folder)
    RunDir(folder).set_status("running")
    run_trials(plan, state, trials, folder, train)
    if code := interruption([trial.outcome for trial in trials]):
        return ended("interrupted", resume, code)
    refused = [trial.outcome.reason for trial in trials if trial.outcome.bad_input]
    if refused and isinstance(plan.search.runs, RunCount):
        # The best of those that a budget had room for is not the best of the number that was drawn.
        return ended("failed", f"a run was refused, so nothing is released: {refused[0]}", 1)
    best = best_of([trial.score for trial in trials], state.ties)
    if best is None:
        reason = (
            f"{plan.search.tune.runs} drew no run, so nothing is released; a search with another seed is "
            "another search, which costs its own epsilon"
        )
        return ended("failed", reason, 1)
    kept = trials[best]
    if math.isnan(kept.score):
        return ended("failed", f"all runs failed: {kept.outcome.reason}", 1)
    guarantee, source = _after(plan, [trial.job for trial in trials]), kept.job.folder
    state.kept = best
    state.write(folder)
    if plan.final_words is not None:
        source, words = folder / "final", [*plan.final_words, *kept.job.overrides]
        config = compose(later_wins(plan.final_words, kept.job.overrides))
        (outcome,) = train([Job(0, config, source, words)])
        if outcome.status == "interrupted":
            return ended("interrupted", resume, outcome.exit_code or 130)
        if outcome.status not in ENDED:
            return ended("failed", outcome.reason, 1)
        guarantee = _at_least(guarantee, _gate_of(config, source).guarantee(0))
    summary = publish(folder, source, kept, guarantee, plan)
    return replace(ended("done", "", 0), summary=summary)


def best_of(scores: Sequence[float], ties: Sequence[float]) -> int | None:
    """The run with the largest score; None without runs. NaN is the worst score.

    >>> best_of([1.0, math.nan, 3.0, 3.0], [0.1, 0.9, 0.4, 0.2]), best_of([], [])
    (2, None)
    """
    ranked = [-math.inf if math.isnan(score) else score for score in scores]
    return max(range(len(ranked)), key=lambda i: (ranked[i], ties[i]), default=None)


def publish(
    folder: Path, source: Path, kept: Trial, guarantee: Guarantee, plan: SearchPlan
) -> dict[str, Any]:
    """Write what is released into the folder of the search: as in a run folder, with the guarantee of all.

    The metrics, curve and ledger of the kept run stay in `source`. Its number is not written: it bounds the
    number of runs, which is secret.

    Args:
        folder: of the search.
        source: the run folder of the kept policy.
        kept: the run with the best score.
        guarantee: of the search.
        plan: of the search.

    Returns:
        The content of summary.json.
    """
    shutil.copyfile(source / "config.yaml", folder / "config.yaml")
    provenance = json.loads((source / "provenance.json").read_text())
    for name in ("workers", "trained_together"):  # depend on how many runs there were
        provenance.pop(name)
    write_json(folder / "provenance.json", provenance)
    for name in FOLDERS:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, dirs_exist_ok=True)
    if (source / FILE).exists():
        content = torch.load(source / FILE, weights_only=True, map_location="cpu")
        content["guarantee"] = guarantee.to_dict()
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomic(folder / FILE, buffer.getvalue())
    summary = json.loads((source / "summary.json").read_text())
    tune = plan.search.tune
    summary |= {
        "epsilon": guarantee.epsilon,
        "epsilon_planned": plan.guarantee.epsilon,
        "guarantee": guarantee.to_dict(),
        "search": {
            "runs": plan.guarantee.notes["search"],
            "space": [one.text for one in plan.search.space],
            "kept": kept.job.overrides,
            "score": kept.score,
            "scored": tune.score,
            "epsilon_without_tuning": plan.alone,
        },
    }
    for name in LEFT_OUT:
        summary.pop(name, None)
    write_json(folder / "summary.json", summary)
    return dict(summary)


# --- the guarantee with what the ledgers have


def _after(plan: SearchPlan, jobs: Sequence[Job]) -> Guarantee:
    """The guarantee of the search, or more: a run whose rounds were repeated costs more than planned."""
    found, asked = plan.guarantee, plan.search
    if asked.tune.public is not None:
        return found
    parts: list[tuple[list[Account], list[Job]]] = [([p.gate for p in plan.runs], list(jobs))]
    if plan.score is not None:
        parts.append(([plan.score], [score_job(plan, job) for job in jobs]))
    for planned, runs in parts:
        gates = [_gate_of(job.config, job.folder) for job in runs if job.folder.exists()]
        repeated = [gate for gate in gates if gate.ledgers[0].summary()["repeated"]]
        if repeated:
            more = search_epsilon([*planned, *repeated], asked.runs, found.delta)
            for gate in repeated:
                found = _at_least(found, replace(gate.guarantee(0), epsilon=more))
    return found


def _gate_of(config: RunConfig, folder: Path) -> Gate:
    """The gate of a run with the run's ledger."""
    return make_plan([config]).opened([folder / "ledger.jsonl"]).gate


def _at_least(guarantee: Guarantee, other: Guarantee) -> Guarantee:
    """A guarantee with the epsilon of another, if it is larger, and with its caveats, too."""
    caveats = {k: v for k, v in other.caveats.items() if k != PART_OF_SEARCH}
    epsilon = max(guarantee.epsilon, other.epsilon)
    return replace(guarantee, epsilon=epsilon, caveats=guarantee.caveats | caveats)
