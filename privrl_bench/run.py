"""`run`: train, resume, plan or skip runs. The one entry for the command line, scripts and tests.

`run(configs, folders, overrides)` trains runs that differ only in seed and z together, along a replica
axis. One run is a list of one. Every replica has its own folder, ledger and metrics.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path

import torch

from privrl_bench.assemble import Parts, assemble, describe_plan
from privrl_bench.errors import ConfigError
from privrl_bench.rundir import RunDir, write_json
from privrl_bench.schema import RunConfig
from privrl_bench.training import RunResult, Training, catching_signals

__all__ = ["RunResult", "run"]


def run(
    configs: list[RunConfig], folders: list[Path], overrides: list[list[str]]
) -> list[RunResult]:
    """Train, resume, plan or skip runs.

    Args:
        configs: equal but for `seed` and `privacy.z`.
        folders: run folder of each.
        overrides: command-line overrides of each, for the record.

    Returns: how each ended, in order.

    Raises:
        ConfigError: a setting is wrong; nothing was trained and no folder was created.
    """
    dirs = [RunDir(Path(folder)) for folder in folders]
    torch.set_num_threads(configs[0].hardware.threads)
    with ExitStack() as locks:
        for rundir in dirs:
            locks.enter_context(rundir.lock())
        return _run_locked(configs, dirs, overrides)


def _run_locked(
    configs: list[RunConfig], dirs: list[RunDir], overrides: list[list[str]]
) -> list[RunResult]:
    """`run`, with the folders reserved for this process."""
    results: dict[int, RunResult] = {}
    waiting: dict[int, list[int]] = {}  # checkpoint round -> replicas
    for i, (config, rundir) in enumerate(zip(configs, dirs, strict=True)):
        if config.resume == "restart":
            rundir.move_aside()
        status = rundir.status()
        rundir.check_same(config)
        if status.get("status") == "done" and not config.plan_only:
            results[i] = _already_done(rundir)
            continue
        saved = rundir.load_checkpoint()
        waiting.setdefault(int(saved["round"]) if saved else 0, []).append(i)
    for members in waiting.values():
        group = _run_group(
            [configs[i] for i in members],
            [dirs[i] for i in members],
            [overrides[i] for i in members],
        )
        results.update(zip(members, group, strict=True))
    return [results[i] for i in range(len(configs))]


def _already_done(rundir: RunDir) -> RunResult:
    summary = json.loads((rundir / "summary.json").read_text())
    print(
        f"skipped  {rundir.path} is done (return {summary['return']['mean']:.1f}, "
        f"epsilon {summary['epsilon']:.4g}); resume=restart trains it again",
        flush=True,
    )
    return RunResult("skipped", "already done", rundir.path, summary)


def _run_group(
    configs: list[RunConfig], dirs: list[RunDir], overrides: list[list[str]]
) -> list[RunResult]:
    """Runs that stand at the same round."""
    if configs[0].plan_only:
        parts = assemble(configs, [None] * len(configs))
        for r, rundir in enumerate(dirs):
            _announce(parts, r, rundir)
            if not rundir.status():
                rundir.begin(configs[r], overrides[r])
                rundir.set_status("planned")
            write_json(rundir / "plan.json", describe_plan(parts, r))
        return [
            RunResult("planned", "", d.path, describe_plan(parts, r)) for r, d in enumerate(dirs)
        ]
    assemble(configs, [None] * len(configs))  # every ConfigError before a folder is made
    saved = [rundir.load_checkpoint() for rundir in dirs]
    for config, rundir, given in zip(configs, dirs, overrides, strict=True):
        rundir.begin(config, given)
        rundir.set_status("running")
    parts = assemble(configs, [rundir / "ledger.jsonl" for rundir in dirs])
    for ledger, rundir, one in zip(parts.plan.ledgers, dirs, saved, strict=True):
        lost = ledger.missing(int(one["round"])) if one else []
        if lost:
            raise ConfigError(
                "resume",
                f"{rundir / 'ledger.jsonl'} has no line for round {lost[0]}, which the checkpoint has "
                "seen, so epsilon is unknown; use resume=restart",
            )
    for r, rundir in enumerate(dirs):
        _announce(parts, r, rundir)
        write_json(rundir / "plan.json", describe_plan(parts, r))
    with catching_signals() as stop:
        return Training(parts, dirs).run(saved, stop)


def _announce(parts: Parts, r: int, rundir: RunDir) -> None:
    """Print what is about to happen, privacy first."""
    config, guarantee = parts.configs[r], parts.plan.guarantee(r, planned=True)
    z = "" if config.privacy.mechanism == "none" else f"  z={config.privacy.z:g}"
    print(f"{config.algo.name} on {config.env.label}{z}  seed={config.seed}")
    print(
        f"  plan    {parts.rounds} rounds of {config.privacy.users_per_round} users x {parts.steps} "
        f"steps = {parts.rounds * parts.round_steps} steps"
    )
    first, *rest = guarantee.describe()
    paper = parts.plan.paper_epsilon(r)
    formula = "" if math.isinf(paper) else f" (the DPPG paper's formula: {paper:.4g})"
    print(f"  privacy {first}{formula}")
    for line in rest:
        print(f"          {line}")
    print(f"  folder  {rundir.path}", flush=True)
