"""People who played a known policy once and keep what they did: the simulated counterpart of a dataset.

Stands where `collectors/simulated.py` and `collectors/dataset.py` stand for other users. What everybody did is a function of the run's
seed and of her number, so that a checkpoint need not hold it; it is kept compactly, and neither in a state
nor in anything released. Who joins a round is drawn by the gate (`plan.members`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.functional.rng import Streams
from privrl_bench.models.linear_values import ActingPolicy, behavior_probs_of
from privrl_bench.types import EnvSpec, UserBatch

_NUMBERS = 500_000  # of observations at once, for each replica


def piece(spec: EnvSpec, steps: int) -> int:
    """How many people are taken at once where all are: does not depend on how many replicas there are."""
    return max(1, min(512, _NUMBERS // (steps * spec.obs_dim)))


@dataclass
class _Trajectories:
    """What n people of one replica did, one after the other; N steps."""

    obs: np.ndarray  # [N + n, D], or [N + n] the one that is 1 (-1: none) of one-hot observations
    actions: np.ndarray  # [N] or [N, A]
    rewards: np.ndarray  # [N]
    behavior_probs: np.ndarray  # [N]
    terminated: np.ndarray  # [n] whether the last step ended the episode
    starts: np.ndarray  # [n + 1]; observations of person p begin at starts[p] + p


class BehaviorCollector:
    """Rounds of people who played once, by the interface of `source.DatasetCollector`.

    Args:
        config: the environment, whose observations are not scaled.
        spec: its public facts.
        policy: what everybody played.
        streams: of each replica.
        people: n.
        slots: people that a round has room for.
        steps: T.
        workers: processes that step environments.
    """

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: ActingPolicy,
        streams: list[Streams],
        people: int,
        slots: int,
        steps: int,
        workers: int = 0,
    ):
        self.shape = (len(streams), slots, steps)
        self.people = people
        self.scaler = SignalScaler(config, 1, 1, spec.obs_dim, 1.0)
        # The leak test's: somebody else stands in one place of a round.
        self.instead: Callable[[UserBatch], UserBatch] = lambda users: users
        self._spec, self._policy = spec, policy
        self._arguments = (config, spec, policy, streams, piece(spec, steps), steps, 1.0, workers)
        self._people: list[_Trajectories] | None = None

    def pieces(self) -> Iterator[UserBatch]:
        """Everybody as she played, without `behavior_probs`, some at a time. Raises EnvironmentFailure."""
        rollout = SimulatedCollector(*self._arguments)
        try:
            nobody, room = torch.zeros(self.shape[0], 0), rollout.shape[1]
            for index, start in enumerate(range(0, self.people, room)):
                count = min(room, self.people - start)
                yield rollout.collect(nobody, index, [count] * self.shape[0])
        finally:
            rollout.close()

    def _play(self) -> list[_Trajectories]:
        parts: list[list[_Trajectories]] = [[] for _ in range(self.shape[0])]
        left = self.people
        for users in self.pieces():
            count = min(left, users.mask.shape[1])
            left -= count
            behavior_probs = behavior_probs_of(self._policy.known, users.obs, users.actions)
            for r, part in enumerate(parts):
                part.append(self._compact(users, behavior_probs, r, count))
        return [_joined(part) for part in parts]

    def _compact(
        self, users: UserBatch, behavior_probs: Tensor, r: int, count: int
    ) -> _Trajectories:
        """The first `count` people of a piece; one whose data are not finite has no step."""
        mask = users.mask[r, :count] & users.valid[r, :count, None]
        lengths = mask.sum(-1)
        last = (lengths - 1).clamp_min(0)
        people = torch.arange(count)
        ends = users.next_obs[r, people, last]
        obs = torch.cat([users.obs[r, :count], ends[:, None]], dim=1)
        place = torch.arange(obs.shape[1]).expand(count, -1)
        obs = torch.where((place == lengths[:, None])[..., None], ends[:, None], obs)
        kept = obs[place <= lengths[:, None]].numpy()
        if self._spec.one_hot:
            kept = np.where(kept.any(-1), kept.argmax(-1), -1).astype(np.int32)
        over = users.terminated[r, people, last] & (lengths > 0)
        return _Trajectories(
            kept,
            users.actions[r, :count][mask].numpy(),
            users.rewards[r, :count][mask].numpy(),
            behavior_probs[r, :count][mask].float().numpy(),
            over.numpy(),
            np.concatenate([[0], lengths.cumsum(0).numpy()]),
        )

    def collect(self, round_index: int, members: list[np.ndarray]) -> UserBatch:
        """One round: what `members` of each replica did. Raises EnvironmentFailure."""
        if self._people is None:
            self._people = self._play()
        replicas, slots, steps = self.shape
        first = (replicas, slots, steps)
        obs = np.zeros((*first, self._spec.obs_dim), np.float32)
        after = np.zeros_like(obs)
        wide = () if self._spec.discrete else (self._spec.actions,)
        actions = np.zeros((*first, *wide), np.int64 if self._spec.discrete else np.float32)
        rewards, behavior_probs = np.zeros(first, np.float32), np.ones(first, np.float32)
        terminated, done, mask = (np.zeros(first, bool) for _ in range(3))
        stats = []
        for r, who in enumerate(members):
            kept, returns = self._people[r], []
            for slot, person in enumerate(who):
                start, end = int(kept.starts[person]), int(kept.starts[person + 1])
                length = end - start
                if length == 0:
                    continue
                seen = self._wide(kept.obs[start + person : end + person + 1])
                obs[r, slot, :length], after[r, slot, :length] = seen[:-1], seen[1:]
                actions[r, slot, :length] = kept.actions[start:end]
                rewards[r, slot, :length] = kept.rewards[start:end]
                behavior_probs[r, slot, :length] = kept.behavior_probs[start:end]
                terminated[r, slot, length - 1] = kept.terminated[person]
                done[r, slot, length - 1] = True
                mask[r, slot, :length] = True
                returns.append(float(kept.rewards[start:end].sum(dtype=np.float64)))
            stats.append(
                {
                    "train/return_mean": float(np.mean(returns)) if returns else math.nan,
                    "train/episodes": float(len(returns)),
                    "train/invalid_users": float(len(who) - len(returns)),
                }
            )
        tensor = torch.from_numpy
        return self.instead(
            UserBatch(
                obs=tensor(obs),
                next_obs=tensor(after),
                actions=tensor(actions),
                rewards=tensor(rewards),
                terminated=tensor(terminated),
                done=tensor(done),
                mask=tensor(mask),
                valid=tensor(mask.any(-1)),
                stats=stats,
                behavior_probs=tensor(behavior_probs),
            )
        )

    def _wide(self, obs: np.ndarray) -> np.ndarray:
        """Observations as the environment shows them."""
        if not self._spec.one_hot:
            return obs
        return np.eye(self._spec.obs_dim + 1, dtype=np.float32)[obs + 1, 1:]

    def get_state(self) -> dict[str, Tensor]:
        """Nothing: what people did is a function of the seed."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Nothing to restore; whoever has to is played again."""
        return True

    def close(self) -> None:
        """Nothing to free."""


def _joined(parts: list[_Trajectories]) -> _Trajectories:
    """One after the other."""
    steps = np.cumsum([0, *(part.starts[-1] for part in parts)])
    starts = [part.starts[:-1] + at for part, at in zip(parts, steps[:-1], strict=True)]
    names = ("obs", "actions", "rewards", "behavior_probs", "terminated")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return _Trajectories(**columns, starts=np.concatenate([*starts, steps[-1:]]))
