"""A search for hyperparameters from Python: its plan, its runs, and tests of its guarantee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from privrl_bench.api.auditing import EpsilonAudit, LeakAudit, measure
from privrl_bench.api.training import RunFailed, RunInterrupted, Words, words_of
from privrl_bench.audit import lower_bound
from privrl_bench.audit.canary import refuse_unauditable
from privrl_bench.audit.finding import Say
from privrl_bench.audit.leaks import audit_leaks
from privrl_bench.audit.options import Options, check_options
from privrl_bench.config.overrides import explicit_keys, own_folder
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.kernels.machine import one_thread
from privrl_bench.packs.tuning.search_plan import SearchPlan, plan_search
from privrl_bench.packs.tuning.settings import read_search
from privrl_bench.packs.tuning.tune_runs import search
from privrl_bench.reporting.run_loader import load_run
from privrl_bench.reporting.runs import Run


def tune(
    words: Words = (), /, *, config_dir: str | None = None, quiet: bool = False, **groups: Any
) -> Run:
    """Search for hyperparameters inside the guarantee, as `privrl tune` does; resume a search, or load it.

        words = "algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000"
        run = pb.tune(f"{words} algo.lr=loguniform(1e-3,1e-2) tune.score_range=[0,500]")
        print(run.folder, run.final_value, run.epsilon)

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
    with own_folder(config_dir):
        outcome = search(words_of(words, groups), (lambda line: None) if quiet else print)
    if outcome.status == "done":
        return load_run(Path(outcome.folder))
    raise RunInterrupted(outcome) if outcome.status == "interrupted" else RunFailed(outcome)


def tune_plan(words: Words = (), /, *, config_dir: str | None = None, **groups: Any) -> SearchPlan:
    """What a search will do and cost, as `privrl tune --plan` shows it with `lines()`.

        words = "algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000"
        plan = pb.tune_plan(f"{words} algo.lr=loguniform(1e-3,1e-2) tune.score_range=[0,500]")
        print(plan.lines())

    Arguments as for `tune`. Nothing is trained or written.

    Raises:
        ConfigError: bad input.
    """
    with own_folder(config_dir):
        return plan_search(read_search(words_of(words, groups)))


def tune_leaks(
    words: Words = (),
    /,
    *,
    round_index: int | None = None,
    user: int = 0,
    config_dir: str | None = None,
    **groups: Any,
) -> LeakAudit:
    """Find what bypasses the gate in a run of a search, and in what the search publishes.

    Args:
        words: as for `tune`.
        round_index: as for `audit_leaks`.
        user: slot of the replaced user in every run, from 0.
        config_dir: as for `tune`.
        **groups: as for `tune`.

    Raises:
        ConfigError: bad input.
        PrivacyError: the gate refused what the algorithm sent.
    """
    from privrl_bench.packs.tuning.search_leaks import with_search

    given = words_of(words, groups)
    keys = frozenset(explicit_keys(given))
    with own_folder(config_dir):
        plan = plan_search(read_search(given))
        one_thread()
        try:
            report, cuts = audit_leaks(plan.runs[0].given[0], keys, round_index, user)
            return LeakAudit(with_search(report, plan, keys, user), cuts, [])
        except EnvironmentFailure as error:
            raise ConfigError("env", str(error)) from error


def tune_epsilon(
    words: Words = (),
    /,
    *,
    folder: str | Path | None = None,
    config_dir: str | None = None,
    options: Options | None = None,
    say: Say | None = None,
    **groups: Any,
) -> EpsilonAudit:
    """Measure a lower bound on the epsilon of a search, with a canary in the data of all of its runs.

    Args:
        words: as for `tune`.
        folder: as for `audit_epsilon`.
        config_dir: as for `tune`.
        options: `scores`, `per_round` and `confidence` of `audit_epsilon`; there is one attack.
        say: as for `audit_epsilon`.
        **groups: as for `tune`.

    Raises:
        ConfigError: bad input, or the search has nothing to attack.
    """
    from privrl_bench.packs.tuning.search_audit import attack

    chosen, given = options or Options(), words_of(words, groups)
    check_options(chosen)
    with own_folder(config_dir):
        plan = plan_search(read_search(given))
    if plan.search.tune.public is not None:
        rule = "the search costs nothing; attack the run with the kept settings alone"
        raise ConfigError("tune.public", rule)
    config, claim = plan.runs[0].config, plan.guarantee
    refuse_unauditable(config)
    lower_bound.check_simulated(config)
    return measure(
        config,
        claim,
        given,
        folder,
        chosen,
        lambda _, small, sizes, told: [attack(small, plan.search.runs, claim.epsilon, sizes, told)],
        say,
    )
