"""A registry: classes by name, of a folder's modules and of other packages.

What other packages add are names of modules, which are imported when their class is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from privrl_bench.errors import ConfigError, first_line


class Command(NamedTuple):
    """A command `privrl NAME`.

    Attributes:
        function: "module:name" of a function of the arguments and the command's name; returns the exit code.
            It is imported when it is called.
        about: what it does, in one line.
    """

    function: str
    about: str


class Registry:
    """Entries are the modules of a folder that name their class, or listed modules; and those of plugins.

    Attributes:
        outside: name -> module of another package, or the module and what is known of it without importing it.
    """

    def __init__(
        self,
        where: str | Mapping[str, str],
        constant: str,
        key: str,
        base: str = "",
        check: Callable[[str, Any], None] | None = None,
    ) -> None:
        """Nothing is imported yet.

        Args:
            where: a package, all of whose modules are imported when one entry of it is asked for; or modules
                by the names of entries, which are imported one at a time.
            constant: name of what a module has, e.g. `MECHANISM`.
            key: of the configuration, for messages.
            base: "module:Class" that classes of other packages must be a subclass of; empty: they are not
                imported when they are registered.
            check: refuses a class of another package with a ConfigError; gets the module and the class.
        """
        self._where, self._constant, self._key = where, constant, key
        self._base, self._check = base, check
        self.outside: dict[str, str | tuple[str, str]] = {}

    @cached_property
    def ours(self) -> dict[str, Any]:
        """The classes of the folder by their `name`, in alphabetical order of the modules; none of a list."""
        found: dict[str, Any] = {}
        if not isinstance(self._where, str):
            return found
        for entry in pkgutil.iter_modules(importlib.import_module(self._where).__path__):
            module = importlib.import_module(f"{self._where}.{entry.name}")
            made = getattr(module, self._constant, None)
            if made is not None:
                found[made.name] = made
        return found

    def names(self) -> tuple[str, ...]:
        """All names, those of other packages last."""
        ours = self.ours if isinstance(self._where, str) else self._where
        return (*ours, *self.outside)

    def get(self, name: str) -> Any:
        """The class of a name. Raises KeyError: there is none."""
        listed: Mapping[str, str] = {} if isinstance(self._where, str) else self._where
        where = self.outside.get(name, listed.get(name))
        if where is None:
            return self.ours[name]
        return getattr(importlib.import_module(module_of(where)), self._constant)

    def classes(self) -> Iterator[Any]:
        """All classes, those of other packages last and imported only when they are reached."""
        return map(self.get, self.names())

    def refuse(self, name: str, where: str | tuple[str, str]) -> None:
        """Refuse a class of another package, which is to be in `outside`.

        Args:
            name: equal to the class's own `name`.
            where: the module that names the class, which should not import torch; or this module and what is
                known of it without importing it.

        Raises:
            ConfigError: the name is taken, the module cannot be imported, or what it declares is refused.
        """
        if self.outside.get(name) == where:
            return
        if name in self.names():
            raise ConfigError(self._key, f"the name {name} is taken")
        if not self._base:
            return
        module = module_of(where)
        try:
            kind = getattr(importlib.import_module(module), self._constant)
        except Exception as error:
            why = first_line(error)
            raise ConfigError(self._key, f"{module} has no {self._constant}: {why}") from error
        place, _, base = self._base.partition(":")
        wanted = getattr(importlib.import_module(place), base)
        if not (isinstance(kind, type) and issubclass(kind, wanted)):
            rule = f"must be a subclass of {place}.{base}"
            raise ConfigError(self._key, f"{module}: {self._constant} {rule}")
        if getattr(kind, "name", "") != name:
            rule = f"must be {name!r}, got {getattr(kind, 'name', '')!r}"
            raise ConfigError(self._key, f"{module}: the class's `name` {rule}")
        if self._check is not None:
            self._check(module, kind)


def module_of(where: str | tuple[str, str]) -> str:
    """The module of an entry of `Registry.outside`."""
    return where if isinstance(where, str) else where[0]
