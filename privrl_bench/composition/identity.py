"""The identity of a run: one canonical form of everything that changes its data, rows, noise or schedule.

Seeded noise, resuming and the grouping of a sweep use this module only. Two runs with different identities have
independent noise. The identity does not depend on class names, on the order of fields, nor on keys that the
mechanism does not read.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.rules import unused

# A new version changes the noise of every run, and runs of an older version cannot be resumed. Increase it when
# the meaning of a key changes, or a key is renamed, or one is added and not in LATER.
VERSION = 2
# Keys that were added later, with the value at which a run is what it was before: left out there.
LATER = {
    **{"data.part": None, "algo.clipped_share": 1.0},
    **{"algo.metric": "euclidean", "algo.step_kl": 0.02, "algo.damping": 0.1, "algo.momentum": 0.9},
}
# Keys, or sections ending with a dot, that change neither data nor rows nor noise nor schedule.
IGNORED = (
    *("log.", "budget.", "plan_only", "resume", "plugins", "hyperparameter_source"),
    *("env.check", "env.text.simulated"),
    *("hardware.workers", "hardware.shard_users", "hardware.max_replicas"),
    *("hardware.engine", "hardware.address"),
)
# Keys that name a file or a run folder with it: the identity has the digest of its content.
FILES = {"algo.policy": "policy.pt"}
# Released parameters do not depend on how they are evaluated.
EVALUATION = ("eval.",)


def identity(config: RunConfig, without: Iterable[str] = ()) -> dict[str, Any]:
    """The identity as a flat mapping of sorted keys, for example `privacy.z` -> 0.1.

    Args:
        config: the configuration as it was composed, before anything is filled in from data.
        without: more keys, or sections ending with a dot, to leave out.
    """
    left_out = (*IGNORED, *without, *unused(config.privacy))
    return {"version": VERSION} | {
        key: _content(key, value) if key in FILES else value
        for key, value in sorted(_flat(config, RunConfig, "").items())
        if not _within(key, left_out) and not (key in LATER and value == LATER[key])
    }


def _content(key: str, value: Any) -> Any:
    """The digest of the file that a value names; the value itself where there is none."""
    path = Path(str(value))
    path = path / FILES[key] if path.is_dir() else path
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else value


def canonical(config: RunConfig, without: Iterable[str] = ()) -> str:
    """`identity` as JSON: equal text for equal runs. Raises ConfigError: a value has no JSON form."""
    return _as_text(identity(config, without))


def digest(config: RunConfig, without: Iterable[str] = ()) -> str:
    """SHA-256 of `canonical`, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(config, without).encode()).hexdigest()


def noise_key(config: RunConfig) -> int:
    """128 bits that select the seeded noise: equal only for runs with the same data, rows and schedule."""
    return int(digest(config, EVALUATION)[:32], 16)


def group_key(config: RunConfig) -> str:
    """Equal text for runs that can be trained together.

    They differ in seed, and in z where it changes no schedule. Unlike the identity this holds every key,
    because a group has one logger and one set of workers.
    """
    free = {"seed"} if config.privacy.epsilon is not None else {"seed", "privacy.z"}
    return _as_text({k: v for k, v in _flat(config, RunConfig, "").items() if k not in free})


def _as_text(flat: dict[str, Any]) -> str:
    for key, value in flat.items():
        try:
            if not _named(value):
                raise TypeError("names must be text")
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(key, f"must hold plain values only: {error}") from None
    return json.dumps(flat, sort_keys=True, separators=(",", ":"))


def _named(value: Any) -> bool:
    """Whether all keys of nested mappings are texts: JSON writes 1 and "1" alike."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _named(inner) for key, inner in value.items())
    return all(map(_named, value)) if isinstance(value, list) else True


def _within(key: str, names: Iterable[str]) -> bool:
    """Whether a key is one of the names, or in one of the sections among them."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _flat(value: Any, declared: Any, key: str) -> dict[str, Any]:
    """Leaves of nested dataclasses by dotted key, each in the form of its declared type."""
    if not is_dataclass(value):
        return {key: _leaf(value, declared)}
    kind: type = type(value)
    hints = _hints(kind)
    prefix = f"{key}." if key else ""
    found: dict[str, Any] = {}
    for one in fields(value):
        found |= _flat(getattr(value, one.name), hints[one.name], prefix + one.name)
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _leaf(value: Any, declared: Any) -> Any:
    """A value without the differences that mean nothing: 1 and 1.0, -0.0 and 0.0, tuples and lists."""
    options = typing.get_args(declared) if _is_union(declared) else (declared,)
    if isinstance(value, list | tuple):
        (of,) = {typing.get_args(o)[0] for o in options if typing.get_origin(o) is list} or {None}
        return [_leaf(x, of) for x in value]
    if isinstance(value, dict):
        return {key: _leaf(inner, None) for key, inner in value.items()}
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) + 0.0  # -0.0 + 0.0 is 0.0
    return value


def _is_union(declared: Any) -> bool:
    return isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union
