"""Rows of logs as episodes: columns on the disk, their order, where episodes end, and the dataset.

A row is a step: who, when, what was observed, what was done, the reward. Rows of a user need not be together.
Columns lie in files and are read in parts, so that tables may be larger than memory; of each row the user, the
place and the end are in memory (about 30 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError, require, require_choice
from privrl_bench.packs.offline.datasets.trajectories import Trajectories, public_users
from privrl_bench.packs.offline.datasets.user_keys import OURS, REAL, SIMULATED
from privrl_bench.packs.offline.logs import tables
from privrl_bench.packs.offline.logs.ranges import Choices, NumberRange, PublicRanges, proposed
from privrl_bench.packs.offline.logs.tables import invalid_row

_PART = 1 << 20  # rows in memory at once


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are.

    Attributes:
        user: whose step it is.
        order: by which the steps of a user, or of an episode, are in order.
        obs: observations, numbers or words.
        action: one column of words or whole numbers, or numbers.
        reward: a number.
        done: whether the task ended with this step; "": no such column.
        truncated: whether something else ended it; "": no such column.
        episode: an episode of the user; "": a user's episodes end where `done` or `truncated` says.
        probability: of the action under the policy that acted, in (0, 1]; "": no such column.
    """

    user: str
    order: str
    obs: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    done: str = ""
    truncated: str = ""
    episode: str = ""
    probability: str = ""

    def __post_init__(self) -> None:
        names = self.names
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError("FILE", f"the column {twice[0]!r} is named for two things")
        for name in self.obs:  # plan=basic is 1 if the column plan is basic
            require("--obs", "=" not in name, "names without =", name)
        if not (self.done or self.truncated or self.episode):
            raise ConfigError(
                "--done", "say what ends an episode: --done, --truncated or --episode"
            )

    @property
    def names(self) -> list[str]:
        """All of them."""
        given = (self.user, self.order, *self.obs, *self.action, self.reward, self.done)
        return [name for name in (*given, self.truncated, self.episode, self.probability) if name]


@dataclass(frozen=True)
class Conventions:
    """What no log says.

    Attributes:
        users: `real` or `simulated`.
        last_observation: what follows the last step of an episode. `repeat`: its own observation again.
            `drop`: so after a termination; a truncated episode loses its last step, whose observation ends it.
        open_end: how an episode ended whose last row does not say so, `terminated` or `truncated`; "": such
            logs are refused.
        gaps: `refuse` or `allow` a missing number in a column that counts steps.
        steps: T, the largest number of steps of an episode; public.
    """

    users: str
    last_observation: str
    steps: int
    open_end: str = ""
    gaps: str = "refuse"

    def __post_init__(self) -> None:
        require_choice("--users", self.users, (REAL, SIMULATED))
        require_choice("--last-observation", self.last_observation, ("repeat", "drop"))
        require_choice("--open-end", self.open_end, ("", "terminated", "truncated"))
        require_choice("--gaps", self.gaps, ("refuse", "allow"))
        require("--steps", self.steps >= 1, "an integer >= 1", self.steps)


@dataclass
class LogRows:
    """Columns of a table: [N] each, in the order of the table.

    Attributes:
        users: number of each row's user, by first appearance.
        names: of the users.
        place: by which rows are in order.
        episode: number of each row's episode value; None: there is no such column.
        done, truncated: flags.
        values: column -> memory-mapped numbers: float64, or int64 codes of words.
        words: column -> its words, of columns that hold any.
    """

    users: np.ndarray
    names: list[str]
    place: np.ndarray
    episode: np.ndarray | None
    done: np.ndarray
    truncated: np.ndarray
    values: dict[str, np.ndarray] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)


