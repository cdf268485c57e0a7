"""The runs of a search on the disk: what was drawn, an intent for each before it starts, their scores.

`search.json` has what was asked for and drawn, `search.jsonl` the ledger: a line for every run before any of
them starts, with a fingerprint of the draw: a search that was killed does not go on with another one. All of it
is secret, for the owner of the files alone; only what `publish.py` writes is released.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.packs.tuning.run_costs import covers
from privrl_bench.packs.tuning.search import announce_runs, draw_search
from privrl_bench.packs.tuning.search_plan import SearchPlan, score_config
from privrl_bench.packs.tuning.settings import Search
from privrl_bench.packs.tuning.space import grid
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.run.plan import make_plan
from privrl_bench.run.quiet import quieted
from privrl_bench.run.run_dir import read_lines, write_json
from privrl_bench.run.sweep_jobs import Job, Outcome
from privrl_bench.run.sweep_workers import run_jobs

Train = Callable[[Sequence[Job]], list[Outcome]]
VERSION = 1
# Where the search is, from the folders of a run and of its score: the same wherever the search is.
FROM_TRIAL, FROM_SCORE = (f"their guarantee is in {place}" for place in ("../..", "../../.."))
STATE, LEDGER, TRIALS = "search.json", "search.jsonl", "trials"


@dataclass
class Trial:
    """One run of a search.

    Attributes:
        number: from 0.
        settings: words that were drawn.
        seed: of the run.
        tie: orders runs of equal scores.
        folder: the run folder.
        event: what one of its releases is; of `jobs_of`.
        score: larger is better; NaN: it failed. Secret, but for the best run's.
    """

    number: int
    settings: list[str]
    seed: int
    tie: float
    folder: Path
    event: ReleaseEvent | None = None
    score: float = math.nan


@dataclass
class SearchState:
    """What a search has drawn, as `search.json` holds it.

    Attributes:
        asked: `Search.canonical`, with the seed.
        count: number of runs; secret where it is random.
        ties, seeds: of each.
        settings: words of each; those of a sampler that learns are added as they come.
        kept: number of the kept run, once it is known; secret, too.
    """

    asked: dict[str, Any]
    count: int
    ties: list[float]
    seeds: list[int]
    settings: list[list[str]] = field(default_factory=list)
    kept: int | None = None

    def write(self, folder: Path) -> None:
        """Write `search.json`, for its owner alone."""
        write_json(folder / STATE, {"version": VERSION, **self.__dict__})
        (folder / STATE).chmod(0o600)

    @property
    def drawn(self) -> str:
        """A fingerprint of what was drawn before the first run."""
        text = json.dumps([self.asked, self.count, self.ties, self.seeds])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def open_search(plan: SearchPlan, folder: Path) -> SearchState:
    """Draw a search, or read what it has drawn before.

    Raises:
        ConfigError: the folder has another search.
    """
    search, config = plan.search, plan.runs[0].given[0]
    asked = json.loads(json.dumps({**search.canonical(), "seed": config.seed}))
    path = folder / STATE
    if path.exists():
        content = json.loads(path.read_text())
        if content.pop("version") != VERSION:
            raise ConfigError("", f"{folder} has a search of another version of this program")
        found = SearchState(**content)
        _check_same(found.asked, asked, folder)
        return found
    if any(folder.glob("*")):
        raise ConfigError("hydra.run.dir", f"{folder} has other files; name another folder")
    (folder / TRIALS).mkdir(parents=True, mode=0o700)
    text = json.dumps({"version": VERSION, **asked}, sort_keys=True)
    identity = int(hashlib.sha256(text.encode()).hexdigest()[:32], 16)
    space = search.space
    drawn = draw_search(config.privacy.noise, config.seed, identity, search.runs, len(space))
    if search.grid:
        settings = grid(space)
    elif search.tune.sampler == "random":
        settings = [
            [f"{one.key}={one.at(float(u))}" for one, u in zip(space, row, strict=True)]
            for row in drawn.settings
        ]
    else:
        settings = []
    state = SearchState(asked, drawn.count, drawn.ties, drawn.seeds, settings)
    state.write(folder)
    return state


def _check_same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Raise ConfigError for a search that was edited between two parts."""
    was, now = (
        {f"tune.{k}": v for k, v in one["tune"].items()}
        | {"the distributions": one["space"], "the words": one["words"], "seed": one["seed"]}
        for one in (old, new)
    )
    changed = [f"{key}: {was.get(key)} -> {now[key]}" for key in now if was.get(key) != now[key]]
    if changed:
        raise ConfigError(
            "", f"{folder} has another search ({'; '.join(changed)}); name another hydra.run.dir"
        )


