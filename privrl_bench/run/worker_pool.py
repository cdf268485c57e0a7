"""A round's users, shared by several workers.

A shard's sum is a function of the state, the round and the shard. So it does not matter which worker computes
it, and when a worker dies its shards are computed again, to the same bits.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from privrl_bench.composition.plugins import additions
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels.machine import workers_of
from privrl_bench.kernels.pipe_worker import WorkerDied
from privrl_bench.kernels.signals import preparing
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.row_sum import RowSum
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.run.engines import ENGINES, Engine, Worker
from privrl_bench.run.plan import Plan
from privrl_bench.run.round_stats import RoundStats
from privrl_bench.run.shard_work import ShardWork, make_collector, one_process, shard_users
from privrl_bench.types import State

_STARTING = 3.0  # seconds that a process takes to start, about
_MOST_DEATHS = 5  # in a row, without a task done in between


class WorkerPool:
    """The users of a round, in this process and in others.

    With `hardware.workers` given the others start before the first round, else once that pays. Until they are
    ready this process works alone; the results are the same.

    Args:
        components: of the run.
        work: of this process.
    """

    def __init__(self, components: Plan, work: ShardWork):
        self._components, self._work = components, work
        hardware = components.config.hardware
        self._shares = workers_of(components.config) > 1 and not one_process(components)
        self._at_once = hardware.workers is not None or hardware.engine != "processes"
        self._size = work.collector.shape.users
        self._engine: Engine | None = None
        self._arguments: tuple[Any, ...] = ()  # of `ShardWorker`
        self._starting: list[Worker] = []
        self._workers: list[Worker] = []
        self._deaths = 0
        self._spent, self._rounds = 0.0, 0

    def run(
        self,
        state: State,
        policy_params: Tensor,
        cohort: Cohort,
        add: Callable[[Contribution], None],
        merge: Callable[[RowSum], None],
    ) -> RoundStats:
        """As `ShardWork.run`; sums of other processes go to `merge`.

        Raises:
            EnvironmentFailure: an environment raised, or workers die again and again.
            OSError: the ledger cannot be written.
        """
        self._look_after()
        start = time.perf_counter()
        if self._workers:
            self._components.gate.sync()  # the state leaves the process
            stats = self._shared(state, policy_params, cohort, add, merge)
        else:
            stats = self._work.run(state, policy_params, cohort, add)
        self._spent += time.perf_counter() - start
        self._rounds += 1
        return stats

    # -- starting ---------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Start workers if it is time, and take those that are ready."""
        if self._engine is None and self._shares and (self._at_once or self._pays()):
            components, hardware = self._components, self._components.config.hardware
            self._engine = ENGINES[hardware.engine](hardware.address)
            count = hardware.workers or self._engine.room()
            self._size = shard_users(components, count)
            self._arguments = (
                components.given,
                components.gate.rounds,
                self._size,
                additions(),
            )
            others = count - int(self._engine.here)
            self._starting = [self._engine.make(self._arguments) for _ in range(others)]
            self._renew_collector()
        while self._engine is not None and self._starting:
            preparing(self._at_once)
            ready = self._engine.done(self._starting, block=self._at_once)
            preparing(False)
            if not ready:
                return
            for worker in ready:
                self._starting.remove(worker)
                try:
                    worker.result()
                except WorkerDied:
                    self._replace(worker)
                except Exception as error:
                    worker.close()
                    if self._at_once:
                        raise
                    # Such as an algorithm that only this program knows.
                    print(f"  note    no other workers: {error}", file=sys.stderr, flush=True)
                    self.close()
                else:
                    self._workers.append(worker)

    def _pays(self) -> bool:
        """Whether what is left takes several times as long as a process takes to start."""
        if self._spent < _STARTING or not self._rounds:
            return False
        left = (self._components.rounds - self._rounds) * self._spent / self._rounds
        return left > 4.0 * _STARTING

    def _renew_collector(self) -> None:
        """Smaller shards in this process, too."""
        old = self._work.collector
        if old.shape.users != self._size:
            self._work.collector = make_collector(self._components, self._size)
            old.close()

    def _replace(self, worker: Worker) -> None:
        """Start a worker in the place of one that has died. Raises EnvironmentFailure: once too often."""
        assert self._engine is not None
        worker.close()
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            raise EnvironmentFailure(
                f"{self._deaths} workers died one after another (is the memory full?); rerun with "
                "hardware.workers=1 or a smaller hardware.shard_users to resume"
            )
        self._starting.append(self._engine.make(self._arguments))

    # -- a round ----------------------------------------------------------------------------

    def _shared(
        self,
        state: State,
        policy_params: Tensor,
        cohort: Cohort,
        add: Callable[[Contribution], None],
        merge: Callable[[RowSum], None],
    ) -> RoundStats:
        """The slots in spans of whole shards: long ones to workers that are free, single shards here."""
        assert self._engine is not None
        assert cohort.slots is not None
        stats = RoundStats(len(cohort.sizes))
        left = [cohort.slots]
        busy: dict[Worker, range] = {}
        while left or busy:
            for worker in [one for one in self._workers if one not in busy]:
                span = self._take(left)
                if span is None:
                    break
                busy[worker] = span
                worker.begin((state, cohort.part(span.start, span.stop)))
            own = self._engine.here or not self._workers
            if left and own:
                span = _cut(left, self._size)
                part = cohort.part(span.start, span.stop)
                stats.merge(self._work.run(state, policy_params, part, add))
            for worker in self._engine.done([*busy], block=not (left and own)) if busy else []:
                try:
                    rows, theirs = worker.result()
                except WorkerDied:
                    self._lose(worker, busy, left)
                    continue
                del busy[worker]
                merge(rows)
                stats.merge(theirs)
                self._deaths = 0
        return stats

    def _take(self, left: list[range]) -> range | None:
        """A span for a worker: a part of what is left, so that all end at about the same time."""
        assert self._engine is not None
        shards = sum(math.ceil(len(span) / self._size) for span in left)
        here = int(self._engine.here)
        if shards <= here:  # the last one is for this process
            return None
        count = max(1, shards // (2 * (len(self._workers) + here)))
        return _cut(left, count * self._size)

    def _lose(self, worker: Worker, busy: dict[Worker, range], left: list[range]) -> None:
        """A worker has died: its span is left again."""
        left.append(busy.pop(worker))
        self._workers.remove(worker)
        self._replace(worker)

    def close(self) -> None:
        """End the other workers."""
        for worker in [*self._starting, *self._workers]:
            worker.close()
        if self._engine is not None:
            self._engine.close()
        self._engine, self._starting, self._workers = None, [], []
        self._shares = False


def _cut(left: list[range], slots: int) -> range:
    """Take the first slots of the first span, at most so many."""
    span = left.pop(0)
    if len(span) > slots:
        left.insert(0, range(span.start + slots, span.stop))
    return range(span.start, min(span.start + slots, span.stop))
