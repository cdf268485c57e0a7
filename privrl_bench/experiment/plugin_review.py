"""Algorithms and mechanisms from outside the package: their runs are `unreviewed` until audits have passed.

An algorithm needs the leak test (`privrl audit leaks`). A mechanism needs it, too, and the canary attack
(`privrl audit epsilon`), since the leak test gives both of its runs the same noise. A passed audit writes a
record, which training reads from `FOLDER`, below the working directory. A record is valid for one configuration
(any seed; the leak test's for any z, too), one version of the sources, and one version of this package.
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
LEAKS, EPSILON = "leaks", "epsilon"  # commands of `privrl audit`
_ANY = {LEAKS: ("seed", "privacy.z"), EPSILON: ("seed",)}  # keys that a record is not about
_OURS = "privrl_bench"
_STANDARD = {_OURS, "builtins", *sys.stdlib_module_names}
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def outside(config: RunConfig) -> bool:
    """Return whether a class of the algorithm or the mechanism, or a method, is defined outside the package."""
    return _outside_algorithm(config) or _outside_mechanism(config)


def _outside_algorithm(config: RunConfig) -> bool:
    kind = algorithm(config.algo.name)
    return config.algo.name not in OURS or _defined_outside(kind, type(config.algo))


def _outside_mechanism(config: RunConfig) -> bool:
    return _defined_outside(config.privacy.rules.mechanism)


def _defined_outside(kind: type, *more: type) -> bool:
    made = [value for base in kind.__mro__ for value in vars(base).values() if callable(value)]
    homes = {getattr(value, "__module__", None) for value in (kind, *more, *made)}
    return any(home is not None and home.partition(".")[0] not in _STANDARD for home in homes)


def audits(config: RunConfig) -> tuple[str, ...]:
    """Return the audits that a configuration has to pass: names of the commands of `privrl audit`."""
    found = (LEAKS,) if outside(config) else ()
    return (*found, EPSILON) if _outside_mechanism(config) else found


def subject(config: RunConfig, audit: str = LEAKS) -> dict[str, str] | None:
    """Return what a record is valid for, or None when a source cannot be read.

    Args:
        config: of the run, as it was composed. The seed has no effect.
        audit: the leak test, for which z has no effect either, or the attack.
    """
    source = _source_digest(config)
    if source is None:
        return None
    return {
        "audit": audit,
        "algorithm": config.algo.name,
        "configuration": digest(config, _ANY[audit]),
        "source": source,
        "version": version(),
    }


def find(config: RunConfig, audit: str = LEAKS) -> dict[str, Any] | None:
    """Return the record of a passed audit of this configuration and version, or None."""
    about = subject(config, audit)
    if about is None:
        return None
    try:
        record = json.loads(_path(about).read_text())
    except (OSError, ValueError):
        return None
    passed = isinstance(record, dict) and record.get("ok") is True
    return record if passed and about.items() <= record.items() else None


def records(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the records that exist of the audits that the configuration has to pass, by audit."""
    found = {audit: find(config, audit) for audit in audits(config)}
    return {audit: record for audit, record in found.items() if record is not None}


def write(config: RunConfig, verdict: str, lines: list[str], audit: str = LEAKS) -> Path | None:
    """Record that an audit has passed.

    Args:
        config: of the run, as it was composed, not with the sizes of the test.
        verdict: of the audit.
        lines: the report.
        audit: which one.

    Returns:
        The file, or None when a source cannot be read.
    """
    about = subject(config, audit)
    if about is None:
        return None
    path = _path(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, about | {"ok": True, "verdict": verdict, "date": date, "report": lines})
    return path


def note(config: RunConfig) -> dict[str, str]:
    """The note that makes a guarantee `unreviewed`, or nothing."""
    missing = [audit for audit in audits(config) if find(config, audit) is None]
    if not missing:
        return {}
    kind = config.privacy.rules.mechanism
    what = [f"algo={config.algo.name}"] if _outside_algorithm(config) else []
    what += [f"privacy.mechanism={kind.name}"] if _outside_mechanism(config) else []
    commands = " and ".join(f"`privrl audit {audit}`" for audit in missing)
    text = (
        f"{' and '.join(what)} {'are' if len(what) > 1 else 'is'} from outside {_OURS}, and no passed audit of "
        f"this configuration and version is in {FOLDER}: run {commands} with the same words"
    )
    if EPSILON in missing and kind.not_auditable:
        text += f"; the attack cannot be run on this mechanism: {kind.not_auditable}"
    return {UNREVIEWED: text}


def _path(about: dict[str, str]) -> Path:
    return (
        FOLDER
        / f"{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]}.json"
    )


def _source_digest(config: RunConfig) -> str | None:
    """Return the SHA-256 of the sources: modules of algorithm and mechanism, what they import, their packages.

    Installed packages and this one are left out: they have versions. The top-level packages of the two are
    included even if they are installed. None: a source file cannot be read.
    """
    kinds = [algorithm(config.algo.name), type(config.algo)]
    if _outside_mechanism(config):
        kinds.append(config.privacy.rules.mechanism)
    files = _with_imports({base.__module__ for kind in kinds for base in kind.__mro__})
    for name in sorted({kind.__module__.partition(".")[0] for kind in kinds} - {_OURS}):
        top = sys.modules.get(name)
        for folder in map(Path, getattr(top, "__path__", ())):
            files |= {f"{name}/{p.relative_to(folder)}": p for p in folder.rglob("*.py")}
        if top is not None and not hasattr(top, "__path__") and top.__file__:
            files[name] = Path(top.__file__)
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
