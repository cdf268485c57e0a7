"""The ledger: one line for every release, on the disk before its noise is drawn.

A line says what was about to be released, not what the data were. A crash between the line and the
noise counts a release that did not happen; the opposite cannot happen. (Lines are written while users act, and
for some rounds at once, so that training does not wait for the disk: a crash counts these rounds.)

A second line follows with a digest of what came out (a released value, so post-processing), on the disk before
anything can leave the process. That is how a resumed run with seeded noise knows that it repeats the same
release, which costs nothing, and not a second one under the same noise, which would reveal the data. Secure
noise does not need it: each of its attempts has noise of its own and is counted. (A second attempt at a seeded
round shows that its rows could not be computed again alike; the guarantee then says so.)

Lines are JSON in a hash chain. Each carries the hash of the line before it, so an edited, removed or reordered
line is found. A lost tail is not; whatever depends on the lines (checkpoints, rows of metrics) therefore
remembers how many there were and the last hash, a `Mark`, and a run is resumed only if its ledger still reaches
every mark. A torn last line that no mark covers is cut. The chain finds accidents: whoever can write the folder
can write a new chain.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from privrl_bench.privacy.accounting.releases import ReleaseEvent, merged

if TYPE_CHECKING:
    from torch import Tensor

_RELEASE_KEYS = {f.name for f in fields(ReleaseEvent)}
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


def digest(values: dict[str, Tensor]) -> str:
    """Short fingerprint of a release, for the next line of the ledger."""
    total = hashlib.sha256()
    for name in sorted(values):
        total.update(name.encode())
        total.update(values[name].detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def sync_folder(folder: Path) -> None:
    """A new file survives a power cut once its folder is synced (where a folder can be)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def event_of(line: dict[str, Any]) -> ReleaseEvent:
    """What a line says was released; a line without a sampler has none, and no epsilon."""
    return ReleaseEvent(
        **({"sampling": ""} | {k: v for k, v in line.items() if k in _RELEASE_KEYS})
    )


