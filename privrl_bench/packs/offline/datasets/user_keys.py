"""Users of a dataset's episodes: who they are, named by the episodes' metadata, and whether they are simulated.

The metadata of a dataset say `users: simulated` or `users: real`. Nothing else is taken for it, such as an id,
which everyone can give, or an author.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest

OURS = "user"  # the key that `write_minari` and `privrl collect` use
OPTION = "options/user"  # where Minari keeps the user of `reset(options={"user": k})`
AUTO = "auto"  # `OURS` or `OPTION` if episodes have it; otherwise each episode is a user
MINARIS = ("id", "total_steps", "seed")  # Minari's own keys
SIMULATED, REAL = "simulated", "real"  # values of the metadata's and the card's key `users`

Label = str | int | float | bool | None
Labels = dict[str, list[Label]]  # key -> [K] value of each episode; None: the episode has no value


def labels_of(metadata: Mapping[str, Any], prefix: str = "") -> dict[str, Label]:
    """Return the scalar values in an episode's metadata, without Minari's own.

    Args:
        metadata: Of an episode, possibly nested.
        prefix: Of the keys; key b of a nested dictionary a is `a/b`.
    """
    found: dict[str, Label] = {}
    for name, value in metadata.items():
        if not prefix and str(name).split("/")[0] in MINARIS:
            continue
        if isinstance(value, Mapping):
            found |= labels_of(value, f"{prefix}{name}/")
            continue
        if isinstance(value, np.ndarray | np.generic) and value.size == 1:
            value = value.item()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, str | int | float) and value == value:  # NaN: the value is missing
            found[f"{prefix}{name}"] = value
    return found


def repeated_keys(labels: Labels) -> tuple[str, ...]:
    """Return keys that may name users: several text or whole values, some in several episodes.

    Whole numbers may be floats: a table with a missing value turns integers into floats.

    >>> repeated_keys({"patient": ["a", "b", "a"], "run": [1, 2, 3], "version": [2, 2, 2]})
    ('patient',)
    >>> repeated_keys({"patient": [1.0, 2.0, 1.0], "share": [0.5, 0.2, 0.5]})
    ('patient',)
    """

    def repeats(values: list[Label]) -> bool:
        counts = Counter(values)
        there = [v for v in counts if v is not None]
        plain = all(_may_name(v) for v in there)
        return plain and len(counts) > 1 and any(counts[v] > 1 for v in there)

    return tuple(sorted(key for key, values in labels.items() if repeats(values)))


def _may_name(value: Label) -> bool:
    whole = isinstance(value, float) and value.is_integer()
    return (isinstance(value, str | int) and not isinstance(value, bool)) or whole


def users_of(
    labels: Labels, episodes: int, key: str | None, name: str
) -> tuple[np.ndarray, str | None, tuple[str, ...]]:
    """Determine the users of a dataset's episodes.

    Args:
        labels: Of the episodes.
        episodes: K.
        key: `data.user_key`.
        name: The dataset, for messages.

    Returns:
        [K] int64, the users, from 0 in the order of their first episodes; the metadata key that names them,
        None: each episode is a user; other keys whose values repeat over episodes, and so may name users.

    Raises:
        ConfigError: On data.user_key: no episode, or only some, have `key`; with `auto`, no episode has the
            key `user`, but other keys may name users.
    """
    repeated = repeated_keys(labels)
    ours = OPTION if OPTION in labels and OURS not in labels else OURS
    if key is None or (key == AUTO and ours not in labels):
        if key == AUTO and repeated:
            raise ConfigError("data.user_key", _unnamed(labels, repeated, name))
        return np.arange(episodes, dtype=np.int64), None, repeated
    key = ours if key == AUTO else key
    if key not in labels:
        what = "is Minari's own, not a user's," if key in MINARIS else "is in no episode"
        hint = suggest(key, sorted(labels))
        if repeated:
            hint += f", whose keys {', '.join(map(repr, repeated[:4]))} repeat and may name users"
        raise ConfigError(
            "data.user_key",
            f"{key!r} {what} of {name}{hint}; null: each episode is a user",
        )
    values = labels[key]
    there = sum(value is not None for value in values)
    if there < episodes:
        raise ConfigError(
            "data.user_key",
            f"{there} of the {episodes} episodes of {name} have the metadata key {key!r}; it must be in all or "
            "none (null: each episode is a user)",
        )
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(_name(value), len(numbers)) for value in values]
    return np.array(found, dtype=np.int64), key, tuple(k for k in repeated if k != key)


def _name(value: Label | None) -> str:
    """A user's name: 2 and 2.0 are one user."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[arg-type]


def _unnamed(labels: Labels, repeated: tuple[str, ...], name: str) -> str:
    """Message for a dataset that may name its users by another key."""
    first = labels[repeated[0]]
    values = {value for value in first if value is not None}
    there = sum(value is not None for value in first)
    others = f" (so do {', '.join(map(repr, repeated[1:4]))})" if repeated[1:] else ""
    return (
        f"no episode of {name} has the metadata key {OURS!r}, but {repeated[0]!r} has {len(values)} values in "
        f"{there} episodes{others} and may name users: set data.user_key={repeated[0]}, or "
        "data.user_key=null if each episode is a user"
    )
