"""Metrics on their way to the disk and to W&B: in order, though an evaluation may come late."""

from __future__ import annotations

from privrl_bench.evaluation.mspbe import ValueEvaluation
from privrl_bench.evaluation.returns import Evaluation
from privrl_bench.experiment.run_dir import RunDir
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.functional.statistics import mean_ci
from privrl_bench.loggers.wandb_logger import WandbLogger
from privrl_bench.metrics import check_declared
from privrl_bench.privacy.ledger import Mark

TIMING = ("wall_seconds", "steps_per_second")


class MetricWriter:
    """Rows of all replicas. Those from an evaluation under way on wait for it.

    `evaluations` are the last that came, of the policies after round `evaluated` (-1: none yet).
    """

    def __init__(self, session: Trainer, dirs: list[RunDir], mirrors: list[WandbLogger]):
        self.evaluations: list[Evaluation] | list[ValueEvaluation] = []
        self.evaluated = -1
        self._session, self._dirs, self._mirrors = session, dirs, mirrors
        self._evaluating: int | None = None  # the round whose evaluation is under way
        self._waiting: list[tuple[dict[int, dict[str, float]], list[Mark]]] = []

    @property
    def waiting(self) -> bool:
        """Whether anything is not on the disk yet."""
        return self._evaluating is not None or bool(self._waiting)

    def begin_evaluation(self) -> None:
        """Evaluate the present policies. Raises EnvironmentFailure, also of the evaluation before."""
        self.write()  # one at a time
        self._session.begin_evaluation()
        self._evaluating = self._session.round

    def add(self, rows: dict[int, dict[str, float]]) -> None:
        """One row for each replica that is training, by replica, with the clock's `TIMING`."""
        marks = [ledger.mark for ledger in self._session.parts.gate.ledgers]
        self._waiting.append((rows, marks))

    def write(self, wait: bool = True) -> None:
        """Write what there is. Raises EnvironmentFailure of an evaluation.

        Args:
            wait: for the evaluation under way; else the rows from it on stay.
        """
        if self._evaluating is not None:
            found = self._session.take_evaluation(wait)
            if found is None:
                return
            self.evaluations, self.evaluated = found, self._evaluating
            self._evaluating = None
        waiting, self._waiting = self._waiting, []
        for rows, marks in waiting:
            for r, row in rows.items():
                if row["round"] == self.evaluated:
                    row |= eval_row(self.evaluations[r])
                    self._show(r, row)
                self._write(r, row, marks[r])

    def _show(self, r: int, row: dict[str, float]) -> None:
        """Texts of the evaluation, where there are any: nobody's, from public prompts."""
        found = self.evaluations[r]
        samples = found.samples if isinstance(found, Evaluation) else []
        for sample in samples:
            line = {"round": row["round"], "steps": row["steps"], **sample}
            self._dirs[r].append("samples.jsonl", line)
        self._mirrors[r].show(samples, int(row["round"]))

    def _write(self, r: int, row: dict[str, float], mark: Mark) -> None:
        """The mark is in timing.jsonl, and first: metrics.jsonl is the same however a run was interrupted."""
        timing = {name: row.pop(name) for name in TIMING}
        check_declared(row)
        self._dirs[r].append("timing.jsonl", {"round": row["round"], **timing, "ledger": mark})
        self._dirs[r].append("metrics.jsonl", row)
        self._mirrors[r].log({**row, **timing})


def eval_row(evaluation: Evaluation | ValueEvaluation) -> dict[str, float]:
    """Metrics of one evaluation. An invalid one has no result, only how many episodes are why."""
    if isinstance(evaluation, ValueEvaluation):
        return evaluation.row()
    if evaluation.invalid:
        return {
            "eval/episodes": len(evaluation.returns),
            "eval/invalid_episodes": evaluation.invalid,
        }
    mean, half = mean_ci(evaluation.returns)
    return {
        "eval/return_mean": mean,
        "eval/return_std": float(evaluation.returns.std()),
        "eval/return_ci95": half,
        "eval/length_mean": float(evaluation.lengths.mean()),
        "eval/episodes": len(evaluation.returns),
        **evaluation.more,
    }
