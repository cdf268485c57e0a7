"""`run`: train, resume, plan or skip runs, for the command line, scripts and tests.

`run(configs, folders, overrides)` trains runs that differ in seed and z only together, along a replica
axis. Every replica has its own folder, ledger and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.kernels.machine import one_thread
from privrl_bench.kernels.signals import catching_signals, raising_signals
from privrl_bench.metrics import shown_epsilon
from privrl_bench.training.charging import charge_of, settle_done
from privrl_bench.training.crash import Outcome, interruption
from privrl_bench.training.describe import (
    announce,
    describe_plan,
    repeat_warning,
    warnings,
)
from privrl_bench.training.folder import (
    RunDir,
    never_left_running,
    read_lines,
    read_object,
    write_json,
)
from privrl_bench.training.loop import Experiment
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.training.plugin_review import audits, records
from privrl_bench.training.progress import in_sweep
from privrl_bench.training.provenance import changed
from privrl_bench.training.trainer import CHECKPOINT_VERSION


def run(configs: list[RunConfig], folders: list[Path], overrides: list[list[str]]) -> list[Outcome]:
    """Train, resume, plan or skip runs.

    Args:
        configs: equal but for `seed` and `privacy.z`.
        folders: run folder of each.
        overrides: command-line overrides of each, for the record.

    Returns:
        How each ended, in order.

    Raises:
        ConfigError: a setting is invalid; that run was not trained and its folder was not created.
    """
    results = []
    for result in run_each(configs, folders, overrides):
        if isinstance(result, ConfigError):
            raise result
        results.append(result)
    return results


def run_each(
    configs: list[RunConfig], folders: list[Path], overrides: list[list[str]]
) -> list[Outcome | ConfigError]:
    """Like `run`, but return the error of a refused run in its place and train the others."""
    one_thread()
    results: dict[int, Outcome | ConfigError] = {}
    waiting: dict[int, list[int]] = {}  # checkpoint round -> replicas
    dirs = [RunDir(Path(folder)) for folder in folders]
    new = [i for i, rundir in enumerate(dirs) if not (rundir / "status.json").exists()]
    made: dict[tuple[int, ...], Plan] = {}  # of runs that are at the same round

    def plan_of(members: Sequence[int]) -> Plan:
        key = tuple(members)
        if key not in made:
            made[key] = make_plan([configs[i] for i in members])
        return made[key]

    try:
        if any(c.privacy.z is None or c.fit_population for c in configs):
            configs = plan_of(range(len(configs))).given  # with numbers
    except ConfigError as error:
        return [error] * len(configs)
    try:
        if new:  # before a folder or a lock is made
            plan_of(new)
    except ConfigError as error:
        results.update(dict.fromkeys(new, error))
    with ExitStack() as locks, raising_signals():
        for i, (config, rundir) in enumerate(zip(configs, dirs, strict=True)):
            if i in results:
                continue
            try:
                locks.enter_context(rundir.lock())
                found = _inspect(config, rundir)
            except ConfigError as error:
                results[i] = error
                continue
            if isinstance(found, Outcome):
                results[i] = found
            else:
                waiting.setdefault(found, []).append(i)
        interrupted = 0
        for members in waiting.values():
            group: Sequence[Outcome | ConfigError]
            try:
                group = _run_group(
                    plan_of(members),
                    [dirs[i] for i in members],
                    [overrides[i] for i in members],
                    interrupted,
                )
            except ConfigError as error:
                group = [error] * len(members)
            results.update(zip(members, group, strict=True))
            interrupted = interrupted or interruption(group)
    return [results[i] for i in range(len(configs))]


def _inspect(config: RunConfig, rundir: RunDir) -> Outcome | int:
    """Return the finished run of a folder, or the round to resume from (0: from the start).

    Raises:
        ConfigError: the folder cannot be used for this run.
    """
    if config.resume == "restart":
        rundir.move_aside()
    status = rundir.status()
    rundir.check_same(config)
    if status.get("status") == "done" and not config.plan_only:
        return _already_done(config, rundir)
    saved = rundir.load_checkpoint()
    if saved and saved["version"] != CHECKPOINT_VERSION:
        raise ConfigError(
            "resume",
            f"{rundir.path} was begun by another version of this program; use resume=restart",
        )
    if not config.plan_only:
        _check_ledger(rundir, saved)
    # Its first rounds would be made by code that no audit of today's covers.
    if saved and audits(config) and (other := _changed(config, rundir)):
        reason = f"{rundir.path}: {other} since the run began; use resume=restart"
        raise ConfigError("resume", reason)
    return int(saved["round"]) if saved else 0


def _check_ledger(rundir: RunDir, saved: dict[str, Any] | None) -> None:
    """Raise `ConfigError` if the ledger lacks a line that the checkpoint or a row depends on."""
    try:
        if read_lines(rundir / "metrics.jsonl") and not (rundir / "timing.jsonl").exists():
            raise ValueError("timing.jsonl is missing")
        rundir.verify_ledger(saved)
    except ValueError as error:
        raise ConfigError(
            "resume", f"{rundir.path}: {error}, so epsilon is unknown; use resume=restart"
        ) from None


def _already_done(config: RunConfig, rundir: RunDir) -> Outcome:
    path = rundir / "summary.json"
    try:
        summary = read_object(path)
        measure = objective_of(summary)
        reached = (
            f"{measure.name} {measure.show(summary[measure.name]['mean'])}, "
            f"epsilon {shown_epsilon(summary['epsilon'])}, {summary['guarantee']['status']}"
        )
    except (OSError, KeyError, TypeError, ValueError):
        raise ConfigError("resume", f"{path} is missing or damaged; use resume=restart") from None
    settle_done(config, rundir, summary)
    since = "; resume=restart trains it again"
    if other := _changed(config, rundir):
        since = f", but {other} since{since}"
    if other or not in_sweep():
        print(f"skipped  {rundir.path} is done ({reached}){since}", flush=True)
    return Outcome("skipped", "already done", str(rundir.path), summary=summary)


def _changed(config: RunConfig, rundir: RunDir) -> str:
    """Return which source has changed since a run began, in words; empty if none has."""
    names = changed(config, rundir.provenance())
    return f"the source of {' and '.join(names)} has changed" if names else ""


def _run_group(
    plan: Plan, dirs: list[RunDir], overrides: list[list[str]], interrupted: int = 0
) -> list[Outcome]:
    """Train runs that are at the same round. `interrupted`: exit code of an earlier interruption."""
    if interrupted:
        reason = "interrupted before it started; rerun the same command to resume"
        return [Outcome("interrupted", reason, str(d.path), interrupted) for d in dirs]
    described = [describe_plan(plan, r) for r in range(len(dirs))]  # before a folder is made
    warned = [tuple(warnings(plan, r)) for r in range(len(dirs))]
    if plan.config.plan_only:
        for r, rundir in enumerate(dirs):
            announce(plan, r, rundir.path, overrides[r])
            if not rundir.status():
                rundir.begin(plan.given[r], overrides[r])
                rundir.set_status("planned")
            write_json(rundir / "plan.json", described[r])
        return [
            Outcome("planned", folder=str(d.path), summary=x, warnings=y)
            for d, x, y in zip(dirs, described, warned, strict=True)
        ]
    with never_left_running(dirs, private=plan.users.may_be_real):
        ended = _train(plan, dirs, overrides)
    return [replace(one, warnings=y) for one, y in zip(ended, warned, strict=True)]


def _train(plan: Plan, dirs: list[RunDir], overrides: list[list[str]]) -> list[Outcome]:
    """Begin or resume the folders and train the runs together."""
    saved = [rundir.load_checkpoint() for rundir in dirs]
    run, charge = plan.opened([rundir / "ledger.jsonl" for rundir in dirs]), charge_of(plan)
    if charge is not None:
        charge.reserve(run, dirs, [before["round"] if before else 0 for before in saved])
    for config, rundir, given, before in zip(plan.given, dirs, overrides, saved, strict=True):
        if before is not None and (other := _changed(config, rundir)):
            print(f"warning  {rundir.path} is resumed, but {other} since it began", flush=True)
        if before is None and (rundir / "ledger.jsonl").exists():
            print(f"resume   {rundir.path} has no checkpoint: it starts from round 0", flush=True)
        rundir.begin(config, given, len(dirs))
        rundir.set_status("running")
        for audit, record in records(config).items():
            write_json(rundir / f"{audit}.json", record)
    for r, rundir in enumerate(dirs):
        done = before["round"] if (before := saved[r]) else 0
        ledger = run.gate.continued_ledger(r, done) if run.gate.ledgers[r].lines else None
        announce(run, r, rundir.path, overrides[r], ledger)
        write_json(rundir / "plan.json", describe_plan(run, r, ledger))
        if more := repeat_warning(run.gate, r, ledger):
            print(f"warning  {rundir.path}: {more}", flush=True)
    with catching_signals() as stop:
        outcomes = Experiment(run, dirs).run(saved, stop)
    if charge is not None and not interruption(outcomes):
        try:
            charge.settle(run, dirs)
            print(f"budget  {charge.line()}", flush=True)
        except (ConfigError, OSError) as error:  # the runs have ended, whatever became of the file
            print(f"warning  {error}; all that was planned stays charged", flush=True)
    return outcomes
