"""The wording of errors in YAML files: which file, which key, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from privrl_bench.errors import ConfigError

NAMED = ("env", "algo")  # groups whose files hold their own name


def unreadable(error: yaml.YAMLError) -> ConfigError:
    """The error for a file that is not YAML."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if mark is None:  # a character that YAML does not allow
        file = getattr(error, "name", "a YAML file")
        return ConfigError("", f"{file} cannot be read: {what}")
    path = Path(mark.name)
    group = path.parent.name
    return ConfigError(group, f"{group}/{path.name} cannot be read: line {mark.line + 1}: {what}")


def check_names(chosen: Mapping[str, str], name_of: Callable[[str], str]) -> None:
    """Check that a file's `name` is that of the file. With another's name it would have that one's identity.

    Args:
        chosen: group -> the name of the file.
        name_of: group -> the composed `<group>.name`.

    Raises:
        ConfigError: a file has another name, or none, and so the default.
    """
    for group in NAMED:
        file, name = chosen.get(group), name_of(group)
        if file is not None and name != file:
            rule = f"must have `name: {file}`, as the file is named"
            raise ConfigError(f"{group}.name", f"{group}/{file}.yaml {rule}, got {name!r}")
