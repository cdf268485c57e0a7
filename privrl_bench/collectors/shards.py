"""A round as a stream of shards, and a shard as microbatches.

A *shard* is as many users as are simulated and held at the same time: its size is the machine's affair. A
*microbatch* is a group of consecutive users of a round whose rows are computed by the same tensor operations.
Its size depends on the public U alone, so that every operation has the same shapes, hence the same bits,
however a round is split over shards and workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from privrl_bench.models.policy import Policy
from privrl_bench.types import TextBatch, UserBatch

_USERS = 16
AnyBatch = TypeVar("AnyBatch", UserBatch, TextBatch)


def microbatch(users: int) -> int:
    """Users of a microbatch, in rounds of U = `users`: at most a quarter, so that workers can share a round.

    >>> [microbatch(users) for users in (1, 8, 64, 4096)]
    [1, 2, 16, 16]
    """
    return min(_USERS, math.ceil(users / 4))


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


class GroupedSampler:
    """`Policy.sampler` of many users, whose actions do not depend, to the last bit, on how many there are.

    The users of 16 consecutive slots of a round are a group, of which each has a place of its own: matrix
    products may round the rows of a matrix in different ways.

    Args:
        policy: the policy.
        params: [R, P].
        slots: [U] of the users in the round.
    """

    def __init__(self, policy: Policy, params: Tensor, slots: range):
        self._before = slots.start % _USERS
        self._users = len(slots)
        groups = math.ceil((self._before + self._users) / _USERS)
        self._after = groups * _USERS - self._before - self._users
        self._sample = policy.sampler(params.repeat_interleave(groups, dim=0))

    def __call__(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [R, U, ...] for observations [R, U, D] and noise [R, U, ...]."""
        actions = self._sample(self._grouped(obs), self._grouped(noise))
        whole = actions.reshape(len(obs), -1, *actions.shape[2:])
        return whole[:, self._before : self._before + self._users]

    def _grouped(self, x: Tensor) -> Tensor:
        """[R, U, ...] -> [R * groups, 16, ...]."""
        if self._before or self._after:
            x = torch.nn.functional.pad(x, (*[0, 0] * (x.dim() - 2), self._before, self._after))
        return x.reshape(-1, _USERS, *x.shape[2:])
