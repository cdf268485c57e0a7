"""A folder as a registry: every module of a package that names its class is one entry."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def classes(package: ModuleType, constant: str) -> dict[str, Any]:
    """The classes that the modules of `package` name, by the classes' own `name`.

    Args:
        package: the folder that is searched; all of its modules are imported.
        constant: name of the module constant that holds the class, e.g. `MECHANISM`.

    Returns: name -> class, in alphabetical order of the modules.
    """
    found = {}
    for entry in pkgutil.iter_modules(package.__path__):
        made = getattr(importlib.import_module(f"{package.__name__}.{entry.name}"), constant, None)
        if made is not None:
            found[made.name] = made
    return found
