"""The users of a round: their shards, and workers that share them.

A shard's sum is a function of the state, the round and the shard. So it does not matter which worker computes
it, and when a worker dies its shards are computed again, to the same bits.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from privrl_bench.algorithms.registry import algorithm
from privrl_bench.composition.plugins import Additions, additions, restore
from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.backends import on_device
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels.machine import cores, one_thread, workers_of
from privrl_bench.kernels.pipe_worker import PipeWorker, WorkerDied, answer, packed, unpacked
from privrl_bench.kernels.signals import preparing
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.row_sum import RowSum
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.types import State
from privrl_bench.users.collectors.collector import Collector
from privrl_bench.users.collectors.shards import microbatch, microbatches, shard_size

_STARTING = 3.0  # seconds that a process takes to start, about
_MOST_DEATHS = 5  # in a row, without a task done in between


# --- private metrics of a round


_SUMMED = ("train/episodes", "train/invalid_users")
_PER_EPISODE = ("train/return_mean",)


class RoundStats:
    """Metrics of R replicas: sums, and means over episodes, or over steps for those of algorithms.

    Attributes:
        totals: of each replica: metric -> (weighted sum, weight).
    """

    def __init__(self, replicas: int):
        self.totals: list[dict[str, tuple[float, float]]] = [{} for _ in range(replicas)]

    def add_shard(self, stats: list[dict[str, float]]) -> None:
        """Add the `stats` of a batch."""
        for r, one in enumerate(stats):
            for name in _SUMMED:
                self._add(r, name, one[name], 1.0)
            for name in _PER_EPISODE:
                self._add(r, name, one[name], one["train/episodes"])

    def add_diagnostics(self, diagnostics: list[dict[str, float]], users: Any) -> None:
        """Add the diagnostics of a contribution of these users."""
        if diagnostics:
            steps = (users.mask & users.valid[..., None]).sum((1, 2)).tolist()
            for r, one in enumerate(diagnostics):
                for name, value in one.items():
                    self._add(r, name, value, steps[r])

    def merge(self, other: RoundStats) -> None:
        """Add the metrics of other users of the same round."""
        for r, one in enumerate(other.totals):
            for name, (total, weight) in one.items():
                mine = self.totals[r].get(name, (0.0, 0.0))
                self.totals[r][name] = (mine[0] + total, mine[1] + weight)

    def _add(self, r: int, name: str, value: float, weight: float) -> None:
        total, so_far = self.totals[r].get(name, (0.0, 0.0))
        if weight and not math.isnan(value):
            total, so_far = total + weight * value, so_far + weight
        self.totals[r][name] = (total, so_far)

    def metrics(self) -> list[dict[str, float]]:
        """The metrics of each replica; NaN for the mean of nothing."""
        return [
            {
                name: total if name in _SUMMED else total / weight if weight else math.nan
                for name, (total, weight) in one.items()
            }
            for one in self.totals
        ]


# --- shards


_MEMORY = 2**27  # bytes of a shard's batch
_MOST = 4096
_GPU_STEPS = 2**18  # steps of a microbatch's users on a GPU


def whole_round(components: Plan) -> str:
    """Why the rows of a round are computed in one piece; empty: they are not."""
    mechanism = components.gate.mechanism
    if components.config.algo.traits.full_batch:
        return ""
    if mechanism.pooled:
        return "all users' data are pooled"
    if mechanism.on_devices:
        return "the noise on users' devices is drawn for a whole round"
    if names := ", ".join(components.algo.terms().caveats):
        return f"all users share what passes beside the gate ({names})"
    there = components.config.hardware.device != "cpu" and not on_device(components.config.env)
    return "it is on a GPU" if there else ""


def one_shard(components: Plan) -> str:
    """Why a round has one shard, in one process; empty: it may have many."""
    return components.users.one_shard() or whole_round(components)


def one_process(components: Plan) -> str:
    """Why one process has all shards of a round; empty: others may have some."""
    if type(components.algo) is not algorithm(components.config.algo.name):
        return "the algorithm is not made from the configuration alone"
    if on_device(components.config.env):
        return "it is on one device"
    return one_shard(components) or components.users.one_process


def slots_of(components: Plan, cohort: Cohort) -> int:
    """Slots of a round."""
    full = components.config.algo.traits.full_batch
    return max(cohort.sizes) if full else components.gate.slots


def shard_users(components: Plan, workers: int = 1) -> int:
    """Users of a shard: `hardware.shard_users`, or as many as memory suggests; whole microbatches."""
    slots = components.gate.slots
    if one_shard(components):
        return slots
    spec, wanted = components.spec, components.config.hardware.shard_users
    user = 16 * components.steps * (2 * spec.obs_dim + spec.actions + 8) * len(components.configs)
    memory, most = _MEMORY, _MOST
    if components.config.hardware.device == "cuda":
        memory, most = torch.cuda.mem_get_info()[0] // 4, slots
    wanted = wanted or min(most, max(1, memory // user), -(-slots // workers))
    size = together(components)
    return max(1, -(-wanted // size)) * size


def together(components: Plan) -> int:
    """Users of a microbatch, a function of public numbers and the kind of device."""
    slots, most = components.gate.slots, components.config.algo.traits.microbatch
    if components.config.hardware.device == "cuda":
        most = max(most, _GPU_STEPS // components.steps)
    return slots if whole_round(components) else microbatch(slots, most)


def make_collector(components: Plan, users: int | None = None) -> Collector:
    """The collector of a run.

    Args:
        components: of the run.
        users: of a shard; None: as one process takes them.

    Raises:
        ConfigError, EnvironmentFailure: it cannot be made.
    """
    if components.config.algo.traits.full_batch:
        users = shard_size(components.spec, components.steps)
    return components.users.collector(components, users or shard_users(components))


class ShardWork:
    """The users of a round in this process.

    Args:
        components: of the run.
        collector: of the run.

    Attributes:
        together: users of a microbatch.
    """

    def __init__(self, components: Plan, collector: Collector):
        self.components, self.collector = components, collector
        self.together = together(components)

    def run(
        self,
        state: State,
        policy_params: Tensor,
        cohort: Cohort,
        add: Callable[[Contribution], None],
    ) -> RoundStats:
        """Let users act, train and send their rows; their data end here.

        Args:
            state: of the round.
            policy_params: [R, P] the policy that acts.
            cohort: the users, with their slots.
            add: gets what the users send; consumes it.

        Raises:
            EnvironmentFailure: an environment raised.
        """
        algo, streams = self.components.algo, self.components.streams
        stats = RoundStats(len(streams))
        if on_device(self.components.config.env):
            state = state.to(self.components.config.hardware.device)
        shards = self.collector.shards(policy_params, state.round, cohort)
        if self.components.config.algo.traits.full_batch:
            add(algo.user_update(state, shards, streams))
            return stats
        for shard in shards:
            stats.add_shard(shard.stats)
            for users in microbatches(shard, self.together):
                contribution = algo.user_update(state, users, streams)
                stats.add_diagnostics(contribution.diagnostics, users)
                add(contribution)
        return stats


# --- workers


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


# --- where they are


class ProcessEngine:
    """Workers in processes of this machine. A worker has one task at a time; see `PipeWorker`.

    Args:
        address: not used.

    Class attributes:
        here: whether the process of the run has shards of its own, too.
    """

    here = True

    def __init__(self, address: str | None = None):
        pass

    def room(self) -> int:
        """How many workers there is room for, this process included if it has shards."""
        return cores()

    def make(self, arguments: tuple[Any, ...]) -> Any:
        """A new worker with the task None, which is done when it is ready. Arguments: of `ShardWorker`."""
        worker = PipeWorker(ShardWorker, *arguments)
        worker.begin(None)
        return worker

    def done(self, busy: Sequence[Any], block: bool) -> list[Any]:
        """Those of the workers whose task is done, or who have died; `block`: at least one."""
        ready = wait([one.pipe for one in busy], timeout=None if block else 0)
        return [one for one in busy if one.pipe in ready]

    def close(self) -> None:
        """Free what the workers had in common."""


class RayEngine(ProcessEngine):
    """Workers in Ray actors, on this machine or on a cluster (`hardware=ray`).

    Ray restarts nothing by itself: a task of an actor that has died goes to another worker, as with processes.

    Args:
        address: of the cluster; None: Ray is started on this machine.
    """

    here = False

    def __init__(self, address: str | None = None):
        import ray  # of the extra

        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            self._ray.init(
                address=address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    def room(self) -> int:
        """The cores of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    def make(self, arguments: tuple[Any, ...]) -> RayWorker:
        """See `ProcessEngine.make`."""
        return RayWorker(self._ray, arguments)

    def done(self, busy: Sequence[RayWorker], block: bool) -> list[RayWorker]:
        """See `ProcessEngine.done`."""
        references = [one.reference for one in busy]
        ready, _ = self._ray.wait(references, num_returns=1, timeout=None if block else 0)
        return [one for one in busy if one.reference in ready]

    def close(self) -> None:
        """Stop Ray, if it was started here."""
        if self._ours:
            self._ray.shutdown()


