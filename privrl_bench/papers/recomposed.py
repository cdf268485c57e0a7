"""Whether the overrides of a row of a results store still give the settings that the row records.

Rows with a digest of the identity (version 1) are compared by it, older ones by their recorded settings only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from privrl_bench.composition import hydra_compose as compose
from privrl_bench.composition.compose import replaced
from privrl_bench.composition.identity import VERSION, identity
from privrl_bench.config.diagnostics import CONSTANT
from privrl_bench.config.overrides import explicit_keys
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.reporting.run_loader import digest_of
from privrl_bench.reporting.runs import flatten

# Keys that a commit counted in the identity at the value that all earlier runs have (ba0579c).
_COUNTED = {"algo.time_limit": "bootstrap"}
_RESOLVED = ("privacy.z", "rounds")  # found when a run is built, then in its configuration


def difference(row: Mapping[str, str]) -> str:
    """What a row's overrides give that the row does not record, in words; empty if nothing."""
    try:
        settings, identified = _composed(row["overrides"])
    except ConfigError as error:
        return f"cannot be composed: {error}"
    recorded: dict[str, Any] = json.loads(row["settings"])
    own = {"algo.name": row["algo"], "env.name": row["env"]}
    changed = [key for key, value in {**recorded, **own}.items() if not _same(settings, key, value)]
    if changed:
        return f"other settings: {', '.join(changed)}"
    version = row["digest"].partition(":")[0]
    if version != f"v{VERSION}" or not row["seed"]:
        return ""
    known = {**identified, "seed": int(row["seed"])}
    if "fit_population" in known or known.get("privacy.z", 0) is None:
        known |= {key: recorded[key] for key in _RESOLVED if key in recorded}
        known.pop("fit_population", None)
    if row["digest"] in (digest_of(known), digest_of({**known, **_COUNTED})):
        return ""
    return "another digest"


def _same(settings: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether the composed value is the recorded one; a number that is found later is not composed."""
    if key not in settings:
        return False
    later = key in _RESOLVED and settings[key] is None
    return later or bool(settings[key] == value)


@cache
def _composed(overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings by dotted key, identity) of overrides. Raises ConfigError."""
    words = overrides.split()
    known = {path.name for path in compose.conf_dir().iterdir() if path.is_dir()}
    settled = compose.hydra_overrides(words)
    chosen = tuple(word for word in settled if word.partition("=")[0].lstrip("+") in known)
    others = [word for word in settled if word not in chosen]
    run: RunConfig = replaced(_chosen(chosen), others, explicit_keys(words))
    return dict(flatten(asdict(run))), identity(run, CONSTANT)


@cache
def _chosen(words: Sequence[str]) -> Any:
    """The files that the words choose, composed once for all values of other keys."""
    return compose.compose_raw(words)
