"""Users from a dataset: the rounds of an offline run, and what its public part gives.

The gate draws who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.presets import collect_command
from privrl_bench.config.schema import DataConfig, EnvConfig
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.offline.datasets.minari_files import local_ids, open_dataset
from privrl_bench.packs.offline.datasets.trajectories import (
    Split,
    Trajectories,
    moments,
    split_users,
)
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, Transitions, UserBatch
from privrl_bench.users.collectors.batches import PaddedUsers, blank, clear_idle
from privrl_bench.users.collectors.collector import BatchShape, Collector

_ROUNDING = 1e-5  # of an action's bound, relative or absolute


@dataclass(frozen=True)
class Dataset:
    """An opened dataset and its split by user.

    Attributes:
        name: its ID.
        trajectories: all episodes.
        split: which users are private.
        most: the largest number of episodes of one user.
    """

    name: str
    trajectories: Trajectories
    split: Split
    most: int

    @property
    def users(self) -> int:
        """Number of private users."""
        return self.split.users

    def describe(self) -> str:
        """Who the users are, for the plan."""
        split, flat = self.split, self.trajectories
        named = "each a user" if flat.user_key is None else f"user key {flat.user_key!r}"
        others = ", ".join(map(repr, flat.repeated))
        more = f"; other keys that repeat: {others}" if others else ""
        return (
            f"{split.users} private users ({len(split.private_episodes)} episodes, {named}), "
            f"{split.public_users} public{more}"
        )

    def episodes_of(self, user: int) -> np.ndarray:
        """Episode numbers of a private user."""
        starts = self.split.private_starts
        return self.split.private_episodes[starts[user] : starts[user + 1]]


def open_data(config: DataConfig, spec: EnvSpec) -> Dataset:
    """The dataset of a run.

    Raises:
        ConfigError: not there, damaged, of another environment's shape, or too small to split.
    """
    assert config.id is not None
    command = None if config.id in local_ids() else collect_command(config.id)
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
    split = split_users(found, config.public, config.users)
    return Dataset(config.id, found, split, int(np.diff(split.private_starts).max()))


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
    mean, std = moments(data.trajectories, data.split.public)
    return replace(env, obs_scaling="public", obs_mean=mean.tolist(), obs_std=std.tolist())


class DatasetCollector(Collector):
    """Users of a dataset; a user's episodes follow one another.

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
        self.scaler = SignalScaler(env, 1, 1, data.trajectories.observations.shape[1], 1.0)

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """The trajectories of the members; the policy and the round change nothing.

        They are numbered, so that a user's own random numbers do not depend on who else joins.
        """
        assert cohort.members is not None
        flat, shape = self._data.trajectories, self.shape
        leading = (shape.replicas, shape.users, shape.steps)
        steps = blank(leading, flat.observations.shape[1], flat.actions.shape[1:])
        users = PaddedUsers(shape, steps, flat.behavior_probs is not None)
        numbers = torch.full(leading[:2], -1)
        for r, who in enumerate(cohort.members):
            for slot, user in enumerate(who):
                if user >= self._data.users:
                    continue
                numbers[r, slot] = int(user)
                for k in self._data.episodes_of(int(user)):
                    first, last = int(flat.starts[k]), int(flat.starts[k + 1])
                    users.add(
                        r,
                        slot,
                        flat.observations[first + k : last + k + 1],
                        flat.actions[first:last],
                        flat.rewards[first:last],
                        flat.terminated[first:last],
                        None if flat.behavior_probs is None else flat.behavior_probs[first:last],
                    )
        batch = users.batch([0.0] * shape.replicas)
        steps["obs"], steps["next_obs"] = self._scaled(batch.obs), self._scaled(batch.next_obs)
        clear_idle(steps)
        return replace(
            batch,
            obs=steps["obs"],
            next_obs=steps["next_obs"],
            rewards=self._rewards(batch.rewards),
            numbers=numbers,
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
        for k in self._data.split.public:
            first, last = int(flat.starts[k]), int(flat.starts[k + 1])
            obs = np.asarray(flat.observations[first + k : last + k + 1])
            parts.append((obs[:-1], flat.actions[first:last], flat.rewards[first:last], obs[1:]))
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
        first_obs, actions, rewards, next_obs = map(torch.from_numpy, columns)
        return Transitions(
            obs=self._scaled(first_obs),
            actions=actions.float(),
            rewards=self._rewards(rewards),
            next_obs=self._scaled(next_obs),
        )
