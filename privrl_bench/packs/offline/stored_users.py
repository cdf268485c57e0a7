"""Users whose trajectories were recorded before the run: those of a dataset, and simulated ones.

The gate draws who takes part in a round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import yaml
from torch import Tensor

from privrl_bench.config.overrides import choices, file_of
from privrl_bench.config.schema import DataConfig, EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.errors import ConfigError, refuse, suggest
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.datasets.minari_files import local_ids, open_dataset
from privrl_bench.packs.offline.datasets.trajectories import (
    Dataset,
    Trajectories,
    moments,
    split_users,
)
from privrl_bench.packs.offline.ope.linear_evaluation import ActingPolicy, behavior_probs_of
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, Transitions, UserBatch
from privrl_bench.users.collectors.collector import BatchShape, Collector
from privrl_bench.users.collectors.live import SimulatedCollector
from privrl_bench.users.collectors.shards import blank, clear_idle, shard_size, train_stats

_ROUNDING = 1e-5  # of an action's bound, relative or absolute


def _preset_of(dataset_id: str) -> str | None:
    """The command that makes a dataset of a preset; None: no preset makes one of this id.

    >>> _preset_of("pendulum/ddpg-v0")
    'privrl collect +collect=primorl env=pendulum'
    """
    for preset in choices("collect"):
        path = file_of("collect", preset)
        datasets = {} if path is None else yaml.safe_load(path.read_text())
        for env, made in datasets.items():
            if made.get("name") == dataset_id:
                return f"privrl collect +collect={preset} env={env}"
    return None


def open_data(config: DataConfig, spec: EnvSpec) -> Dataset:
    """The dataset of a run.

    Raises:
        ConfigError: not there, damaged, of another environment's shape, or too small to split.
    """
    assert config.id is not None
    command = None if config.id in local_ids() else _preset_of(config.id)
    if command is not None:
        near = suggest(config.id, local_ids())
        raise ConfigError(
            "data.id", f"no dataset {config.id!r} here{near}; this makes it: {command}"
        )
    found = open_dataset(config.id, config.user_key)
    width, actions = found.observations.shape[1], found.actions.shape[1:]
    expected = () if spec.discrete else (spec.actions,)
    if width != spec.obs_dim or tuple(actions) != expected:
        raise ConfigError(
            "data.id",
            f"{config.id} has {width} observations and actions of shape {tuple(actions)}; "
            f"env={spec.name} has {spec.obs_dim} and {expected}",
        )
    _check_bounds(found.actions, config.id, spec)
    longest = int(found.lengths.max())
    if longest > spec.max_episode_steps:
        raise ConfigError(
            "data.id",
            f"{config.id} has an episode of {longest} steps; env={spec.name} allows {spec.max_episode_steps} "
            "(env.max_episode_steps)",
        )
    split = split_users(found, config.public, config.users, config.id, config.part)
    givers = found.card.get("logs", {}).get("givers", 0)
    given = f"the ranges of {config.id} are those of {givers} public users"
    other = bool(givers) and config.user_key is None
    refuse(other, "data.user_key", f"{given}, and null makes others public; leave it out")
    few, cure = split.public_users, "raise it, or import the logs with --ranges"
    refuse(few < givers, "data.public", f"{given}, here are {few}; {cure}")
    return split


def _check_bounds(actions: np.ndarray, name: str, spec: EnvSpec) -> None:
    """Raise ConfigError: an action [N, A] is outside the environment's box by more than rounding."""
    if spec.action_low is None or spec.action_high is None:
        return
    low, high = (np.asarray(bound, np.float64) for bound in (spec.action_low, spec.action_high))
    # Datasets have single precision; the bounds of a box may be infinite.
    room = [
        _ROUNDING * np.maximum(1.0, np.abs(np.where(np.isfinite(b), b, 0.0))) for b in (low, high)
    ]
    below, above = actions.min(axis=0) < low - room[0], actions.max(axis=0) > high + room[1]
    if (below | above).any():
        j = int(np.argmax(below | above))
        raise ConfigError(
            "data.id",
            f"{name}: component {j} of the actions is between {actions[:, j].min():g} and "
            f"{actions[:, j].max():g}; env={spec.name} allows {low[j]:g} to {high[j]:g}",
        )


