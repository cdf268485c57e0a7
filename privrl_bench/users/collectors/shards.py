"""A round as a stream of shards, and a shard as microbatches.

A *shard* is as many users as are simulated and held at the same time: its size is the machine's affair. A
*microbatch* is a group of consecutive users of a round whose rows are computed by the same tensor operations.
Its size depends on the public U and the algorithm alone, so that every operation has the same shapes, hence
the same bits, however a round is split over shards and workers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from privrl_bench.models.policy import Policy
from privrl_bench.types import EnvSpec, TextBatch, UserBatch

_USERS = 16  # of a group of `GroupedSampler`
_NUMBERS = 500_000  # values of observations in one shard, for each replica
AnyBatch = TypeVar("AnyBatch", UserBatch, TextBatch)


def microbatch(users: int, most: int) -> int:
    """Users of a microbatch, in rounds of U = `users`: at most a quarter, so that workers can share a round.

    >>> [microbatch(users, 16) for users in (1, 8, 64, 4096)]
    [1, 2, 16, 16]
    """
    return min(most, math.ceil(users / 4))


def microbatches(shard: AnyBatch, size: int) -> Iterator[AnyBatch]:
    """The users of a shard, `size` at a time."""
    for start in range(0, shard.valid.shape[1], size):
        yield some_of(shard, start, start + size)


def some_of(batch: AnyBatch, start: int, stop: int) -> AnyBatch:
    """The users in slots `start` to `stop` of a batch.

    Copies: of a view with the strides of a larger batch, some operations round differently.
    """
    tensors = {
        f.name: getattr(batch, f.name)[:, start:stop].clone(memory_format=torch.contiguous_format)
        for f in fields(batch)
        if isinstance(getattr(batch, f.name), Tensor)
    }
    return replace(batch, first=batch.first + start, **tensors)


def shard_size(spec: EnvSpec, steps: int) -> int:
    """Users of a shard where a round takes all users; independent of the number of replicas."""
    return max(1, min(512, _NUMBERS // (steps * spec.obs_dim)))


def blank(
    leading: tuple[int, ...], obs_dim: int, action_shape: tuple[int, ...] = (), device: str = "cpu"
) -> dict[str, Tensor]:
    """Steps that did not happen: zeros [*leading, ...] by the names of `UserBatch`.

    Actions are choices (int64) if `action_shape` is empty, else real numbers (float32).
    """
    action_dtype = torch.float32 if action_shape else torch.long
    zeros = functools.partial(torch.zeros, device=device)
    return {
        "obs": zeros(*leading, obs_dim),
        "next_obs": zeros(*leading, obs_dim),
        "actions": zeros(*leading, *action_shape, dtype=action_dtype),
        "rewards": zeros(leading),
        **{name: zeros(leading, dtype=torch.bool) for name in ("terminated", "done", "mask")},
    }


def blank_of(spec: EnvSpec, leading: tuple[int, ...], device: str = "cpu") -> dict[str, Tensor]:
    """`blank` for the observations and actions of an environment."""
    return blank(leading, spec.obs_dim, () if spec.discrete else (spec.actions,), device)


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


class GroupedSampler:
    """`Policy.sampler` of many users, whose actions do not depend, to the last bit, on how many there are.

    The users of 16 consecutive slots of a round are a group, of which each has a place of its own: matrix
    products may round the rows of a matrix in different ways.

    Args:
        policy: the policy.
        params: [R, P].
        noise: [T, R, U, ...] of the policy's `draw`.
        obs_dim: D.
        slots: [U] of the users in the round.
    """

    def __init__(self, policy: Policy, params: Tensor, noise: Tensor, obs_dim: int, slots: range):
        before, replicas = slots.start % _USERS, len(params)
        groups = math.ceil((before + len(slots)) / _USERS)
        after = groups * _USERS - before - len(slots)
        self._users = slice(before, before + len(slots))
        self._sample = policy.sampler(params.repeat_interleave(groups, dim=0))
        pad = (*[0, 0] * (noise.dim() - 3), before, after)
        padded = torch.nn.functional.pad(noise, pad)
        self._noise = padded.reshape(len(noise), replicas * groups, _USERS, *noise.shape[3:])
        self._wide = params.new_zeros(replicas, groups * _USERS, obs_dim)
        self._groups = self._wide.view(replicas * groups, _USERS, obs_dim)

    def __call__(self, obs: Tensor, t: int) -> Tensor:
        """Actions [R, U, ...] of step t, called in order, for observations [R, U, D]."""
        if obs.shape == self._wide.shape:
            actions = self._sample(obs.view(self._groups.shape), self._noise[t])
            return actions.reshape(*obs.shape[:2], *actions.shape[2:])
        self._wide[:, self._users] = obs
        actions = self._sample(self._groups, self._noise[t])
        return actions.reshape(*self._wide.shape[:2], *actions.shape[2:])[:, self._users]
