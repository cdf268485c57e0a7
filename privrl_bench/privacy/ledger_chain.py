"""The file of a ledger: lines of JSON in a hash chain.

Each line carries the hash of the line before it, so an edited, removed or reordered
line is found. A lost tail is not; whatever depends on the lines (checkpoints, rows of metrics) therefore
remembers how many there were and the last hash, a `Mark`, and a run is resumed only if its ledger still reaches
every mark. A torn last line that no mark covers is cut. The chain finds accidents: whoever can write the folder
can write a new chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

PREVIOUS = "previous"  # key of the hash of the line before


def line_hash(line: bytes) -> str:
    """What the next line carries."""
    return hashlib.sha256(line).hexdigest()[:32]


_START = line_hash(b"privrl-bench ledger, version 2")  # what the first line carries


class Mark(NamedTuple):
    """How far a ledger had come: its number of lines and the hash of the last."""

    lines: int = 0
    head: str = _START


class Content(NamedTuple):
    """What a file holds: its lines without their hashes, the hashes, and bytes of a torn last line."""

    lines: list[dict[str, Any]]
    hashes: list[str]
    torn: int


def read_chain(path: Path) -> Content:
    """Read a ledger and follow its chain. Raises ValueError: nothing true can be said about epsilon."""
    whole, _, torn = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
    lines, hashes = [], [_START]
    for number, raw in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            line = json.loads(raw)
        except ValueError as error:
            raise ValueError(f"{path.name} line {number} is damaged: {error}") from None
        if not isinstance(line, dict) or PREVIOUS not in line:
            raise ValueError(
                f"{path.name} line {number} has no hash of the line before (another version of this program?)"
            )
        if line.pop(PREVIOUS) != hashes[-1]:
            raise ValueError(
                f"{path.name} is damaged at line {number}: the line before it was changed, moved or removed"
            )
        lines.append(line)
        hashes.append(line_hash(raw))
    return Content(lines, hashes, len(torn))


def require_reaches(path: Path, marks: Iterable[tuple[str, Mark]]) -> None:
    """Raise ValueError unless the file is a whole chain that reaches every mark, named by who made it."""
    hashes = read_chain(path).hashes
    for who, mark in marks:
        if mark.lines >= len(hashes):
            raise ValueError(
                f"{path.name} has {len(hashes) - 1} lines, but {who} has seen {mark.lines}"
            )
        if hashes[mark.lines] != mark.head:
            raise ValueError(f"{path.name} line {mark.lines} is not the one that {who} has seen")