def read_rows(source: Any, columns: Columns, ranges: PublicRanges | None, folder: Path) -> LogRows:
    """Read a table; the values go to files in `folder`.

    Raises:
        ConfigError: on FILE, of a row or a column.
    """
    users, episodes, order = tables.Codes(), tables.Codes(), tables.RowOrder()
    kept: dict[str, list[np.ndarray]] = {name: [] for name in ("user", "place", "episode", *_FLAGS)}
    kinds: dict[str, tables.Codes | None] = {}
    files = {name: folder / str(k) for k, name in enumerate(columns.names)}
    single = [*columns.obs, *columns.action, columns.reward, *filter(None, [columns.probability])]
    for first, batch in tables.counted(tables.batches(source, columns.names)):
        column = dict(zip(columns.names, batch.columns, strict=True))
        kept["user"].append(users.of(column[columns.user], first, columns.user))
        kept["place"].append(order.of(column[columns.order], first, columns.order))
        if columns.episode:
            kept["episode"].append(episodes.of(column[columns.episode], first, columns.episode))
        for flag in _FLAGS:
            name = getattr(columns, flag)
            found = tables.flags(column[name], first, name) if name else np.zeros(len(batch), bool)
            kept[flag].append(found)
        for name in single:
            if name not in kinds:
                said = ranges.of(name) if ranges and name in columns.obs + columns.action else None
                words = isinstance(said, Choices) or (
                    said is None
                    and name in columns.obs + columns.action
                    and _is_words(column[name])
                )
                kinds[name] = tables.Codes() if words else None
            codes = kinds[name]
            read = tables.numbers if codes is None else codes.of
            with files[name].open("ab") as file:
                read(column[name], first, name).tofile(file)
    if not kept["user"]:
        raise ConfigError("FILE", "there are no rows")
    whole = {name: np.concatenate(parts) for name, parts in kept.items() if parts}
    rows = LogRows(
        whole["user"],
        list(users.names),
        whole["place"],
        whole.get("episode"),
        whole["done"],
        whole["truncated"],
    )
    for name in single:
        codes = kinds[name]
        kind: Any = np.float64 if codes is None else np.int64
        rows.values[name] = np.memmap(files[name], kind, "r")
        if codes is not None:
            rows.words[name] = list(codes.names)
    return rows


_FLAGS = ("done", "truncated")


def _is_words(values: Any) -> bool:
    """Whether a column of a first batch holds words."""
    import pyarrow as pa

    try:
        tables.numbers(values.drop_null(), 0, "")
    except (ConfigError, pa.ArrowException):
        return True
    return False


# --- order and episodes


@dataclass(frozen=True)
class EpisodeCuts:
    """Steps in order.

    Attributes:
        rows: [N] row of each step.
        starts: [K + 1] first step of each episode, then N.
        terminated: [K] whether the task ended.
    """

    rows: np.ndarray
    starts: np.ndarray
    terminated: np.ndarray


def cut(rows: LogRows, columns: Columns, terms: Conventions) -> EpisodeCuts:
    """Put the steps of each user in order and find the episodes.

    Raises:
        ConfigError: on FILE: two rows of one place, a gap, an end before the end, or no end.
    """
    keys = [rows.users] if rows.episode is None else [rows.users, rows.episode]
    order = _sorted(rows, keys)
    users, place = rows.users[order], rows.place[order]
    new = np.ones(len(order), bool)  # whether a step begins another user or episode value
    new[1:] = users[1:] != users[:-1]
    if rows.episode is not None:
        episode = rows.episode[order]
        new[1:] |= episode[1:] != episode[:-1]
    same = ~new[1:] & (place[1:] == place[:-1])
    if same.any():
        k = int(np.argmax(same))
        raise invalid_row(int(order[k + 1]), columns.order, f"is that of row {order[k] + 1}, too")
    _check_gaps(order, place, new, columns, terms)
    ends = rows.done[order] | rows.truncated[order]
    last = np.append(new[1:], True)
    if rows.episode is not None and (ends & ~last).any():
        k = int(np.argmax(ends & ~last))
        what = columns.done if rows.done[order[k]] else columns.truncated
        raise invalid_row(int(order[k]), what, "is true before the last step of its episode")
    if (last & ~ends).any() and not terms.open_end:
        k = int(np.argmax(last & ~ends))
        whose = "of its episode" if rows.episode is not None else "of its user"
        raise invalid_row(
            int(order[k]),
            "",
            f"is the last one {whose} and does not end an episode: give --open-end",
        )
    over = np.flatnonzero(ends | last)
    terminated = rows.done[order[over]]
    if terms.open_end == "terminated":
        terminated = terminated | ~ends[over]
    starts = np.concatenate([[0], over + 1])
    long = np.diff(starts) > terms.steps
    if long.any():
        k = int(np.argmax(long))
        text = f"is step {terms.steps + 1} of an episode of {np.diff(starts)[k]}; --steps is {terms.steps}"
        raise invalid_row(int(order[starts[k] + terms.steps]), "", text)
    if terms.last_observation == "drop":
        short = ~terminated & (np.diff(starts) == 1)
        if short.any():
            row = int(order[over[np.argmax(short)]])
            raise invalid_row(
                row, "", "is a truncated episode of one step, of which drop leaves none"
            )
    return EpisodeCuts(order, starts, terminated)


