"""The one loop: rounds of users through the gate, evaluation, checkpoints, resume.

`run(configs, folders, overrides)` trains runs that differ only in seed and z together, along a replica
axis. One run is a list of one. Every replica has its own folder, ledger and metrics.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.assemble import Parts, assemble, describe_plan
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.log.progress import Progress
from privrl_bench.log.wandb_mirror import WandbMirror
from privrl_bench.metrics import check_declared
from privrl_bench.report.stats import mean_ci
from privrl_bench.rollout import Evaluation, Evaluator, Rollout
from privrl_bench.rundir import RunDir, write_json
from privrl_bench.schema import RunConfig
from privrl_bench.types import State

_CHECKPOINT_SECONDS = 10.0
_CHECKPOINT_VERSION = 1


@dataclass
class RunResult:
    """How one run ended. `status`: done | failed | interrupted | planned | skipped."""

    status: str
    reason: str
    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0


class Stop:
    """Remembers a signal, so that the round in progress can be finished."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self, number: int, _frame: object) -> None:
        """First signal: finish the round. Second: stop at once."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def _catching_signals() -> Iterator[Stop]:
    """SIGINT and SIGTERM set a flag while the block runs (main thread only)."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Session:
    """R replicas in training. `step()` is one round; nothing here writes files.

    Args:
        parts: what `assemble` built. Tests replace `parts.plan` to replay releases.
    """

    def __init__(self, parts: Parts):
        config = parts.config
        self.parts = parts
        self.state: State = parts.algo.init(parts.streams)
        self.diagnostics: list[dict[str, float]] = []
        self.rollout = Rollout(
            config.env,
            parts.spec,
            parts.algo.policy,
            parts.streams,
            parts.plan.slots,
            parts.steps,
            config.algo.gamma,
            config.hardware.env_workers,
        )
        self._evaluator = Evaluator(
            config.env,
            parts.spec,
            parts.algo.policy,
            parts.streams,
            config.eval.episodes,
            config.eval.policy == "greedy",
            config.hardware.env_workers,
        )

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.state.round

    def step(self) -> None:
        """One round: users, rows, release, next state."""
        parts = self.parts
        index = self.state.round
        before = parts.algo.actor(self.state)
        users = self.rollout.collect(before, index, parts.plan.cohort(index))
        stats = users.stats
        contribution = parts.algo.local(self.state, users, parts.streams)
        del users  # raw data end here
        diagnostics = contribution.diagnostics
        released = parts.plan.release(contribution, index)
        state = parts.algo.server(self.state, released)
        state = parts.algo.improve(state, parts.streams)
        if state.round != index + 1:
            raise RuntimeError(f"round {index} left the state at round {state.round}")
        after = parts.algo.actor(state)
        self.state = state
        self.diagnostics = [
            {
                "release/norm": float(torch.linalg.vector_norm(after[r] - before[r])),
                "policy/norm": float(torch.linalg.vector_norm(after[r])),
                "train/clipped_fraction": released.clipped_fraction[r],
                **stats[r],
                "train/invalid_users": float(released.invalid_users[r])
                + stats[r]["train/invalid_users"],
                **(diagnostics[r] if diagnostics else {}),
            }
            for r in range(len(parts.configs))
        ]

    def diverged(self) -> list[bool]:
        """Which replicas have non-finite parameters."""
        return (~torch.isfinite(self.parts.algo.actor(self.state)).all(-1)).tolist()

    def evaluate(self) -> list[Evaluation]:
        """Evaluation episodes of the current policies."""
        actor = self.parts.algo.actor(self.state)
        return self._evaluator.run(actor, self.state.round, self.rollout.scaler)

    def snapshot(self) -> dict[str, Any]:
        """Everything a resumed session needs, of all replicas. Holds no noise."""
        return {
            "state": self.state.clone().tensors,
            "round": self.state.round,
            "rollout": self.rollout.get_state(),
        }

    def restore(self, saved: list[dict[str, Any]]) -> bool:
        """Continue from one checkpoint of each replica, all at the same round.

        Returns: whether the environments came back bit for bit.
        """
        self.state = State(saved[0]["round"], _join([one["state"] for one in saved]))
        return self.rollout.set_state(_join([one["rollout"] for one in saved]))

    def close(self) -> None:
        """Free the environments."""
        self.rollout.close()
        self._evaluator.close()


def _slice(snapshot: dict[str, Any], r: int) -> dict[str, Any]:
    """The checkpoint of one replica."""
    return {
        "version": _CHECKPOINT_VERSION,
        "round": snapshot["round"],
        "state": {k: v[r : r + 1].clone() for k, v in snapshot["state"].items()},
        "rollout": {k: v[r : r + 1].clone() for k, v in snapshot["rollout"].items()},
    }


