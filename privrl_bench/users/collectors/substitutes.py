"""Substitute users: the data in which the runs of the leak test differ, and where a collector puts them.

By default the user's data are replaced in the batches that a collector's `shards` yields, which needs nothing
of the collector. A collector whose users act replaces them earlier, so that the substitute's influence on all
later steps is tested, too: its `substituted` returns a subclass of `Substitution`, which stands beside it.

- `null`: no valid data; the user contributes nothing.
- `crafted`: other, extreme data.
- `zero`: rewards 0, and a valid row of zeros: the neighbour of zero-out that the gate counts as a user below
  the clip bound.
- `short`: the user's data, and a valid row of half the clip norm, or of twice that norm if the row is shorter
  already, so that the gate counts it otherwise. Two steps from the user by zero-out; what is outside the
  release must be equal for it, too.
- `absent`: the user is left out of a random cohort, which has one user less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from privrl_bench.envs.slots import UserNumbers
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import TextBatch, UserBatch

NULL, CRAFTED, ZERO, SHORT, ABSENT = "null", "crafted", "zero", "short", "absent"
_BURST = 3  # steps of a crafted user's episodes, in the first half of the steps


def slots_of(users: UserBatch | TextBatch) -> range:
    """The slots of a batch in its round."""
    return range(users.first, users.first + users.valid.shape[1])


class Substitution:
    """Replaces the user's trajectory in the batches that the collector yields.

    Args:
        collector: of a run that is not stepped yet; it is changed.
        visit: the replaced user and the rounds, a `Visit` of `audit/visits.py`.
        kind: see the module; empty: the user is not replaced.

    Attributes:
        in_order: users come in a public order, each in one round. A moved run begins with the first
            ones.
    """

    in_order: ClassVar[bool] = False

    def __init__(self, collector: Any, visit: Any, kind: str):
        self._visit, self._active = visit, bool(kind)
        self._switches = self._install(collector, kind)

    def _install(self, collector: Any, kind: str) -> list[Any]:
        """Change the collector; returns what replaces the user while its `present` is set."""
        other = SubstituteTrajectory(self._visit.user, kind)
        replace_batches(collector, other)
        return [other]

    def watch_devices(self, devices: Any) -> None:
        """Put `devices` in the place of the users' devices, where the collector has them."""

    def switch(self, index: int | None) -> None:
        """Make the substitute present if it acts in round `index`; None: absent."""
        for one in self._switches:
            one.present = self._active and index is not None and self._acts(index)

    def _acts(self, index: int) -> bool:
        """Whether the substitute acts in this round."""
        return self._visit.first <= index <= self._visit.last

    @property
    def number(self) -> int | None:
        """The user's number where users return; None: slots are compared."""
        return None

    def slot(self, index: int, cohort: Cohort) -> int | None:
        """The user's slot in this round; None: the user is not in it, or is not replaced in it."""
        return self._visit.user if self._acts(index) else None

    def check(self, index: int, cohort: Cohort) -> None:
        """Raise ConfigError: round `index` has no user in the slot."""
        size, user = cohort.sizes[0], self._visit.user
        if self._acts(index) and not self._visit.moved and user >= size:
            raise ConfigError(
                "--user",
                f"round {index} has {size} users, counted from 0; got {user} (--round chooses another round)",
            )


def replace_batches(collector: Any, other: Callable[[Any], Any] | None, start: int = 0) -> None:
    """Change what a collector yields from now on.

    Args:
        collector: of a run that is not stepped yet.
        other: of each batch; None: they stay.
        start: the round that the run was moved to; the collector's rounds begin with 0.
    """
    real = collector.shards

    def shards(policy_params: Tensor, round_index: int, cohort: Cohort) -> Iterator[Any]:
        found: Iterator[Any] = real(policy_params, round_index - start, cohort)
        return found if other is None else map(other, found)

    collector.shards = shards


