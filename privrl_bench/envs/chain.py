"""The chain: n states in a row, the last one absorbing. Each step stays, or moves one state on.

An episode starts uniformly in one of the n - 1 other states and ends with reward 1 on entering the last
one. It is truncated after 200 steps, which is very rare (the last state is reached after k / (1 - stay)
steps on average from k states before it). There is a single action, so all policies are the same and
importance ratios are 1; the task is to estimate the value of the states.

Source:
    Balle, Gomrokchi and Precup 2016, with the constants of their published code (n = 40, stay = 0.5,
    discount 0.99). "Privacy Preserving Off-Policy Evaluation" (GPOPE) describes the same chain without
    its constants.
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
    """A terminating Markov reward process over its S non-terminal states, without a time limit.

    Non-terminal state s is observed as row s of the identity, the terminal state as zeros.

    Attributes:
        transitions: [S, S] probabilities; a row sums to 1 minus the probability of termination.
        rewards: [S] expected reward of a step from each state.
        start: [S] start distribution.
    """

    transitions: np.ndarray
    rewards: np.ndarray
    start: np.ndarray

    def values(self, gamma: float) -> np.ndarray:
        """Return the expected discounted returns [S]."""
        return np.linalg.solve(np.eye(len(self.start)) - gamma * self.transitions, self.rewards)

    def visits(self) -> np.ndarray:
        """Return the expected number of visits per episode [S]; their sum is its expected length."""
        return np.linalg.solve(np.eye(len(self.start)) - self.transitions.T, self.start)


def process(n: int = STATES, stay: float = 0.5) -> Process:
    """Return the chain of n states, n - 1 of them non-terminal.

    Args:
        n: Number of states, 2 to 10000.
        stay: Probability of staying, in [0, 1).

    Raises:
        ConfigError: A value is out of range.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= 10_000:
        raise ConfigError("env.kwargs.n", f"must be an integer from 2 to 10000, got {n}")
    if not 0.0 <= stay < 1.0:
        raise ConfigError("env.kwargs.stay", f"must be in [0, 1), got {stay}")
    live = n - 1
    move = stay * np.eye(live) + (1.0 - stay) * np.eye(live, k=1)
    rewards = np.zeros(live)
    rewards[-1] = 1.0 - stay
    return Process(move, rewards, np.full(live, 1.0 / live))


class ChainSlots(ClassicSlots):
    """`Slots` of the chain. State rows: chain state, step, and a uniform number for every step.

    Observations [n - 1]: the chain state, one-hot; zeros in the last one. One action, 0. `env.kwargs` are
    the arguments of `process`.
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
        """Return the Markov reward process of a configuration. Raises ConfigError."""
        try:
            return process(**config.kwargs)
        except TypeError as error:
            raise ConfigError("env.kwargs", f"invalid for the chain: {error}") from None

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Return the observation and action spaces."""
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
