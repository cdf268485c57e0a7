"""A folder as a registry: every module of a package that names its class is one entry."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from privrl_bench.errors import ConfigError


@cache
def classes(package: str, constant: str) -> dict[str, Any]:
    """The classes that the modules of `package` name, by the classes' own `name`.

    Args:
        package: name of the folder that is searched; all of its modules are imported.
        constant: name of the module constant that holds the class, e.g. `MECHANISM`.

    Returns: name -> class, in alphabetical order of the modules.
    """
    found = {}
    for entry in pkgutil.iter_modules(importlib.import_module(package).__path__):
        made = getattr(importlib.import_module(f"{package}.{entry.name}"), constant, None)
        if made is not None:
            found[made.name] = made
    return found


def outside_class(module: str, constant: str, name: str, base: type, key: str) -> Any:
    """The class that a module of another package names.

    Args:
        module: the module.
        constant: see `classes`.
        name: that the class must have.
        base: that it must be a subclass of.
        key: of the configuration, for messages.

    Raises:
        ConfigError: the module cannot be imported, or has no such class.
    """
    try:
        kind = getattr(importlib.import_module(module), constant)
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(key, f"{module} has no {constant}: {why}") from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        rule = f"must be a subclass of {base.__module__}.{base.__name__}"
        raise ConfigError(key, f"{module}: {constant} {rule}")
    if getattr(kind, "name", "") != name:
        rule = f"must be {name!r}, got {getattr(kind, 'name', '')!r}"
        raise ConfigError(key, f"{module}: the class's `name` {rule}")
    return kind


@dataclass(frozen=True)
class Registry:
    """The classes of a folder, and those of plugins, by name.

    Attributes:
        package: see `classes`.
        constant: see `classes`.
        key: of the configuration, for messages.
        outside: name -> module of another package.
    """

    package: str
    constant: str
    key: str
    outside: dict[str, str]

    def names(self) -> tuple[str, ...]:
        """Values of the key."""
        return (*classes(self.package, self.constant), *self.outside)

    def get(self, name: str) -> Any:
        """The class behind a value of the key. Raises KeyError: there is none."""
        if name in self.outside:
            return getattr(importlib.import_module(self.outside[name]), self.constant)
        return classes(self.package, self.constant)[name]

    def new(self, name: str, module: str, base: type) -> Any:
        """The class that a plugin's module names; None: it is known already.

        Args:
            name: that the class has.
            module: see `outside_class`.
            base: see `outside_class`.

        Raises:
            ConfigError: the name is taken, or see `outside_class`.
        """
        if self.outside.get(name) == module:
            return None
        if name in self.names():
            raise ConfigError(self.key, f"the name {name} is taken")
        return outside_class(module, self.constant, name, base, self.key)
