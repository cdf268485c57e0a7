"""A small reader of wandb's offline files, for tests only; wandb 0.31 has no public one.

Layout: 7 bytes of file header, then 32 KiB blocks as in LevelDB's log (the first one is shorter by
the file header): records of checksum (4 bytes), length (2, little endian), type (1), data. Type 1 is
a whole record, 2, 3 and 4 are the first, a middle and the last part of one.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
HEADER = 7


@dataclass
class OfflineRun:
    """What one `.wandb` file says."""

    run_id: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)  # name or glob -> its x axis
    kinds: set[str] = field(default_factory=set)  # record types that occur
    artifacts: list[tuple[str, list[str]]] = field(default_factory=list)  # type, names of files
    exit_code: int | None = None
    raw: bytes = b""


def records(data: bytes) -> Iterator[bytes]:
    """The payloads of the file in order; stops at a torn end."""
    if len(data) < HEADER:
        return
    assert data[:4] == b":W&B", "not a wandb file"
    at, parts = HEADER, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        if at + HEADER > len(data):
            return
        _crc, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if kind == 0:  # padding
            at += left
            continue
        if at + HEADER + length > len(data):
            return
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield parts
            parts = b""


def _key(item: Any) -> str:
    return "/".join(item.nested_key) if item.nested_key else item.key


def read_offline(path: Path) -> OfflineRun:
    """Read one `.wandb` file."""
    from wandb.proto import wandb_internal_pb2 as pb

    run = OfflineRun(raw=path.read_bytes())
    for payload in records(run.raw):
        record = pb.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        run.kinds.add(str(kind))
        if kind == "run":
            message = record.run
            run.run_id, run.project = message.run_id, message.project
            run.name, run.group = message.display_name, message.run_group
            run.job_type, run.tags = message.job_type, list(message.tags)
            _update(run.config, message.config.update)
        elif kind == "config":
            _update(run.config, record.config.update)
        elif kind == "summary":
            _update(run.summary, record.summary.update)
        elif kind == "history":
            run.history.append({_key(i): json.loads(i.value_json) for i in record.history.item})
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            run.step_metrics[name] = record.metric.step_metric
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            artifact = record.request.log_artifact.artifact
            run.artifacts.append((artifact.type, [e.path for e in artifact.manifest.contents]))
        elif kind == "artifact":
            artifact = record.artifact
            run.artifacts.append((artifact.type, [e.path for e in artifact.manifest.contents]))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _update(target: dict[str, Any], items: Any) -> None:
    for item in items:
        target[_key(item)] = json.loads(item.value_json)


def offline_runs(folder: Path, patience: float = 20.0) -> list[OfflineRun]:
    """All offline runs of a run folder, oldest first.

    wandb's service may still be writing when `finish` has returned, so this waits for exit records.
    """
    deadline = time.monotonic() + patience
    while True:
        runs = [read_offline(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > deadline:
            return runs
        time.sleep(0.1)
