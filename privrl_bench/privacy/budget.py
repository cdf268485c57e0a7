"""A budget for the same people: a file that every run about them charges before it draws its first cohort.

The guarantee is the cap of `accounting/filters.py`: everything that was charged here stays within epsilon,
however the runs were chosen. `charged` is the sum of costs so far. It says what still fits, and is no epsilon.

    reserve: the cost of all planned releases of a run; refused if it does not fit
    settle:  the cost of the releases that its ledger has, once it has ended; less if it ended early

What was reserved stays charged until it is settled, so a killed run is charged in full, and a resumed one tops
up what repeated rounds cost before they are drawn. A reservation belongs to one run folder, by its inode
and a token that changes at every charge (`training/charging.py`): a copy cannot resume on it.

Parts of the users compose in parallel. Which part a user is in is public and fixed (their position in a fixed
order modulo the number of parts), so a run on part 1/2 releases nothing about a user of part 2/2: given all
earlier releases it has the same distribution with and without their data. The filter therefore holds for each
user with the costs of the runs that may have taken this user; what is charged is the largest of these sums.

The file is SQLite with a rollback journal and `synchronous=EXTRA`: a committed reservation survives a power
cut. It needs a local disk, because locks of network file systems are not reliable. Its log is a chain of
hashes. An older copy of the file that was put back is found when a later run folder is shown to it, and cannot
be found otherwise.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.filters import SLACK, PrivacyFilter
from privrl_bench.privacy.ledger import Mark, sync_folder

KEY = "budget"
WAIT = 60.0  # seconds for another process
_VERSION = "privrl_bench budget 2"
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre"),
    *("fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs"),
)
_TABLES = """
CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE entries (
    id TEXT PRIMARY KEY, run TEXT NOT NULL, inode INTEGER NOT NULL, what TEXT NOT NULL, status TEXT NOT NULL,
    state TEXT NOT NULL, charged REAL NOT NULL, slack REAL NOT NULL, lines INTEGER NOT NULL, head TEXT NOT NULL,
    token TEXT NOT NULL, part TEXT NOT NULL, time TEXT NOT NULL);
CREATE TABLE log (
    number INTEGER PRIMARY KEY, time TEXT NOT NULL, entry TEXT NOT NULL, action TEXT NOT NULL,
    charged REAL NOT NULL, note TEXT NOT NULL, whole TEXT NOT NULL, chain TEXT NOT NULL);
