"""Real users that an environment declares: their number, and the options of `reset`.

The contract is in docs/environments.md. An environment declares users with an integer `metadata["users"]`, or
with an integer keyword argument `users` in its spec. Training calls `reset(options={"user": k})` with
0 <= k < users; every simulation calls `reset(options={"user": None, "evaluation": True})`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any

import gymnasium as gym
import numpy as np

from privrl_bench.envs.spaces import check_shape
from privrl_bench.errors import ConfigError

_SIGNATURE = "reset(self, *, seed=None, options=None)"


def reset_options(user: int | None) -> dict[str, Any]:
    """Return the options of a reset for an episode of this user; None: a simulated user."""
    return {"user": None, "evaluation": True} if user is None else {"user": int(user)}


def declared_users(env: Any, label: str) -> int | None:
    """Return the number of users that an environment declares.

    `metadata["users"]` takes precedence over an integer `users` in the keyword arguments of its spec.

    Args:
        env: A Gymnasium environment, wrapped or not.
        label: Its name in messages.

    Returns:
        The number; None: it declares none, its users are simulated.

    Raises:
        ConfigError: The number is not an integer >= 1, or the two declarations disagree.
    """
    spec = env.unwrapped.spec  # wrappers copy it
    given = None if spec is None else spec.kwargs.get("users")
    argument = given if _integer(given) else None
    # A wrapper with its own metadata does not hide that of the wrapped environment.
    known = [getattr(layer, "metadata", None) or {} for layer in _layers(env)]
    said = [metadata["users"] for metadata in known if "users" in metadata]
    if any(one != said[0] for one in said):
        raise ConfigError(
            "env",
            f'{label} and its wrappers disagree on metadata["users"]: {said}; they must be equal',
        )
    found = said[0] if said else argument
    if found is None:
        return None
    if not _integer(found) or found < 1:
        raise ConfigError(
            "env",
            f'{label} declares metadata["users"]={found!r}; allowed: an integer >= 1, or None',
        )
    if argument not in (None, found):
        raise ConfigError(
            "env",
            f'{label} declares metadata["users"]={found} and is made with users={argument}; '
            "they must be equal",
        )
    return int(found)


def checked_users(env: Any, label: str) -> int | None:
    """Return `declared_users` after checking that `reset` supports the contract.

    Args:
        env: A Gymnasium environment, wrapped or not.
        label: Its name in messages.

    Returns:
        See `declared_users`.

    Raises:
        ConfigError: `reset` does not take `options`, fails with the options of a simulation, or returns an
            observation of the wrong shape.
    """
    users = declared_users(env, label)
    if users is None:
        return None
    for layer in _layers(env):
        if not _takes_options(layer.reset):
            raise ConfigError(
                "env",
                f"{label} declares {users} users, but {type(layer).__name__}.reset takes no options; "
                f"write {_SIGNATURE}",
            )
    options = reset_options(None)
    try:
        obs, _ = env.reset(seed=0, options=options)
        shape = np.shape(obs)
    except Exception as error:
        raise ConfigError(
            "env",
            f"{label} declares {users} users, so reset(options={options}) must start a simulation; it raised "
            f"{type(error).__name__}: {error}",
        ) from None
    check_shape(env, shape, label)
    return users


def _integer(x: object) -> bool:
    return isinstance(x, Integral) and not isinstance(x, bool)


def _layers(env: Any) -> list[Any]:
    """The environment with all wrappers, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _takes_options(reset: Callable[..., Any]) -> bool:
    """Whether `reset` accepts `options`."""
    kinds = {p.name: p.kind for p in inspect.signature(reset).parameters.values()}
    return "options" in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()