class Ledger:
    """Append-only `ledger.jsonl` of one replica. `path=None` keeps it in memory (plans, tests).

    Whoever opens a run's ledger holds the lock of its folder (`training/runner.py`).

    Raises:
        ValueError: a damaged line, a broken chain or a lost attempt: nothing true can be said about epsilon.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self.lines: list[dict[str, Any]] = []  # intents, one for every attempt at a release
        self.mark = Mark()  # how far it has come; lines of digests count
        self._by_round: dict[int, list[dict[str, Any]]] = {}
        self._digests: dict[tuple[int, int], str] = {}
        self._events: dict[int, tuple[ReleaseEvent, ...]] = {}  # what the lines of a round say
        # How many rounds have lines that say the same.
        self._alike: Counter[tuple[ReleaseEvent, ...]] = Counter()
        self._end = 0  # the first round that has no line, nor any after it
        self._broken = self._unsynced = False
        self._lock = Lock()  # lines are written beside training
        if path is not None and path.exists():
            found = read_chain(path)
            if found.torn:  # what it announced, or the digest's release, has not left
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size - found.torn)
            for line in found.lines:
                self._remember(line)
            self.mark = Mark(len(found.lines), found.hashes[-1])
            self._unsynced = True  # a killed process may have left them in memory

    def _remember(self, line: dict[str, Any]) -> None:
        """Sort a line into intents and digests."""
        if "digest" in line:
            self._digests[int(line["round"]), int(line["attempt"])] = line["digest"]
        else:
            index, event = int(line["round"]), event_of(line)
            before = len(self._by_round.get(index, ()))
            if line["attempt"] != before:
                raise ValueError(
                    f"round {index} has attempt {line['attempt']} after {before} others"
                )
            self.lines.append(line)
            self._by_round.setdefault(index, []).append(line)
            known = self._events.get(index, ())
            self._events[index] = (*known, event)
            self._end = max(self._end, index + 1)
            self._alike[self._events[index]] += 1
            if known:
                self._alike[known] -= 1

    def _append(self, line: dict[str, Any]) -> None:
        """Write, then remember; `sync` must follow. Raises OSError, and then for ever."""
        with self._writing():
            chained = {**line, PREVIOUS: self.mark.head}
            raw = json.dumps(chained, sort_keys=True).encode()
            if self._path is not None:
                self._broken = True
                new = not self._path.exists()
                with self._path.open("ab") as file:
                    file.write(raw + b"\n")
                if new:
                    sync_folder(self._path.parent)
                self._broken, self._unsynced = False, True
            self._remember(line)
            self.mark = Mark(self.mark.lines + 1, line_hash(raw))

    def intend(
        self, round_index: int, release: ReleaseEvent, details: dict[str, Any], *, repeatable: bool
    ) -> int:
        """Record a release that is about to happen; returns which attempt at this round it is.

        `sync` must follow before its noise is drawn.

        Args:
            round_index: the round, from 0.
            release: what a user's guarantee sees of it.
            details: public facts (blocks with clip and z, cohort size, kind of noise).
            repeatable: noise is seeded, so an attempt that is in the ledger may be tried again; `came_out`
                returns whether it gives the same release.
        """
        line = {"round": round_index, **release.to_dict(), **details}
        same_round = self._by_round.setdefault(round_index, [])
        if repeatable and same_round:
            last = same_round[-1]
            if {k: v for k, v in last.items() if k != "attempt"} == line:
                return int(last["attempt"])
        return self._another(line)

    def _another(self, line: dict[str, Any]) -> int:
        """Append `line` as one more attempt at its round."""
        attempt = len(self._by_round.setdefault(int(line["round"]), []))
        self._append({**line, "attempt": attempt})
        return attempt

    def came_out(self, round_index: int, attempt: int, fingerprint: str) -> bool:
        """Record what an attempt gave; `sync` must follow before it leaves the process.

        Returns: False when the same attempt gave something else before. Then this value must not be
        used: it carries the noise of another release. `again` opens a new attempt.
        """
        known = self._digests.get((round_index, attempt))
        if known is None:
            line = {"round": round_index, "attempt": attempt, "digest": fingerprint}
            self._append(line)
        return known in (None, fingerprint)

    @property
    def waiting(self) -> bool:
        """Whether `sync` has anything to do or to say."""
        return self._unsynced or self._broken

    def sync(self) -> None:
        """Wait until all lines are on the disk. Raises OSError, and then for ever."""
        with self._writing():
            if self._path is not None and self._unsynced:
                self._broken = True
                with self._path.open("ab") as file:
                    os.fsync(file.fileno())
                self._broken = self._unsynced = False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One thread at a time. Raises OSError: something could not be written before."""
        with self._lock:
            if self._broken:
                raise OSError(
                    "the ledger could not be written before; nothing more may be released"
                )
            yield

    def again(self, round_index: int) -> int:
        """Open one more attempt at a round, alike to the last, and wait for the disk.

        Raises ValueError if there is none.
        """
        if not self._by_round.get(round_index):
            raise ValueError(f"round {round_index} has no attempt yet")
        last = self._by_round[round_index][-1]
        attempt = self._another({k: v for k, v in last.items() if k != "attempt"})
        self.sync()
        return attempt

    def attempts(self, round_index: int) -> int:
        """How many lines a round has."""
        return len(self._by_round.get(round_index, ()))

    def attempts_by_round(self, before: int | None = None) -> list[int]:
        """How many lines each round has, from the first that has any to the last below `before`."""
        indices = range(min(self._by_round, default=0), self.end(before))
        return [self.attempts(index) for index in indices]

    def end(self, before: int | None = None) -> int:
        """The first round that has no line below `before`, nor any after it."""
        return self._end if before is None else min(self._end, before)

    def repeated(self) -> list[int]:
        """Rounds with more than one line, in order."""
        return sorted(index for index, lines in self._by_round.items() if len(lines) > 1)

    def continued(
        self, round_index: int, rounds: int, release: ReleaseEvent, *, repeatable: bool
    ) -> Ledger:
        """What it will hold, in memory, when a run has continued from a round to its end.

        Args:
            round_index: where the run continues.
            rounds: of the whole run.
            release: as for `intend`.
            repeatable: as for `intend`.
        """
        found = Ledger(None)
        for line in self.lines:
            found._remember(line)
        for index in range(round_index, rounds):
            attempt = self.attempts(index)
            if not (repeatable and attempt):
                found._remember({"round": index, "attempt": attempt, **release.to_dict()})
        return found

    def last_lines(self, before: int) -> list[dict[str, Any]]:
        """The line of the last attempt at every round below `before`, in the order of rounds."""
        earlier = sorted(
            index for index, lines in self._by_round.items() if lines and index < before
        )
        return [self._by_round[index][-1] for index in earlier]

    def repeats(self, before: int | None = None) -> int:
        """Attempts beyond the first, at rounds below `before`."""
        return sum(n * (len(events) - 1) for events, n in self._rounds_alike(before).items())

    def most_repeats(self, window: int, before: int | None = None) -> int:
        """The most attempts beyond the first in so many consecutive rounds, all below `before`."""
        more = [max(n - 1, 0) for n in self.attempts_by_round(before)]
        sums = [0, *accumulate(more)]
        ends = (min(start + window, len(more)) for start in range(len(more)))
        return max((sums[end] - sums[start] for start, end in enumerate(ends)), default=0)

    def missing(self, rounds: int) -> list[int]:
        """Rounds below `rounds` that have no line: a ledger that was lost or cut."""
        return [index for index in range(rounds) if not self._by_round.get(index)]

    def releases(
        self, participation: int | None, before: int | None = None
    ) -> Counter[ReleaseEvent]:
        """Every release that the data of one user can have entered, in the worst case, and how often.

        Args:
            participation: in how many rounds at most one user takes part; None: in all of them.
            before: count rounds below this one only (a resumed run repeats rounds that it knows).

        A round has the same users at every attempt (`users/collectors/live.py`: their random streams are
        functions of slot and round). So the worst user is in the rounds whose attempts together cost most, the
        largest sums of z^-2 (all of one adjacency, not subsampled when `participation` is a number); those are
        returned.
        """
        rounds = self._rounds_alike(before)
        left = rounds.total() if participation is None else participation
        found: Counter[ReleaseEvent] = Counter()
        for events in sorted(rounds, key=lambda some: sum(e.cost for e in some), reverse=True):
            taken = min(rounds[events], left)
            left -= taken
            for event in events:
                found[event] += taken
        return +found  # without zero counts

    def releases_merged(self, norm: int, before: int | None = None) -> Counter[ReleaseEvent]:
        """All releases, the attempts at one round as one to the same users, with rows in an L1 or L2 norm."""
        found: Counter[ReleaseEvent] = Counter()
        for events, count in self._rounds_alike(before).items():
            for event in merged(events, norm):
                found[event] += count
        return +found

    def _rounds_alike(self, before: int | None) -> Counter[tuple[ReleaseEvent, ...]]:
        """How many rounds below `before` have which lines.

        A run asks after every round: only one that repeats known rounds searches.
        """
        alike = self._alike.copy()  # the gate may be writing
        for index in range(self._end if before is None else before, self._end):
            if index in self._events:
                alike[self._events[index]] -= 1
        return +alike

    def summary(self) -> dict[str, int]:
        """How many lines, released rounds and repeated rounds the ledger holds."""
        repeated = sum(n for events, n in self._rounds_alike(None).items() if len(events) > 1)
        rounds = len({index for index, _ in self._digests})
        return {"lines": len(self.lines), "rounds": rounds, "repeated": repeated}


def announce(path: Path, releases: Iterable[tuple[int, ReleaseEvent, dict[str, Any]]]) -> None:
    """Write an intent for each (number, event, details) into a ledger, and wait until all are on the disk.

    Announced again, they are the same lines.

    Raises:
        ValueError: the ledger is damaged, or has another line of a number.
    """
    ledger = Ledger(path)
    for number, event, details in releases:
        if ledger.intend(number, event, details, repeatable=True):
            raise ValueError(f"{path.name} has another run {number}, which was drawn otherwise")
    ledger.sync()
