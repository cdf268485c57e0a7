"""Reads runs from run folders or from a results store. Run folders may be incomplete or in use."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.reporting.results_store import RUNS_FILE, read_results
from privrl_bench.reporting.runs import Run, nested, number

_NUMBERS = (("epsilon",), ("guarantee", "epsilon"), ("guarantee", "delta"))  # of summary.json


def load_runs(root: Path) -> list[Run]:
    """All runs at or below `root`, sorted by path: run folders, and rows of results stores.

    Files that cannot be read become lines of `Run.problems`.

    Raises:
        FileNotFoundError: `root` does not exist.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {root}")
    stored = [run for file in sorted(root.rglob(RUNS_FILE)) for run in read_results(file.parent)]
    return [*(load_run(file.parent) for file in sorted(root.rglob("status.json"))), *stored]


def by_key(root: Path) -> Callable[[str], Run]:
    """A function from a run's key (its folder relative to `root`) to the run.

    Of a key without a run, the state of the returned run is "unreadable".
    """
    if not (root / RUNS_FILE).exists():
        return lambda key: load_run(root / key)
    stored = {str(run.folder.relative_to(root)): run for run in read_results(root)}
    return lambda key: stored.get(key) or Run(root / key)


def load_run(folder: Path) -> Run:
    """Read one run folder. Never raises for its contents."""
    run = Run(folder=Path(folder))
    run.status = _mapping(run, "status.json", json.loads)
    run.config = _mapping(run, "config.yaml", yaml.safe_load)
    planned = run.state in ("planned", "running", "failed", "interrupted")
    run.summary = _mapping(run, "summary.json", json.loads, optional=planned)
    for keys in _NUMBERS if run.summary else ():
        if math.isnan(number(value := nested(run.summary, *keys))):
            run.problems.append(f"summary.json: {'.'.join(keys)} is not a number: {value!r}")
            run.summary = {}  # a run without its epsilon is not counted
    run.provenance = _mapping(run, "provenance.json", json.loads, optional=True)
    identity = _mapping(run, "identity.json", json.loads, optional=True)
    run.digest = digest_of(identity) if identity else ""
    overrides = run.folder / "overrides.txt"
    if overrides.exists():
        run.overrides = [line.strip() for line in _text(run, overrides).splitlines()]
        run.overrides = [line for line in run.overrides if line]
    run.metrics = _json_lines(run, "metrics.jsonl")
    run.ledger = _json_lines(run, "ledger.jsonl")
    return run


def digest_of(identity: Mapping[str, Any]) -> str:
    """Version of an identity and 16 digits of its SHA-256, for example `v1:0f12..`."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return f"v{identity['version']}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _text(run: Run, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        run.problems.append(f"{file.name}: {type(error).__name__}")
        return ""


def _mapping(run: Run, name: str, parse: Any, optional: bool = False) -> dict[str, Any]:
    file = run.folder / name
    if not file.exists():
        if not optional:
            run.problems.append(f"{name}: missing")
        return {}
    before = len(run.problems)
    text = _text(run, file)
    if len(run.problems) > before:
        return {}
    try:
        value = parse(text)
    except (ValueError, yaml.YAMLError) as error:
        run.problems.append(f"{name}: {str(error).splitlines()[0]}")
        return {}
    if not isinstance(value, dict):
        run.problems.append(f"{name}: holds no mapping")
        return {}
    return value


def _json_lines(run: Run, name: str) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file. An incomplete last line is normal after a kill and is skipped."""
    file = run.folder / name
    if not file.exists():
        return []
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        run.problems.append(f"{name}: {type(error).__name__}")
        return []
    rows: list[dict[str, Any]] = []
    for at, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif at < len(lines) - 1:  # the last line of a killed run has no newline
            run.problems.append(f"{name}: line {at + 1} is not readable")
    return rows
