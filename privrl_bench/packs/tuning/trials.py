"""The runs of a search on the disk: what was drawn, an intent for each before it starts, their scores.

`search.json` has what was asked for and drawn, `search.jsonl` the ledger: a line for every run before any of
them starts, with a fingerprint of the draw: a search that was killed does not go on with another one. All of it
is secret, for the owner of the files alone; only what `publish` writes is released.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.packs.tuning.best_of_runs import draw_search
from privrl_bench.packs.tuning.search_plan import SearchPlan, covers, score_config
from privrl_bench.packs.tuning.settings import GRID, Search, grid
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.ledger import announce
from privrl_bench.training.folder import read_lines, write_json
from privrl_bench.training.plan import make_plan
from privrl_bench.training.sweep import Job, Outcome, run_jobs

Train = Callable[[Sequence[Job]], list[Outcome]]
ENDED = ("done", "skipped")  # a skipped run was done before
VERSION = 1
# Where the search is, from the folders of a run and of its score: the same wherever the search is.
FROM_TRIAL, FROM_SCORE = (f"their guarantee is in {place}" for place in ("../..", "../../.."))
STATE, LEDGER, TRIALS = "search.json", "search.jsonl", "trials"


@dataclass
class Trial:
    """One run of a search.

    Attributes:
        job: what to train; its overrides are the settings that were drawn.
        event: what one of its releases is.
        outcome: how it ended, or how the run that scores it ended.
        score: larger is better; NaN: it failed. Secret, but for the best run's.
    """

    job: Job
    event: ReleaseEvent
    outcome: Outcome = field(default_factory=lambda: Outcome("interrupted"))
    score: float = math.nan


@dataclass
class SearchState:
    """What a search has drawn, as `search.json` holds it.

    Attributes:
        asked: `Search.canonical`, with the seed.
        count: number of runs; secret where it is random.
        ties: order runs of equal scores.
        seeds: of each.
        settings: words of each.
        kept: number of the kept run, once it is known; secret, too.
    """

    asked: dict[str, Any]
    count: int
    ties: list[float]
    seeds: list[int]
    settings: list[list[str]]
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
        state = SearchState(**content)
        changed = [
            f"{key}: {state.asked[key]} -> {asked[key]}"
            for key in asked
            if state.asked[key] != asked[key]
        ]
        if changed:
            raise ConfigError(
                "",
                f"{folder} has another search ({'; '.join(changed)}); name another hydra.run.dir",
            )
        return state
    if any(folder.glob("*")):
        raise ConfigError("hydra.run.dir", f"{folder} has other files; name another folder")
    (folder / TRIALS).mkdir(parents=True, mode=0o700)
    text = json.dumps({"version": VERSION, **asked}, sort_keys=True)
    identity = int(hashlib.sha256(text.encode()).hexdigest()[:32], 16)
    space = search.space
    drawn = draw_search(config.privacy.noise, config.seed, identity, search.runs, len(space))
    settings = (
        grid(space)
        if search.tune.runs == GRID
        else [
            [f"{one.key}={one.at(float(u))}" for one, u in zip(space, row, strict=True)]
            for row in drawn.settings
        ]
    )
    state = SearchState(asked, drawn.count, drawn.ties, drawn.seeds, settings)
    state.write(folder)
    return state


def trials_of(plan: SearchPlan, state: SearchState, folder: Path) -> list[Trial]:
    """The runs that were drawn.

    Raises:
        ConfigError: one cannot be made, or costs what is not in the plan.
    """
    found = []
    for number, settings in enumerate(state.settings):
        config = compose(
            later_wins(plan.words, settings, [f"seed={state.seeds[number]}", "log.wandb=none"])
        )
        check_hardware(config)
        config = replace(config, search=FROM_TRIAL)
        parts = make_plan([config])
        covered = plan.search.tune.public is not None or covers(plan.runs, parts)
        if covered and plan.final_words is not None:
            final = compose(later_wins(plan.final_words, settings))
            covered = covers(plan.finals, make_plan([final]))
        if not covered:
            raise ConfigError(
                settings[0].partition("=")[0],
                f"{' '.join(settings)} changes what a run costs or promises; draw such a key from choice(...)",
            )
        job = Job(number, config, folder / TRIALS / f"{number:03d}", settings)
        found.append(Trial(job, parts.gate.event(0)))
    return found


def run_trials(
    plan: SearchPlan, state: SearchState, trials: Sequence[Trial], folder: Path, train: Train
) -> None:
    """Write an intent for each run, on the disk before any of them starts; train and score them.

    `Trial.outcome` and `Trial.score` are set.

    Args:
        plan: of the search.
        state: of the search.
        trials: the runs.
        folder: of the search.
        train: trains jobs; `run_quietly`, or what the leak test puts in its place.

    Raises:
        ConfigError: the ledger is damaged, or has other runs.
    """
    intents = []
    for trial in trials:
        number, job = trial.job.number, trial.job
        facts = {"settings": job.overrides, "seed": state.seeds[number], "run": job.folder.name}
        intents.append((number, trial.event, {**facts, "drawn": state.drawn}))
    try:
        announce(folder / LEDGER, intents)
    except ValueError as error:
        raise ConfigError("", f"{folder}: {error}; name another hydra.run.dir") from None
    if trials:
        (folder / LEDGER).chmod(0o600)
    for trial, outcome in zip(trials, train([one.job for one in trials]), strict=True):
        trial.outcome = outcome
    if any(one.outcome.status == "interrupted" for one in trials):
        return
    if plan.score is not None:
        trained = {t.job.number: t for t in trials if t.outcome.status in ENDED}
        for outcome in train([score_job(plan, one.job) for one in trained.values()]):
            trained[outcome.number].outcome = outcome
    for trial in trials:
        if trial.outcome.status in ENDED:
            trial.score = _score_of(plan.search, trial.job)


def run_quietly(jobs: Sequence[Job]) -> list[Outcome]:
    """Train runs. Plans and results of single runs are secret and not shown, progress and errors are."""
    with redirect_stdout(io.StringIO()):
        return run_jobs(jobs)


def score_job(plan: SearchPlan, job: Job) -> Job:
    """The run that scores a run, by users of its own kind."""
    assert plan.score is not None
    privacy = plan.score.config
    users, z = privacy.users_per_round, privacy.noise_multiplier
    config = score_config(plan.search, job.config, users, z, str(job.folder))
    return Job(job.number, replace(config, search=FROM_SCORE), job.folder / "score", [])


def _score_of(search: Search, job: Job) -> float:
    """The score of a run that is done; NaN: it has none."""
    if search.tune.score == "private":
        rows = read_lines(job.folder / "score" / "metrics.jsonl")
        return float(
            next(r["release/mean_return"] for r in reversed(rows) if "release/mean_return" in r)
        )
    folder = job.folder / "score" if search.tune.scoring else job.folder
    summary = json.loads((folder / "summary.json").read_text())
    measure = objective_of(summary)
    value = summary[measure.name]["mean"]
    if value is None:
        return math.nan
    return float(value) if measure.direction == "up" else -float(value)
