"""A search for hyperparameters from Python."""

from __future__ import annotations

from typing import Any

from privrl_bench.api.training import RunFailed, RunInterrupted, Words, words_of
from privrl_bench.packs.tuning.tune_runs import tune as run_search
from privrl_bench.reporting.run_loader import load_run
from privrl_bench.reporting.runs import Run
from privrl_bench.run.sweep_jobs import Outcome


def tune(
    words: Words = (), /, *, config_dir: str | None = None, quiet: bool = False, **groups: Any
) -> Run:
    """Search for hyperparameters inside the guarantee, as `privrl tune` does; resume a search, or load it.

    Args:
        words: as on the command line: `"algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000
            algo.lr=loguniform(1e-3,1e-2) tune.score_range=[0,500]"`.
        config_dir: a folder with YAML files, which win over the package's of their names.
        quiet: print nothing.
        **groups: further words, as for `run`.

    Returns:
        The kept run; `epsilon` and `summary` are those of the whole search.

    Raises:
        ConfigError: bad input; nothing was trained.
        RunFailed: nothing is released.
        RunInterrupted: the same call resumes.
    """
    given = words_of(words, groups)
    result = run_search(given, config_dir, show=(lambda line: None) if quiet else print)
    if result.status == "done":
        return load_run(result.folder)
    outcome = Outcome(result.status, result.reason, str(result.folder), result.exit_code)
    raise RunInterrupted(outcome) if result.status == "interrupted" else RunFailed(outcome)
