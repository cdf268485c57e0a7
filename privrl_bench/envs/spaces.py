"""Gymnasium spaces as a policy sees them: flat observations, images, actions of several choices.

`ActionMap` is the last step of every action, before any environment outside this package gets it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.types import EnvSpec, Image

_SHOWN = 160  # characters of a space in a description
LARGEST_BOUND = 1e6  # a finite bound of an action beyond it counts as infinite
_CORNERS = 8  # of a box of actions, at most
_FAR = 10.0  # what an unbounded action is tried with


def has_size(space: Any) -> bool:
    """Whether elements are numeric with a fixed size; Gymnasium also flattens texts."""
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
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in np.asarray(space.nvec).reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    return None


def action_box(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Bounds [A] between which a policy chooses the actions of a Box, in double precision.

    Integers get equal shares of the box: those of low to high are rounded from [low - 0.5, high + 0.5].
    A bound beyond `LARGEST_BOUND` is infinite: nearly all of a box of such a size is out of reach for
    actions near 0, and stretched to it, no action is near 0.
    """
    low, high = (np.asarray(x, np.float64).reshape(-1) for x in (space.low, space.high))
    share = 0.5 if _whole_numbers(space) else 0.0
    return (
        np.where(low < -LARGEST_BOUND, -np.inf, low - share),
        np.where(high > LARGEST_BOUND, np.inf, high + share),
    )


def _whole_numbers(space: Any) -> bool:
    return not np.issubdtype(space.dtype, np.floating)


class ActionMap:
    """Maps a policy's numbers or choices to actions of a space: its type and shape, never outside it.

    Every action goes through it, whoever chose it; `GreedyModule` of exported files does the same.

    Args:
        space: of the actions: Box, Discrete, MultiDiscrete or MultiBinary.
    """

    def __init__(self, space: Any):
        self._shape, self._dtype = tuple(space.shape), space.dtype
        self._start = getattr(space, "start", 0)  # of a MultiDiscrete space, an array
        self.low: np.ndarray | None = None
        self.high: np.ndarray | None = None
        self.whole = _whole_numbers(space)
        if isinstance(space, spaces.Box):
            pairs = zip(space.low.reshape(-1), space.high.reshape(-1), strict=True)
            inside = np.array([_representable(a, b, space.dtype) for a, b in pairs]).reshape(-1, 2)
            self.low, self.high = inside[:, 0], inside[:, 1]

    def inside(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions [k, A] of a Box, flat, for numbers [k, A]; choices are returned as they are.

        Raises:
            ValueError: A number is NaN.
        """
        if self.low is None or self.high is None:
            return actions
        numbers = np.asarray(actions, np.float64).reshape(len(actions), -1)
        if np.isnan(numbers).any():
            raise ValueError("the policy's actions are not finite")
        if self.whole:
            numbers = np.floor(numbers + 0.5)
        # Rounding to the space's type keeps the order, so that bounds of this type still hold.
        cut = np.minimum(np.maximum(numbers, self.low), self.high)
        return cut.astype(self._dtype)

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [k, *shape] for numbers [k, A] or choices [k] or [k, A]."""
        found = np.asarray(self.inside(actions)).reshape(len(actions), *self._shape)
        found = found.astype(self._dtype, copy=False)
        return found + self._start if np.any(self._start) else found


def as_recorded(spec: EnvSpec) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of a policy's actions that keeps choices and cuts numbers [k, A] as `ActionMap`."""
    return (lambda x: x) if spec.action_low is None else ActionMap(spec.action_space).inside


def _representable(low: Any, high: Any, dtype: Any) -> tuple[float, float]:
    """The least and the largest finite double precision number from low to high, in a box of this type."""
    if np.issubdtype(dtype, np.floating):
        limit = float(np.finfo(dtype).max)
        return max(float(low), -limit), min(float(high), limit)
    least, most = float(low), float(high)  # of 64 bits, they may be rounded outwards
    least = least if int(least) >= int(low) else float(np.nextafter(least, np.inf))
    most = most if int(most) <= int(high) else float(np.nextafter(most, -np.inf))
    return least, most


def corner_actions(space: Any) -> list[Any]:
    """Actions at the ends of a space: all low, all high, then mixed ones; at most 8 of a box.

    A component without a bound is tried at -10 or 10, or at the bound that it has.
    """
    box = isinstance(space, spaces.Box)
    if box:
        low, high = action_box(space)
        low = np.where(np.isfinite(low), low, np.minimum(-_FAR, high))
        high = np.where(np.isfinite(high), high, np.maximum(_FAR, low))
    else:
        counts = [space.n] if isinstance(space, spaces.Discrete) else action_choices(space)
        low, high = np.zeros(len(counts or ()), int), np.array(counts, int) - 1
    size = len(low)
    if 2**size <= _CORNERS:
        up = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 > 0
    else:
        up = np.random.default_rng(0).random((_CORNERS, size)) < 0.5
        up[0], up[1] = False, True
        up[2] = np.arange(size) % 2 > 0  # neighbours differ
        up[3] = ~up[2]
    numbers = np.where(up, high, low)
    made = ActionMap(space)(numbers if box or size != 1 or space.shape else numbers[:, 0])
    if isinstance(space, spaces.Discrete):
        return [int(one) for one in made]
    return [made[row, ...] for row in range(len(made))]  # an array also where the shape is ()


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


def observations_in_words(space: Any, size: int) -> str:
    """What observations are, and what the policy gets; `size` is their flat length."""
    text = _shown(space)
    if image_of(space, False) is not None:
        text += ", an image"
    return text if space.shape == (size,) else f"{text}, flattened to {size} numbers"


def actions_in_words(space: Any, stretch: bool) -> str:
    """What actions are, and how the policy draws them."""
    if action_choices(space) is not None:
        return f"{_shown(space)}, independent choices"
    if not isinstance(space, spaces.Box):
        return _shown(space)
    low, high = (np.isfinite(bound) for bound in action_box(space))
    kinds = {
        "stretched from [-1, 1] to its bounds" if stretch else "clipped at its bounds": low & high,
        "clipped at its one bound": low ^ high,
        "unbounded": ~(low | high),
    }
    found = [f"{where.sum()} {how}" for how, where in kinds.items() if where.any()]
    whole = ", rounded to integers" if _whole_numbers(space) else ""
    return f"{_shown(space)}: {', '.join(found)}{whole}"


def _shown(space: Any) -> str:
    """A space as Gymnasium writes it, on one line."""
    return textwrap.shorten(str(space), _SHOWN, placeholder=" ...")


def check_shape(env: Any, shape: tuple[int, ...], label: str) -> None:
    """Refuse the first observation of an environment if its shape is not that of the observation space.

    Args:
        env: The environment that returned it.
        shape: Of the observation.
        label: The environment's name in messages.

    Raises:
        ConfigError: They differ.
    """
    if shape != env.observation_space.shape:
        raise ConfigError(
            "env.id",
            f"the first reset of {label} returned an observation of shape {shape}, its "
            f"observation_space has shape {env.observation_space.shape}",
        )
