"""Baseline policies without learning: fixed rules of the raw observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from privrl_bench.models.policy import ParameterFree, Sampler
from privrl_bench.types import EnvSpec

Rule = Callable[[Tensor], Tensor]


class Trivial(NamedTuple):
    """A rule from raw observations [N, B, D] to the environment's actions, and its name."""

    name: str
    rule: Rule


def _constant(*values: float) -> Rule:
    return lambda obs: torch.tensor(values).expand(*obs.shape[:-1], len(values))


def nothing(actions: int) -> Trivial:
    """Return the rule with action zero in every coordinate."""
    return Trivial("do nothing", _constant(*[0.0] * actions))


def _energy(obs: Tensor) -> Tensor:
    """Pendulum: control the energy to that of the upright equilibrium, then stabilise linearly."""
    cos, sin, rate = obs.unbind(-1)
    missing = 15.0 * (1.0 - cos) - rate**2 / 2.0
    pump = missing * torch.where(rate >= 0, 1.0, -1.0)
    hold = -10.0 * torch.atan2(sin, cos) - 2.0 * rate
    near = (cos > 0.95) & (rate.abs() < 2.0)
    return torch.where(near, hold, pump).clamp(-2.0, 2.0).unsqueeze(-1)


def _drugs(obs: Tensor) -> Tensor:
    """HIV: both drugs above 300 infected cells per ml, RTI alone above 100, none below."""
    ill = 10.0 ** obs[..., 2] + 10.0 ** obs[..., 3]
    return torch.where(ill > 300, 3, torch.where(ill > 100, 1, 0))


# By `env.name`; the rules do not depend on data. Doing nothing is a baseline of every environment that has it.
TRIVIAL: dict[str, Trivial] = {
    "cartpole": Trivial("push where the pole falls", lambda o: (o[..., 2] + o[..., 3] > 0).long()),
    "acrobot": Trivial(
        "torque against the first joint", lambda o: 1 - torch.sign(o[..., 4]).long()
    ),
    "pendulum": Trivial("pump energy", _energy),
    "mountain_car": Trivial("push along the speed", lambda o: 1 + torch.sign(o[..., 1]).long()),
    "dosing0": Trivial("dose 2.9 always", _constant(2.9)),
    "dosing1": Trivial("dose 2.9 always", _constant(2.9)),
    "hiv": Trivial("drugs by infected cells", _drugs),
    "riverswim": Trivial("right always", lambda o: torch.ones(o.shape[:-1], dtype=torch.long)),
}


class RandomPolicy(ParameterFree):
    """Uniform actions, discrete or in a bounded box, as a `Policy` without parameters."""

    def __init__(self, spec: EnvSpec):
        self._spec = spec

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw discrete actions [*shape], or actions [*shape, A] uniform in the box or among choices."""
        if self._spec.discrete:
            return torch.randint(self._spec.actions, shape, generator=generator)
        if self._spec.choices is not None:
            counts = torch.tensor(self._spec.choices)
            return (torch.rand(*shape, len(counts), generator=generator) * counts).floor()
        low, high = torch.tensor(self._spec.action_low), torch.tensor(self._spec.action_high)
        return low + (high - low) * torch.rand(*shape, self._spec.actions, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        return lambda obs, noise: noise

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Raise ValueError: no action is the most likely."""
        raise ValueError("a random policy has no most likely action")


class TrivialPolicy(ParameterFree):
    """A rule as a `Policy` without parameters. Needs raw observations (`env.obs_scaling=none`)."""

    def __init__(self, trivial: Trivial):
        self._rule = trivial.rule

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Return zeros [*shape]; rules are deterministic."""
        return torch.zeros(*shape)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""
        return lambda obs, noise: self._rule(obs)

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Apply the rule."""
        return self._rule(obs)
