"""The base of collectors, which make the batches of a round's users.

A collector is made by `Users.collector` of its kind. Nothing else knows its class. The leak test replaces a
user by `substituted`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import TextBatch, UserBatch
from privrl_bench.users.collectors.shards import some_of
from privrl_bench.users.collectors.substitutes import Substitution

Batch = UserBatch | TextBatch


@dataclass(frozen=True)
class BatchShape:
    """Sizes of a shard.

    Attributes:
        replicas: R.
        users: U, the largest number of users of a shard; absent users are padded.
        steps: T, the largest number of steps of one user, a public number.
    """

    replicas: int
    users: int
    steps: int


class Collector(ABC):
    """Where the users of a round come from.

    Guarantee of every implementation: what a user contributes is a function of the user, of the
    round, of random numbers of their own and of the released policy, not of other users. Exceptions
    are declared as caveats. The leak test checks this bit for bit.

    Attributes:
        shape: sizes of a shard.
        scaler: scaling of observations and rewards.
        population: how many numbered users there are: of a dataset, declared by an environment, or
            returning. The gate draws who joins. None: simulated users without numbers; the gate
            draws how many there are.
        used_once: in cohorts of fixed size each numbered user joins one round only, in order.
    """

    shape: BatchShape
    scaler: SignalScaler
    population: int | None
    used_once: bool = False

    @abstractmethod
    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> Any:
        """One shard of a round: a `UserBatch` or `TextBatch`, as the algorithm takes them.

        Args:
            policy_params: [R, P] parameters of the released policies.
            round_index: from 0; selects the random streams.
            cohort: who takes part, at most `shape.users` in each replica. A number that no user has is
                an absent user: not valid, all zeros.

        Raises:
            EnvironmentFailure: an environment raised.
        """

    def shards(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> Iterator[Any]:
        """The users of one round, slots in order, `shape.users` at a time; at least one shard.

        Arguments and errors as `collect`; the cohort is that of the round.
        """
        slots, size = cohort.slots or range(max(self.shape.users, *cohort.sizes)), self.shape.users
        for start in range(slots.start, max(slots.stop, slots.start + 1), size):
            stop = min(start + size, slots.stop)
            users = self.collect(policy_params, round_index, cohort.part(start, stop))
            users.first = start
            yield users if stop - start == size else some_of(users, 0, stop - start)

    def get_state(self) -> dict[str, Tensor]:
        """Tensors [R, ...] from which `set_state` restores the collector. They are private."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Restore what `get_state` returned.

        Returns:
            Whether the collector continues bit for bit. False: an environment is not determined by
            its seed and actions.
        """
        return True

    def substituted(self, visit: Any, kind: str) -> Substitution:
        """The substitution of one user for the leak test, before the first round; it changes the collector.

        Args:
            visit: the replaced user and the rounds, a `Visit` of `audit/visits.py`.
            kind: of the substitute, see `substitutes.py`; empty: the user is not replaced.
        """
        return Substitution(self, visit, kind)

    def close(self) -> None:  # noqa: B027
        """Free the environments."""
