"""Evaluators: how released parameters are judged, on simulated or public data only.

An evaluator is a module with `EVALUATOR`. Its name in the registry is what it judges, a value of
`Traits.releases`, with `@kind` where it judges without a simulator in environments of an `env.kind`. It is
imported for the runs that it judges only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privrl_bench.config.registry import Registry
from privrl_bench.errors import ConfigError

if TYPE_CHECKING:
    from privrl_bench.config.schema import RunConfig
    from privrl_bench.evaluation.evaluator import Evaluator

REGISTRY = Registry({"policy": f"{__name__}.returns"}, "EVALUATOR", "evaluators")


def evaluator_of(run: RunConfig) -> type[Evaluator]:
    """The class that judges what the releases of a run are. Raises ConfigError: there is none."""
    releases = run.algo.traits.releases
    for name in (f"{releases}@{run.env.kind}", releases):
        if name in REGISTRY.names():
            found: type[Evaluator] = REGISTRY.get(name)
            return found
    raise ConfigError("algo", f"algo={run.algo.name}: no evaluator judges {releases!r}")