def _sorted(rows: LogRows, keys: Sequence[np.ndarray]) -> np.ndarray:
    """[N] rows, those of a user and an episode together, each in order; as they are if they are in order."""
    ahead = np.zeros(len(rows.users) - 1, bool)  # strictly behind the row before
    level = np.ones(len(rows.users) - 1, bool)  # equal to it so far
    for key in (*keys, rows.place):
        ahead |= level & (key[1:] < key[:-1])
        level &= key[1:] == key[:-1]
    if not ahead.any():
        return np.arange(len(rows.users))
    return np.lexsort((rows.place, *reversed(keys)))


def _check_gaps(
    order: np.ndarray, place: np.ndarray, new: np.ndarray, columns: Columns, terms: Conventions
) -> None:
    """Refuse a missing number in a column that counts steps, which is one whose median difference is 1."""
    inside = ~new[1:]
    if terms.gaps == "allow" or not np.issubdtype(place.dtype, np.integer) or not inside.any():
        return
    steps = np.diff(place)
    wide = inside & (steps > 1)
    if wide.any() and np.median(steps[inside]) == 1:
        k = int(np.argmax(wide))
        text = f"is {place[k + 1]} after {place[k]}: a step is missing (--gaps allow: it counts no steps)"
        raise invalid_row(int(order[k + 1]), columns.order, text)


# --- the dataset


def dataset(
    rows: LogRows,
    cuts: EpisodeCuts,
    columns: Columns,
    terms: Conventions,
    ranges: PublicRanges | None,
    share: float,
    folder: Path,
) -> Trajectories:
    """The episodes, with arrays in files in `folder`.

    The card has under `minari` what a dataset of Minari has in its metadata (spaces and whose data they are),
    and under `logs` the ranges, T, and how many public users gave the ranges, if they were not given.

    Args:
        rows: of the table.
        cuts: its episodes.
        columns: of the table.
        terms: what no log says.
        ranges: public ranges and choices; None: those of the public users' rows.
        share: of public users.
        folder: for the arrays.

    Raises:
        ConfigError: an action outside its choices or range, or a probability outside (0, 1].
    """
    episode_users = rows.users[cuts.rows[cuts.starts[:-1]]]
    givers = 0
    if ranges is None:
        # Users are numbered by their first episodes, as `users_of` does.
        _, at, inverse = np.unique(episode_users, return_index=True, return_inverse=True)
        places = np.empty(len(at), np.int64)
        places[np.argsort(at, kind="stable")] = np.arange(len(at))
        chosen = public_users(len(at), share)
        steps = np.repeat(np.isin(places[inverse], chosen), np.diff(cuts.starts))
        ranges = proposed(rows.values, rows.words, columns.obs, columns.action, cuts.rows[steps])
        givers = len(chosen)
    made = _arrays(rows, cuts, columns, terms, ranges, folder)
    about = {"ranges": ranges.to_dict(), "steps": terms.steps, "givers": givers}
    choices = ranges.choices_of(columns.action)
    about |= {
        "observations": ranges.names(columns.obs),
        "choices": choices.names if choices else [],
        "actions": columns.action,
    }
    made.card = {"minari": {"users": terms.users, **ranges.spaces(columns.obs, columns.action)}}
    made.card["logs"] = about
    made.labels = {OURS: [rows.names[u] for u in episode_users]}
    return made


def outside(rows: LogRows, ranges: dict[str, Any], columns: Sequence[str]) -> dict[str, int]:
    """Of columns of numbers, how many rows are outside their range, if any."""
    found = {}
    for name in columns:
        if isinstance(ranges[name], dict):
            values, said = rows.values[name], ranges[name]
            found[name] = int(np.count_nonzero((values < said["low"]) | (values > said["high"])))
    return {name: count for name, count in found.items() if count}


