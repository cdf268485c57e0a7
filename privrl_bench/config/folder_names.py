"""The name of a run folder: the same for a job of a sweep and for the command run alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

LENGTH = 120  # characters
# Not in a folder's last part: named elsewhere in the path, or without influence on the result.
OUTSIDE = ("algo", "env", "seed", "plan_only", "resume", "plugins")
OUTSIDE_SECTIONS = ("log", "hardware", "hydra")


def leaf_name(given: Iterable[tuple[str, str]], seed: int) -> str:
    """The last part of a run folder: settings that change the result, sorted, then the seed.

    Equal for equal settings in any order. Characters that a file name cannot hold are replaced, and then a hash
    keeps different settings apart.

    Args:
        given: keys and values of the command line; a later value replaces an earlier one.
        seed: of the run.

    >>> leaf_name([("privacy.z", "0.1"), ("log", "none"), ("algo", "dppg")], 3)
    'privacy.z=0.1,seed=3'
    """
    given = list(given)
    keys = {key for key, _ in given}
    # Words that say what is so without them: of `overrides.explicit_length`, and z=auto beside an epsilon.
    implied = {("rounds", "null")} if "total_steps" in keys else set()
    implied |= {("privacy.z", "null")} if "privacy.epsilon" in keys else set()
    pairs = sorted(
        (key, value)
        for key, value in dict(given).items()
        if key not in OUTSIDE and re.split(r"[./]", key)[0] not in OUTSIDE_SECTIONS
        if (key, value) not in implied
    )
    safe = [(_safe(key), _safe(value)) for key, value in pairs]
    name = ",".join(f"{key}={value}" for key, value in safe)
    tail = f"seed={seed}"
    if safe != pairs or len(name) + len(tail) + 1 > LENGTH:
        digest = hashlib.sha256(repr(pairs).encode()).hexdigest()[:8]
        tail = f"sha_{digest},{tail}"
        name = _whole_settings(name, LENGTH - len(tail) - 1)
    return f"{name},{tail}" if name else tail


def _whole_settings(name: str, length: int) -> str:
    """As many of the settings of a name, from the first, as have room. None is cut.

    >>> _whole_settings("a=1,b=2,c=3", 6), _whole_settings("a=1,b=2,c=3", 7), _whole_settings("a=1", 2)
    ('a=1', 'a=1,b=2', '')
    """
    if len(name) <= length:
        return name
    return name[: length + 1].rpartition(",")[0]


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", text)
