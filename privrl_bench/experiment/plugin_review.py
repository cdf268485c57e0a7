"""Algorithms from outside the package: their runs are `unreviewed` until the leak test has passed.

`privrl audit leaks` writes a record when such an algorithm passes. Training reads it from `FOLDER`, below the
working directory. A record is valid for one configuration (any seed and z), one version of the algorithm's
source, and one version of this package.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privrl_bench.algorithms import algorithm
from privrl_bench.config.algorithm_registry import OURS
from privrl_bench.config.identity import digest
from privrl_bench.config.schema import RunConfig
from privrl_bench.experiment.crash import version
from privrl_bench.experiment.run_dir import write_json
from privrl_bench.privacy.guarantee import UNREVIEWED

FOLDER = Path("outputs/reviews")
_OURS = "privrl_bench"
_STANDARD = {_OURS, "builtins", *sys.stdlib_module_names}
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def outside(config: RunConfig) -> bool:
    """Return whether the class of the algorithm, a method or its settings are defined outside the package."""
    kind = algorithm(config.algo.name)
    made = [value for base in kind.__mro__ for value in vars(base).values() if callable(value)]
    homes = {getattr(value, "__module__", None) for value in (kind, type(config.algo), *made)}
    return config.algo.name not in OURS or any(
        home is not None and home.partition(".")[0] not in _STANDARD for home in homes
    )


def subject(config: RunConfig) -> dict[str, str] | None:
    """Return what a record is valid for, or None when the source of the algorithm cannot be read.

    Args:
        config: of the run, as it was composed. Seed and z have no effect.
    """
    source = _source_digest(config)
    if source is None:
        return None
    return {
        "algorithm": config.algo.name,
        "configuration": digest(config, ("seed", "privacy.z")),
        "source": source,
        "version": version(),
    }


def find(config: RunConfig) -> dict[str, Any] | None:
    """Return the record of a passed leak test of this configuration and version, or None."""
    about = subject(config)
    if about is None:
        return None
    try:
        record = json.loads(_path(about).read_text())
    except (OSError, ValueError):
        return None
    passed = isinstance(record, dict) and record.get("ok") is True
    return record if passed and about.items() <= record.items() else None


def write(config: RunConfig, verdict: str, lines: list[str]) -> Path | None:
    """Record that the leak test has passed.

    Args:
        config: of the run, as it was composed, not with the sizes of the test.
        verdict: of the test.
        lines: the report.

    Returns:
        The file, or None when the source of the algorithm cannot be read.
    """
    about = subject(config)
    if about is None:
        return None
    path = _path(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, about | {"ok": True, "verdict": verdict, "date": date, "report": lines})
    return path


def note(config: RunConfig) -> dict[str, str]:
    """The note that makes a guarantee `unreviewed`, or nothing."""
    if not outside(config) or find(config) is not None:
        return {}
    return {
        UNREVIEWED: f"algo={config.algo.name} is from outside {_OURS}, and no passed leak test of this "
        f"configuration and version is in {FOLDER}: run the leak test (`privrl audit leaks`) with the same words"
    }


def _path(about: dict[str, str]) -> Path:
    return (
        FOLDER
        / f"{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]}.json"
    )


def _source_digest(config: RunConfig) -> str | None:
    """Return the SHA-256 of the source of the algorithm: its modules, what they import, its top-level package.

    Installed packages and this one are left out: they have versions. None: a source file cannot be read.
    """
    kind = algorithm(config.algo.name)
    names = {base.__module__ for c in (kind, type(config.algo)) for base in c.__mro__}
    files = _with_imports(names)
    top = sys.modules.get(kind.__module__.partition(".")[0])
    if top is not None and top.__name__ != _OURS:
        for folder in map(Path, getattr(top, "__path__", ())):
            files |= {p.relative_to(folder).as_posix(): p for p in folder.rglob("*.py")}
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
        except OSError:
            return None
    return total.hexdigest()


def _with_imports(names: Iterable[str]) -> dict[str, Path]:
    """Return the source files, by name, of modules and of all that they import anywhere in their code.

    Installed packages and this one are left out. Imports by a computed name and data files are not found.
    """
    files: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        file = None if name in files else _local_file(name)
        if file is None:
            continue
        files[name] = file
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                waiting += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                home = "." * node.level + (node.module or "")
                home = importlib.util.resolve_name(home, package) if node.level else home
                waiting += [home, *(f"{home}.{one.name}" for one in node.names)]
    return files


def _local_file(name: str) -> Path | None:
    """Return the source of a module that is neither installed nor of this package, or None."""
    if name.partition(".")[0] in _STANDARD:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # not a module, or one made by hand
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin).resolve()
    return None if any(path.is_relative_to(folder) for folder in _INSTALLED) else path
