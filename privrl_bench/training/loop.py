"""The loop of a run around a `Trainer`: evaluation, metrics, checkpoints and the end of each replica."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from privrl_bench.config.schema.run import AUTO, EVALUATIONS
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.evaluation import evaluator_of
from privrl_bench.kernels.jit import tell_of_compiling
from privrl_bench.kernels.signals import Stop, exit_code
from privrl_bench.metrics import check_summary
from privrl_bench.privacy.ledger import Mark
from privrl_bench.training import crash
from privrl_bench.training.crash import Outcome
from privrl_bench.training.folder import RunDir, write_json
from privrl_bench.training.plan import Plan
from privrl_bench.training.progress import Progress, in_sweep
from privrl_bench.training.results import (
    MetricWriter,
    SolvedCheck,
    references_of,
    released,
    result_text,
    save_policy,
    save_results,
    summary_of,
    values_of,
)
from privrl_bench.training.trainer import Trainer
from privrl_bench.training.wandb_logger import WandbLogger


class Experiment:
    """Runs that are trained together, with their files and messages.

    Args:
        parts: the components of the runs.
        dirs: run folder of each.
        mirror: makes the loggers; the leak test has one that keeps what is sent. None: `WandbLogger`.

    Attributes:
        trainer: trains the runs.
        rows: writes their metrics.
        mirrors: logger of each run.
        clock: of all runs.
        alive: numbers of the runs that are still training.
    """

    def __init__(self, parts: Plan, dirs: list[RunDir], mirror: type[WandbLogger] | None = None):
        self.parts = parts
        self.dirs = dirs
        self.trainer = Trainer(parts)
        self.config = parts.config
        self.measure = self.trainer.evaluator.objective
        self._mirror = mirror or WandbLogger
        self.mirrors = [self.mirror(r) for r in range(len(dirs))]
        self.alive = list(range(len(dirs)))
        self.rows = MetricWriter(self.trainer, dirs, self.mirrors)
        self._ended: dict[int, Outcome] = {}
        self._snapshot: dict[str, Any] | None = None  # before the current round
        self.clock = Clock([0.0] * len(dirs))
        self._invalid = False
        self._solved = SolvedCheck(self.config.eval, self.measure, len(dirs))

    def mirror(self, r: int) -> WandbLogger:
        """Return a new logger of replica r."""
        config, guarantee = self.parts.configs[r], self.parts.gate.guarantee(r)
        return self._mirror(config.log, self.dirs[r].path, asdict(config), guarantee.to_dict())

    # -- the loop ---------------------------------------------------------------------------

    def run(self, saved: list[dict[str, Any] | None], stop: Stop) -> list[Outcome]:
        """Train to the end, a signal or a failure. A replica that diverges fails alone.

        Args:
            saved: checkpoint of each replica; None: none yet.
            stop: set by a signal.

        Returns:
            How each run ended, in order.

        Raises:
            ConfigError: found during training; the caller writes the status.
        """
        count, steps = len(self.dirs), len(self.dirs) * self.parts.round_steps
        together = f", {count} runs together" if count > 1 else ""
        progress = Progress(
            steps * self.parts.iterations,
            enabled=self.config.log.progress,
            label=f"{self.config.algo.name} {self.config.env.label}{together}",
            initial_steps=steps * self._resume(saved),
            result=self.measure.name,
            **self.parts.counted,
        )
        tell_of_compiling(progress.note)
        resume = "rerun the same command to resume"
        try:
            if self._train(progress, stop):
                return self._results()
            self._checkpoint()
            progress.close()  # before the next message
            number = stop.signal or signal.SIGINT
            reason = f"{signal.Signals(number).name}; {resume}"
            return self._end("interrupted", reason, 128 + number)
        except KeyboardInterrupt as error:
            progress.close()
            self._save_if_written()
            return self._end("interrupted", f"stopped within a round; {resume}", exit_code(error))
        except ConfigError:
            raise
        except Exception as error:
            progress.close()
            if crash.reader_gone(error):
                raise SystemExit(crash.PIPE) from None
            if self._snapshot is not None:
                with suppress(EnvironmentFailure):
                    self.rows.write()
                self._save_if_written()
            for r in self.alive:
                crash.save(error, self.dirs[r].path)
            return self._end("failed", crash.describe(error, self.parts.users.may_be_real), 1)
        finally:
            tell_of_compiling(None)
            progress.close()
            self.trainer.close()

    def _train(self, progress: Progress, stop: Stop) -> bool:
        """Train until the end or a signal; returns whether the end was reached."""
        trainer = self.trainer
        start = evaluator_of(self.config).shows_start
        if trainer.round == 0 and (start or self._due(0)):
            self._before()
        while not trainer.over and self.alive and stop.signal is None:
            self._snapshot = trainer.snapshot()
            trainer.step()
            self._drop_diverged(self._snapshot)
            if self.alive:
                self.after_round(progress)
        if stop.signal is not None and self.alive:
            return False
        if self.alive and self.rows.evaluated < trainer.round:  # resumed after the last round
            self.rows.begin_evaluation()
        self.rows.write()
        self.clock.stop()
        progress.close()  # before the results
        for r in list(self.alive):
            self._finish(r)
        return True

    def _resume(self, saved: list[dict[str, Any] | None]) -> int:
        """Restore checkpoints if all replicas have one; returns the round."""
        found = [one for one in saved if one is not None]
        if len(found) == len(self.dirs):
            exact = self.trainer.restore(found)
            if not exact:
                print(
                    "  note    this environment is not determined by its seed and actions: the "
                    "resumed run continues from other states than the interrupted run had",
                    flush=True,
                )
            whole = f"{self.parts.iterations} {self.parts.unit}"
            print(f"  resume  at {self.trainer.round} of {whole}", flush=True)
        self.parts.gate.sync()
        ledgers = self.parts.gate.ledgers
        for r, (rundir, one) in enumerate(zip(self.dirs, saved, strict=True)):
            mark = tuple(ledgers[r].mark)
            # The checkpoint has the ledger lines that rows depend on, before rows are removed.
            if mark != (Mark() if one is None else one["ledger"]):
                kept = self.trainer.checkpoint(self.trainer.snapshot(), r) if one is None else one
                rundir.save_checkpoint({**kept, "ledger": mark})
        for r, rundir in enumerate(self.dirs):
            rundir.cut_metrics(self.trainer.round or -1)
            self._solved.restore(r, values_of(rundir, self.measure.metric, after=0))
        steps = self.trainer.round * self.parts.round_steps
        self.clock = Clock([rundir.seconds_so_far() for rundir in self.dirs], steps)
        return self.trainer.round

    def _due(self, rounds: int) -> bool:
        """Whether `eval.every` has an evaluation after so many rounds."""
        parts = self.parts
        return due(self.config.eval.every, rounds, parts.iterations, parts.round_steps)

    def _before(self) -> None:
        """Evaluate the initial public parameters, as round 0 with epsilon 0."""
        self.rows.begin_evaluation()
        self.rows.add({
            r: {"round": 0, "steps": 0, "privacy/epsilon": 0.0, **self.clock.timing(r, 0)}
            for r in self.alive
        })  # fmt: skip
        self.rows.write()

    def _drop_diverged(self, snapshot: dict[str, Any]) -> None:
        """End replicas with non-finite parameters as failed, with their last finite state."""
        for r, diverged in enumerate(self.trainer.diverged()):
            if diverged:
                self.rows.write()
                self.trainer.freeze(r, snapshot)
                self._save(snapshot, [r])
                reason = (
                    f"FloatingPointError: round {snapshot['round']} gave non-finite parameters; "
                    "the run has diverged"
                )
                done = snapshot["round"]
                ended = self.end_early(r, self.mirrors[r], "failed", reason, 1, rounds=done)
                self._leave(r, ended)

    def after_round(self, progress: Progress) -> None:
        """Evaluate, log and checkpoint when it is time."""
        parts, trainer = self.parts, self.trainer
        steps = trainer.round * parts.round_steps
        last = trainer.over
        evaluated = last or self._due(trainer.round)
        seen = self.rows.evaluated
        if evaluated:
            self.rows.begin_evaluation()  # waits for the one before
        if evaluated or trainer.round % max(1, parts.iterations // self.config.log.lines) == 0:
            self.rows.add({r: self.row(r, steps, evaluated) for r in self.alive})
        self.rows.write(wait=last or self.config.eval.solved is not None)
        mean = epsilon = None
        arrived = self.rows.evaluated > seen
        # A checkpoint waits for an unfinished evaluation, so it is made more rarely then.
        soon = arrived and not self.rows.waiting
        if last or self.clock.due(CHECKPOINT_PAUSE if soon else CHECKPOINT_SECONDS):
            self._checkpoint()
        if arrived:
            values = [self.rows.evaluations[r].value for r in self.alive]
            valid = [value for value in values if math.isfinite(value)]
            mean = float(np.mean(valid)) if valid else math.nan
            self._note_invalid_evaluation(progress)
            spent = {parts.gate.spent_epsilon(r, trainer.releases(r)) for r in self.alive}
            # Not of runs with different noise, nor where a part of the users has had all of it.
            epsilon = spent.pop() if len(spent) == 1 and parts.gate.participation != 1 else None
        progress.update(len(self.dirs) * steps, return_mean=mean, epsilon=epsilon)
        if arrived:
            self._leave_solved()

    def _leave_solved(self) -> None:
        """Finish replicas that reach `eval.solved`, judged by released policies in simulated episodes."""
        if self.config.eval.solved is None:
            return
        for r in list(self.alive):
            evaluation = self.rows.evaluations[r]
            if not evaluation.problem and self._solved.add(r, evaluation.value):
                now = self.trainer.snapshot()
                self._save(now, [r])
                self._finish(r, solved=self.trainer.round)
                self.trainer.freeze(r, now)

    def _note_invalid_evaluation(self, progress: Progress) -> None:
        """Print once that an evaluation has no result; the run continues."""
        problem = next(filter(None, (self.rows.evaluations[r].problem for r in self.alive)), "")
        if problem and not self._invalid:
            self._invalid = True
            progress.note(f"  note    round {self.rows.evaluated}: {problem}")

    def row(self, r: int, steps: int, evaluated: bool) -> dict[str, float]:
        """Metrics and timing of replica r; epsilon of Poisson cohorts takes seconds: at evaluations only."""
        row: dict[str, float] = {
            "round": self.trainer.round,
            "steps": steps,
            **self.trainer.diagnostics[r],
            **self.clock.timing(r, steps),
        }
        gate = self.parts.gate
        if evaluated or not gate.sampler.every_round:
            row["privacy/epsilon"] = gate.spent_epsilon(r, self.trainer.releases(r))
        return row

    # -- files ------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Save rows first, then the checkpoint: rows before a checkpoint are not computed again."""
        self.rows.write()
        started = time.perf_counter()
        self._save(self.trainer.snapshot(), self.alive)
        self.clock.saved(started)

    def _save(self, snapshot: dict[str, Any], replicas: Iterable[int]) -> None:
        """Save these replicas of a snapshot."""
        for r in replicas:
            self.dirs[r].save_checkpoint(self.trainer.checkpoint(snapshot, r))

    def _save_if_written(self) -> None:
        """Keep the earlier checkpoint while rows wait for an evaluation, so that they are computed again."""
        with suppress(OSError):  # the disk may be what failed
            self.parts.gate.sync()
            if self._snapshot is not None and not self.rows.waiting:
                self._save(self._snapshot, self.alive)

    def _summary(self, r: int, status: str, rounds: int | None = None) -> dict[str, Any]:
        """Return the summary of replica r, which is at round `rounds` (default: the trainer's)."""
        done = self.trainer.round if rounds is None else rounds
        timing = self.clock.timing(r, done * self.parts.round_steps)
        return summary_of(self.trainer, self.rows, self.dirs[r], r, status, done, timing)

    def _finish(self, r: int, solved: int | None = None) -> None:
        """End replica r after its last round, or after the round `solved` that reached `eval.solved`."""
        self._leave(r, self.end_done(r, self.mirrors[r], solved))

    def end_done(self, r: int, mirror: WandbLogger, solved: int | None = None) -> Outcome:
        """Write the files of a finished run and print its result; training could continue.

        Without a valid last evaluation the run has failed; its policy is written, as its epsilon is spent.

        Args:
            r: the replica.
            mirror: gets the summary and the released files.
            solved: the round after which `eval.solved` was reached.
        """
        rundir, config = self.dirs[r], self.parts.configs[r]
        if problem := self.rows.evaluations[r].problem:
            save_policy(self.trainer, r, rundir)
            return self.end_early(r, mirror, "failed", f"the last evaluation: {problem}", 1)
        summary = self._summary(r, "done") | {"references": references_of(self.parts, rundir)}
        if config.eval.solved is not None:
            summary["solved"] = solved
        check_summary(summary)
        write_json(rundir / "summary.json", summary)
        files = save_results(self.trainer, r, rundir)
        rundir.set_status("done")
        mirror.finish(summary, exit_code=0, released=released(self.trainer, r, rundir))
        if not in_sweep() or config.log.full:
            print(result_text(summary, rundir.path, files, self.parts.users.from_data), flush=True)
        return Outcome("done", "", str(rundir.path), summary=summary)

    def _end(self, status: str, reason: str, code: int) -> list[Outcome]:
        """End all replicas that are still training."""
        together = status == "failed" and len(self.alive) > 1
        for r in list(self.alive):
            mirror = self.mirrors[r]
            ended = self.end_early(r, mirror, status, reason, code, failed_with_group=together)
            self._leave(r, ended)
        return self._results()

    def end_early(
        self,
        r: int,
        mirror: WandbLogger,
        status: str,
        reason: str,
        code: int,
        *,
        rounds: int | None = None,
        failed_with_group: bool = False,
    ) -> Outcome:
        """Write the files of a run that is not done and print why; training could continue.

        Args:
            r: the replica.
            mirror: gets the summary.
            status: interrupted | failed.
            reason: of the status.
            code: exit code.
            rounds: that the run has trained; None: all that the trainer has done.
            failed_with_group: see `Outcome`.
        """
        rundir = self.dirs[r]
        summary = self._summary(r, status, rounds)
        check_summary(summary)
        write_json(rundir / "summary.json", summary)
        rundir.set_status(status, reason)
        mirror.finish(summary, exit_code=code)
        there = (rundir / crash.ERROR_FILE).exists()
        more = f"; traceback in {rundir / crash.ERROR_FILE}" if there else ""
        line = f"{status}  {crash.one_line(reason)}; results: {rundir.path}{more}"
        print(line, file=sys.stderr, flush=True)
        return Outcome(
            status, reason, str(rundir.path), code, summary, failed_with_group=failed_with_group
        )

    def _leave(self, r: int, result: Outcome) -> None:
        self._ended[r] = result
        self.alive.remove(r)

    def _results(self) -> list[Outcome]:
        """Return how each replica ended, in order."""
        return [self._ended[r] for r in range(len(self.dirs))]


