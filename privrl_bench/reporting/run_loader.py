"""Reads runs from run folders, which may be incomplete or in use, and reads and writes results stores.

A results store is the committed form: one folder with a row for each run, and the points of its curves.
`runs.csv` (compressed, if it is long) has a row for each finished run, `curves.csv.gz` the evaluations within
runs, where they were recorded.
Tables and figures that are made from these files equal those made from the run folders. Columns that a file
lacks are empty: earlier versions did not write them.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.metrics import KEYS, split
from privrl_bench.reporting.runs import TRAINING, Run, differing, nested, number
from privrl_bench.reporting.table_writer import csv_text

RUNS_FILE, CURVES_FILE = "runs.csv", "curves.csv.gz"
_LONG = 600  # rows; more are compressed
# Why equal settings can give other last bits: libraries, processor, and runs that are trained as one group.
VERSIONS, TOGETHER = ("torch", "numpy", "numba", "mujoco"), "trained_together"
COLUMNS = (
    *("run", "digest", "algo", "env", "seed", "overrides", "settings", "objective"),
    *("value", "ci95", "last_fifth", "epsilon", "epsilon_paper", "delta", "status"),
    *("unit", "notion", "adjacency"),
    *("caveats", "steps", "rounds", "wall_seconds", "steps_per_second", "commit", TRAINING),
    *("processor", *VERSIONS, TOGETHER),
)
# Settings that every row holds, because figures and tables read them.
_KEPT = (
    *("privacy.mechanism", "privacy.z", "privacy.clip", "privacy.population", "algo.lr", "rounds"),
    *("privacy.users_per_round", "env.user_steps", "algo.user_update", "algo.log_std_init"),
    "algo.metric",
)
# Metrics whose curves are kept where runs have them, beside the objective and its interval.
_CURVES = ("exact/regret", "eval/relative_mspbe", "eval/perplexity", "eval/kl")
_EPSILON = "privacy/epsilon"
_SUMMARY = ("epsilon", "epsilon_paper", "delta", "steps", "wall_seconds", "steps_per_second")
_NUMBERS = (*_SUMMARY, "value", "ci95", "last_fifth", "rounds", TRAINING)
_DIRTY = "-dirty"


def write_results(runs: Mapping[str, Run], folder: Path) -> None:
    """Write `runs.csv` or `runs.csv.gz`, and `curves.csv.gz` if a run has a curve.

    The bytes depend on the runs only, not on the time or the machine.

    Args:
        runs: Key of a run, for example `dppg/cartpole/z=1,seed=0`, to the finished run.
        folder: Where to write; it is created.

    Raises:
        ValueError: A run is not finished.
    """
    unfinished = [key for key, run in runs.items() if run.state != "done"]
    if unfinished:
        raise ValueError(f"not finished: {', '.join(unfinished)}")
    folder.mkdir(parents=True, exist_ok=True)
    keys = differing(list(runs.values()))
    rows = [_row(key, run, own) for (key, run), own in zip(runs.items(), keys, strict=True)]
    runs_file(folder).unlink(missing_ok=True)
    text = csv_text(COLUMNS, rows)
    if len(rows) > _LONG:
        write_gzip(folder / f"{RUNS_FILE}.gz", text)
    else:
        (folder / RUNS_FILE).write_text(text, encoding="utf-8")
    points = {key: _points(run) for key, run in runs.items()}
    metrics = sorted({name for one in points.values() for row in one.values() for name in row})
    (folder / CURVES_FILE).unlink(missing_ok=True)
    if metrics:
        lines = [
            [key, _shown(step), *(_shown(row.get(name)) for name in metrics)]
            for key, one in points.items()
            for step, row in one.items()
        ]
        write_gzip(folder / CURVES_FILE, csv_text(["run", "steps", *metrics], lines))


def write_gzip(path: Path, text: str) -> None:
    """Write compressed text. The bytes depend on the text only."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as zipped:
        zipped.write(text.encode())


def runs_file(folder: Path) -> Path:
    """The file of a store's rows; it may not exist."""
    zipped = folder / f"{RUNS_FILE}.gz"
    return zipped if zipped.exists() else folder / RUNS_FILE


def stores(root: Path) -> list[Path]:
    """Results stores at or below `root`."""
    files = root.rglob(f"{RUNS_FILE}*")
    return sorted(file.parent for file in files if file == runs_file(file.parent))


