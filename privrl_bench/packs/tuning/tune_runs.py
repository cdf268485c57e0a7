"""`tune`: draw, train and score the runs of a search, keep the best, release it with the guarantee of all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.config.folder_names import leaf_name
from privrl_bench.config.overrides import later_wins, own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.packs.tuning.optuna_sampler import suggest_next
from privrl_bench.packs.tuning.publish import publish
from privrl_bench.packs.tuning.run_costs import accounts_of
from privrl_bench.packs.tuning.search import best_of, search_epsilon
from privrl_bench.packs.tuning.search_plan import SearchPlan, plan_search
from privrl_bench.packs.tuning.settings import read_search
from privrl_bench.packs.tuning.trials import (
    SearchState,
    Train,
    Trial,
    jobs_of,
    open_search,
    run_quietly,
    run_trials,
    score_job,
    trials_of,
)
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import PART_OF_SEARCH, Guarantee
from privrl_bench.run.plan import make_plan
from privrl_bench.run.run_dir import RunDir, never_left_running
from privrl_bench.run.sweep_jobs import Job, Outcome
from privrl_bench.run.writable import check_folder

FOLDER = "hydra.run.dir"
LEDGER_OF_RUN = "ledger.jsonl"


@dataclass
class SearchResult:
    """How a search ended.

    Attributes:
        folder: of the search; it holds the kept policy and `summary.json`, as a run folder does.
        status: done | failed | interrupted.
        reason: why it is not done.
        summary: content of summary.json.
        exit_code: of the command.
    """

    folder: Path
    status: str
    reason: str = ""
    summary: dict[str, Any] | None = None
    exit_code: int = 0

    def lines(self) -> list[str]:
        """What the command prints at its end."""
        if self.summary is None:
            return [f"{self.status}: {self.reason}"]
        summary, measure = self.summary, objective_of(self.summary)
        searched = summary["search"]
        noised = "noised score" if searched["scored"] == "private" else "score"
        return [
            f"kept    {' '.join(searched['kept'])}; {noised} {searched['score']:.4g}",
            f"done    {measure.name} {measure.show(summary[measure.name]['mean'])}",
            f"        epsilon {shown_epsilon(summary['epsilon'])} at delta {summary['delta']:g} with "
            f"tuning ({summary['guarantee']['status']})",
            f"        results: {self.folder}",
        ]


def tune(words: Sequence[str], config_dir: str | None = None, show: Any = print) -> SearchResult:
    """Run a search, or resume it, or load it if it is done.

    Guarantee: that of `SearchPlan.guarantee`, or more if runs were repeated: see `privacy/search.py`.

    Args:
        words: of `privrl tune`.
        config_dir: a folder with YAML files, which win over the package's of their names.
        show: is given the lines for the terminal.

    Raises:
        ConfigError: bad input; nothing was trained.
    """
    with own_folder(config_dir):
        return _tune(words, show)


def _tune(words: Sequence[str], show: Any) -> SearchResult:
    given = [word for word in words if word.lstrip("+").partition("=")[0] != FOLDER]
    places = [word.partition("=")[2] for word in words if word not in given]
    if places and not places[-1].strip("'\""):
        raise ConfigError(FOLDER, "must not be empty; give a folder")
    search = read_search(given)
    plan = plan_search(search)
    if plan.runs[0].given[0].plan_only:
        raise ConfigError("plan_only", "privrl tune trains; privrl plan shows the plan of a search")
    folder = Path(places[-1]) if places else _folder(plan, given)
    check_folder(FOLDER, folder)
    for line in [*plan.lines(), f"folder  {folder}"]:
        show(line)
    with RunDir(folder).lock():
        state = open_search(plan, folder)
        done = RunDir(folder).status()
        if done.get("status") == "done":
            show("done before; nothing was trained")
            return SearchResult(
                folder, "done", summary=json.loads((folder / "summary.json").read_text())
            )
        with never_left_running([RunDir(folder)], private=True):
            result = run_search(plan, state, folder)
        RunDir(folder).set_status(result.status, result.reason)
    return result


def _folder(plan: SearchPlan, words: Sequence[str]) -> Path:
    """outputs/tune/<algo>/<env>/<words>."""
    config = plan.runs[0].given[0]
    pairs = [(k.lstrip("+"), value) for k, _, value in (word.partition("=") for word in words)]
    return (
        Path("outputs/tune") / config.algo.name / config.env.label / leaf_name(pairs, config.seed)
    )


def run_search(
    plan: SearchPlan,
    state: SearchState,
    folder: Path,
    train: Train = run_quietly,
) -> SearchResult:
    """Train and score the runs that were drawn, and release the best.

    Args:
        plan: of the search.
        state: what was drawn.
        folder: of the search.
        train: see `trials.run_trials`.
    """
    if plan.search.tune.sampler == "tpe":
        trials, jobs, outcomes = _learn(plan, state, folder, train)
    else:
        trials = trials_of(state, folder)
        jobs = jobs_of(plan, trials, folder)
        RunDir(folder).set_status("running")
        outcomes = run_trials(plan, state, trials, jobs, folder, train)
    stopped = next((one for one in outcomes if one.status == "interrupted"), None)
    if stopped is not None:
        return _interrupted(folder, stopped)
    best = best_of([trial.score for trial in trials], [trial.tie for trial in trials])
    if best is None:
        reason = (
            f"{plan.search.tune.runs} drew no run, so nothing is released; a search with another seed is "
            "another search, which costs its own epsilon"
        )
        return SearchResult(folder, "failed", reason, exit_code=1)
    if math.isnan(trials[best].score):
        return SearchResult(
            folder, "failed", f"all runs failed: {outcomes[best].reason}", exit_code=1
        )
    guarantee, kept = _after(plan, jobs), trials[best]
    state.kept = best
    state.write(folder)
    if plan.final_words is not None:
        final = folder / "final"
        config = compose(later_wins(plan.final_words, kept.settings))
        (outcome,) = train([Job(0, config, final, [*plan.final_words, *kept.settings])])
        if outcome.status == "interrupted":
            return _interrupted(folder, outcome)
        if outcome.status not in ("done", "skipped"):
            return SearchResult(folder, "failed", outcome.reason, exit_code=1)
        guarantee = _with_own(guarantee, _gate_of(config, final))
        summary = publish(folder, final, kept, guarantee, plan)
    else:
        summary = publish(folder, kept.folder, kept, guarantee, plan)
    return SearchResult(folder, "done", summary=summary)


def _interrupted(folder: Path, outcome: Outcome) -> SearchResult:
    reason = "interrupted; rerun the same command to resume"
    return SearchResult(folder, "interrupted", reason, exit_code=outcome.exit_code or 130)


def _learn(
    plan: SearchPlan, state: SearchState, folder: Path, train: Train
) -> tuple[list[Trial], list[Job], list[Outcome]]:
    """Runs one after the other, whose settings depend on earlier scores."""
    known: list[Trial] = []
    jobs: list[Job] = []
    outcomes: list[Outcome] = []
    seed = int(state.asked["seed"])
    RunDir(folder).set_status("running")
    for i in range(state.count):
        if i == len(state.settings):
            before = [(trial.settings, trial.score) for trial in known]
            state.settings.append(suggest_next(plan.search.space, before, seed + i))
            state.write(folder)
        trial = trials_of(state, folder)[i]
        (job,) = jobs_of(plan, [trial], folder)
        (outcome,) = run_trials(plan, state, [trial], [job], folder, train)
        known.append(trial)
        jobs.append(job)
        outcomes.append(outcome)
        if outcome.status == "interrupted":
            break
    return known, jobs, outcomes


def _after(plan: SearchPlan, jobs: Sequence[Job]) -> Guarantee:
    """The guarantee with what the ledgers have: a run whose rounds were repeated costs more than planned."""
    found, search = plan.guarantee, plan.search
    if search.tune.public is not None:
        return found
    parts = [(accounts_of(plan.runs), list(jobs))]
    if plan.score is not None:
        parts.append(([plan.score], [score_job(plan, job) for job in jobs]))
    for planned, runs in parts:
        there = [job for job in runs if (job.folder / LEDGER_OF_RUN).exists()]
        gates = [_gate_of(job.config, job.folder) for job in there]
        repeated = [gate for gate in gates if gate.ledgers[0].summary()["repeated"]]
        if repeated:
            more = search_epsilon([*planned, *repeated], search.runs, found.delta)
            caveats = {k: v for gate in repeated for k, v in gate.guarantee(0).caveats.items()}
            caveats.pop(PART_OF_SEARCH, None)
            caveats = {**found.caveats, **caveats}
            found = replace(found, epsilon=max(found.epsilon, more), caveats=caveats)
    return found


def _gate_of(config: RunConfig, folder: Path) -> Gate:
    """The gate of a run with the run's ledger."""
    return make_plan([config]).opened([folder / LEDGER_OF_RUN]).gate


def _with_own(guarantee: Guarantee, gate: Gate) -> Guarantee:
    """The guarantee, or more if the run with the kept settings has more."""
    own = gate.guarantee(0)
    epsilon = max(guarantee.epsilon, own.epsilon)
    return replace(guarantee, epsilon=epsilon, caveats={**guarantee.caveats, **own.caveats})
