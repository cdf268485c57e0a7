"""Runs from Python: the same words, folders and results as on the command line, errors as exceptions."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from privrl_bench.api.launch import launch
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import explicit_keys, own_folder
from privrl_bench.errors import ConfigError, no_run
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.reporting.page import counted, write_report
from privrl_bench.reporting.run_loader import load_run as read_run
from privrl_bench.reporting.run_loader import load_runs
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.tables import Group, summarise
from privrl_bench.training.describe import PlanReport
from privrl_bench.training.sweep import Outcome

Words = str | Iterable[str]


class RunFailed(RuntimeError):
    """Training failed. `folder` has what was reached; the same call resumes.

    Attributes:
        folder: of the run.
        status: failed or interrupted.
    """

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.reason)
        self.folder, self.status = Path(outcome.folder), outcome.status


class RunInterrupted(RunFailed, KeyboardInterrupt):
    """Training was interrupted after a round; the same call resumes."""


def run(
    words: Words = (), /, *, config_dir: str | None = None, quiet: bool = False, **groups: Any
) -> Run:
    """Train one run, or resume it, or load it if it is done.

        run = pb.run("algo=dppg env=cartpole privacy.epsilon=1")
        print(run.final_value, run.epsilon, run.guarantee_status)
        run.plot("cartpole.png")

    Args:
        words: as on the command line, in one string or a list: `"algo=dppg env=cartpole privacy.z=1"`.
        config_dir: a folder with YAML files, which win over the package's of their names.
        quiet: print nothing.
        **groups: further words: `algo="dppg"`, `privacy={"z": 1.0}`, `total_steps=100_000`.

    Returns:
        The run: `folder`, `summary`, `final_value`, `epsilon`, `guarantee_status`, `metrics`, `curve()`.

    Raises:
        ConfigError: bad input; nothing was trained.
        RunFailed: training failed.
        RunInterrupted: training was interrupted; it is a `KeyboardInterrupt`, too.
    """
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        (outcome,) = launch(_given(words, groups, quiet), config_dir)
    return _result(outcome)


def multirun(
    words: Words = (), /, *, config_dir: str | None = None, quiet: bool = False, **groups: Any
) -> list[Run]:
    """Train every combination of values, as `privrl-bench -m` does: `"privacy.z=0.5,1 seed=range(3)"`.

        runs = pb.multirun("algo=dppg env=cartpole privacy.epsilon=0.5,1,2 seed=range(5)")
        for group in pb.compare(runs):
            print(group.label, group.mean, group.values)

    Arguments as for `run`; a list of values is a tuple there: `privacy={"z": (0.5, 1)}`.

    Returns:
        The runs, in the order of the sweep, failed ones included: see their `state` and `reason`.

    Raises:
        ConfigError: bad input; nothing was trained.
        RunInterrupted: interrupted; finished runs are kept.
    """
    with redirect_stdout(io.StringIO()) if quiet else nullcontext():
        outcomes = launch(_given(words, groups, quiet), config_dir, multirun=True)
    for outcome in outcomes:
        if outcome.status == "interrupted":
            raise RunInterrupted(outcome)
        if outcome.bad_input:
            raise ConfigError("", outcome.reason)
    return [read_run(Path(outcome.folder)) for outcome in outcomes]


def plan(
    words: Words = (),
    /,
    *,
    config_dir: str | None = None,
    results: Path | None = None,
    **groups: Any,
) -> PlanReport:
    """Plan a run: rounds, users, noise, epsilon under both adjacencies, measured results near it.

        plan = pb.plan("algo=dppg env=cartpole privacy.epsilon=1 privacy.population=10_000")
        print(plan.facts["rounds"], plan.facts["z"], plan.facts["epsilons"])
        print(plan.lines())

    Nothing is trained or written. `privacy.epsilon` alone finds the noise.

    Args:
        words: as for `run`.
        config_dir: a folder with YAML files, which win over the package's of their names.
        results: a results store; None: that of the source tree, if there is one.
        **groups: as for `run`.

    Raises:
        ConfigError: bad input.
    """
    from privrl_bench.training.describe import report_of
    from privrl_bench.training.plan import make_plan

    with own_folder(config_dir):
        run = compose(words_of(words, groups))
        check_hardware(run)
        return report_of(make_plan([run]), 0, results)


def load_run(folder: str | Path) -> Run:
    """Load a run folder, finished or not.

        run = pb.load_run("outputs/dppg/cartpole/epsilon=1,seed=0")
        print(run.final_value, run.epsilon, run.guarantee_status)
        run.frame()

    Raises:
        ConfigError: there is no run in this folder.
    """
    if not (Path(folder) / "status.json").exists():
        raise no_run("", Path(folder))
    return read_run(Path(folder))


def runs(folder: str | Path) -> list[Run]:
    """Load all run folders at or below a folder, finished or not, in order of their paths.

        every = pb.runs("outputs")
        for run in every:
            print(run.folder, run.state, run.epsilon, run.final_value)

    Raises:
        ConfigError: there is no such folder.
    """
    return _runs_below(folder)


def _runs_below(folder: str | Path) -> list[Run]:
    if not Path(folder).is_dir():
        raise ConfigError("", f"there is no folder {folder}")
    return load_runs(Path(folder))


def compare(
    runs: str | Path | Iterable[Run], *, where: Iterable[str] = (), out: str | Path | None = None
) -> list[Group]:
    """Compare runs over seeds: one group for each algorithm, environment and setting.

        for group in pb.compare("outputs", where=["env=cartpole"], out="report"):
            print(group.label, group.count, group.mean, group.values)

    Args:
        runs: a folder, or runs; those that are not finished do not count.
        where: `key=value` of the runs that count, as `privrl report --where`.
        out: a folder for the tables, figures and page of `privrl report`; None: nothing is written.

    Returns:
        The groups, in the order of the table.

    Raises:
        ConfigError: no such folder, no finished run, or no run has the setting.
    """
    every = _runs_below(runs) if isinstance(runs, str | Path) else list(runs)
    kept, notes = counted(every, where)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_report(kept, Path(out), "comparison", notes)
    return summarise(kept)


def words_of(words: Words, groups: Mapping[str, Any]) -> list[str]:
    """Return the words of a call as a list.

    >>> words_of("algo=dppg privacy.z=1", {"env": {"user_steps": 8}, "log": None, "seed": (0, 1)})
    ['algo=dppg', 'privacy.z=1', 'env.user_steps=8', 'log=null', 'seed=0,1']
    """
    given = shlex.split(words) if isinstance(words, str) else [str(word) for word in words]
    return [*given, *(word for key, value in groups.items() for word in _words(key, value))]


def _words(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [word for name, one in value.items() for word in _words(f"{key}.{name}", one)]
    if isinstance(value, tuple | range):
        return [f"{key}={','.join(map(_text, value))}"]
    return [f"{key}={_text(value)}"]


def _text(value: Any) -> str:
    """A value as Hydra reads it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def _given(words: Words, groups: Mapping[str, Any], quiet: bool) -> list[str]:
    given = words_of(words, groups)
    if quiet and "log.progress" not in explicit_keys(config.hydra_overrides(given)):
        given.append("log.progress=false")
    return given


def _result(outcome: Outcome) -> Run:
    if outcome.bad_input:
        raise ConfigError("", outcome.reason)
    if outcome.status == "interrupted":
        raise RunInterrupted(outcome)
    if outcome.status == "failed":
        raise RunFailed(outcome)
    return read_run(Path(outcome.folder))
