"""The wording of errors in YAML files: which file, which key, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from privrl_bench.errors import ConfigError

NAMED = ("env", "algo")  # groups whose files hold their own name

# What Hydra says of a file that does not fit the schema.
_MESSAGE = re.compile(
    r"In '(?P<file>[^']+)': \w+ raised while composing config:\n(?P<what>.*)\n\s+full_key: (?P<key>\S+)"
)
_VALUE = re.compile(r"Value '(?P<value>.*)' of type '(?P<kind>\w+)'")


class FileError(NamedTuple):
    """What Hydra refused in a YAML file.

    Attributes:
        file: group and name, as in `env/mine`.
        key: the key in the file, with dots.
        value: what the file has, where its type is wrong.
        unknown: there is no such key.
    """

    file: str
    key: str
    value: Any
    unknown: bool

    @property
    def group(self) -> str:
        """The group of the file."""
        return self.file.rpartition("/")[0]


def found_in_file(error: Exception) -> FileError | None:
    """The file and the key that Hydra's error is about; None where it is about something else."""
    found = _MESSAGE.match(str(error))
    if found is None:
        return None
    key = re.sub(r"\[\d+\]$", "", found["key"])  # of an element of a list
    wrong = _VALUE.match(found["what"])
    if wrong is None:
        return FileError(found["file"], key, None, True) if "not in" in found["what"] else None
    value = wrong["value"] if wrong["kind"] == "str" else yaml.safe_load(wrong["value"])
    return FileError(found["file"], key, value, False)


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
