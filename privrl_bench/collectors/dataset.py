"""Users from a dataset: the rounds of an offline run, and what its public part gives.

Stands where `collectors/simulated.py` stands for live users. Who takes part is drawn by the gate (`plan.members`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.presets import collect_command
from privrl_bench.config.schema import DataConfig, EnvConfig
from privrl_bench.datasets.minari_read import local_ids, open_dataset
from privrl_bench.datasets.split import Split, moments, split_users
from privrl_bench.datasets.trajectories import Trajectories
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.types import EnvSpec, Transitions, UserBatch


@dataclass(frozen=True)
class Dataset:
    """An opened dataset and its split by user.

    Attributes:
        most: episodes of one user at most.
    """

    name: str
    trajectories: Trajectories
    split: Split
    most: int

    @property
    def users(self) -> int:
        """How many users are private."""
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
    longest = int(found.lengths.max())
    if longest > spec.max_episode_steps:
        raise ConfigError(
            "data.id",
            f"{config.id} has an episode of {longest} steps; env={spec.name} allows {spec.max_episode_steps} "
            "(env.max_episode_steps)",
        )
    split = split_users(found, config.public, config.users)
    return Dataset(config.id, found, split, int(np.diff(split.private_starts).max()))


def scaled_by(env: EnvConfig, data: Dataset) -> EnvConfig:
    """With `env.obs_scaling=split`: the same with the public part's moments as public constants."""
    if env.obs_scaling != "split":
        return env
    mean, std, _, _ = moments(data.trajectories, data.split.public)
    return replace(env, obs_scaling="public", obs_mean=mean.tolist(), obs_std=std.tolist())


class DatasetCollector:
    """Rounds of users from a dataset, by the interface of `rollout.SimulatedCollector`.

    Args:
        data: the dataset.
        env: scaling, as constants.
        replicas, slots: R, and users a round has room for.
        steps: T, steps of one user at most, a public number.
    """

    def __init__(self, data: Dataset, env: EnvConfig, replicas: int, slots: int, steps: int):
        self.shape = (replicas, slots, steps)
        self._data = data
        obs_dim = data.trajectories.observations.shape[1]
        self.scaler = SignalScaler(env, 1, 1, obs_dim, 1.0)
        # The leak test's: (round, slot) -> whether somebody else stands there, and her data.
        self.instead: Callable[[UserBatch], UserBatch] = lambda users: users

    @property
    def people(self) -> int:
        """How many users are private."""
        return self._data.users

    def collect(self, round_index: int, members: list[np.ndarray]) -> UserBatch:
        """One round: the trajectories of `members` of each replica. Absent people are not valid."""
        replicas, slots, steps = self.shape
        flat = self._data.trajectories
        obs = np.zeros((replicas, slots, steps, flat.observations.shape[1]), np.float32)
        next_obs = np.zeros_like(obs)
        actions = np.zeros((replicas, slots, steps, *flat.actions.shape[1:]), flat.actions.dtype)
        rewards = np.zeros((replicas, slots, steps), np.float32)
        behavior_probs = None if flat.behavior_probs is None else np.ones(rewards.shape, np.float32)
        terminated, done, mask = (np.zeros(rewards.shape, bool) for _ in range(3))
        valid = np.zeros((replicas, slots), bool)
        stats = []
        for r, who in enumerate(members):
            returns = []
            for slot, user in enumerate(who):
                if user >= self._data.users:
                    continue
                valid[r, slot] = True
                at = 0
                for k in self._data.episodes_of(int(user)):
                    first, last = int(flat.starts[k]), int(flat.starts[k + 1])
                    to = at + last - first
                    rows = slice(first + k, last + k)
                    obs[r, slot, at:to] = flat.observations[rows]
                    next_obs[r, slot, at:to] = flat.observations[first + k + 1 : last + k + 1]
                    actions[r, slot, at:to] = flat.actions[first:last]
                    rewards[r, slot, at:to] = flat.rewards[first:last]
                    if behavior_probs is not None and flat.behavior_probs is not None:
                        behavior_probs[r, slot, at:to] = flat.behavior_probs[first:last]
                    terminated[r, slot, at:to] = flat.terminated[first:last]
                    done[r, slot, to - 1] = True
                    mask[r, slot, at:to] = True
                    returns.append(float(flat.rewards[first:last].sum(dtype=np.float64)))
                    at = to
            stats.append(
                {
                    "train/return_mean": float(np.mean(returns)) if returns else math.nan,
                    "train/episodes": float(len(returns)),
                    "train/invalid_users": 0.0,
                }
            )
        users = UserBatch(
            obs=self._scaled(obs, mask),
            next_obs=self._scaled(next_obs, mask),
            actions=torch.from_numpy(actions),
            rewards=torch.from_numpy(self._rewards(rewards)),
            terminated=torch.from_numpy(terminated),
            done=torch.from_numpy(done),
            mask=torch.from_numpy(mask),
            valid=torch.from_numpy(valid),
            stats=stats,
            behavior_probs=None if behavior_probs is None else torch.from_numpy(behavior_probs),
        )
        return self.instead(users)

    def _scaled(self, obs: np.ndarray, mask: np.ndarray) -> Tensor:
        flat = self.scaler.obs(obs.reshape(1, -1, obs.shape[-1]), update=None)
        scaled = flat.reshape(obs.shape).astype(np.float32)
        return torch.from_numpy(np.where(mask[..., None], scaled, np.float32(0)))

    def _rewards(self, rewards: np.ndarray) -> np.ndarray:
        full_batch = np.ones(rewards.shape, bool)
        return np.asarray(self.scaler.reward(rewards, full_batch), dtype=np.float32)

    def public(self) -> Transitions:
        """All steps of the public part."""
        flat, pieces = self._data.trajectories, []
        for k in self._data.split.public:
            first, last = int(flat.starts[k]), int(flat.starts[k + 1])
            obs = np.asarray(flat.observations[first + k : last + k + 1])
            pieces.append((obs[:-1], flat.actions[first:last], flat.rewards[first:last], obs[1:]))
        obs, actions, rewards, after = (np.concatenate(part) for part in zip(*pieces, strict=True))
        everyone = np.ones(obs.shape[:-1], bool)
        return Transitions(
            obs=self._scaled(obs, everyone),
            actions=torch.from_numpy(actions.astype(np.float32)),
            rewards=torch.from_numpy(self._rewards(rewards)),
            next_obs=self._scaled(after, everyone),
        )

    def get_state(self) -> dict[str, Tensor]:
        """Nothing: a round is a function of its number."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Nothing to restore."""
        return True

    def close(self) -> None:
        """Nothing to free."""
