"""Assignment of users to slots in a round."""

from __future__ import annotations

import numpy as np

from privrl_bench.envs.slots import UserNumbers
from privrl_bench.privacy.sampling.sampler import Cohort


class UserSlots:
    """Users in the slots of R replicas with U slots each.

    Args:
        replicas: R.
        users: U.
        declared: Number of users that the environment declares; None: it declares none.

    Attributes:
        numbers: [R, U] declared user of each slot, -1: no user. Simulated users have the number of their
            slot in the round.
        real: Whether they are declared users.
        slots: those of the round that these are.
    """

    def __init__(self, replicas: int, users: int, declared: int | None):
        self._simulated = np.tile(np.arange(users), (replicas, 1))
        self.numbers = self._simulated.copy()
        self.real = False
        self.slots = range(users)
        self._declared = declared

    def assign(self, cohort: Cohort) -> np.ndarray:
        """Assign the users of a cohort to the first slots of each replica; return the mask [R, U].

        Users without numbers are simulated. A number that is not declared is an absent user.
        """
        first = 0 if cohort.slots is None else cohort.slots.start
        self.slots = range(first, first + self._simulated.shape[1])
        self.real = cohort.members is not None
        if cohort.members is None:
            self.numbers = self._simulated + first
            return np.asarray(self._simulated < np.asarray(cohort.sizes)[:, None])
        self.numbers = np.full_like(self._simulated, -1)
        for row, who in zip(self.numbers, cohort.members, strict=True):
            row[: len(who)] = who
        return np.asarray((self.numbers >= 0) & (self.numbers < (self._declared or 0)))

    def batch(self, where: np.ndarray) -> UserNumbers:
        """Return `slots.Users` of the slots `where` [R, U] bool, for `Slots.reset`."""
        if self._declared is None:
            return None
        return [int(k) if self.real else None for k in self.numbers[where]]
