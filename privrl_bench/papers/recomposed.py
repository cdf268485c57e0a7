"""Whether the overrides of a row of a results store still give the run that the row records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity
from privrl_bench.errors import ConfigError
from privrl_bench.reporting.run_loader import digest_of


def difference(row: Mapping[str, str]) -> str:
    """What is wrong with a row, in words; empty if its overrides and its seed have its digest.

    Numbers that a plan finds, z of an epsilon and rounds of a population, are the row's `settings`.
    """
    try:
        composed = _composed(row["overrides"])
    except ConfigError as error:
        return f"cannot be composed: {error}"
    known = {**composed, "seed": int(row["seed"])}
    if known["fit_population"] or known.get("privacy.z", 0) is None:
        recorded = json.loads(row["settings"])
        found = {key: recorded[key] for key in ("privacy.z", "rounds") if key in recorded}
        known |= {**found, "fit_population": False}
    return "" if row["digest"] == digest_of(known) else "another digest"


@cache
def _composed(overrides: str) -> dict[str, Any]:
    """The identity of overrides. Raises ConfigError."""
    return identity(compose(overrides.split()))
