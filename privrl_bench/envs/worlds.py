"""Environments whose states are tensors on one device: `env.backend=torch` and `env.backend=warp`.

World i is one simulated user's. In torch every operation is elementwise over the worlds, so that no world moves
another, to the last bit (tested). `warp_worlds.py` says what MuJoCo Warp shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import TorchSlots

# On the CPU torch computes the last numbers of an array by other code than the ones before. In whole groups of
# so many worlds there are no last ones.
LANES = 64


class Worlds(ABC):
    """`count` environments of one kind, all stepped together.

    Attributes:
        count: number of worlds, a multiple of `LANES`.
        draws: uniform numbers that a reset takes.
    """

    count: int
    draws: int

    @abstractmethod
    def reset(self, where: Tensor, uniforms: Tensor) -> None:
        """Start new episodes in the worlds `where` [count] bool, from uniform numbers [draws, count]."""

    @abstractmethod
    def observe(self) -> Tensor:
        """The observations [count, D], as Gymnasium's environment returns them."""

    @abstractmethod
    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Step all worlds with actions [count, A] or [count]: rewards [count], terminated [count]."""

    def check(self) -> None:  # noqa: B027
        """Raise EnvironmentFailure: a buffer that worlds share was too small since the last call."""


class TensorWorlds(Worlds):
    """Worlds of slots.

    Args:
        slots: a class of `registry.OWN` or `registry.SLOTS`.
        config: the environment.
        count: number of worlds.
        device: torch device.
    """

    def __init__(self, slots: type[TorchSlots], config: EnvConfig, count: int, device: str):
        self._slots = slots(config, 0, torch, device)
        self.count, self.draws = count, self._slots.draws
        self._state = torch.zeros(self._slots.size, count, dtype=torch.float64, device=device)

    def reset(self, where: Tensor, uniforms: Tensor) -> None:
        """See `Worlds.reset`."""
        self._state = torch.where(where, self._slots.start(uniforms.double()), self._state)

    def observe(self) -> Tensor:
        """See `Worlds.observe`."""
        found: Tensor = self._slots.observe(self._state)
        return found

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worlds.step`."""
        self._state, rewards, terminated = self._slots.advance(self._state, actions)
        return rewards, terminated
