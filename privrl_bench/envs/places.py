"""Who is in which slot in one round."""

from __future__ import annotations

import numpy as np

from privrl_bench.envs.slots import Users


class Places:
    """The slots of R replicas with U users each.

    Args:
        replicas, users: R and U.
        declared: number of users that the environment declares; None: it declares none.

    Attributes:
        numbers: [R, U] who is there: a declared user, -1: no user; simulated users have their slot's number.
        real: whether they are declared users.
    """

    def __init__(self, replicas: int, users: int, declared: int | None):
        self._simulated = np.tile(np.arange(users), (replicas, 1))
        self.numbers = self._simulated.copy()
        self.real = False
        self._declared = declared

    def simulate(self, cohort: list[int]) -> np.ndarray:
        """Simulated users in the first slots of every replica: [R, U] bool, where a user is."""
        self.numbers, self.real = self._simulated.copy(), False
        return np.asarray(self._simulated < np.asarray(cohort)[:, None])

    def seat(self, members: list[np.ndarray]) -> np.ndarray:
        """Declared users, by number: [R, U] bool, where a user is; a number beyond them is absent."""
        self.numbers, self.real = np.full_like(self._simulated, -1), True
        for row, who in zip(self.numbers, members, strict=True):
            row[: len(who)] = who
        return np.asarray((self.numbers >= 0) & (self.numbers < (self._declared or 0)))

    def batch(self, where: np.ndarray) -> Users:
        """What environments in the slots `where` [R, U] bool are told of the user: see `slots.Users`."""
        if self._declared is None:
            return None
        return [int(k) if self.real else None for k in self.numbers[where]]
