"""Reads run folders. Files only: a folder can be read while it is written, or after a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from privrl_bench.evaluation.objective import Objective, objective_of

SEED_KEY = "seed"


@dataclass
class Run:
    """One run folder as plain data. `problems` says what could not be read; the rest still counts."""

    folder: Path
    status: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Running | done | failed | interrupted | planned | unreadable."""
        return str(self.status.get("status", "unreadable"))

    @property
    def algo(self) -> str:
        """The algorithm's name."""
        return str(nested(self.config, "algo", "name") or "?")

    @property
    def env(self) -> str:
        """The environment's name; for the generic ones (gym, dmc) what they were pointed at."""
        name = str(nested(self.config, "env", "name") or "?")
        if name == "gym":
            return str(nested(self.config, "env", "id") or name)
        if name == "dmc":
            parts = (nested(self.config, "env", "domain"), nested(self.config, "env", "task"))
            return "-".join(str(part) for part in parts if part) or name
        return name

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        return self.config.get(SEED_KEY)

    @property
    def z(self) -> float | None:
        """Noise multiplier; None for a run without a mechanism, where z means nothing."""
        if nested(self.config, "privacy", "mechanism") == "none":
            return None
        value = nested(self.config, "privacy", "z")
        return None if value is None else float(value)

    @property
    def measure(self) -> Objective:
        """What the run is judged by."""
        return objective_of(self.summary)

    @property
    def final_value(self) -> float:
        """What it is judged by, in the final evaluation (mean return, or MSPBE); nan when there is none."""
        return number(nested(self.summary, self.measure.name, "mean"))

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole run; nan when the run has no summary, inf when not private."""
        return number(self.summary.get("epsilon"))

    @property
    def guarantee_status(self) -> str:
        """Formal | heuristic | none, or ? while there is no summary."""
        return str(nested(self.summary, "guarantee", "status") or "?")

    def curve(self, name: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps [k] and values [k] of the rows that hold `name` (None: its measure), in order of steps.

        Where a resumed run wrote the same step twice, the later line counts.
        """
        name = name or self.measure.metric
        points = {
            float(row["steps"]): number(row[name])
            for row in self.metrics
            if name in row and "steps" in row
        }
        steps = sorted(points)
        return np.array(steps, dtype=float), np.array([points[step] for step in steps], dtype=float)


def load_runs(root: Path) -> list[Run]:
    """All run folders at or below `root` (folders with a status.json), sorted by path.

    Unreadable files become a line in `Run.problems`. Raises `FileNotFoundError` without `root`.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {root}")
    return [load_run(file.parent) for file in sorted(root.rglob("status.json"))]


def load_run(folder: Path) -> Run:
    """Read one run folder; never raises for its contents."""
    run = Run(folder=Path(folder))
    run.status = _mapping(run, "status.json", json.loads)
    run.config = _mapping(run, "config.yaml", yaml.safe_load)
    planned = run.state in ("planned", "running", "failed", "interrupted")
    run.summary = _mapping(run, "summary.json", json.loads, optional=planned)
    overrides = run.folder / "overrides.txt"
    if overrides.exists():
        run.overrides = [line.strip() for line in _text(run, overrides).splitlines()]
        run.overrides = [line for line in run.overrides if line]
    run.metrics = _json_lines(run, "metrics.jsonl")
    run.ledger = _json_lines(run, "ledger.jsonl")
    return run


def usable(runs: Iterable[Run]) -> list[Run]:
    """The finished runs with a final return, those that tables and plots count."""
    return [run for run in runs if run.state == "done" and math.isfinite(run.final_value)]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a nested mapping.

    >>> dict(flatten({"a": {"b": 1}, "c": [2]}))
    {'a.b': 1, 'c': [2]}
    """
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def nested(mapping: Mapping[str, Any], *keys: str) -> Any:
    """The value below `keys`, or None where the way ends."""
    value: Any = mapping
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def number(value: Any) -> float:
    """`value` as a float, nan for what is not a number; "inf" written as text counts."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


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
    """The lines of a JSON-lines file. A torn last line is normal after a kill and skipped."""
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
        elif at < len(lines) - 1:  # not the torn end, which no newline closes
            run.problems.append(f"{name}: line {at + 1} is not readable")
    return rows
