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


def users_of(
    labels: Labels, episodes: int, key: str | None, name: str
) -> tuple[np.ndarray, str | None]:
    """Determine the users of a dataset's episodes.

    Args:
        labels: Of the episodes.
        episodes: K.
        key: `data.user_key`.
        name: The dataset, for messages.

    Returns:
        [K] int64, the users, from 0 in the order of their first episodes; the metadata key that names them,
        None: each episode is a user.

    Raises:
        ConfigError: On data.user_key: no episode, or only some, have `key`; with `auto`, no episode has the
            key `user`, but another key may name users.
    """
    if key == AUTO:
        key = next((ours for ours in (OURS, OPTION) if ours in labels), None)
        other = (
            None if key else next((k for k in sorted(labels) if may_name_users(labels[k])), None)
        )
        if other is not None:
            raise ConfigError(
                "data.user_key",
                f"no episode of {name} has the metadata key {OURS!r}, but the values of {other!r} repeat "
                f"and may name users: set data.user_key={other}, or data.user_key=null if each episode is "
                "a user",
            )
    if key is None:
        return np.arange(episodes, dtype=np.int64), None
    values = labels.get(key, [])
    there = sum(value is not None for value in values)
    if there < episodes:
        near = "" if there else suggest(key, sorted(labels))
        raise ConfigError(
            "data.user_key",
            f"{there} of the {episodes} episodes of {name} have the metadata key {key!r}{near}; it must be in "
            "all or none (null: each episode is a user)",
        )
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(_name(value), len(numbers)) for value in values]
    return np.array(found, dtype=np.int64), key


def may_name_users(values: list[Label]) -> bool:
    """Whether a key's values may name users: several text or whole values, some in several episodes.

    Whole numbers may be floats: a table with a missing value turns integers into floats.

    >>> may_name_users(["a", "b", "a"]), may_name_users([1.0, 2.0, 1.0])
    (True, True)
    >>> may_name_users([1, 2, 3]), may_name_users([2, 2, 2]), may_name_users([0.5, 0.2, 0.5])
    (False, False, False)
    """
    counts = Counter(values)
    there = [v for v in counts if v is not None]
    named = all(
        not isinstance(v, bool) and (isinstance(v, str | int) or v.is_integer()) for v in there
    )
    return named and len(counts) > 1 and any(counts[v] > 1 for v in there)


def _name(value: Label) -> str:
    """A user's name: 2 and 2.0 are one user."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[arg-type]