def _join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack replicas; histories of different length (axis 2) are padded with zeros."""
    joined = {}
    for key in parts[0]:
        pieces = [part[key] for part in parts]
        if key == "history":
            longest = max(p.shape[2] for p in pieces)
            pieces = [torch.nn.functional.pad(p, (0, 0, 0, longest - p.shape[2])) for p in pieces]
        joined[key] = torch.cat(pieces)
    return joined


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
    import json

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
    with _catching_signals() as stop:
        return _Training(parts, dirs).run(saved, stop)


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


class _Training:
    """Files, screen and clock around a `Session`."""

    def __init__(self, parts: Parts, dirs: list[RunDir]):
        self.parts = parts
        self.dirs = dirs
        self.session = Session(parts)
        self.config = parts.config
        self.mirrors = [
            WandbMirror(
                config.log,
                rundir.path,
                run_name=rundir.path.name,
                group=rundir.group(),
                resolved_config=asdict(config),
                guarantee=parts.plan.guarantee(r, planned=True).to_dict(),
            )
            for r, (config, rundir) in enumerate(zip(parts.configs, dirs, strict=True))
        ]
        self.last_eval: list[Evaluation] = []
        self.last_eval_round = 0
        self._earlier = 0.0
        self._started = time.perf_counter()
        self._start_round = 0
        self._saved_at = time.perf_counter()

    # -- the loop ---------------------------------------------------------------------------

    def run(self, saved: list[dict[str, Any] | None], stop: Stop) -> list[RunResult]:
        """Train to the end, a signal or a failure."""
        parts, session = self.parts, self.session
        progress = Progress(
            parts.rounds * parts.round_steps,
            enabled=self.config.log.progress,
            label=f"{self.config.algo.name} {self.config.env.label}",
            initial_steps=self._resume(saved) * parts.round_steps,
        )
        try:
            while session.round < parts.rounds and stop.signal is None:
                snapshot = session.snapshot()
                session.step()
                failed = session.diverged()
                if any(failed):
                    session.restore([_slice(snapshot, r) for r in range(len(self.dirs))])
                    raise FloatingPointError(
                        f"round {session.round} gave non-finite parameters; the run has diverged"
                    )
                self._after_round(progress)
            if stop.signal is None:
                if self.last_eval_round < session.round:  # resumed after the last round
                    self._evaluate()
                return [self._finish(r) for r in range(len(self.dirs))]
            self._checkpoint()
            name = signal.Signals(stop.signal).name
            return self._end(
                "interrupted", f"{name}; run the same command to go on", 128 + stop.signal
            )
        except KeyboardInterrupt:
            self._save(snapshot)
            return self._end(
                "interrupted", "stopped within a round; run the same command to go on", 130
            )
        except ConfigError:
            raise
        except Exception as error:
            if "snapshot" in locals():
                self._save(snapshot)
            if not isinstance(error, EnvironmentFailure | FloatingPointError):
                traceback.print_exc()
            return self._end("failed", f"{type(error).__name__}: {error}", 1)
        finally:
            progress.close()
            session.close()

    def _resume(self, saved: list[dict[str, Any] | None]) -> int:
        """Continue from checkpoints if there are any; returns the round."""
        found = [one for one in saved if one is not None]
        if len(found) == len(self.dirs):
            exact = self.session.restore(found)
            if not exact:
                print(
                    "  note    this environment is not determined by its seed and actions: the "
                    "resumed run goes on from other states than the interrupted one had",
                    flush=True,
                )
            print(f"  resume  at round {self.session.round} of {self.parts.rounds}", flush=True)
        for rundir in self.dirs:
            rundir.cut_metrics(self.session.round)
        self._earlier = self.dirs[0].seconds_so_far()
        self._started = time.perf_counter()
        self._start_round = self.session.round
        return self.session.round

    def _after_round(self, progress: Progress) -> None:
        """Evaluate, log and checkpoint when it is time."""
        parts, session = self.parts, self.session
        steps = session.round * parts.round_steps
        every, last = self.config.eval.every, session.round == parts.rounds
        due = every > 0 and steps // every > (steps - parts.round_steps) // every
        evaluated = due or last
        if evaluated:
            self._evaluate()
        if evaluated or session.round % max(1, parts.rounds // self.config.log.lines) == 0:
            self._log_lines(steps, evaluated)
        if evaluated or time.perf_counter() - self._saved_at > _CHECKPOINT_SECONDS:
            self._checkpoint()
        mean = float(np.mean([e.returns.mean() for e in self.last_eval])) if evaluated else None
        progress.update(
            steps, return_mean=mean, epsilon=parts.plan.spent_epsilon(0) if evaluated else None
        )

    def _evaluate(self) -> None:
        self.last_eval = self.session.evaluate()
        self.last_eval_round = self.session.round

    def _log_lines(self, steps: int, evaluated: bool) -> None:
        lr = getattr(self.parts.algo, "learning_rate", None)
        for r, rundir in enumerate(self.dirs):
            row: dict[str, float] = {
                "round": self.session.round,
                "steps": steps,
                "privacy/epsilon": self.parts.plan.spent_epsilon(r, self.session.round),
                **self.session.diagnostics[r],
            }
            if lr is not None:
                row["lr"] = lr(self.session.round - 1)
            if evaluated:
                row |= _eval_row(self.last_eval[r])
            check_declared(row)
            timing = self._timing(steps)
            rundir.append("metrics.jsonl", row)
            rundir.append("timing.jsonl", {"round": self.session.round, **timing})
            self.mirrors[r].log({**row, **timing})

    def _timing(self, steps: int) -> dict[str, float]:
        here = time.perf_counter() - self._started
        fresh = steps - self._start_round * self.parts.round_steps
        return {
            "wall_seconds": round(self._earlier + here, 3),
            "steps_per_second": round(fresh / max(here, 1e-9), 1),
        }

    # -- files ------------------------------------------------------------------------------

    def _save(self, snapshot: dict[str, Any]) -> None:
        for r, rundir in enumerate(self.dirs):
            rundir.save_checkpoint(_slice(snapshot, r))
        self._saved_at = time.perf_counter()

    def _checkpoint(self) -> None:
        self._save(self.session.snapshot())

    def _summary(self, r: int, status: str) -> dict[str, Any]:
        """`summary.json` of replica r."""
        parts, plan = self.parts, self.parts.plan
        steps = self.session.round * parts.round_steps
        guarantee = plan.guarantee(r, planned=False)
        result: dict[str, Any] = {"mean": None, "ci95": None, "definition": None}
        if self.last_eval:
            row = _eval_row(self.last_eval[r])
            config = self.config.eval
            result = {
                "mean": row["eval/return_mean"],
                "ci95": row["eval/return_ci95"],
                "definition": f"mean undiscounted return of {config.episodes} fresh {config.policy} "
                f"evaluation episodes of the policy after round {self.last_eval_round}; ci95 is the "
                "half width of the t interval over episodes",
            }
        return {
            "status": status,
            "algo": self.config.algo.name,
            "env": self.config.env.label,
            "seed": parts.configs[r].seed,
            "z": parts.configs[r].privacy.z,
            "return": result,
            "epsilon": guarantee.epsilon,
            "epsilon_planned": plan.planned_epsilon(r),
            "epsilon_paper": plan.paper_epsilon(r),
            "delta": guarantee.delta,
            "guarantee": guarantee.to_dict(),
            "ledger": plan.ledgers[r].summary(),
            "steps": steps,
            **self._timing(steps),
        }

    def _finish(self, r: int) -> RunResult:
        """Everything a finished run leaves; prints the result."""
        rundir, config = self.dirs[r], self.parts.configs[r]
        summary = self._summary(r, "done")
        write_json(rundir / "summary.json", summary)
        torch.save(self._policy(r), rundir / "policy.pt")
        if config.log.plot:
            from privrl_bench.report.plots import learning_curve

            learning_curve(rundir.path, rundir / "curve.png")
        rundir.set_status("done")
        self.mirrors[r].finish(summary, exit_code=0)
        shown, guarantee = summary["return"], summary["guarantee"]
        print(
            f"done  return {shown['mean']:.1f} ± {shown['ci95']:.1f}  "
            f"epsilon {summary['epsilon']:.4g} at delta {summary['delta']:g} "
            f"({guarantee['status']}, unit: {guarantee['unit']})\n"
            f"      {summary['steps']} steps in {summary['wall_seconds']:.0f} s, "
            f"{summary['steps_per_second']:.0f} steps/s\n"
            f"      look at {rundir.path}{' (curve.png)' if config.log.plot else ''}",
            flush=True,
        )
        return RunResult("done", "", rundir.path, summary)

    def _policy(self, r: int) -> dict[str, Any]:
        """What may leave: released parameters and public constants (plus declared caveats' values)."""
        env = self.config.env
        content: dict[str, Any] = {
            "actor": self.parts.algo.actor(self.session.state)[r].clone(),
            "hidden": list(self.config.algo.hidden),
            "env": asdict(env),
            "guarantee": self.parts.plan.guarantee(r, planned=False).to_dict(),
        }
        if env.obs_scaling == "running":
            saved = self.session.rollout.scaler.get_state()
            content["running_obs_mean"] = saved["obs_mean"][r].mean(0)
            content["running_obs_var"] = saved["obs_var"][r].mean(0)
        return content

    def _end(self, status: str, reason: str, code: int) -> list[RunResult]:
        """A run that did not finish."""
        results = []
        for r, rundir in enumerate(self.dirs):
            summary = self._summary(r, status)
            write_json(rundir / "summary.json", summary)
            rundir.set_status(status, reason)
            self.mirrors[r].finish(summary, exit_code=code)
            print(f"{status}  {reason}\n      kept in {rundir.path}", file=sys.stderr, flush=True)
            results.append(RunResult(status, reason, rundir.path, summary, code))
        return results


def _eval_row(evaluation: Evaluation) -> dict[str, float]:
    """Metrics of one evaluation."""
    mean, half = mean_ci(evaluation.returns)
    return {
        "eval/return_mean": mean,
        "eval/return_std": float(evaluation.returns.std()),
        "eval/return_ci95": half,
        "eval/length_mean": float(evaluation.lengths.mean()),
        "eval/episodes": len(evaluation.returns),
    }