# --- time


CHECKPOINT_SECONDS = 10.0
CHECKPOINT_PAUSE = 1.0  # at least, between checkpoints after evaluations
# Of the time, at most: forty replicas with replay buffers take a third of a second.
CHECKPOINT_SHARE = 0.05


class Clock:
    """Seconds and speed of the replicas that are trained together, and when they are saved again.

    Args:
        earlier: seconds of earlier parts of each run.
        steps: environment steps of each run when the clock starts.
    """

    def __init__(self, earlier: Sequence[float], steps: int = 0):
        self._earlier, self._steps = list(earlier), steps
        self._started = self._since = self._saved_at = time.perf_counter()
        self._first = steps  # of the first round here, which may wait for compilation
        self._stopped = math.inf
        self._cost = 0.0  # seconds of the last checkpoint

    def stop(self) -> None:
        """Stop: training is over, and the plots of other replicas do not count."""
        self._stopped = time.perf_counter()

    def timing(self, r: int, steps: int) -> dict[str, float]:
        """Return the seconds of replica `r` and its speed after the first round here, at so many steps."""
        now = min(time.perf_counter(), self._stopped)
        since, first = (
            (self._since, self._first) if steps > self._first else (self._started, self._steps)
        )
        if self._first == self._steps < steps:
            self._since, self._first = now, steps
        return {
            "wall_seconds": round(self._earlier[r] + now - self._started, 3),
            "steps_per_second": round((steps - first) / max(now - since, 1e-9), 1),
        }

    def due(self, pause: float) -> bool:
        """Return whether `pause` seconds have passed, and so many that saving is a small part of the time."""
        return time.perf_counter() - self._saved_at > max(pause, self._cost / CHECKPOINT_SHARE)

    def saved(self, started: float) -> None:
        """A checkpoint is there, which was begun at this time of `time.perf_counter`."""
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - started


def due(every: int | str, rounds: int, planned: int, round_steps: int) -> bool:
    """Whether there is an evaluation after so many rounds, the last round apart.

    Args:
        every: steps between evaluations; 0: none; auto: a twentieth of the planned rounds, at least one.
        rounds: done so far; 0: before any data.
        planned: of the whole run.
        round_steps: environment steps of a round.

    >>> [r for r in range(101) if due("auto", r, 100, 64)][:4], due("auto", 3, 6, 64)
    ([0, 5, 10, 15], True)
    >>> [r for r in range(9) if due(128, r, 8, 64)], due(0, 0, 8, 64)
    ([0, 2, 4, 6, 8], False)
    """
    if rounds == 0:
        return every != 0
    if every == AUTO:
        parts = min(EVALUATIONS, planned)
        return rounds * parts // planned > (rounds - 1) * parts // planned
    steps = rounds * round_steps
    return int(every) > 0 and steps // int(every) > (steps - round_steps) // int(every)
