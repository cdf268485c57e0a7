"""Evaluators: how released parameters are judged, on simulated or public data only.

An evaluator is a module with `EVALUATOR`, a class of what it `judges`: a value of `Traits.releases`.
Plugins add others (`register`). It is imported for the runs that it judges only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.errors import ConfigError

if TYPE_CHECKING:
    from privrl_bench.config.schema import RunConfig
    from privrl_bench.evaluation.evaluator import Evaluator

OUTSIDE: dict[str, str] = {}  # what is judged -> module of a plugin
_OURS = {"policy": f"{__name__}.returns"}


def evaluator_of(run: RunConfig) -> type[Evaluator]:
    """The class that judges what the releases of a run are. Raises ConfigError: there is none."""
    releases = run.algo.traits.releases
    where = {**_OURS, **OUTSIDE}.get(releases)
    if where is None:
        raise ConfigError("algo", f"algo={run.algo.name}: no evaluator judges {releases!r}")
    module = importlib.import_module(where)
    found: type[Evaluator] = module.EVALUATOR
    return found


def register(judges: str, module: str) -> None:
    """Add an evaluator of another package.

    Args:
        judges: what an algorithm says that it releases (`Traits.releases`).
        module: has `EVALUATOR`, a subclass of `evaluator.Evaluator`.

    Raises:
        ConfigError: another one judges it.
    """
    if {**_OURS, **OUTSIDE}.get(judges, module) != module:
        raise ConfigError("evaluators", f"another evaluator judges {judges!r}")
    OUTSIDE[judges] = module