class RayWorker:
    """An actor, as `PipeWorker`.

    Args:
        ray: the package.
        arguments: of `ShardWorker`.
    """

    def __init__(self, ray: Any, arguments: tuple[Any, ...]):
        self._ray = ray
        self.actor = ray.remote(num_cpus=1)(ShardWorker).remote(*arguments)
        self.begin(None)

    def begin(self, task: Any) -> None:
        """Give it a task; see `ShardWorker.run`."""
        self.reference = self.actor.answer.remote(packed(task))

    def result(self) -> Any:
        """Wait for the task. Raises WorkerDied, or what the task raised."""
        try:
            answered = self._ray.get(self.reference)
        except self._ray.exceptions.RayActorError:
            raise WorkerDied from None
        return unpacked(answered)

    def close(self) -> None:
        """End it."""
        self._ray.kill(self.actor)


# Value of `hardware.engine` -> where the workers are.
ENGINES: dict[str, type[ProcessEngine]] = {"processes": ProcessEngine, "ray": RayEngine}


# --- a round's users in several of them


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
        self._engine: ProcessEngine | None = None
        self._arguments: tuple[Any, ...] = ()  # of `ShardWorker`
        self._starting: list[Any] = []
        self._workers: list[Any] = []
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
            old = self._work.collector
            if old.shape.users != self._size:  # smaller shards in this process, too
                self._work.collector = make_collector(components, self._size)
                old.close()
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

    def _replace(self, worker: Any) -> None:
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
        busy: dict[Any, range] = {}
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
                    left.append(busy.pop(worker))
                    self._workers.remove(worker)
                    self._replace(worker)
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
