"""Problems whose tables are known: RiverSwim and the chain.

RiverSwim: six states in a row, swimming right is against the current; episodes of H = 20 steps. Left always
succeeds and has reward `small` in the first state. Right has reward 1 in the last state, where the swimmer
stays with probability p; elsewhere the swimmer stays with probability 0.6, advances with 0.35 and slips back
with 0.05 (in the first state: advances with 0.6).

The chain: n states in a row, the last one absorbing. Each step stays, or moves one state on. An episode starts
uniformly in one of the n - 1 other states and ends with reward 1 on entering the last one. It is truncated
after 200 steps, which is very rare (the last state is reached after k / (1 - stay) steps on average from k
states before it). There is a single action, so all policies are the same and importance ratios are 1; the task
is to estimate the value of the states.

Source:
    RiverSwim: Osband, Russo and Van Roy 2013, page 6, with p = 0.6. "Differentially Private Policy Gradient"
    (Rio, Barlier, Colin) varies p; its text is ambiguous: `pays=swim` (default, as in published code) rewards
    every right in the last state, `pays=stay` only if the swimmer stays there.
    The chain: Balle, Gomrokchi and Precup 2016, with the constants of their published code (n = 40, stay =
    0.5, discount 0.99). "Privacy Preserving Off-Policy Evaluation" (GPOPE) describes the same chain without
    its constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import TorchSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure


class DrawnSlots(TorchSlots):
    """`Slots` of finitely many states. State rows: state, step, and a uniform number for every step."""

    def __init__(self, config: EnvConfig, count: int, xp: Any = np, device: str = "cpu"):
        self.draws = 1 + (config.max_episode_steps or self.max_episode_steps)
        self.size = 1 + self.draws
        super().__init__(config, count, xp, device)

    def drawn(self, place: int, rng: np.random.Generator) -> np.ndarray:
        """The state [S] at the begin of an episode in `place`."""
        return np.concatenate([[place, 0.0], rng.random(self.size - 2)])

    def placed(self, place: Any, uniforms: Any) -> Any:
        """States [S, n] at the begin of episodes in `place` [n], with uniform numbers [draws, n]; in torch."""
        return self.xp.cat((place[None], 0.0 * place[None], uniforms[1:]))

    def uniforms(self, state: Any) -> Any:
        """[n] the uniform numbers of the next step. Raises EnvironmentFailure: the episode is over."""
        step = self.whole(state[1])
        if self.xp is np and step.max(initial=0) >= self.size - 2:
            raise EnvironmentFailure(f"an episode has at most {self.size - 2} steps")
        # Worlds on a device are stepped after the end of their episodes, too; nothing uses the result.
        return self.picked(state[2:], self.xp.clip(step, 0, self.size - 3))


def _with_kwargs(made: Callable[..., Any], what: str, config: EnvConfig) -> Any:
    """Call `made` with `env.kwargs`. Raises ConfigError: it does not take them."""
    try:
        return made(**config.kwargs)
    except TypeError as error:
        raise ConfigError("env.kwargs", f"invalid for {what}: {error}") from None


# --- RiverSwim

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


class RiverSwimSlots(DrawnSlots):
    """`Slots` of RiverSwim. Observations [6]: the position, one-hot. `env.kwargs` are those of `model`."""

    max_episode_steps = HORIZON

    def __init__(self, config: EnvConfig, count: int, xp: Any = np, device: str = "cpu"):
        super().__init__(config, count, xp, device)
        self.model = self.tables(config)
        self._reach = self.constant(self.model.transitions.cumsum(-1))
        self._first = self.constant(self.model.start.cumsum())
        self._rewards = self.constant(self.model.rewards)
        self._shown = self.constant(np.eye(STATES, dtype=np.float32))

    @staticmethod
    def tables(config: EnvConfig) -> Model:
        """Return the tables of a configuration. Raises ConfigError."""
        found: Model = _with_kwargs(model, "RiverSwim", config)
        return found

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Return the observation and action spaces."""
        return gym.spaces.Box(0.0, 1.0, (STATES,)), gym.spaces.Discrete(ACTIONS)

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return self.drawn(rng.choice(STATES, p=self.model.start), rng)

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        place = (uniforms[0][:, None] >= self._first[:-1]).sum(-1)
        return self.placed(place.double(), uniforms)

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        return self._shown[self.whole(state[0])]

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`."""
        place, action = self.whole(state[0]), self.whole(actions)
        reach = self._reach[place, action]
        there = self.xp.clip((self.uniforms(state)[:, None] >= reach).sum(-1), 0, STATES - 1)
        after = self.copied(state)
        after[0] = there
        after[1] += 1
        return after, self._rewards[place, action, there], there < 0


# --- the chain


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


def process(n: int = 40, stay: float = 0.5) -> Process:
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


class ChainSlots(DrawnSlots):
    """`Slots` of the chain. Observations [n - 1]: the state, one-hot; zeros in the last one.

    One action, 0. `env.kwargs` are the arguments of `process`.
    """

    max_episode_steps = 200

    def __init__(self, config: EnvConfig, count: int, xp: Any = np, device: str = "cpu"):
        super().__init__(config, count, xp, device)
        self._stay = float(dict(config.kwargs).get("stay", 0.5))
        live = len(self.process(config).start)
        self._shown = self.constant(np.eye(live + 1, live, dtype=np.float32))

    @staticmethod
    def process(config: EnvConfig) -> Process:
        """Return the Markov reward process of a configuration. Raises ConfigError."""
        found: Process = _with_kwargs(process, "the chain", config)
        return found

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Return the observation and action spaces."""
        live = len(ChainSlots.process(config).start)
        return gym.spaces.Box(0.0, 1.0, (live,)), gym.spaces.Discrete(1)

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        return self.drawn(int(rng.integers(len(self._shown) - 1)), rng)

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        return self.placed((uniforms[0] * (len(self._shown) - 1)).floor(), uniforms)

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        return self._shown[self.whole(state[0])]

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`."""
        after = self.copied(state)
        # The last state has no next one.
        after[0] += (self.uniforms(state) >= self._stay) & (state[0] < len(self._shown) - 1)
        after[1] += 1
        over = after[0] >= len(self._shown) - 1
        return after, 1.0 * over, over