def scaled_by(env: EnvConfig, data: Dataset) -> EnvConfig:
    """With `env.obs_scaling=split`: the same with the public part's moments as public constants."""
    if env.obs_scaling != "split":
        return env
    mean, std = moments(data.trajectories, data.public)
    return replace(env, obs_scaling="public", obs_mean=mean.tolist(), obs_std=std.tolist())


class StoredUsers(Collector):
    """Users whose trajectories are kept; a user's episodes follow one another."""

    population: int

    @abstractmethod
    def stored(self) -> list[Trajectories]:
        """The trajectories of each replica."""

    @abstractmethod
    def episodes_of(self, user: int) -> Sequence[int]:
        """Episode numbers of a user; empty: there is no such user."""

    def observed(self, obs: np.ndarray) -> np.ndarray:
        """Observations [n, D] from stored ones."""
        return obs

    def padded(self, cohort: Cohort, obs_dim: int) -> UserBatch:
        """The trajectories of the members, as they are stored, with the users' numbers."""
        assert cohort.members is not None
        stored, shape = self.stored(), self.shape
        leading = (shape.replicas, shape.users, shape.steps)
        steps = blank(leading, obs_dim, stored[0].actions.shape[1:])
        named = ["actions", "rewards", "terminated"]
        if stored[0].behavior_probs is not None:
            named.append("behavior_probs")
            steps["behavior_probs"] = torch.ones(leading)
        into = {name: x.numpy() for name, x in steps.items()}
        numbers = torch.full(leading[:2], -1)
        returns: list[list[float]] = [[] for _ in range(shape.replicas)]
        for r, who in enumerate(cohort.members):
            flat = stored[r]
            for slot, user in enumerate(who):
                start = 0
                for k in self.episodes_of(int(user)):
                    numbers[r, slot] = int(user)
                    first, last = int(flat.starts[k]), int(flat.starts[k + 1])
                    if last == first:
                        continue
                    obs = self.observed(flat.observations[first + k : last + k + 1])
                    end = start + last - first
                    into["obs"][r, slot, start:end] = obs[:-1]
                    into["next_obs"][r, slot, start:end] = obs[1:]
                    for name in named:
                        into[name][r, slot, start:end] = getattr(flat, name)[first:last]
                    into["done"][r, slot, end - 1] = True
                    into["mask"][r, slot, start:end] = True
                    returns[r].append(float(flat.rewards[first:last].sum(dtype=np.float64)))
                    start = end
        valid = steps["mask"].any(-1)
        unusable = ((numbers >= 0) & ~valid).sum(-1).tolist()
        stats = [train_stats(*one) for one in zip(returns, map(float, unusable), strict=True)]
        return UserBatch(**cast(Any, steps), valid=valid, stats=stats, numbers=numbers)


class DatasetCollector(StoredUsers):
    """Users of a dataset.

    Args:
        data: the dataset.
        env: scaling, as constants.
        shape: R, users of a shard, and T, the largest number of steps of one user.
        used_once: see `Collector`.
    """

    def __init__(self, data: Dataset, env: EnvConfig, shape: BatchShape, used_once: bool = False):
        self.shape = shape
        self.population, self.used_once = data.users, used_once
        self._data = data
        self._width = data.trajectories.observations.shape[1]
        self.scaler = SignalScaler(env, 1, 1, self._width, 1.0)

    def stored(self) -> list[Trajectories]:
        """See `StoredUsers.stored`: the same of all replicas."""
        return [self._data.trajectories] * self.shape.replicas

    def episodes_of(self, user: int) -> Sequence[int]:
        """See `StoredUsers.episodes_of`; `privacy.population` may be larger than the dataset."""
        return self._data.episodes_of(user).tolist() if user < self._data.users else ()

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """The trajectories of the members; the policy and the round change nothing.

        They are numbered, so that a user's own random numbers do not depend on who else joins.
        """
        users = self.padded(cohort, self._width)
        steps = {name: getattr(users, name) for name in ("mask", "obs", "next_obs", "actions")}
        steps |= {name: self._scaled(steps[name]) for name in ("obs", "next_obs")}
        clear_idle(steps)
        return replace(
            users,
            obs=steps["obs"],
            next_obs=steps["next_obs"],
            rewards=self._rewards(users.rewards),
        )

    def _scaled(self, obs: Tensor) -> Tensor:
        """[..., D] in the units of learning."""
        flat = self.scaler.obs(obs.numpy().reshape(1, -1, obs.shape[-1]), update=None)
        return torch.from_numpy(flat.reshape(obs.shape).astype(np.float32))

    def _rewards(self, rewards: Tensor) -> Tensor:
        """[...] in the units of learning."""
        everyone = np.ones(rewards.shape, bool)
        return torch.from_numpy(
            np.asarray(self.scaler.reward(rewards.numpy(), everyone), np.float32)
        )

    def public(self) -> Transitions:
        """All steps of the public part."""
        flat, parts = self._data.trajectories, []
        for k in self._data.public:
            first, last = int(flat.starts[k]), int(flat.starts[k + 1])
            obs = np.asarray(flat.observations[first + k : last + k + 1])
            own = (flat.actions[first:last], flat.rewards[first:last])
            parts.append((obs[:-1], *own, obs[1:], flat.terminated[first:last]))
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
        first_obs, actions, rewards, next_obs, terminated = map(torch.from_numpy, columns)
        return Transitions(
            obs=self._scaled(first_obs),
            actions=actions.float(),
            rewards=self._rewards(rewards),
            next_obs=self._scaled(next_obs),
            terminated=terminated,
            lengths=torch.from_numpy(flat.lengths[self._data.public]),
        )


