"""Files, screen and clock around a `Trainer`: the loop of a run, its checkpoints and its end."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.evaluation.objective import MSPBE, RETURN
from privrl_bench.experiment import crash
from privrl_bench.experiment.builder import RunComponents
from privrl_bench.experiment.metric_writer import MetricWriter, eval_row
from privrl_bench.experiment.policy_file import policy_content
from privrl_bench.experiment.run_dir import RunDir, read_lines, write_json
from privrl_bench.experiment.signals import Stop
from privrl_bench.experiment.trainer import Trainer, one_replica
from privrl_bench.kernels.jit import tell_of_compiling
from privrl_bench.loggers.progress import Progress
from privrl_bench.loggers.text_samples import before_and_after
from privrl_bench.loggers.wandb_logger import WandbLogger
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.ledger import Mark

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_PAUSE = 1.0  # at least, between checkpoints after evaluations
# Of the time, at most: forty replicas with memories take a third of a second.
CHECKPOINT_SHARE = 0.05
CHECKPOINT_LATE = 60.0  # seconds that one slow save may put off the next


@dataclass
class RunResult:
    """How one run ended. `status`: done | failed | interrupted | planned | skipped.

    `apart`: it failed because its group did; trained alone it may go on.
    """

    status: str
    reason: str
    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    apart: bool = False


class Experiment:
    """Files, screen and clock around a `Trainer`."""

    def __init__(self, parts: RunComponents, dirs: list[RunDir]):
        self.parts = parts
        self.dirs = dirs
        self.session = Trainer(parts)
        self.config = parts.config
        self.measure = MSPBE if parts.config.algo.evaluates else RETURN
        self.mirrors = [
            WandbLogger(
                config.log,
                rundir.path,
                run_name=rundir.path.name,
                group=rundir.group(),
                resolved_config=asdict(config),
                guarantee=parts.gate.guarantee(r).to_dict(),
            )
            for r, (config, rundir) in enumerate(zip(parts.configs, dirs, strict=True))
        ]
        self.alive = list(range(len(dirs)))  # replicas that are still training
        self.rows = MetricWriter(self.session, dirs, self.mirrors)
        self._ended: dict[int, RunResult] = {}
        self._earlier = [0.0] * len(dirs)
        self._started = time.perf_counter()
        self._trained = math.inf  # when training was over; plots of other replicas do not count
        self._start_round = 0
        self._invalid = False
        self._recent = [deque[float](maxlen=self.config.eval.window) for _ in dirs]
        self._saved_at = time.perf_counter()
        self._save_seconds = 0.0

    # -- the loop ---------------------------------------------------------------------------

    def run(self, saved: list[dict[str, Any] | None], stop: Stop) -> list[RunResult]:
        """Train to the end, a signal or a failure. A replica that diverges fails alone."""
        parts, session = self.parts, self.session
        count = len(self.dirs)
        together = f", {count} runs together" if count > 1 else ""
        progress = Progress(
            count * parts.iterations * parts.round_steps,
            enabled=self.config.log.progress,
            label=f"{self.config.algo.name} {self.config.env.label}{together}",
            initial_steps=count * self._resume(saved) * parts.round_steps,
            result=self.measure.name,
        )
        tell_of_compiling(progress.note)
        try:
            if parts.task is not None and session.round == 0:
                self._before()
            while not session.over and self.alive and stop.signal is None:
                snapshot = session.snapshot()
                session.step()
                self._drop_diverged(snapshot)
                if self.alive:
                    self._after_round(progress)
            if stop.signal is None or not self.alive:
                if self.alive and self.rows.evaluated < session.round:  # resumed after the last
                    self.rows.begin_evaluation()
                self.rows.write()
                self._trained = time.perf_counter()
                for r in list(self.alive):
                    self._finish(r)
                return self._results()
            self._checkpoint()
            progress.close()  # nothing after what is said next
            name = signal.Signals(stop.signal).name
            return self._end(
                "interrupted", f"{name}; run the same command to go on", 128 + stop.signal
            )
        except KeyboardInterrupt:
            progress.close()
            self._save_if_written(snapshot)
            return self._end(
                "interrupted", "stopped within a round; run the same command to go on", 130
            )
        except ConfigError:
            raise
        except Exception as error:
            progress.close()
            if "snapshot" in locals():
                with suppress(EnvironmentFailure):
                    self.rows.write()
                self._save_if_written(snapshot)
            for r in self.alive:
                crash.save(error, self.dirs[r].path)
            return self._end("failed", self._what_failed(error), 1)
        finally:
            tell_of_compiling(None)
            progress.close()
            session.close()

    def _what_failed(self, error: Exception) -> str:
        """What is said of a failure.

        Where users are real, a message may hold their data: it stays in error.txt, a private file.
        """
        if self.parts.spec.users is None:
            return crash.describe(error)
        return f"{type(error).__name__}: the message is in {crash.ERROR_FILE}, which is private"

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
            print(f"  resume  at round {self.session.round} of {self.parts.iterations}", flush=True)
        self._keep_marks(saved)
        for rundir, recent in zip(self.dirs, self._recent, strict=True):
            rundir.cut_metrics(self.session.round or -1)
            recent.extend(values_of(rundir, self.measure.metric))
        self._earlier = [rundir.seconds_so_far() for rundir in self.dirs]
        self._started = time.perf_counter()
        self._start_round = self.session.round
        return self.session.round

    def _keep_marks(self, saved: list[dict[str, Any] | None]) -> None:
        """Before rows are cut: the checkpoint remembers all lines of the ledger that they depend on."""
        for r, (rundir, one) in enumerate(zip(self.dirs, saved, strict=True)):
            mark = tuple(self.parts.gate.ledgers[r].mark)
            if mark != (Mark() if one is None else one["ledger"]):
                kept = one_replica(self.session.snapshot(), r) if one is None else one
                rundir.save_checkpoint({**kept, "ledger": mark})

    def _before(self) -> None:
        """What the start model does by itself, as round 0: the gain of training is counted from there."""
        self.rows.begin_evaluation()
        self.rows.add({
            r: {"round": 0, "steps": 0, "privacy/epsilon": 0.0, **self._timing(r, 0)}
            for r in self.alive
        })  # fmt: skip
        self.rows.write()

    def _drop_diverged(self, snapshot: dict[str, Any]) -> None:
        """End replicas with non-finite parameters as failed, at their last good state."""
        for r, diverged in enumerate(self.session.diverged()):
            if diverged:
                self.rows.write()
                self.session.freeze(r, snapshot)
                self.dirs[r].save_checkpoint(one_replica(snapshot, r))
                reason = (
                    f"FloatingPointError: round {snapshot['round']} gave non-finite parameters; "
                    "the run has diverged"
                )
                self._end_one(r, "failed", reason, 1, rounds=snapshot["round"])

    def _after_round(self, progress: Progress) -> None:
        """Evaluate, log and checkpoint when it is time."""
        parts, session = self.parts, self.session
        steps = session.round * parts.round_steps
        every, last = self.config.eval.every, session.over
        due = every > 0 and steps // every > (steps - parts.round_steps) // every
        evaluated = due or last
        if evaluated:
            self.rows.begin_evaluation()
        if evaluated or session.round % max(1, parts.iterations // self.config.log.lines) == 0:
            self.rows.add({r: self._row(r, steps, evaluated) for r in self.alive})
        seen = self.rows.evaluated
        self.rows.write(wait=last or self.config.eval.solved is not None)
        mean = epsilon = None
        if self.rows.evaluated > seen:
            if self._unsaved(CHECKPOINT_PAUSE) or last:
                self._checkpoint()
            values = [self.rows.evaluations[r].value for r in self.alive]
            valid = [value for value in values if math.isfinite(value)]
            mean = float(np.mean(valid)) if valid else math.nan
            self._tell_of_invalid_evaluations(progress)
            spent = {parts.gate.spent_epsilon(r) for r in self.alive}
            epsilon = spent.pop() if len(spent) == 1 else None  # runs with different noise: none
        elif self._unsaved(CHECKPOINT_SECONDS):
            self._checkpoint()
        progress.update(len(self.dirs) * steps, return_mean=mean, epsilon=epsilon)
        if self.rows.evaluated > seen:
            self._leave_solved()

    def _leave_solved(self) -> None:
        """Replicas that reach `eval.solved` are done. What tells is released policies in simulated episodes."""
        target = self.config.eval.solved
        if target is None:
            return
        for r in list(self.alive):
            if self.rows.evaluations[r].problem:
                continue
            self._recent[r].append(self.rows.evaluations[r].value)
            full = len(self._recent[r]) == self.config.eval.window
            reached = float(np.mean(self._recent[r])) - target
            if full and (reached >= 0 if self.measure.direction == "up" else reached <= 0):
                now = self.session.snapshot()
                self.dirs[r].save_checkpoint(one_replica(now, r))
                self._finish(r, solved=self.session.round)
                self.session.freeze(r, now)

    def _tell_of_invalid_evaluations(self, progress: Progress) -> None:
        """Once: an evaluation without a result, which the run goes on after."""
        problem = next(filter(None, (self.rows.evaluations[r].problem for r in self.alive)), "")
        if problem and not self._invalid:
            self._invalid = True
            progress.note(f"  note    round {self.rows.evaluated}: {problem}")

    def _row(self, r: int, steps: int, evaluated: bool) -> dict[str, float]:
        """Metrics of replica r after this round, and the clock; an evaluation may follow.

        Epsilon of Poisson cohorts takes seconds: it is in the rows with an evaluation only.
        """
        lr = self.parts.algo.learning_rate(self.session.round - 1)
        row: dict[str, float] = {
            "round": self.session.round,
            "steps": steps,
            **self.session.diagnostics[r],
            **self._timing(r, steps),
        }
        if lr is not None:
            row["lr"] = lr
        plan = self.parts.gate
        if evaluated or not plan.sampler.every_round:
            row["privacy/epsilon"] = plan.spent_epsilon(r, self.session.releases(r))
        return row

    def _timing(self, r: int, steps: int) -> dict[str, float]:
        here = min(time.perf_counter(), self._trained) - self._started
        fresh = steps - self._start_round * self.parts.round_steps
        return {
            "wall_seconds": round(self._earlier[r] + here, 3),
            "steps_per_second": round(fresh / max(here, 1e-9), 1),
        }

    # -- files ------------------------------------------------------------------------------

    def _save(self, snapshot: dict[str, Any]) -> None:
        for r in self.alive:
            self.dirs[r].save_checkpoint(one_replica(snapshot, r))
        self._saved_at = time.perf_counter()

    def _unsaved(self, seconds: float) -> bool:
        """Whether the last checkpoint is so long ago, and so long that the next is a small part of the time."""
        pause = max(seconds, min(self._save_seconds / CHECKPOINT_SHARE, CHECKPOINT_LATE))
        return time.perf_counter() - self._saved_at > pause

    def _checkpoint(self) -> None:
        """Rows first: what comes before a checkpoint is not computed again."""
        self.rows.write()
        started = time.perf_counter()
        self._save(self.session.snapshot())
        self._save_seconds = self._saved_at - started

    def _save_if_written(self, snapshot: dict[str, Any]) -> None:
        """With rows still waiting, the checkpoint before them stays, so that they are computed again."""
        if not self.rows.waiting:
            self._save(snapshot)

    def _summary(self, r: int, status: str, rounds: int | None = None) -> dict[str, Any]:
        """`summary.json` of replica r, which is at round `rounds` (as the session is)."""
        parts, plan = self.parts, self.parts.gate
        done = self.session.round if rounds is None else rounds
        steps = done * parts.round_steps
        guarantee = plan.guarantee(r, min(done, self.session.releases(r)))
        measure = self.measure
        result: dict[str, Any] = {"mean": None, "ci95": None, "definition": None}
        if self.rows.evaluations:
            row = eval_row(self.rows.evaluations[r])
            result = {
                "mean": row.get(measure.metric),
                "ci95": None if measure.spread is None else row.get(measure.spread),
                "definition": self._definition(),
                "last_fifth": self._last_fifth(r),
            }
        return {
            "status": status,
            "algo": self.config.algo.name,
            "env": self.config.env.label,
            "seed": parts.configs[r].seed,
            "z": parts.configs[r].privacy.z,
            "measure": measure.name,
            measure.name: result,
            "epsilon": guarantee.epsilon,
            "epsilon_planned": plan.planned_epsilon(r),
            "epsilon_paper": plan.paper_epsilon(r),
            "delta": guarantee.delta,
            "guarantee": guarantee.to_dict(),
            "ledger": plan.ledgers[r].summary(),
            "steps": steps,
            **self._timing(r, steps),
        }

    def _definition(self) -> str:
        """What the result's numbers are."""
        config, after = self.config.eval, f"after round {self.rows.evaluated}"
        if self.measure is MSPBE:
            return (
                f"mean squared projected Bellman error of the value {after}, of the states that data.policy "
                "visits; see docs/algorithms/gpope.md"
            )
        return (
            f"mean undiscounted return of {config.episodes} fresh {config.policy} evaluation episodes "
            f"of the policy {after}; ci95 is the half width of the t interval over episodes"
        )

    def _last_fifth(self, r: int) -> dict[str, float | None]:
        """Mean of the evaluations in the last fifth of the planned steps: steadier than the last one."""
        start = 0.8 * self.parts.iterations * self.parts.round_steps
        means = [
            row[self.measure.metric]
            for row in read_lines(self.dirs[r] / "metrics.jsonl")
            if self.measure.metric in row and row["steps"] > start
        ]
        return {"mean": float(np.mean(means)) if means else None, "evaluations": len(means)}

    def _finish(self, r: int, solved: int | None = None) -> None:
        """Everything a finished run leaves; prints the result. `solved`: after which round, if it was.

        Without a valid last evaluation there is no result: the run has failed. Its policy was paid for.
        """
        rundir, config = self.dirs[r], self.parts.configs[r]
        if problem := self.rows.evaluations[r].problem:
            torch.save(self._policy(r), rundir / "policy.pt")
            self._end_one(r, "failed", f"the last evaluation: {problem}", 1)
            return
        summary = self._summary(r, "done")
        if config.eval.solved is not None:
            summary["solved"] = solved
        write_json(rundir / "summary.json", summary)
        torch.save(self._policy(r), rundir / "policy.pt")
        exported = self.parts.algo.export(self.session.state, r, rundir.path)
        if config.log.plot:
            from privrl_bench.reporting.plots import learning_curve

            learning_curve(rundir.path, rundir / "curve.png")
        for line in before_and_after(read_lines(rundir / "samples.jsonl")):
            print(line, flush=True)
        rundir.set_status("done")
        self.mirrors[r].finish(summary, exit_code=0)
        shown, guarantee = summary[self.measure.name], summary["guarantee"]
        solution = "" if solved is None else f"solved after round {solved}, "
        half = shown["ci95"]
        spread = "" if half is None or math.isnan(half) else f" ± {self.measure.show(half)}"
        print(
            f"done  {solution}{self.measure.name} {self.measure.show(shown['mean'])}{spread}  "
            f"epsilon {shown_epsilon(summary['epsilon'])} at delta {summary['delta']:g} "
            f"({guarantee['status']}, unit: {guarantee['unit']})\n"
            f"      {summary['steps']} steps in {summary['wall_seconds']:.0f} s, "
            f"{summary['steps_per_second']:.0f} steps/s\n"
            f"      look at {rundir.path}{' (curve.png)' if config.log.plot else ''}"
            + "".join(f", {path.name}" for path in exported),
            flush=True,
        )
        self._leave(r, RunResult("done", "", rundir.path, summary))

    def _policy(self, r: int) -> dict[str, Any]:
        """What may leave, with its guarantee."""
        guarantee = self.parts.gate.guarantee(r, self.session.releases(r))
        return policy_content(self.session, r) | {"guarantee": guarantee.to_dict()}

    def _end(self, status: str, reason: str, code: int) -> list[RunResult]:
        """The replicas that are left do not finish."""
        apart = status == "failed" and len(self.alive) > 1
        for r in list(self.alive):
            self._end_one(r, status, reason, code, apart=apart)
        return self._results()

    def _end_one(
        self,
        r: int,
        status: str,
        reason: str,
        code: int,
        *,
        rounds: int | None = None,
        apart: bool = False,
    ) -> None:
        """Replica r does not finish."""
        rundir = self.dirs[r]
        summary = self._summary(r, status, rounds)
        write_json(rundir / "summary.json", summary)
        rundir.set_status(status, reason)
        self.mirrors[r].finish(summary, exit_code=code)
        there = (rundir / crash.ERROR_FILE).exists()
        more = f"; traceback in {rundir / crash.ERROR_FILE}" if there else ""
        line = f"{status}  {crash.one_line(reason)}; kept in {rundir.path}{more}"
        print(line, file=sys.stderr, flush=True)
        self._leave(r, RunResult(status, reason, rundir.path, summary, code, apart))

    def _leave(self, r: int, result: RunResult) -> None:
        self._ended[r] = result
        self.alive.remove(r)

    def _results(self) -> list[RunResult]:
        """How each replica ended, in order."""
        return [self._ended[r] for r in range(len(self.dirs))]


def values_of(rundir: RunDir, metric: str) -> list[float]:
    """A metric of a run's evaluations so far."""
    lines = read_lines(rundir / "metrics.jsonl")
    return [row[metric] for row in lines if metric in row]
