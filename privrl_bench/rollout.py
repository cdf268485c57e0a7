"""One policy acts in slots of environments: collectors, evaluation, recordings and videos step them here.

Arrays have one entry for every slot, in any leading shape, e.g. [R, U]; below it is [...].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from privrl_bench.envs.slots import Slots, UserNumbers

LARGEST = float(np.finfo(np.float32).max)


class Step(NamedTuple):
    """One step of the slots that are `going`.

    Attributes:
        t: number of the step, from 0.
        acted: [...] bool: stepped, because their action is finite.
        fine: [...] bool: stepped, and what is seen of them is finite.
        broken: [...] bool: going, and not fine.
        rewards: [...], zero unless fine.
        terminated: [...] bool.
        done: [...] bool: terminated, truncated or broken.
    """

    t: int
    acted: np.ndarray
    fine: np.ndarray
    broken: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    done: np.ndarray


def rollout(
    slots: Slots,
    obs: np.ndarray,
    going: np.ndarray,
    act: Callable[[np.ndarray, int], np.ndarray],
    steps: int,
    *,
    to_env: Callable[[np.ndarray], np.ndarray] = lambda actions: actions,
    show: Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]] | None = None,
    restart: Callable[[np.ndarray, int], None] | None = None,
) -> Iterator[Step]:
    """Step slots until `steps` steps are done or none goes on; a slot ends with its episode unless it restarts.

    Args:
        slots: of the environments, whose episodes have begun.
        obs: [..., D], last observations; overwritten.
        going: [...] bool, the slots that act.
        act: returns actions [..., A] or [...] at step t; takes the slots that go on, [...] bool, and t. Actions
            that are not finite are set to zero in place, and are not sent.
        steps: the most steps of a slot.
        to_env: from actions [k, ...] of a policy to those of the environment.
        show: returns what is seen instead of observations and rewards; takes the slots that were stepped, their
            rewards [...] and t. What is not finite is set to zero in place.
        restart: begins new episodes in slots [...] bool after step t, and changes `obs`.

    Yields:
        Every step, before restarts.

    Raises:
        EnvironmentFailure: an environment raised.
    """
    none = np.zeros_like(going)
    for t in range(steps):
        if not going.any():
            return
        actions = act(going, t)
        acted = _able(going, actions)
        rewards, terminated, truncated = advance(slots, obs, acted, actions, to_env)
        seen, rewards = (obs, rewards) if show is None else show(acted, rewards, t)
        fine, broken, done = acted, none, terminated | truncated
        # Two sums are faster than a comparison of every number. They may be too large, too.
        if not np.abs(seen).sum() + np.abs(rewards).sum() <= LARGEST:
            fine = acted & finite(seen).all(axis=-1) & finite(rewards)
            seen[acted & ~fine] = 0.0
            rewards = np.where(fine, rewards, 0.0)
        if fine is not going:
            broken = going & ~fine
            done |= broken
        yield Step(t, acted, fine, broken, rewards, terminated, done)
        if done.any():
            if restart is None:
                going = going & ~done
            else:
                restart(done, t)


def advance(
    slots: Slots,
    obs: np.ndarray,
    going: np.ndarray,
    actions: np.ndarray,
    to_env: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step the slots `going` once; see `rollout` for the arguments.

    Returns:
        Rewards, terminated and truncated, [...] each; zero and False for the other slots.
    """
    indices = np.flatnonzero(going)
    flat = actions.reshape(going.size, *actions.shape[going.ndim :])
    result = slots.step(indices, to_env(flat[indices]))
    if len(indices) == going.size:
        obs[:] = result.obs.reshape(obs.shape)
        parts = (result.rewards, result.terminated, result.truncated)
        return tuple(x.reshape(going.shape) for x in parts)  # type: ignore[return-value]
    rewards = np.zeros(going.shape)
    terminated = np.zeros(going.shape, dtype=bool)
    truncated = np.zeros(going.shape, dtype=bool)
    obs[going] = result.obs
    rewards[going] = result.rewards
    terminated[going] = result.terminated
    truncated[going] = result.truncated
    return rewards, terminated, truncated


def begin(slots: Slots, seeds: list[int], declared: bool) -> np.ndarray:
    """Reset the first slots for simulated users.

    Args:
        slots: of the environments.
        seeds: [k], of each slot.
        declared: whether the environment declares users.

    Returns:
        Observations [k, D], for `rollout`.

    Raises:
        EnvironmentFailure: an environment raised.
    """
    users: UserNumbers = [None] * len(seeds) if declared else None
    return np.array(slots.reset(np.arange(len(seeds)), seeds, users))


def finite(x: np.ndarray) -> np.ndarray:
    """Which values are finite in single precision, the precision of learning."""
    return np.abs(x) <= LARGEST


def lost(obs: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Which of the slots `where` [...] have observations [..., D] that are not finite; they are set to zero."""
    broken = where & ~finite(obs).all(axis=-1)
    obs[broken] = 0.0
    return broken


def _able(going: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Which of the slots `going` have finite actions, `going` itself if all; other actions are set to zero."""
    if actions.dtype.kind != "f" or np.isfinite(actions.sum(dtype=np.float64)):
        return going
    ok = np.asarray(finite(actions).reshape(*going.shape, -1).all(axis=-1))
    actions[~ok] = 0
    return going if ok[going].all() else going & ok
