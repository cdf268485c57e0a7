"""One worker of a round: it has its own environments and sends back sums, never a user's data."""

from __future__ import annotations

from privrl_bench.composition.plugins import Additions, restore
from privrl_bench.config.schema import RunConfig
from privrl_bench.kernels.machine import one_thread
from privrl_bench.kernels.pipe_worker import answer
from privrl_bench.privacy.row_sum import RowSum
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.run.plan import make_plan
from privrl_bench.run.round_stats import RoundStats
from privrl_bench.run.shard_work import ShardWork, make_collector
from privrl_bench.types import State


class ShardWorker:
    """The run's algorithm and collector again, without its ledgers; it draws no noise.

    Args:
        configs: as they were composed, of each replica.
        rounds: of the run.
        users: of a shard.
        outside: what plugins have added to the parent process.
    """

    def __init__(self, configs: list[RunConfig], rounds: int, users: int, outside: Additions):
        restore(outside)
        one_thread()
        components = make_plan(configs, rounds)
        self._work = ShardWork(components, make_collector(components, users))

    def run(self, task: tuple[State, Cohort] | None) -> tuple[RowSum, RoundStats] | None:
        """Some slots of a round. None, the first task, asks whether the worker is ready."""
        if task is None:
            return None
        state, cohort = task
        components = self._work.components
        algo, rows = components.algo, components.gate.empty_sum()
        self._work.collector.scaler.use(algo.scaling(state))
        stats = self._work.run(state, algo.actor(state), cohort, rows.add)
        return rows, stats

    def answer(self, task: bytes) -> bytes:
        """`run` of a packed task, as a packed result or error; an actor of Ray has no pipe."""
        return answer(self.run, task)

    def close(self) -> None:
        """Free the environments."""
        self._work.collector.close()