def read_rows(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of a store."""
    file = runs_file(folder)
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", newline="") as text:
        yield from csv.DictReader(text)


def read_results(folder: Path) -> list[Run]:
    """The runs of a store, in the order of its rows. Their folders are `folder` / key."""
    curves: dict[str, list[dict[str, Any]]] = {}
    if (folder / CURVES_FILE).exists():
        text = gzip.decompress((folder / CURVES_FILE).read_bytes()).decode()
        for point in csv.DictReader(io.StringIO(text)):
            known = {name: float(value) for name, value in point.items() if name != "run" and value}
            curves.setdefault(point["run"], []).append(known)
    return [_run(row, folder, curves.get(row["run"], [])) for row in read_rows(folder)]


def _row(key: str, run: Run, own: Iterable[str]) -> list[Any]:
    settings = run.settings()
    kept = {name: settings[name] for name in sorted({*own, *_KEPT}) if name in settings}
    guarantee = run.summary.get("guarantee") or {}
    words = [word for word in run.overrides if not word.startswith(("log", "hardware.", "seed="))]
    commit = str(run.provenance.get("commit") or "")
    versions = run.provenance.get("versions") or {}
    return [
        key,
        run.digest,
        run.algo,
        run.env,
        _shown(run.seed),
        " ".join(words),
        json.dumps(kept, separators=(",", ":"), ensure_ascii=False),
        run.measure.name,
        *(
            _known(run.evaluated(*names))
            for names in (("mean",), ("ci95",), ("last_fifth", "mean"))
        ),
        *(_known(run.summary.get(name)) for name in ("epsilon", "epsilon_paper", "delta")),
        *(guarantee.get(name, "") for name in ("status", "unit", "notion", "adjacency")),
        "; ".join(run.caveats),
        _known(run.summary.get("steps")),
        _known(nested(run.summary, "ledger", "rounds")),
        *(_known(run.summary.get(name)) for name in ("wall_seconds", "steps_per_second")),
        commit + _DIRTY * bool(run.provenance.get("dirty")),
        _known(run.training_return),
        run.provenance.get("processor", ""),
        *(versions.get(name) or "" for name in VERSIONS),
        _known(run.provenance.get(TOGETHER)),
    ]


def _run(row: Mapping[str, str], folder: Path, metrics: Sequence[dict[str, Any]]) -> Run:
    values = {name: float(text) for name, text in row.items() if name in _NUMBERS and text}
    objective: dict[str, Any] = {
        "mean": values.get("value", math.nan),
        "ci95": values.get("ci95", math.nan),
    }
    if "last_fifth" in values:
        objective["last_fifth"] = {"mean": values["last_fifth"]}
    guarantee: dict[str, Any] = {
        name: row[name] for name in ("status", "unit", "notion", "adjacency")
    }
    caveats = [name for name in row["caveats"].split("; ") if name]
    config: dict[str, Any] = {"algo": {"name": row["algo"]}, "env": {"name": row["env"]}}
    config |= {"seed": int(row["seed"])} if row["seed"] else {}
    return Run(
        folder / row["run"],
        status={"status": "done"},
        config=_unflattened(config, json.loads(row["settings"])),
        overrides=row["overrides"].split(),
        summary={
            "status": "done",
            "measure": row["objective"],
            row["objective"]: objective,
            "guarantee": guarantee | {"caveats": caveats},
            "ledger": {"rounds": int(values["rounds"])} if "rounds" in values else {},
            **{name: values[name] for name in (*_SUMMARY, TRAINING) if name in values},
        },
        metrics=list(metrics),
        provenance=_provenance(row),
        digest=row["digest"],
    )


def _provenance(row: Mapping[str, str]) -> dict[str, Any]:
    """Where a run comes from, as far as its row says."""
    commit = row["commit"]
    found: dict[str, Any] = {
        "commit": commit.removesuffix(_DIRTY),
        "dirty": commit.endswith(_DIRTY),
    }
    if row.get("processor"):
        found["processor"] = row["processor"]
    if versions := {name: row[name] for name in VERSIONS if row.get(name)}:
        found["versions"] = versions
    if row.get(TOGETHER):
        found[TOGETHER] = int(row[TOGETHER])
    return found


def _points(run: Run) -> dict[float, dict[str, float]]:
    """Step -> kept metrics at this step, for steps with an evaluation."""
    found: dict[float, dict[str, float]] = {}
    for name in filter(None, (run.measure.metric, run.measure.spread, *_CURVES)):
        for step, value in zip(*run.curve(name), strict=True):
            found.setdefault(float(step), {})[name] = float(value)
    for step, value in zip(*run.curve(_EPSILON), strict=True):
        if float(step) in found:
            found[float(step)][_EPSILON] = float(value)
    return dict(sorted(found.items()))


def _known(value: Any) -> str:
    """Exact text of a number, empty if it is undefined."""
    return "" if math.isnan(number(value)) else _shown(number(value))


def _shown(value: float | None) -> str:
    """Exact text of a number: integers without a point, empty for None."""
    if value is None:
        return ""
    if math.isfinite(value) and value == int(value) and abs(value) < 2**53:
        return str(int(value)) if value or math.copysign(1, value) > 0 else "-0.0"
    return repr(float(value))


def _unflattened(config: dict[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the values of dotted keys."""
    for key, value in flat.items():
        *path, last = key.split(".")
        place = config
        for part in path:
            place = place.setdefault(part, {})
        place.setdefault(last, value)
    return config


# --- run folders

_FINITE = (("epsilon",), ("guarantee", "epsilon"), ("guarantee", "delta"))  # of summary.json


def load_runs(root: Path) -> list[Run]:
    """All runs at or below `root`, sorted by path: run folders; where there is none, rows of results stores.

    Files that cannot be read become lines of `Run.problems`.

    Raises:
        FileNotFoundError: `root` does not exist.
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"no such folder: {root}")
    if found := sorted(root.rglob("status.json")):
        return [load_run(file.parent) for file in found]
    return [run for folder in stores(root) for run in read_results(folder)]


def by_key(root: Path) -> Callable[[str], Run]:
    """A function from a run's key (its folder relative to `root`) to the run.

    Of a key without a run, the state of the returned run is "unreadable".
    """
    if not runs_file(root).exists():
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
    for keys in _FINITE if run.summary else ():
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
    for row in _json_lines(run, "metrics.jsonl"):
        public, private = split(row)
        run.metrics.append(public)
        if len(private) > len(KEYS):
            run.private_metrics.append(private)
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
