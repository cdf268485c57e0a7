"""A folder as a registry: every module of a package that names its class is one entry."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any


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