def _arrays(
    rows: LogRows,
    cuts: EpisodeCuts,
    columns: Columns,
    terms: Conventions,
    ranges: PublicRanges,
    folder: Path,
) -> Trajectories:
    """The arrays of `Trajectories`, in files; users are named by the labels."""
    lengths = np.diff(cuts.starts)
    cropped = ~cuts.terminated & (terms.last_observation == "drop")
    starts = np.concatenate([[0], (lengths - cropped).cumsum()])
    count, steps = len(lengths), int(starts[-1])
    width = sum(ranges.width(name) for name in columns.obs)
    choices = ranges.choices_of(columns.action)

    def made(name: str, shape: tuple[int, ...], kind: Any) -> np.ndarray:
        return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)

    observations = made("observations", (steps + count, width), np.float32)
    shape = (steps,) if choices else (steps, len(columns.action))
    actions = made("actions", shape, np.int64 if choices else np.float32)
    rewards = made("rewards", (steps,), np.float32)
    probs = made("behavior_probs", (steps,), np.float32) if columns.probability else None
    for few in _parts(cuts.starts):
        at = cuts.rows[cuts.starts[few.start] : cuts.starts[few.stop]]
        last, crop = lengths[few].cumsum() - 1, cropped[few]
        # Each row once, and the last one again where it is not cropped.
        again = np.ones(len(at), np.int64)
        again[last[~crop]] = 2
        seen, acted = np.repeat(at, again), np.delete(at, last[crop])
        done = int(starts[few.start])
        into = slice(done + few.start, done + few.start + len(seen))
        observations[into] = _observed(rows, columns, ranges, seen)
        where = slice(done, done + len(acted))
        actions[where] = _acted(rows, columns, ranges, acted)
        rewards[where] = rows.values[columns.reward][acted]
        if probs is not None:
            probs[where] = _chances(rows, columns, acted)
    terminated = np.zeros(steps, bool)
    terminated[starts[1:][cuts.terminated] - 1] = True
    return Trajectories(
        *(observations, actions, rewards, terminated, starts),
        np.arange(count),
        behavior_probs=probs,
    )


def _chances(rows: LogRows, columns: Columns, at: np.ndarray) -> np.ndarray:
    """[n] probabilities of the actions of rows."""
    chance = np.asarray(rows.values[columns.probability][at])
    wrong = ~((chance > 0) & (chance <= 1))
    if wrong.any():
        k = int(np.argmax(wrong))
        text = f"must be in (0, 1], got {chance[k]:g}"
        raise invalid_row(int(at[k]), columns.probability, text)
    return chance


def _parts(starts: np.ndarray) -> Iterator[slice]:
    """Slices of episodes with about as many steps as may be in memory."""
    first, count = 0, len(starts) - 1
    while first < count:
        last = int(np.searchsorted(starts, starts[first] + _PART, "right")) - 1
        last = max(min(last, count), first + 1)
        yield slice(first, last)
        first = last


def _observed(rows: LogRows, columns: Columns, ranges: PublicRanges, at: np.ndarray) -> np.ndarray:
    """[n, D] float32 observations of rows; words as one-hot vectors."""
    parts = []
    for name in columns.obs:
        values = np.asarray(rows.values[name][at])
        said = ranges.of(name)
        if isinstance(said, Choices):
            places = _places(rows, name, said, values, at)
            parts.append(np.eye(len(said.names), dtype=np.float32)[places])
        else:
            parts.append(values.astype(np.float32)[:, None])
    return np.concatenate(parts, axis=1)


def _acted(rows: LogRows, columns: Columns, ranges: PublicRanges, at: np.ndarray) -> np.ndarray:
    """[n] int64 choices, or [n, A] float32 actions of rows."""
    choices = ranges.choices_of(columns.action)
    if choices is not None:
        (name,) = columns.action
        return _places(rows, name, choices, np.asarray(rows.values[name][at]), at)
    parts = []
    for name in columns.action:
        values, said = np.asarray(rows.values[name][at]), ranges.of(name)
        assert isinstance(said, NumberRange)
        outside = ~((values >= said.low) & (values <= said.high))
        if outside.any():
            k = int(np.argmax(outside))
            text = f"is {values[k]:g}, outside {said.low:g} to {said.high:g}{ranges.source}"
            raise invalid_row(int(at[k]), name, text)
        parts.append(values.astype(np.float32))
    return np.stack(parts, axis=1)


def _places(
    rows: LogRows, name: str, said: Choices, values: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """[n] int64 places of values among the choices."""
    known = {word: place for place, word in enumerate(said.names)}
    if name in rows.words:
        table = np.array([known.get(word, -1) for word in rows.words[name]], np.int64)
        found = table[values]
    else:
        numbers = np.array([float(word) for word in said.names])
        order = np.argsort(numbers)
        near = np.searchsorted(numbers[order], values).clip(max=len(order) - 1)
        found = np.where(numbers[order][near] == values, order[near], -1)
    if (found < 0).any():
        k = int(np.argmax(found < 0))
        word = rows.words[name][values[k]] if name in rows.words else f"{values[k]:g}"
        text = f"is {word!r}, not one of {', '.join(said.names)}"
        raise invalid_row(int(at[k]), name, text)
    return found