def trials_of(state: SearchState, folder: Path) -> list[Trial]:
    """The runs whose settings are known."""
    return [
        Trial(i, words, state.seeds[i], state.ties[i], folder / TRIALS / f"{i:03d}")
        for i, words in enumerate(state.settings)
    ]


def jobs_of(plan: SearchPlan, trials: Sequence[Trial], folder: Path) -> list[Job]:
    """The runs to train. Raises ConfigError: one cannot be made, or costs what is not in the plan."""
    found = []
    for trial in trials:
        more = [f"seed={trial.seed}", "log.wandb=none"]
        config = compose(later_wins(plan.words, trial.settings, more))
        check_hardware(config)
        config = replace(config, search=FROM_TRIAL)
        parts = make_plan([config])
        covered = plan.search.tune.public is not None or covers(plan.runs, parts)
        if covered and plan.final_words is not None:
            final = compose(later_wins(plan.final_words, trial.settings))
            covered = covers(plan.finals, make_plan([final]))
        if not covered:
            raise ConfigError(
                trial.settings[0].partition("=")[0],
                f"{' '.join(trial.settings)} changes what a run costs or promises; draw such a key from "
                "choice(...)",
            )
        trial.event = parts.gate.event(0)
        found.append(Job(trial.number, config, trial.folder, trial.settings))
    return found


def run_trials(
    plan: SearchPlan,
    state: SearchState,
    trials: Sequence[Trial],
    jobs: Sequence[Job],
    folder: Path,
    train: Train,
) -> list[Outcome]:
    """Write the intents, train the runs, score them. `Trial.score` is set.

    Args:
        plan: of the search.
        state: of the search.
        trials: the runs.
        jobs: what to train, of each run.
        folder: of the search.
        train: trains jobs; `run_quietly`, or what the leak test puts in its place.

    Returns:
        How each run ended, or how the run that scores it ended.
    """
    runs = {}
    for trial in trials:
        assert trial.event is not None
        facts = {"settings": trial.settings, "seed": trial.seed, "run": trial.folder.name}
        runs[trial.number] = trial.event, {**facts, "drawn": state.drawn}
    try:
        announce_runs(folder / LEDGER, runs)
    except ValueError as error:
        raise ConfigError("", f"{folder}: {error}; name another hydra.run.dir") from None
    if runs:
        (folder / LEDGER).chmod(0o600)
    outcomes = train(jobs)
    if any(one.status == "interrupted" for one in outcomes):
        return outcomes
    if plan.score is not None:
        outcomes = _score(plan, jobs, outcomes, train)
    for trial, outcome in zip(trials, outcomes, strict=True):
        trial.score = _score_of(plan.search, trial, outcome)
    return outcomes


def run_quietly(jobs: Sequence[Job]) -> list[Outcome]:
    """Train runs. Plans and results of single runs are secret and not shown, progress and errors are."""
    with quieted(True):
        return run_jobs(jobs)


def score_job(plan: SearchPlan, job: Job) -> Job:
    """The run that scores a run, by users of its own kind."""
    assert plan.score is not None
    privacy = plan.score.config
    users, z = privacy.users_per_round, privacy.noise_multiplier
    config = score_config(plan.search, job.config, users, z, str(job.folder))
    return Job(job.number, replace(config, search=FROM_SCORE), job.folder / "score", [])


def _score(
    plan: SearchPlan, jobs: Sequence[Job], outcomes: Sequence[Outcome], train: Train
) -> list[Outcome]:
    """Score every run that is done."""
    pairs = zip(jobs, outcomes, strict=True)
    scoring = [score_job(plan, job) for job, one in pairs if one.status in ("done", "skipped")]
    found = {one.number: one for one in train(scoring)}
    return [found.get(job.number, old) for job, old in zip(jobs, outcomes, strict=True)]


def _score_of(search: Search, trial: Trial, outcome: Outcome) -> float:
    """The score of a run; NaN: it failed."""
    if outcome.status not in ("done", "skipped"):
        return math.nan
    if search.tune.score == "private":
        rows = read_lines(trial.folder / "score" / "metrics.jsonl")
        return float(
            next(r["release/mean_return"] for r in reversed(rows) if "release/mean_return" in r)
        )
    summary = json.loads((trial.folder / "summary.json").read_text())
    measure = objective_of(summary)
    value = summary[measure.name]["mean"]
    if value is None:
        return math.nan
    return float(value) if measure.direction == "up" else -float(value)
