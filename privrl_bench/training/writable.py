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
    problem = f"cannot make the folder {folder}" if there != folder else f"cannot write {folder}"
    try:  # permissions do not show that a folder is in /proc or on a read-only disk
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ConfigError(key, f"{problem}: {error.strerror}") from None


def check_file(key: str, path: Path) -> None:
    """Raise `ConfigError` unless a file can be written; its folder must exist."""
    if not os.path.lexists(path.parent):
        raise ConfigError(key, f"there is no folder {path.parent}")
    try:
        new = not path.exists()
        path.open("ab").close()  # what is in the file stays
        if new:
            path.resolve().unlink()
    except OSError as error:  # among others a folder, or a loop of symbolic links
        raise ConfigError(key, f"cannot write {path}: {error.strerror}") from None
