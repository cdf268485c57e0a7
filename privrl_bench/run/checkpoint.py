"""When a run is saved, and what a checkpoint of one replica holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from privrl_bench.privacy.ledger_chain import Mark
from privrl_bench.run.run_dir import RunDir
from privrl_bench.run.trainer import Trainer

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_PAUSE = 1.0  # at least, between checkpoints after evaluations
# Of the time, at most: forty replicas with replay buffers take a third of a second.
CHECKPOINT_SHARE = 0.05
CHECKPOINT_LATE = 60.0  # seconds by which one slow checkpoint can delay the next, at most


class Checkpoints:
    """The checkpoints of replicas that are trained together, and the time that they take.

    Args:
        dirs: run folder of each replica.
    """

    def __init__(self, dirs: Sequence[RunDir] = ()):
        self._dirs = dirs
        self._saved_at = time.perf_counter()
        self._cost = 0.0  # seconds of the last one

    def due(self, pause: float | None = None) -> bool:
        """Return whether `pause` seconds have passed, and so many that saving is a small part of the time."""
        wait = CHECKPOINT_SECONDS if pause is None else pause
        wait = max(wait, min(self._cost / CHECKPOINT_SHARE, CHECKPOINT_LATE))
        return time.perf_counter() - self._saved_at > wait

    def save(
        self,
        trainer: Trainer,
        snapshot: dict[str, Any],
        replicas: Iterable[int],
        started: float | None = None,
    ) -> None:
        """Save these replicas of a snapshot.

        Args:
            trainer: whose snapshot it is.
            snapshot: taken in this round or before it.
            replicas: which of them.
            started: time of `time.perf_counter` before the snapshot; None: its cost is not counted.
        """
        for r in replicas:
            self._dirs[r].save_checkpoint(trainer.checkpoint(snapshot, r))
        if started is not None:
            self._saved_at = time.perf_counter()
            self._cost = self._saved_at - started

    def keep_marks(self, trainer: Trainer, saved: Sequence[dict[str, Any] | None]) -> None:
        """Store in checkpoints the ledger lines that rows depend on, before rows are removed.

        Args:
            trainer: the trainer.
            saved: checkpoint of each replica; None: none yet.
        """
        trainer.parts.gate.sync()
        ledgers = trainer.parts.gate.ledgers
        for r, (rundir, one) in enumerate(zip(self._dirs, saved, strict=True)):
            mark = tuple(ledgers[r].mark)
            if mark != (Mark() if one is None else one["ledger"]):
                kept = trainer.checkpoint(trainer.snapshot(), r) if one is None else one
                rundir.save_checkpoint({**kept, "ledger": mark})