class SubstituteUser:
    """Environment slots, of which one has a substitute while `present`.

    All values of a null user are NaN. A crafted user has other observations and rewards, ends an
    episode every few steps at first, and then none at all.

    Args:
        slots: the real ones; they are stepped as without a substitute.
        slot: the user's.
        kind: see the module.
        steps: T, the user's steps in the round.
        max_episode_steps: public upper bound on the steps of an episode; the substitute keeps it.
        resets: an episode's first observation belongs to this user and not to the next one.
        shares: data that the substitute has in common with the user: rewards, ends.
    """

    def __init__(
        self,
        slots: Any,
        slot: int,
        kind: str,
        steps: int,
        max_episode_steps: int,
        resets: bool,
        shares: tuple[str, ...] = (),
    ):
        self._shares = shares
        self.count = slots.count
        self.present = False
        self._slots = slots
        self._slot = slot
        self._kind = kind
        self._burst = max(_BURST, steps // 2)
        self._max_episode_steps = max_episode_steps
        self._resets = resets
        self._taken = 0
        self._elapsed = 0
        self._simulated = False  # the environment declares users

    def move(self, slot: int) -> None:
        """The user is in this slot now; -1: in none."""
        self._slot = slot

    def _simulated_users(self, count: int) -> UserNumbers:
        return [None] * count if self._simulated else None

    def _seen(self, obs: np.ndarray) -> np.ndarray:
        """The substitute's observation."""
        if self._kind == CRAFTED:
            return 1.0 + 0.1 * (self._taken % 7) - 3.0 * obs
        return obs * np.nan if self._kind == NULL else obs

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`. All users are simulated, including those that an environment declares."""
        self._simulated = users is not None
        obs = self._slots.reset(indices, seeds, self._simulated_users(len(indices)))
        own = indices == self._slot
        if own.any():
            self._elapsed = 0
            if self.present and self._resets:
                obs[own] = self._seen(obs[own])
        return obs

    def step(self, indices: np.ndarray, actions: np.ndarray) -> Any:
        """See `Slots.step`."""
        result = self._slots.step(indices, actions)
        own = indices == self._slot
        if not own.any():
            return result
        self._elapsed += 1
        if not self.present:  # the real episode may have begun later, after a substitute's end
            result.truncated[own] |= self._elapsed >= self._max_episode_steps
            return result
        self._taken += 1
        if "rewards" not in self._shares:
            crafted = 50.0 + 7.0 * (self._taken % 4) - result.rewards[own]
            others = {NULL: np.nan, CRAFTED: crafted, ZERO: 0.0}
            result.rewards[own] = others.get(self._kind, result.rewards[own])
        if self._kind == CRAFTED and "ends" not in self._shares:
            over = self._taken <= self._burst and self._taken % _BURST == 0
            cut = not over and self._elapsed >= self._max_episode_steps
            if (result.terminated | result.truncated)[own].any() and not (over or cut):
                result.obs[own] = self._slots.reset(
                    indices[own], [self._taken], self._simulated_users(1)
                )
            result.terminated[own], result.truncated[own] = over, cut
        result.obs[own] = self._seen(result.obs[own])
        return result

    def close(self) -> None:
        """See `Slots.close`."""
        self._slots.close()


class SubstituteTrajectory:
    """Another trajectory in one slot of a batch while `present`.

    Args:
        slot: the user's.
        kind: see the module. A null user's data are NaN.
    """

    def __init__(self, slot: int, kind: str):
        self.present = False
        self._slot, self._kind = slot, kind

    def __call__(self, users: UserBatch) -> UserBatch:
        """The batch with the substitute."""
        if not self.present or self._slot not in slots_of(users):
            return users
        obs, after, rewards = users.obs.clone(), users.next_obs.clone(), users.rewards.clone()
        behavior_probs = None if users.behavior_probs is None else users.behavior_probs.clone()
        place = (0, self._slot - users.first)
        if self._kind == NULL:
            for x in (obs, after, rewards, *([] if behavior_probs is None else [behavior_probs])):
                x[place] = np.nan
        elif self._kind == ZERO:
            rewards[place] = 0.0
        elif self._kind == CRAFTED:
            obs[place], after[place] = 1.0 - 2.0 * obs[place], 0.5 - 2.0 * after[place]
            rewards[place] = 2.0 - rewards[place]
            if behavior_probs is not None:
                behavior_probs[place] = 0.5 * behavior_probs[place]
        return replace(
            users, obs=obs, next_obs=after, rewards=rewards, behavior_probs=behavior_probs
        )
