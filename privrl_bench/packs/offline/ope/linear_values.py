"""Features of states for linear values, and fixed policies that act. Independent of any data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError
from privrl_bench.models.features import fourier_features, fourier_waves
from privrl_bench.models.fixed_policies import FixedPolicy
from privrl_bench.models.policy import ParameterFree, Sampler
from privrl_bench.types import EnvSpec

MOST_CELLS = 100_000  # of a grid


class Features(NamedTuple):
    """A feature map phi from raw observations [..., D] to [..., size]."""

    size: int
    phi: Callable[[Tensor], Tensor]


def box(config: EnvConfig, spec: EnvSpec) -> tuple[Tensor, Tensor]:
    """Return the public ranges [D] of raw observations.

    Raises:
        ConfigError: They are not configured.
    """
    low, high = config.obs_low, config.obs_high
    if low is None or high is None or not len(low) == len(high) == spec.obs_dim:
        raise ConfigError(
            "env.obs_low",
            "features of real observations need public ranges: env.obs_low and env.obs_high of "
            f"{spec.obs_dim} numbers",
        )
    return torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32)


def features(kind: str, order: int, config: EnvConfig, spec: EnvSpec) -> Features:
    """Return the feature map of a kind.

    Args:
        kind: tabular (one-hot observations unchanged) | linear (1 and the scaled observation) | fourier.
        order: Of the Fourier basis.
        config: The environment.
        spec: Its public facts.

    Raises:
        ConfigError: The kind does not fit the environment, or public ranges are missing.
    """
    if kind == "tabular":
        if not spec.one_hot:
            raise ConfigError(
                "algo.features",
                "tabular needs finitely many states observed one-hot; use fourier or linear",
            )
        return Features(spec.obs_dim, lambda obs: obs)
    low, high = box(config, spec)
    if kind == "linear":

        def line(obs: Tensor) -> Tensor:
            scaled = ((obs - low) / (high - low)).clamp(0.0, 1.0)
            return torch.cat([torch.ones_like(scaled[..., :1]), scaled], dim=-1)

        return Features(spec.obs_dim + 1, line)
    try:
        waves = fourier_waves(spec.obs_dim, order)
    except ValueError as error:
        raise ConfigError("algo.order", f"{error}; use a smaller one") from None
    return Features(len(waves), lambda obs: fourier_features(obs, low, high, waves))


class Cells(NamedTuple):
    """Finitely many states: `of` maps raw observations [..., D] to their indices, `centres` is [S, D]."""

    of: Callable[[Tensor], Tensor]
    centres: Tensor


def cells(grid: int, config: EnvConfig, spec: EnvSpec) -> Cells:
    """Return the states of one-hot observations, otherwise the cells of a grid over the public ranges.

    Args:
        grid: Cells per dimension.
        config: The environment.
        spec: Its public facts.

    Raises:
        ConfigError: Public ranges are missing, or there are too many cells.
    """
    if spec.one_hot:
        return Cells(lambda obs: obs.argmax(-1), torch.eye(spec.obs_dim))
    low, high = box(config, spec)
    if grid**spec.obs_dim > MOST_CELLS:
        largest = max(n for n in range(grid) if n**spec.obs_dim <= MOST_CELLS)
        problem = f"results in {grid}^{spec.obs_dim} cells, of at most {MOST_CELLS:,}"
        raise ConfigError("algo.grid", f"{problem}; use {largest} or less")
    sides = [torch.arange(grid)] * spec.obs_dim
    corners = torch.cartesian_prod(*sides).reshape(-1, spec.obs_dim)
    centres = low + (corners + 0.5) / grid * (high - low)
    powers = grid ** torch.arange(spec.obs_dim - 1, -1, -1)

    def number(obs: Tensor) -> Tensor:
        scaled = ((obs - low) / (high - low)).nan_to_num(0.0)
        return ((scaled * grid).long().clamp(0, grid - 1) * powers).sum(-1)

    return Cells(number, centres)


class ActingPolicy(ParameterFree):
    """A fixed policy as a `Policy` without parameters, for raw observations."""

    def __init__(self, known: FixedPolicy):
        self.known = known

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw uniform numbers [*shape]."""
        return torch.rand(*shape, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""

        def choose(obs: Tensor, noise: Tensor) -> Tensor:
            reach = self.known.probabilities(obs).cumsum(-1)
            return (
                (noise.unsqueeze(-1) * reach[..., -1:] >= reach)
                .sum(-1)
                .clamp_max(reach.shape[-1] - 1)
            )

        return choose

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.known.probabilities(obs).argmax(-1)


def behavior_probs_of(known: FixedPolicy, obs: Tensor, actions: Tensor) -> Tensor:
    """Return the probabilities [...] of `actions` [...] at raw observations [..., D]."""
    return known.probabilities(obs).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