"""


@dataclass(frozen=True)
class BudgetTerms:
    """What is fixed when a budget is made.

    Attributes:
        id: of the budget, random.
        population: id of the dataset whose users they are.
        unit: what one user is, in words.
        user_key: of the dataset, which names its users; empty: each episode is one.
        users: digest of who they are, in the order that parts and public users follow from.
        public_users: how many users a run may take as public, at most.
        filter: kind, epsilon, delta, adjacency and order.
    """

    id: str
    population: str
    unit: str
    user_key: str
    users: str
    public_users: int
    filter: PrivacyFilter


@dataclass(frozen=True)
class Entry:
    """What one run is charged.

    Attributes:
        id: of the reservation.
        run: its folder, when it was reserved.
        inode: of this folder.
        what: the run in words.
        status: of the guarantee: formal | unreviewed | heuristic | none.
        state: reserved | settled.
        charged: cost in the unit of the filter; of a run without a bound infinite.
        slack: share of discrete noise.
        mark: how far the ledger had come when this was written.
        token: of the folder that holds it, new at every change.
        part: of the private users, as 1/2; empty: all of them.
        time: of the last change, UTC.
    """

    id: str
    run: str
    inode: int
    what: str
    status: str
    state: str
    charged: float
    slack: float
    mark: Mark
    token: str = ""
    part: str = ""
    time: str = ""

    @property
    def bounded(self) -> bool:
        """Whether the guarantee of the budget covers it."""
        return self.status == "formal"


class Budget:
    """A budget file; see the module.

    Args:
        path: of the file.

    Raises:
        ConfigError: on `budget`: there is no such file, it is no budget, or it is on a network file system.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise ConfigError(KEY, f"there is no file {path}; privrl budget create makes one")
        _check_local(self.path)
        # The journal of a killed process has the name of one of them.
        if self.path.stat().st_nlink > 1:
            raise ConfigError(KEY, f"{path} has a second name, by a hard link; remove one of them")
        with self._open() as file:
            found = dict(file.execute("SELECT name, value FROM terms"))
        if found.pop("version", None) != _VERSION:
            raise ConfigError(KEY, f"{path} is a budget of another version of this program")
        order = found.pop("order")
        kind = PrivacyFilter(
            found.pop("kind"),
            float(found.pop("epsilon")),
            float(found.pop("delta")),
            found.pop("adjacency"),
            float(order) if order else None,
        )
        self.terms = BudgetTerms(public_users=int(found.pop("public_users")), filter=kind, **found)

    @classmethod
    def create(cls, path: str | Path, terms: BudgetTerms) -> Budget:
        """Make the file. Raises ConfigError: it is there, cannot be written, or its epsilon is too small."""
        path = Path(path)
        temporary = temporary_of(path, terms.id)
        try:
            assert terms.filter.capacity > 0
        except PrivacyError as error:
            raise ConfigError("--epsilon", str(error)) from None
        kind = terms.filter
        values = {
            **{"version": _VERSION, "id": terms.id, "population": terms.population},
            **{
                "unit": terms.unit,
                "user_key": terms.user_key,
                "users": terms.users,
                "public_users": str(terms.public_users),
            },
            **{"kind": kind.kind, "epsilon": repr(kind.epsilon), "delta": repr(kind.delta)},
            **{"adjacency": kind.adjacency, "order": repr(kind.order) if kind.order else ""},
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_local(path.parent)
        except OSError as error:
            raise ConfigError(KEY, f"cannot write {path}: {error.strerror}") from None
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous=EXTRA")
                file.executescript(_TABLES)
                file.executemany("INSERT INTO terms VALUES (?, ?)", values.items())
                total = shown_epsilon(kind.epsilon)
                said = f"epsilon {total}, delta {kind.delta:g}"
                _log(file, "", "create", 0.0, said, _digest(sorted(values.items())))
            os.link(temporary, path)  # whole, or not at all; never over another file
            sync_folder(path.parent)
        except FileExistsError:
            raise ConfigError(KEY, f"{path} exists; a budget is made once") from None
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(KEY, f"cannot write {path}: {error}") from None
        finally:
            temporary.unlink(missing_ok=True)
        return cls(path)

    # -- what is there ----------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """What every run is charged, in the order of their reservations."""
        with self._open() as file:
            return _entries(file)

    def log(self) -> list[dict[str, Any]]:
        """Every change: number, time, entry, action, charged, note."""
        with self._open() as file:
            rows = file.execute("SELECT number, time, entry, action, charged, note FROM log")
            names = ("number", "time", "entry", "action", "charged", "note")
            return [dict(zip(names, row, strict=True)) for row in rows]

    @property
    def share(self) -> float:
        """How much of the capacity is charged, 0 to 1, for the users with the most; unbounded runs apart."""
        return most_charged(self.entries()) / self.terms.filter.capacity

    @property
    def status(self) -> str:
        """Formal, or heuristic once a run that is not formal was charged."""
        return "formal" if all(one.bounded for one in self.entries()) else "heuristic"

    def cap(self) -> str:
        """What may be said of everything that was charged, in words."""
        terms, kind = self.terms, self.terms.filter
        said = (
            f"everything about {terms.population} that is charged to {self.path.name} stays within epsilon "
            f"{shown_epsilon(kind.epsilon)} at delta {kind.delta:g}"
        )
        worse = [one for one in self.entries() if not one.bounded]
        if worse:
            said = (
                f"there is no bound on everything about {terms.population}: {worse[0].what} is "
                f"{worse[0].status}; the rest {said.partition(' that is ')[2]}"
            )
        return said

    def left(self, part: str = "") -> float:
        """What still fits for a part of the users, in the unit of the filter."""
        return max(self.terms.filter.capacity - most_charged(self.entries(), part), 0.0)

    # -- reserve and settle -----------------------------------------------------------------

    def reserve(self, entries: Sequence[Entry], *, heuristic: bool = False) -> None:
        """Charge runs that are about to begin or to resume, all of them or none.

        One that is known is charged its new cost, if that is larger; it never gets anything back here.

        Args:
            entries: with the planned cost.
            heuristic: whether runs without a formal guarantee are allowed.

        Raises:
            ConfigError: on `budget`: they do not fit, are not formal, or belong to another folder.
        """
        with self._open() as file, _changing(file):
            known = {one.id: one for one in _entries(file)}
            for one in entries:
                if one.bounded and not math.isfinite(one.charged):
                    raise ConfigError(
                        KEY, f"{one.what} has no finite cost in the filter of {self.path}"
                    )
                if not one.bounded and not heuristic:
                    raise ConfigError(
                        KEY,
                        f"{one.what} is {one.status}, so that nothing could be said of everything about "
                        f"{self.terms.population} any more; budget.allow=heuristic charges it all the same",
                    )
                before = known.get(one.id)
                if before is not None and before.part != one.part:
                    raise ConfigError(
                        KEY, f"{one.run} was charged for other users; use resume=restart"
                    )
                if before is not None and before.inode != one.inode:
                    raise ConfigError(
                        KEY,
                        f"the reservation of {one.run} belongs to {before.run}, of which it is a copy; "
                        "use resume=restart, which reserves anew",
                    )
                charged = max(one.charged, before.charged if before else 0.0)
                slack = max(one.slack, before.slack if before else 0.0)
                worst = before.status if before is not None and not before.bounded else one.status
                known[one.id] = replace(
                    one, state="reserved", charged=charged, slack=slack, status=worst
                )
                _put(file, known[one.id], "top up" if before else "reserve")
            others = _others(known, entries)
            for part in {one.part for one in entries}:
                if not self.terms.filter.fits(most_charged(known.values(), part), 0.0):
                    raise DoesNotFit(self.terms.filter.capacity - most_charged(others, part))
            if sum(one.slack for one in known.values() if one.bounded) > SLACK:
                raise ConfigError(
                    KEY, "discrete noise of so many runs has no analysis; make another budget"
                )

    def settle(self, entries: Sequence[Entry]) -> None:
        """Charge runs that have ended what their ledgers have, and remember how far these came."""
        with self._open() as file, _changing(file):
            known = {one.id: one for one in _entries(file)}
            for one in entries:
                if (before := known.get(one.id)) is None:
                    raise ConfigError(KEY, f"{self.path} knows nothing of {one.run}")
                worst = before.status if not before.bounded else one.status
                if one.charged > before.charged * (1.0 + 1e-9):  # more than was planned
                    worst = "heuristic" if worst == "formal" else worst
                kept = one.charged if worst == before.status else max(one.charged, before.charged)
                found = replace(one, state="settled", status=worst, charged=kept, part=before.part)
                _put(file, found, "settle")

    # -- verify -----------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """What is wrong: pages, the chain of the log, terms and entries that differ from it, the cap."""
        found = []
        with self._open() as file:
            (state,) = file.execute("PRAGMA integrity_check").fetchone()
            if state != "ok":
                found.append(f"SQLite: {state}")
            chain, last = "", {}
            for number, row in enumerate(
                file.execute(f"SELECT {_LOGGED}, chain FROM log ORDER BY number"), start=1
            ):
                chain = _chained(chain, row[:-1])
                if row[0] != number or row[-1] != chain:
                    found.append(f"line {number} of the log was changed, or one before it removed")
                    break
                last[row[2]] = row[-2]
            terms = file.execute("SELECT name, value FROM terms ORDER BY name").fetchall()
            if last.pop("", None) != _digest(terms):
                found.append("the terms are not those of the log")
            for row in file.execute(f"SELECT {_FIELDS} FROM entries").fetchall():
                if last.pop(row[0], None) != _digest(row):
                    found.append(f"{row[1]}: the entry is not the one that the log has last")
            found += [f"entry {name} is in the log and not in the table" for name in last]
            if not self.terms.filter.fits(most_charged(_entries(file)), 0.0):
                found.append("more is charged than the budget has")
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection. Raises ConfigError: the file cannot be read, or is busy for too long."""
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)) as file:
                file.execute("PRAGMA synchronous=EXTRA")
                yield file
        except sqlite3.Error as error:
            raise ConfigError(KEY, f"{self.path}: {error}") from None


class DoesNotFit(ConfigError):
    """A run costs more than is left; the caller says what would fit. `left`: in the unit of the filter."""

    def __init__(self, left: float):
        super().__init__(KEY, "the run does not fit")
        self.left = max(left, 0.0)


def temporary_of(path: Path, name: str) -> Path:
    """Where a budget with this id is written before it gets its name."""
    return path.with_name(f"{path.name}.{name[:8]}.tmp")


def new_id() -> str:
    """Of a budget or a reservation: random."""
    return uuid.uuid4().hex


# --- the file

_LOGGED = "number, time, entry, action, charged, note, whole"
_FIELDS = "id, run, inode, what, status, state, charged, slack, lines, head, token, part, time"


@contextmanager
def _changing(file: sqlite3.Connection) -> Iterator[None]:
    """One transaction, which locks other processes out from its start."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        file.execute("ROLLBACK")
        raise
    file.execute("COMMIT")


def _entries(file: sqlite3.Connection) -> list[Entry]:
    rows = file.execute(f"SELECT {_FIELDS} FROM entries ORDER BY rowid")
    named = (dict(zip(_FIELDS.split(", "), row, strict=True)) for row in rows)
    return [Entry(mark=Mark(one.pop("lines"), one.pop("head")), **one) for one in named]


def _put(file: sqlite3.Connection, one: Entry, action: str) -> None:
    """Write an entry and a line of the log."""
    now = _now()
    # As SQLite gives them back.
    one = replace(one, charged=float(one.charged), slack=float(one.slack))
    values = [getattr(one, name) for name in _FIELDS.split(", ")[:8]]
    values += [one.mark.lines, one.mark.head, one.token, one.part, now]
    marks = ", ".join("?" * len(values))
    kept = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS.split(", ")[1:])
    file.execute(
        f"INSERT INTO entries ({_FIELDS}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {kept}",
        values,
    )
    _log(file, one.id, action, one.charged, one.run, _digest(values))


