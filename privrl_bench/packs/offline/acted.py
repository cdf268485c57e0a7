"""Users who acted with a fixed policy once and may join any round: a simulated dataset.

A user's trajectory is a function of the run's seed and of the user's number. So it is kept in
memory, compactly, and not in a checkpoint. Nothing released holds it. The gate draws who joins a
round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.ope.linear_values import ActingPolicy, behavior_probs_of
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users.collectors.batches import PaddedUsers, blank_of, shard_size
from privrl_bench.users.collectors.collector import BatchShape, Collector
from privrl_bench.users.collectors.live import SimulatedCollector


@dataclass
class _Trajectories:
    """Trajectories of n users of one replica, one after the other; N steps."""

    obs: np.ndarray  # [N + n, D], or [N + n] index of the 1 (-1: none) of one-hot observations
    actions: np.ndarray  # [N] or [N, A]
    rewards: np.ndarray  # [N]
    behavior_probs: np.ndarray  # [N]
    terminated: np.ndarray  # [n] whether the last step ended the episode
    starts: np.ndarray  # [n + 1]; observations of user k begin at starts[k] + k


class BehaviorCollector(Collector):
    """Users who acted once with a fixed policy.

    Args:
        config: the environment, whose observations are not scaled.
        spec: its public facts.
        policy: the behavior policy.
        streams: of each replica.
        population: n users.
        shape: R, users of a shard, T.
        used_once: see `Collector`.
    """

    population: int

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: ActingPolicy,
        streams: list[Streams],
        population: int,
        shape: BatchShape,
        used_once: bool = False,
    ):
        self.shape = shape
        self.population, self.used_once = population, used_once
        self.scaler = SignalScaler(config, 1, 1, spec.obs_dim, 1.0)
        self._spec, self._policy = spec, policy
        together = shard_size(spec, shape.steps)
        self._arguments = (config, spec, policy, streams, together, shape.steps, 1.0)
        self._users: list[_Trajectories] | None = None

    def simulate(self) -> Iterator[UserBatch]:
        """All users in parts, without `behavior_probs`. Raises EnvironmentFailure."""
        collector = SimulatedCollector(*self._arguments)
        replicas, room = collector.shape.replicas, collector.shape.users
        try:
            for index, start in enumerate(range(0, self.population, room)):
                sizes = [min(room, self.population - start)] * replicas
                yield collector.collect(torch.zeros(replicas, 0), index, Cohort(sizes, None))
        finally:
            collector.close()

    def _act(self) -> list[_Trajectories]:
        parts: list[list[_Trajectories]] = [[] for _ in range(self.shape.replicas)]
        left = self.population
        for users in self.simulate():
            count = min(left, users.mask.shape[1])
            left -= count
            behavior_probs = behavior_probs_of(self._policy.known, users.obs, users.actions)
            for r, part in enumerate(parts):
                part.append(self._compact(users, behavior_probs, r, count))
        return [_joined(part) for part in parts]

    def _compact(
        self, users: UserBatch, behavior_probs: Tensor, r: int, count: int
    ) -> _Trajectories:
        """The first `count` users of a batch; a user with non-finite data has no step."""
        mask = users.mask[r, :count] & users.valid[r, :count, None]
        lengths = mask.sum(-1)
        last = (lengths - 1).clamp_min(0)
        index = torch.arange(count)
        ends = users.next_obs[r, index, last]
        obs = torch.cat([users.obs[r, :count], ends[:, None]], dim=1)
        place = torch.arange(obs.shape[1]).expand(count, -1)
        obs = torch.where((place == lengths[:, None])[..., None], ends[:, None], obs)
        kept = obs[place <= lengths[:, None]].numpy()
        if self._spec.one_hot:
            kept = np.where(kept.any(-1), kept.argmax(-1), -1).astype(np.int32)
        over = users.terminated[r, index, last] & (lengths > 0)
        return _Trajectories(
            kept,
            users.actions[r, :count][mask].numpy(),
            users.rewards[r, :count][mask].numpy(),
            behavior_probs[r, :count][mask].float().numpy(),
            over.numpy(),
            np.concatenate([[0], lengths.cumsum(0).numpy()]),
        )

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """The trajectories of the members; `policy_params` and the round change nothing."""
        assert cohort.members is not None
        if self._users is None:
            self._users = self._act()
        shape, missing = self.shape, []
        leading = (shape.replicas, shape.users, shape.steps)
        users = PaddedUsers(shape, blank_of(self._spec, leading), with_probs=True)
        for r, who in enumerate(cohort.members):
            kept = self._users[r]
            for slot, user in enumerate(who):
                start, end = int(kept.starts[user]), int(kept.starts[user + 1])
                if end > start:
                    users.add(
                        r,
                        slot,
                        self._dense(kept.obs[start + user : end + user + 1]),
                        kept.actions[start:end],
                        kept.rewards[start:end],
                        bool(kept.terminated[user]),
                        kept.behavior_probs[start:end],
                    )
            missing.append(float(len(who) - int(users.valid[r].sum())))
        return users.batch(missing)

    def _dense(self, obs: np.ndarray) -> np.ndarray:
        """Observations as the environment returns them."""
        if not self._spec.one_hot:
            return obs
        return np.eye(self._spec.obs_dim + 1, dtype=np.float32)[obs + 1, 1:]


def _joined(parts: list[_Trajectories]) -> _Trajectories:
    """One after the other."""
    steps = np.cumsum([0, *(part.starts[-1] for part in parts)])
    starts = [part.starts[:-1] + at for part, at in zip(parts, steps[:-1], strict=True)]
    names = ("obs", "actions", "rewards", "behavior_probs", "terminated")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return _Trajectories(**columns, starts=np.concatenate([*starts, steps[-1:]]))