class BehaviorCollector(StoredUsers):
    """Users who acted with a fixed policy once and may join any round: a simulated dataset.

    A user's trajectory is a function of the run's seed and of the user's number. So it is kept in memory,
    one-hot observations as the index of their 1 (-1: none), and not in a checkpoint. Nothing released holds it.

    Args:
        config: the environment, whose observations are not scaled.
        spec: its public facts.
        policy: the behavior policy.
        streams: of each replica.
        population: n users.
        shape: R, users of a shard, T.
        used_once: see `Collector`.
    """

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
        self._users: list[Trajectories] = []

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

    def stored(self) -> list[Trajectories]:
        """See `StoredUsers.stored`; the first call simulates them. A user with non-finite data has no step."""
        if not self._users:
            parts: list[list[dict[str, np.ndarray]]] = [[] for _ in range(self.shape.replicas)]
            left = self.population
            for users in self.simulate():
                count = min(left, users.mask.shape[1])
                left -= count
                probs = behavior_probs_of(self._policy.known, users.obs, users.actions).float()
                for r, part in enumerate(parts):
                    part.append(self._kept(replace(users, behavior_probs=probs), r, count))
            self._users = [_joined(part) for part in parts]
        return self._users

    def _kept(self, users: UserBatch, r: int, count: int) -> dict[str, np.ndarray]:
        """The first `count` users of replica r, one after the other."""
        mask = users.mask[r, :count] & users.valid[r, :count, None]
        lengths = mask.sum(-1)
        ends = users.next_obs[r, torch.arange(count), (lengths - 1).clamp_min(0)]
        obs = torch.cat([users.obs[r, :count], ends[:, None]], dim=1)
        place = torch.arange(obs.shape[1]).expand(count, -1)
        obs = torch.where((place == lengths[:, None])[..., None], ends[:, None], obs)
        kept = obs[place <= lengths[:, None]].numpy()
        if self._spec.one_hot:
            kept = np.where(kept.any(-1), kept.argmax(-1), -1).astype(np.int32)
        names = ("actions", "rewards", "terminated", "behavior_probs")
        steps = {name: getattr(users, name)[r, :count][mask].numpy() for name in names}
        return {"observations": kept, "lengths": lengths.numpy(), **steps}

    def episodes_of(self, user: int) -> Sequence[int]:
        """See `StoredUsers.episodes_of`."""
        return (user,)

    def observed(self, obs: np.ndarray) -> np.ndarray:
        """See `StoredUsers.observed`."""
        if not self._spec.one_hot:
            return obs
        return np.eye(self._spec.obs_dim + 1, dtype=np.float32)[obs + 1, 1:]

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """The trajectories of the members; `policy_params` and the round change nothing."""
        return replace(self.padded(cohort, self._spec.obs_dim), numbers=None)


def _joined(parts: list[dict[str, np.ndarray]]) -> Trajectories:
    """One after the other, each user one episode."""
    columns: dict[str, Any] = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    lengths = columns.pop("lengths")
    starts = np.concatenate([[0], lengths.cumsum()])
    return Trajectories(**columns, starts=starts, users=np.arange(len(lengths)))
