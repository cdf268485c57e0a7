"""What happens to the users of a round before the gate adds its noise: they act, train, and are added."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from privrl_bench.algorithms import algorithm
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.run.plan import Plan
from privrl_bench.run.round_stats import RoundStats
from privrl_bench.types import State
from privrl_bench.users.collectors.batches import shard_size
from privrl_bench.users.collectors.collector import Collector
from privrl_bench.users.collectors.shards import microbatch, microbatches

_MEMORY = 2**27  # bytes of a shard's batch
_MOST = 4096


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
    return "it is on a GPU" if components.config.hardware.device != "cpu" else ""


def one_shard(components: Plan) -> str:
    """Why a round has one shard, in one process; empty: it may have many."""
    return components.users.one_shard() or whole_round(components)


def one_process(components: Plan) -> str:
    """Why one process has all shards of a round; empty: others may have some."""
    if type(components.algo) is not algorithm(components.config.algo.name):
        return "the algorithm is not made from the configuration alone"
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
    wanted = wanted or min(_MOST, max(1, _MEMORY // user), -(-slots // workers))
    size = microbatch(slots, components.config.algo.traits.microbatch)
    return max(1, -(-wanted // size)) * size


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
        slots, most = components.gate.slots, components.config.algo.traits.microbatch
        self.together = slots if whole_round(components) else microbatch(slots, most)

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
