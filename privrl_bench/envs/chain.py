"""The chain: n states in a row, the last one absorbing; stay, or go one further; nothing to decide.

An episode begins in one of the n - 1 other states, all as likely, and ends with the reward 1 for entering
the last one; it is cut after 200 steps, which almost never happens (from k states before the end it takes
k / (1 - stay) steps on average). What is learned from it is the value of its states: with one action every
policy is the same, and importance ratios are 1.

Source: Balle, Gomrokchi and Precup 2016, with the numbers of their published code (n = 40, stay = 0.5, discount
0.99); "Privacy Preserving Off-Policy Evaluation" (GPOPE) describes the same chain, its numbers are lost.
"""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import ClassicSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure

STATES, LIMIT = 40, 200


class Process(NamedTuple):
    """A Markov reward process that ends: its live states only, without a time limit.

    `transitions` [S, S] (rows sum to 1 but for the chance of the end), `rewards` [S] expected on leaving,
    `start` [S]. Live state s is observed as row s of the identity, the end as zeros.
    """

    transitions: np.ndarray
    rewards: np.ndarray
    start: np.ndarray

    def values(self, gamma: float) -> np.ndarray:
        """[S] expected discounted sums of rewards."""
        return np.linalg.solve(np.eye(len(self.start)) - gamma * self.transitions, self.rewards)

    def visits(self) -> np.ndarray:
        """[S] expected number of visits in an episode; their sum is its expected length."""
        return np.linalg.solve(np.eye(len(self.start)) - self.transitions.T, self.start)


def process(n: int = STATES, stay: float = 0.5) -> Process:
    """The chain of n states, n - 1 of them live. Raises ConfigError: a value is out of range."""
    if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= 10_000:
        raise ConfigError("env.kwargs.n", f"must be a whole number from 2 to 10000, got {n}")
    if not 0.0 <= stay < 1.0:
        raise ConfigError("env.kwargs.stay", f"must be in [0, 1), got {stay}")
    live = n - 1
    move = stay * np.eye(live) + (1.0 - stay) * np.eye(live, k=1)
    rewards = np.zeros(live)
    rewards[-1] = 1.0 - stay
    return Process(move, rewards, np.full(live, 1.0 / live))


class ChainSlots(ClassicSlots):
    """`Slots` of the chain. State rows: place, step, and the uniform numbers that decide every step.

    Observations [n - 1]: the place, one-hot; zeros in the last one. One action, 0. `env.kwargs` takes the
    arguments of `process`.
    """

    max_episode_steps = LIMIT

    def __init__(self, config: EnvConfig, count: int):
        self.size = 2 + (config.max_episode_steps or self.max_episode_steps)
        self._stay = float(dict(config.kwargs).get("stay", 0.5))
        live = len(self.process(config).start)
        self._shown = np.eye(live + 1, live, dtype=np.float32)
        super().__init__(config, count)

    @staticmethod
    def process(config: EnvConfig) -> Process:
        """The process behind it. Raises `ConfigError`."""
        try:
            return process(**config.kwargs)
        except TypeError as error:
            raise ConfigError("env.kwargs", f"the chain does not take them: {error}") from None

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Observations and actions."""
        live = len(ChainSlots.process(config).start)
        return gym.spaces.Box(0.0, 1.0, (live,)), gym.spaces.Discrete(1)

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        place = rng.integers(len(self._shown) - 1)
        return np.concatenate([[place, 0.0], rng.random(self.size - 2)])

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return self._shown[state[0].astype(np.int64)]

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        step = state[1].astype(np.int64)
        if step.max(initial=0) >= self.size - 2:
            raise EnvironmentFailure(f"an episode has at most {self.size - 2} steps")
        goes = state[2:][step, np.arange(len(step))] >= self._stay
        after = state.copy()
        after[0] += goes
        after[1] += 1
        over = after[0] >= len(self._shown) - 1
        return after, over.astype(np.float64), over
