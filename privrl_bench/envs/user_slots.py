"""Assignment of users to slots in a round."""

from __future__ import annotations

import numpy as np

from privrl_bench.envs.slots import Users


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

    def simulate(self, cohort: list[int], first: int = 0) -> np.ndarray:
        """Assign simulated users to the first `cohort[r]` slots of replica r; return the mask [R, U]."""
        self.slots = range(first, first + self._simulated.shape[1])
        self.numbers, self.real = self._simulated + first, False
        return np.asarray(self._simulated < np.asarray(cohort)[:, None])

    def seat(self, members: list[np.ndarray], first: int = 0) -> np.ndarray:
        """Assign declared users by number; return the mask [R, U]. Numbers out of range are absent."""
        self.slots = range(first, first + self._simulated.shape[1])
        self.numbers, self.real = np.full_like(self._simulated, -1), True
        for row, who in zip(self.numbers, members, strict=True):
            row[: len(who)] = who
        return np.asarray((self.numbers >= 0) & (self.numbers < (self._declared or 0)))

    def batch(self, where: np.ndarray) -> Users:
        """Return `slots.Users` of the slots `where` [R, U] bool, for `Slots.reset`."""
        if self._declared is None:
            return None
        return [int(k) if self.real else None for k in self.numbers[where]]
