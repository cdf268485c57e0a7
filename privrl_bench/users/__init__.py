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
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.users import Users

OUTSIDE: dict[str, str] = {}  # name -> module of another package


def kinds() -> list[type[Users]]:
    """The kinds of users, those of plugins first."""
    outside = [importlib.import_module(module).USERS for module in OUTSIDE.values()]
    return [*outside, *classes(__name__, "USERS").values()]


def kind_of(run: RunConfig, spec: EnvSpec | None = None) -> type[Users]:
    """The kind of a run's users; `spec`: of its environment, where it is known.

    Raises:
        ConfigError: no kind gives what the algorithm learns from.
    """
    for kind in kinds():
        if kind.claims(run, spec):
            return kind
    wanted = " or ".join(data.value for data in run.algo.traits.data)
    raise ConfigError("algo", f"algo={run.algo.name} learns from {wanted}, which no users give")


def register(name: str, module: str) -> None:
    """Add a kind of users of another package. Its runs stay `unreviewed` (`experiment/plugin_review.py`).

    Args:
        name: equal to the class's own `name`.
        module: has `USERS`, a subclass of `users.Users`; it should not import torch.

    Raises:
        ConfigError: the name is taken, the module cannot be imported, or it has no such class.
    """
    from privrl_bench.users.users import Users

    if OUTSIDE.get(name) == module:
        return
    if name in OUTSIDE or name in classes(__name__, "USERS"):
        raise ConfigError("users", f"the name {name} is taken")
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
    OUTSIDE[name] = module


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
