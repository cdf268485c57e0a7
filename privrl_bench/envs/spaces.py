"""Gymnasium spaces as a policy sees them: flat observations, images, actions of several choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.types import Image

_SHOWN = 6  # parts or numbers that a description lists


def has_size(space: Any) -> bool:
    """Whether elements are numeric with a fixed size; Gymnasium also flattens texts."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return all(map(has_size, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(has_size, space.spaces))
    plain = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return isinstance(space, plain)


def parts_of(space: Any) -> dict[str, Any]:
    """Named parts of a Dict or Tuple space, `0`, `1`, ... of a tuple; empty for other spaces."""
    parts = getattr(space, "spaces", {})
    named = parts.items() if hasattr(parts, "items") else enumerate(parts)
    return {str(name): part for name, part in named}


def action_choices(space: Any) -> tuple[int, ...] | None:
    """Number of choices of every action coordinate; None: the space is no MultiDiscrete or MultiBinary."""
    from gymnasium import spaces

    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in np.asarray(space.nvec).reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    return None


def image_of(space: Any, scaled: bool) -> Image | None:
    """The image that observations are: uint8 [H, W, C] or [C, H, W]; None: they are none.

    The channels are the shorter of the first and the last axis.

    Args:
        space: of the observations, before flattening.
        scaled: whether observations are scaled before a policy sees them; else pixels are divided by 255.
    """
    shape = getattr(space, "shape", None)
    if getattr(space, "dtype", None) != np.uint8 or shape is None or len(shape) != 3:
        return None
    scale = 1.0 if scaled else 1.0 / 255.0
    first, middle, last = map(int, shape)
    if first < last:
        return Image(middle, last, first, True, scale)
    return Image(first, middle, last, False, scale)


def select_parts(env: Any, names: list[str], label: str) -> Any:
    """Wrap `env` so that observations are these parts: one is an observation of its own, several a Dict.

    Raises:
        ConfigError: Observations have no parts, or not these.
    """
    import gymnasium as gym

    space = env.observation_space
    parts, is_dict = parts_of(space), isinstance(space, gym.spaces.Dict)
    for name in names:
        if not parts:
            problem = (
                f"must be null: observations of {label} are {type(space).__name__}, without parts"
            )
            raise ConfigError("env.obs_parts", problem)
        if name not in parts:
            problem = (
                f"{label} has no part {name!r}{suggest(name, parts)}; allowed: {', '.join(parts)}"
            )
            raise ConfigError("env.obs_parts", problem)

    def part(obs: Any, name: str) -> Any:
        return obs[name if is_dict else int(name)]

    wrap = gym.wrappers.TransformObservation
    if len(names) == 1:
        return wrap(env, lambda obs: part(obs, names[0]), parts[names[0]])
    kept = gym.spaces.Dict({name: parts[name] for name in names})
    return wrap(env, lambda obs: {name: part(obs, name) for name in names}, kept)


def check_spaces(env: Any, label: str) -> None:
    """Raise ConfigError for unsupported spaces."""
    from gymnasium import spaces

    own = "register an environment that applies it (env.id=my_package:MyEnv-v0)"
    space = env.observation_space
    if not has_size(space):
        named = parts_of(space)
        missing = [f"{k!r} is {type(v).__name__}" for k, v in named.items() if not has_size(v)]
        parts = f" ({', '.join(missing)})" if missing else ""
        kept = ",".join(k for k, v in named.items() if has_size(v))
        choose = f"name the parts to use, env.obs_parts=[{kept}], or " if kept else ""
        raise ConfigError(
            "env.id",
            f"observations of {label} have no fixed size: {type(space).__name__}{parts}; {choose}use a "
            f"wrapper such as minigrid's FlatObsWrapper, and {own}",
        )
    actions = env.action_space
    known = spaces.Discrete | spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary
    if not isinstance(actions, known):
        raise ConfigError(
            "env.id",
            f"actions must be Discrete, Box, MultiDiscrete or MultiBinary, {label} has "
            f"{type(actions).__name__}; use gymnasium.wrappers.TransformAction, and {own}",
        )


# --- in words


def _some(items: list[str]) -> str:
    more = [f"{len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return ", ".join(items[:_SHOWN] + more)


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _part(space: Any) -> str:
    """One space in words, without what becomes of it."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n} (one-hot)"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete {_shape(tuple(np.asarray(space.nvec).reshape(-1)))} (one-hot each)"
    if parts := parts_of(space):
        inner = _some([f"{name}: {_part(part)}" for name, part in parts.items()])
        return f"{type(space).__name__} ({inner})"
    image = "image, " if image_of(space, False) else ""
    return f"{type(space).__name__} {_shape(space.shape)} ({image}{space.dtype})"


def observations_in_words(space: Any, size: int) -> str:
    """What observations are, and what the policy gets; `size` is their flat length."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n}, one-hot"
    words = _part(space)
    plain = len(getattr(space, "shape", None) or ()) == 1 and not parts_of(space)
    return words if plain and size == space.shape[0] else f"{words}, flattened to {size} numbers"


def actions_in_words(space: Any, stretch: bool) -> str:
    """What actions are, and how the policy draws them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n}"
    counts = action_choices(space)
    if counts is not None:
        numbers = _some([str(n) for n in counts])
        return f"{type(space).__name__} [{numbers}], independent choices"
    low, high = (np.asarray(x).reshape(-1) for x in (space.low, space.high))
    whole = np.isfinite(low) & np.isfinite(high)
    none = ~np.isfinite(low) & ~np.isfinite(high)
    kinds = [
        (whole, "stretched from [-1, 1] to its bounds" if stretch else "clipped at its bounds"),
        (~whole & ~none, "clipped at its one bound"),
        (none, "unbounded"),
    ]
    found = [f"{n.sum()} {how}" for n, how in kinds if n.any()]
    if len(found) == 1:
        found = [found[0].split(" ", 1)[1]]
    return f"Box {_shape(space.shape)}, {', '.join(found)}"