def _log(
    file: sqlite3.Connection, entry: str, action: str, charged: float, note: str, whole: str
) -> None:
    """Add a line; `whole` is the digest of the row, or of the terms."""
    number, chain = file.execute(
        "SELECT COUNT(*), COALESCE((SELECT chain FROM log ORDER BY number DESC LIMIT 1), '') FROM log"
    ).fetchone()
    row = (number + 1, _now(), entry, action, charged, note, whole)
    file.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, _chained(chain, row)))


def _chained(before: str, row: Sequence[Any]) -> str:
    return _digest((before, *row))


def _digest(values: Iterable[Any]) -> str:
    return hashlib.sha256(repr(tuple(values)).encode()).hexdigest()[:32]


def _others(known: dict[str, Entry], entries: Sequence[Entry]) -> list[Entry]:
    asked = {one.id for one in entries}
    return [one for name, one in known.items() if name not in asked]


def most_charged(entries: Iterable[Entry], part: str = "") -> float:
    """The sum of costs for the users of a part who have the most; empty: of all users."""
    bounded = [one for one in entries if one.charged < math.inf]
    all_parts = [_index(one.part) for one in bounded]
    own, own_parts = _index(part)
    whole = math.lcm(own_parts, *(parts for _, parts in all_parts))
    return max(
        sum(
            one.charged
            for one, (index, parts) in zip(bounded, all_parts, strict=True)
            if user % parts == index
        )
        for user in range(own, whole, own_parts)
    )


def _index(part: str) -> tuple[int, int]:
    """1/2 as (0, 2): users at positions p with p % 2 == 0; empty: (0, 1)."""
    number, _, parts = (part or "1/1").partition("/")
    return int(number) - 1, int(parts)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _check_local(path: Path) -> None:
    """Raise ConfigError if a file is on a network file system, where the system says so (Linux)."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return
    place, best = os.fspath(path.resolve()), ("", "")
    for line in lines:
        _, mount, kind = line.split()[:3]
        mount = mount.replace("\\040", " ")
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    if best[1] in _NETWORK:
        raise ConfigError(
            KEY,
            f"{path} is on a network file system ({best[1]}), whose locks are not reliable; use a local disk",
        )
