"""What collectors share: users padded to [R, U, T, ...], and training statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users.collectors.collector import BatchShape

_NUMBERS = 500_000  # values of observations in one shard, for each replica


def shard_size(spec: EnvSpec, steps: int) -> int:
    """Users of a shard where a round takes all users; independent of the number of replicas."""
    return max(1, min(512, _NUMBERS // (steps * spec.obs_dim)))


def blank(
    leading: tuple[int, ...], obs_dim: int, action_shape: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """Steps that did not happen: zeros [*leading, ...] by the names of `UserBatch`.

    Actions are choices (int64) if `action_shape` is empty, else real numbers (float32).
    """
    action_dtype = torch.float32 if action_shape else torch.long
    return {
        "obs": torch.zeros(*leading, obs_dim),
        "next_obs": torch.zeros(*leading, obs_dim),
        "actions": torch.zeros(*leading, *action_shape, dtype=action_dtype),
        "rewards": torch.zeros(leading),
        **{name: torch.zeros(leading, dtype=torch.bool) for name in ("terminated", "done", "mask")},
    }


def blank_of(spec: EnvSpec, leading: tuple[int, ...]) -> dict[str, Tensor]:
    """`blank` for the observations and actions of an environment."""
    return blank(leading, spec.obs_dim, () if spec.discrete else (spec.actions,))


def clear_idle(steps: dict[str, Tensor]) -> None:
    """Set observations and actions to zero, in place, where `steps["mask"]` says that no step happened."""
    if steps["mask"].all():
        return
    idle = ~steps["mask"]
    for name in ("obs", "next_obs", "actions"):
        steps[name][idle] = 0


def train_stats(
    returns: Sequence[float] | Tensor, invalid: float, mean: Callable[[Any], Any] = np.mean
) -> dict[str, float]:
    """Private metrics of one replica's users in one round.

    Args:
        returns: undiscounted returns of the episodes that ended.
        invalid: users without usable data.
        mean: of `returns`.
    """
    return {
        "train/return_mean": float(mean(returns)) if len(returns) else math.nan,
        "train/episodes": float(len(returns)),
        "train/invalid_users": float(invalid),
    }


class PaddedUsers:
    """Recorded episodes of users, padded to a batch [R, U, T, ...].

    Args:
        shape: R, U, T.
        steps: zeros [R, U, T, ...] of `blank`; they are filled in place.
        with_probs: episodes have the probabilities of their actions under the behavior policy.
    """

    def __init__(self, shape: BatchShape, steps: dict[str, Tensor], with_probs: bool):
        leading = (shape.replicas, shape.users, shape.steps)
        self.steps = steps
        self.valid = torch.zeros(leading[:2], dtype=torch.bool)
        self._arrays = {name: x.numpy() for name, x in steps.items()}
        self._probs = torch.ones(leading) if with_probs else None
        self._returns: list[list[float]] = [[] for _ in range(shape.replicas)]
        self._used = np.zeros(leading[:2], np.int64)

    def add(
        self,
        r: int,
        slot: int,
        obs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray | bool,
        probs: np.ndarray | None = None,
    ) -> None:
        """Append one episode of n >= 1 steps to a user's steps; the user becomes valid.

        Args:
            r: replica of the user.
            slot: of the user.
            obs: [n + 1, D].
            actions: [n, ...].
            rewards: [n].
            terminated: [n], or of the last step.
            probs: [n] probabilities of the actions under the behavior policy.
        """
        start = int(self._used[r, slot])
        end = start + len(rewards)
        into, to = self._arrays, slice(start, end)
        into["obs"][r, slot, to], into["next_obs"][r, slot, to] = obs[:-1], obs[1:]
        into["actions"][r, slot, to], into["rewards"][r, slot, to] = actions, rewards
        into["terminated"][r, slot, end - 1 if np.ndim(terminated) == 0 else to] = terminated
        into["done"][r, slot, end - 1] = True
        into["mask"][r, slot, to] = True
        if self._probs is not None and probs is not None:
            self._probs.numpy()[r, slot, to] = probs
        self.valid[r, slot] = True
        self._used[r, slot] = end
        self._returns[r].append(float(rewards.sum(dtype=np.float64)))

    def batch(self, invalid: Sequence[float]) -> UserBatch:
        """The batch; `invalid`: users of each replica without usable data."""
        both = zip(self._returns, invalid, strict=True)
        stats = [train_stats(returns, count) for returns, count in both]
        return UserBatch(
            **cast(Any, self.steps), valid=self.valid, stats=stats, behavior_probs=self._probs
        )
