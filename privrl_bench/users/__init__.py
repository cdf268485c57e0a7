"""Who the users of a run are: the kinds, one module each.

A module with `USERS = <class>` is added and nothing else. Plugins add modules of their own, which are asked
first. Importing a kind does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.config.registry import Registry
from privrl_bench.errors import ConfigError

if TYPE_CHECKING:
    from privrl_bench.config.schema import RunConfig
    from privrl_bench.config.traits import Data
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.users import Users

# What another package says of its users beside the module is what they give: a value of `Data`.
REGISTRY = Registry(__name__, "USERS", "users", f"{__name__}.users:Users")


def kinds(gives: Data | None = None) -> list[type[Users]]:
    """The kinds of users, those of plugins first; `gives`: without those that say that they give other data."""
    outside = [
        REGISTRY.get(name)
        for name, where in REGISTRY.outside.items()
        if gives is None or isinstance(where, str) or where[1] == gives.name.lower()
    ]
    return [*outside, *REGISTRY.ours.values()]


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


def kind_and_spec(run: RunConfig) -> tuple[type[Users], EnvSpec]:
    """The kind of a run's users, and the public facts of their environment, which is made once for them.

    Raises:
        ConfigError: the environment cannot be made; or a plugin's kind claims the run only once it is made, too
            late for the review of plugins.
    """
    before = kind_of(run)
    spec = before.spec_of(run)
    kind = kind_of(run, spec)
    if kind is not before and kind.name in REGISTRY.outside:
        why = "claims a run by its environment, and must do so by the configuration alone"
        raise ConfigError("users", f"{kind.name} {why}")
    return kind, spec
