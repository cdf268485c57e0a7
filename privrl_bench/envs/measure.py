"""Episodes of random actions in an environment of their own, for `envs/check.py`.

Nothing here changes training: environments are made for the purpose, seeds are fixed, and the global random
states of Python, NumPy and torch are put back. An environment that declares users is reset with the options
of a simulation only.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.construction import make_env
from privrl_bench.envs.spaces import corner_actions
from privrl_bench.envs.user_declaration import declared_users, reset_options

LARGEST = float(np.finfo(np.float32).max)
_SEED = 20_250_117  # of the first episode and of the actions
_HELD = 8  # steps with each corner of the actions
_SHOWN = 6  # numbers of an action that a message lists


@dataclass
class Play:
    """Steps of random actions.

    Attributes:
        obs: raw flat observations, resets included.
        rewards: as they were returned, one for each step.
        lengths: steps of each episode; the last one may be incomplete.
        terminated: number of episodes that ended by themselves.
        complete: whether the last episode ended.
        outside: observations outside the declared space.
        bits: of everything the environment returned, in order.
        problem: why it stopped early: an exception, or a value of the wrong kind; empty: it did not.
        call: the last method that was called.
    """

    obs: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    complete: bool = True
    outside: int = 0
    bits: list[bytes] = field(default_factory=list)
    problem: str = ""
    call: str = "reset"

    @property
    def episodes(self) -> list[int]:
        """Lengths of complete episodes."""
        return self.lengths if self.complete else self.lengths[:-1]

    def agrees(self, again: Play) -> bool:
        """Whether the shorter of two plays is the beginning of the other, bit for bit."""
        count = min(len(self.bits), len(again.bits))
        return self.bits[:count] == again.bits[:count] and not again.problem


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Put back the global random states of Python, NumPy and torch."""
    saved = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        torch.random.set_rng_state(saved[2])


def play(config: EnvConfig, steps: int, seconds: float, env: Any = None) -> Play:
    """Act at random for at most so many steps and seconds.

    Args:
        config: the environment.
        steps: environment steps.
        seconds: after which no step is begun.
        env: one from `make_env` to use and leave open; None: a new one.

    Raises:
        ConfigError: See `make_env`.
    """
    made, found = env or make_env(config), Play()
    until = time.monotonic() + seconds
    actions = copy.deepcopy(made.action_space)  # some environments replace theirs at every reset
    actions.seed(_SEED)
    users = declared_users(made, config.label)
    more = {} if users is None else {"options": reset_options(None)}
    try:
        while not found.problem and sum(found.lengths) < steps and time.monotonic() < until:
            _episode(made, actions, found, steps, until, more)
    except (Exception, SystemExit) as error:  # the user's own code
        text = " ".join(str(error).split())
        found.problem = f"{found.call} raised {type(error).__name__}: {text}"
    finally:
        if env is None:
            made.close()
    return found


def play_corners(config: EnvConfig, seconds: float, env: Any = None) -> tuple[int, str]:
    """Hold each of the actions at the ends of the space for a few steps from a reset.

    Args:
        config: the environment.
        seconds: after which no corner is begun.
        env: one from `make_env` to use and leave open; None: a new one.

    Returns:
        How many were tried, and what failed at the last of them; empty: nothing.

    Raises:
        ConfigError: See `make_env`.
    """
    made, tried = env or make_env(config), 0
    until = time.monotonic() + seconds
    more = {} if declared_users(made, config.label) is None else {"options": reset_options(None)}
    try:
        for action in corner_actions(made.action_space):
            if time.monotonic() > until:
                break
            tried += 1
            found = Play()
            try:
                _hold(made, action, found, more)
            except (Exception, SystemExit) as error:  # the user's own code
                text = " ".join(str(error).split())
                found.problem = f"{found.call} raised {type(error).__name__}: {text}"
            numbers = [*(x for obs in found.obs for x in obs), *found.rewards]
            if not found.problem and not (np.abs(numbers) <= LARGEST).all():
                found.problem = "an observation or a reward is not finite in single precision"
            if found.problem:
                shown = ", ".join(f"{x:g}" for x in np.ravel(action)[:_SHOWN])
                shown += ", ..." if np.size(action) > _SHOWN else ""
                return tried, f"{found.problem} (at the action [{shown}], a corner of its space)"
    finally:
        if env is None:
            made.close()
    return tried, ""


def _hold(env: Any, action: Any, found: Play, more: dict[str, Any]) -> None:
    """Repeat one action from a reset until the episode ends, at most a few times."""
    found.call = "reset"
    _see(env, found, env.reset(seed=_SEED, **more)[0])
    found.call = "step"
    for _ in range(_HELD):
        obs, reward, over, cut, _ = env.step(copy.copy(action))
        _see(env, found, obs)
        found.rewards.append(float(reward))
        if found.problem or over or cut:
            return


def _episode(
    env: Any, actions: Any, found: Play, steps: int, until: float, more: dict[str, Any]
) -> None:
    """Play one episode; see `play`."""
    found.lengths.append(0)
    found.complete, found.call = False, "reset"
    result = env.reset(seed=_SEED + len(found.lengths) - 1, **more)
    if not (isinstance(result, tuple) and len(result) == 2):
        found.problem = "reset must return (observation, info)"
        return
    _see(env, found, result[0])
    found.call = "step"
    while not found.problem and sum(found.lengths) < steps and time.monotonic() < until:
        result = env.step(actions.sample())
        found.lengths[-1] += 1
        if not (isinstance(result, tuple) and len(result) == 5):
            found.problem = "step must return (observation, reward, terminated, truncated, info)"
            return
        obs, reward, over, cut, _ = result
        _see(env, found, obs)
        if np.ndim(reward) or not np.issubdtype(np.asarray(reward).dtype, np.number):
            found.problem = f"rewards must be numbers, step returned a {type(reward).__name__}"
            return
        found.rewards.append(float(reward))
        found.bits.append(np.array([reward, over, cut], np.float64).tobytes())
        if over or cut:
            found.terminated += bool(over)
            found.complete = True
            return


def _see(env: Any, found: Play, obs: Any) -> None:
    """Record one observation."""
    space = env.observation_space
    array = np.asarray(obs)
    if array.shape != space.shape:
        found.problem = (
            f"an observation has shape {array.shape}, the observation_space has {space.shape}"
        )
        return
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        found.problem = f"observations must be numbers, they are {array.dtype}"
        return
    found.outside += bool(
        np.isfinite(array).all() and not space.contains(array.astype(space.dtype))
    )
    found.obs.append(array.astype(np.float64).reshape(-1))
    found.bits.append(array.tobytes())
