"""Who the users of a run are: the kinds, one module each.

The folder is the registry: a module with `USERS = <class>` is added and nothing else. Plugins add modules of
their own (`register`), which are asked first. Importing a kind does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.errors import ConfigError
from privrl_bench.privacy.discovery import classes

if TYPE_CHECKING:
    from privrl_bench.config.schema import RunConfig
    from privrl_bench.config.traits import Data
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.users import Users

# Name -> module of a plugin, or the module and what its users give: a value of `Data`.
OUTSIDE: dict[str, str | tuple[str, str]] = {}


def kinds(gives: Data | None = None) -> list[type[Users]]:
    """The kinds of users, those of plugins first; `gives`: without those that say that they give other data."""
    wanted = [
        where if isinstance(where, str) else where[0]
        for where in OUTSIDE.values()
        if gives is None or isinstance(where, str) or where[1] == gives.name.lower()
    ]
    outside = [importlib.import_module(module).USERS for module in wanted]
    return [*outside, *classes(__name__, "USERS").values()]


def kind_of(run: RunConfig, spec: EnvSpec | None = None) -> type[Users]:
    """The kind of a run's users; `spec`: of its environment, where it is known.

    Raises:
        ConfigError: no kind gives what the algorithm learns from.
    """
    from privrl_bench.users.users import data_of

    for kind in kinds(data_of(run)):
        if kind.claims(run, spec):
            return kind
    wanted = " or ".join(data.value for data in run.algo.traits.data)
    raise ConfigError("algo", f"algo={run.algo.name} learns from {wanted}, which no users give")


def register(name: str, where: str | tuple[str, str]) -> None:
    """Add a kind of users of another package. Its runs stay `unreviewed` (`run/plugin_review.py`).

    Args:
        name: equal to the class's own `name`.
        where: a module that has `USERS`, a subclass of `users.Users`, and should not import torch; or this
            module and what its users give.

    Raises:
        ConfigError: the name is taken, the module cannot be imported, or it has no such class.
    """
    from privrl_bench.users.users import Users

    if OUTSIDE.get(name) == where:
        return
    if name in OUTSIDE or name in classes(__name__, "USERS"):
        raise ConfigError("users", f"the name {name} is taken")
    module = where if isinstance(where, str) else where[0]
    try:
        kind = importlib.import_module(module).USERS
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError("users", f"{module} has no USERS: {why}") from error
    if not (isinstance(kind, type) and issubclass(kind, Users)):
        raise ConfigError(
            "users", f"{module}: USERS must be a subclass of {Users.__module__}.Users"
        )
    if getattr(kind, "name", "") != name:
        got = getattr(kind, "name", "")
        raise ConfigError("users", f"{module}: the class's `name` must be {name!r}, got {got!r}")
    OUTSIDE[name] = where


def kind_and_spec(run: RunConfig) -> tuple[type[Users], EnvSpec]:
    """The kind of a run's users, and the public facts of their environment, which is made once for them.

    Raises:
        ConfigError: the environment cannot be made; or a plugin's kind claims the run only once it is made, too
            late for the review of plugins.
    """
    before = kind_of(run)
    spec = before.spec_of(run)
    kind = kind_of(run, spec)
    if kind is not before and kind.name in OUTSIDE:
        why = "claims a run by its environment, and must do so by the configuration alone"
        raise ConfigError("users", f"{kind.name} {why}")
    return kind, spec
