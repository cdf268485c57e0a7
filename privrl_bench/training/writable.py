"""Checks whether results can be written, before the work that produces them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from privrl_bench.errors import ConfigError


def check_folder(key: str, folder: Path) -> None:
    """Raise `ConfigError` unless files can be written into a folder, which may not exist yet."""
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    _try(
        key,
        there,
        f"cannot make the folder {folder}" if there != folder else f"cannot write {folder}",
    )


def check_file(key: str, path: Path) -> None:
    """Raise `ConfigError` unless a file can be written; its folder must exist."""
    if not os.path.lexists(path.parent):
        raise ConfigError(key, f"there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(key, f"{path} is a folder; give a file")
    try:
        os.stat(path)
    except FileNotFoundError:  # where a symbolic link points to, if it is one
        _try(key, Path(os.path.realpath(path)).parent, f"cannot write {path}")
    except OSError as error:  # among others a loop of symbolic links
        raise ConfigError(key, f"cannot write {path}: {error.strerror}") from None
    else:
        if not os.access(path, os.W_OK):
            raise ConfigError(key, f"cannot write {path}: Permission denied")


def _try(key: str, folder: Path, problem: str) -> None:
    """Write a nameless file: permissions do not show that a folder is in /proc or on a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(key, f"{problem}: {error.strerror}") from None
