"""Writes metrics to the disk and to W&B in order, although an evaluation may finish late."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.evaluation.evaluator import Evaluation
from privrl_bench.metrics import CLOCK, check_declared
from privrl_bench.privacy.ledger_chain import Mark
from privrl_bench.run.run_dir import RunDir
from privrl_bench.run.trainer import Trainer
from privrl_bench.run.wandb_logger import WandbLogger


class MetricWriter:
    """Rows of all replicas. Rows from an unfinished evaluation on wait for it.

    Attributes:
        evaluations: the last finished ones, of each replica.
        evaluated: after which round; -1: none yet.
    """

    def __init__(self, trainer: Trainer, dirs: list[RunDir], mirrors: list[WandbLogger]):
        self.evaluations: Sequence[Evaluation] = []
        self.evaluated = -1
        self._trainer, self._dirs, self._mirrors = trainer, dirs, mirrors
        self._evaluating: int | None = None  # the round whose evaluation is unfinished
        self._waiting: list[tuple[dict[int, dict[str, float]], list[Mark]]] = []

    @property
    def waiting(self) -> bool:
        """Whether anything is not on the disk yet."""
        return self._evaluating is not None or bool(self._waiting)

    def begin_evaluation(self) -> None:
        """Begin to evaluate the current policies. Raises EnvironmentFailure, also of the one before."""
        self.write()  # one at a time
        self._trainer.begin_evaluation()
        self._evaluating = self._trainer.round

    def add(self, rows: dict[int, dict[str, float]]) -> None:
        """One row for each replica that is training, by replica, with the clock's `CLOCK`."""
        gate = self._trainer.parts.gate
        gate.sync()
        marks = [ledger.mark for ledger in gate.ledgers]
        self._waiting.append((rows, marks))

    def write(self, wait: bool = True) -> None:
        """Write the rows.

        Args:
            wait: for the unfinished evaluation; else the rows from it on stay.

        Raises:
            EnvironmentFailure: of an evaluation.
        """
        if self._evaluating is not None:
            found = self._trainer.take_evaluation(wait)
            if found is None:
                return
            self.evaluations, self.evaluated = found, self._evaluating
            self._evaluating = None
        waiting, self._waiting = self._waiting, []
        for rows, marks in waiting:
            for r, row in rows.items():
                if row["round"] == self.evaluated:
                    row |= self.evaluations[r].metrics()
                    self._show(r, row)
                self._write(r, row, marks[r])

    def _show(self, r: int, row: dict[str, float]) -> None:
        """Samples of the evaluation; they belong to no user."""
        samples = list(self.evaluations[r].samples)
        for sample in samples:
            line = {"round": row["round"], "steps": row["steps"], **sample}
            self._dirs[r].append("samples.jsonl", line)
        self._mirrors[r].show(samples, int(row["round"]))

    def _write(self, r: int, row: dict[str, float], mark: Mark) -> None:
        """timing.jsonl first, with the mark: metrics.jsonl is the same however a run was interrupted."""
        timing = {name: row.pop(name) for name in CLOCK}
        check_declared(row)
        self._dirs[r].append("timing.jsonl", {"round": row["round"], **timing, "ledger": mark})
        self._dirs[r].append("metrics.jsonl", row)
        self._mirrors[r].log({**row, **timing})
