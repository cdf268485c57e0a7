"""The names of run folders: the same for a job of a sweep and for the command run alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from privrl_bench.config.overrides import GENERIC

LENGTH = 120  # characters of the last part
LEADING = 40  # characters that have the algorithm, the environment and epsilon or z
_PRIVACY = len("/epsilon=0.5/")
# Not in a folder's last part: named elsewhere in the path, or without influence on the result.
OUTSIDE = ("algo", "env", "seed", "plan_only", "resume", "plugins")
OUTSIDE_SECTIONS = ("log", "hardware", "hydra", "budget")
# The keys that come first, and their names there.
FIRST = {"privacy.epsilon": "epsilon", "privacy.z": "z"}


def folder_name(algo: str, env: str, given: Iterable[tuple[str, str]], seed: int) -> str:
    """`<algo>/<environment>/<settings>,seed=<seed>`: epsilon or z first, the other settings sorted.

    Equal for equal settings in any order. Where settings are cut, or hold characters that a file name cannot
    hold, a digest at the end keeps different ones apart.

    Args:
        algo: choice of the algorithm.
        env: choice of the environment; one of `GENERIC` has the name of what it stands for instead.
        given: keys and values of the command line; a later value replaces an earlier one.
        seed: of the run.

    >>> folder_name("dppg", "hopper", [("algo.lr", "0.1"), ("privacy.z", "1"), ("log", "none")], 3)
    'dppg/hopper/z=1,algo.lr=0.1,seed=3'
    >>> folder_name("dppg", "gym", [("env.id", "my_pkg:MyEnv-v0"), ("privacy.epsilon", "1")], 0)
    'dppg/MyEnv-v0/epsilon=1,seed=0'
    """
    values = dict(given)
    # Words that say what is so without them: of `overrides.explicit_length`, and z=auto beside an epsilon.
    implied = {("rounds", "null")} if "total_steps" in values else set()
    implied |= {("privacy.z", "null")} if "privacy.epsilon" in values else set()
    pairs = sorted(
        (key, value)
        for key, value in values.items()
        if key not in OUTSIDE and re.split(r"[./]", key)[0] not in OUTSIDE_SECTIONS
        if (key, value) not in implied
    )
    named = _named_by(env, values)
    # Without the module of an id: a run of one name from another module is another run, and not resumed.
    own = "-".join(values[key].strip("'\"").rpartition(":")[2] for key in named) or env
    folder = _safe(own)[: LEADING - _PRIVACY - len(algo)]
    shown = [pair for pair in pairs if pair[0] not in named]
    shown.sort(key=lambda pair: pair[0] not in FIRST)
    if folder != own:
        pairs.append(("env", own))
    safe = [(_safe(key), _safe(value)) for key, value in shown]
    name = ",".join(f"{FIRST.get(key, key)}={value}" for key, value in safe)
    tail = f"seed={seed}"
    if folder != own or safe != shown or len(name) + len(tail) + 1 > LENGTH:
        tail += f",sha_{hashlib.sha256(repr(pairs).encode()).hexdigest()[:8]}"
        name = _whole_settings(name, LENGTH - len(tail) - 1)
    return f"{algo}/{folder}/{name},{tail}" if name else f"{algo}/{folder}/{tail}"


def _named_by(env: str, values: Iterable[str]) -> tuple[str, ...]:
    """The keys whose values name the environment; none: its choice does."""
    keys = {"gym": ("env.id",), "dmc": ("env.domain", "env.task")}[env] if env in GENERIC else ()
    return keys if {*keys} <= {*values} else ()


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
