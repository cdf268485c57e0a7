"""Wrappers that `env.wrappers` names.

A wrapper may keep state over `reset`, as Gymnasium's `NormalizeObservation` does, and one environment object
serves many users. Therefore the environment is made anew, with its wrappers, at every reset after the first:
an episode is a function of its seed and actions, and nothing that an object holds reaches the next user.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from privrl_bench.config.schema.env import wrapper_parts
from privrl_bench.errors import ConfigError, suggest

_KEY = "env.wrappers"


class NewEachEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that is closed and made again at every reset after the first.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], Any]):
        super().__init__(make())
        self._make, self._used = make, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.Env.reset`."""
        if self._used:
            self.env.close()
            self.env = self._make()
        self._used = True
        return self.env.reset(seed=seed, options=options)

    @property
    def spec(self) -> Any:  # type: ignore[override]  # as `gymnasium.Wrapper` has it
        """That of the environment and its wrappers, without this one."""
        return self.env.spec


def wrapped(make: Callable[[], Any], entries: list[Any]) -> Any:
    """Make an environment and put wrappers around it.

    Args:
        make: makes the environment.
        entries: `env.wrappers`, innermost first.

    Raises:
        ConfigError: A wrapper is not found, is no wrapper, or cannot be made.
    """
    kinds = [(_kind(name), name, arguments) for name, arguments in map(wrapper_parts, entries)]
    env = make()
    for kind, name, arguments in kinds:
        try:
            env = kind(env, **arguments)
        except (Exception, SystemExit) as error:  # the wrapper's own code
            env.close()
            problem = f"{name} cannot be made with {arguments}: {what(error)}"
            raise ConfigError(_KEY, problem) from error
    return env


def _kind(name: str) -> Any:
    """The class of a wrapper. Raises ConfigError."""
    module, _, title = name.partition(":")
    home = import_module(module, _KEY)
    found = getattr(home, title, None)
    if found is None:
        members = vars(home).items()
        kinds = [n for n, x in members if isinstance(x, type) and issubclass(x, gym.Wrapper)]
        raise ConfigError(_KEY, f"{module} has no {title!r}{suggest(title, kinds)}")
    if not (isinstance(found, type) and issubclass(found, gym.Wrapper)):
        raise ConfigError(_KEY, f"{name} is no subclass of gymnasium.Wrapper")
    return found


def import_module(module: str, key: str, install: str = "") -> Any:
    """Import a package that a key names and return it.

    Args:
        module: name of the package.
        key: that names it.
        install: how to install it; empty: it may be the user's own.

    Raises:
        ConfigError: It is not there, or fails.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            how = install or "install it, or run in its parent folder"
            problem = f"the package was not found; {how}"
        else:
            problem = f"it needs {error.name!r}, which is not installed"
        raise ConfigError(key, f"cannot import {module!r}: {problem}") from None
    except (Exception, SystemExit) as error:  # the user's own code
        raise ConfigError(key, f"importing {module!r} raised {what(error)}") from error


def what(error: BaseException) -> str:
    """Type and message of an exception, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
