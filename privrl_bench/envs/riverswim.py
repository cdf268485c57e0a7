"""RiverSwim: six states in a row, swimming right is against the current; episodes of H = 20 steps.

Left always succeeds and has reward `small` in the first state. Right has reward 1 in the last state, where
the swimmer stays with probability p; elsewhere the swimmer stays with probability 0.6, advances with 0.35
and slips back with 0.05 (in the first state: advances with 0.6).

Source:
    Osband, Russo and Van Roy 2013, page 6, with p = 0.6. "Differentially Private Policy Gradient" (Rio,
    Barlier, Colin) varies p; its text is ambiguous: `pays=swim` (default, as in published code) rewards
    every right in the last state, `pays=stay` only if the swimmer stays there.
"""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import ClassicSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure

STATES, ACTIONS, HORIZON = 6, 2, 20


class Model(NamedTuple):
    """A finite-horizon problem: transitions [S, A, S], rewards [S, A, S], start [S], horizon H."""

    transitions: np.ndarray
    rewards: np.ndarray
    start: np.ndarray
    horizon: int


def model(p: float = 0.6, small: float = 0.005, pays: str = "swim", start: str = "first") -> Model:
    """Return the tables of the problem.

    Args:
        p: Probability of staying in the last state when swimming right.
        small: Reward for left in the first state.
        pays: swim | stay, see the module's docstring.
        start: first | second_or_third, with equal probability (as in the code of DPPG's authors).

    Raises:
        ConfigError: A value is out of range.
    """
    if not 0.0 <= p <= 1.0:
        raise ConfigError("env.kwargs.p", f"must be in [0, 1], got {p}")
    if pays not in ("swim", "stay"):
        raise ConfigError("env.kwargs.pays", f"must be swim or stay, got {pays!r}")
    if start not in ("first", "second_or_third"):
        raise ConfigError("env.kwargs.start", f"must be first or second_or_third, got {start!r}")
    move = np.zeros((STATES, ACTIONS, STATES))
    pay = np.zeros_like(move)
    for s in range(STATES):
        move[s, 0, max(s - 1, 0)] = 1.0
    move[0, 1, :2] = 0.4, 0.6
    for s in range(1, STATES - 1):
        move[s, 1, s - 1 : s + 2] = 0.05, 0.6, 0.35
    move[-1, 1, -2:] = 1.0 - p, p
    pay[0, 0] = small
    pay[-1, 1] = 1.0
    if pays == "stay":
        pay[-1, 1, :-1] = 0.0
    first = np.zeros(STATES)
    first[[0] if start == "first" else [1, 2]] = 1.0 if start == "first" else 0.5
    return Model(move, pay, first, HORIZON)


class RiverSwimSlots(ClassicSlots):
    """`Slots` of RiverSwim. State rows: position, step, and a uniform number for every step.

    Observations [6]: the position, one-hot. `env.kwargs` are the arguments of `model`.
    """

    max_episode_steps = HORIZON

    def __init__(self, config: EnvConfig, count: int):
        self.size = 2 + (config.max_episode_steps or self.max_episode_steps)
        self.model = self.tables(config)
        self._reach = self.model.transitions.cumsum(-1)
        super().__init__(config, count)

    @staticmethod
    def tables(config: EnvConfig) -> Model:
        """Return the tables of a configuration. Raises ConfigError."""
        try:
            return model(**config.kwargs)
        except TypeError as error:
            raise ConfigError("env.kwargs", f"invalid for RiverSwim: {error}") from None

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Return the observation and action spaces."""
        return gym.spaces.Box(0.0, 1.0, (STATES,)), gym.spaces.Discrete(ACTIONS)

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        place = rng.choice(STATES, p=self.model.start)
        return np.concatenate([[place, 0.0], rng.random(self.size - 2)])

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return np.eye(STATES, dtype=np.float32)[state[0].astype(np.int64)]

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        place, step = state[0].astype(np.int64), state[1].astype(np.int64)
        action = np.asarray(actions, dtype=np.int64)
        if step.max(initial=0) >= self.size - 2:
            raise EnvironmentFailure(f"an episode has at most {self.size - 2} steps")
        uniforms = state[2:][step, np.arange(len(step))]
        there = (uniforms[:, None] >= self._reach[place, action]).sum(-1).clip(max=STATES - 1)
        after = state.copy()
        after[0] = there
        after[1] = step + 1
        return after, self.model.rewards[place, action, there], np.zeros(len(step), dtype=bool)
