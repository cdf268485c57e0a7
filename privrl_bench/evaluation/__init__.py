"""Evaluators: how released parameters are judged, on simulated or public data only.

An evaluator is a module with `EVALUATOR`, a class of what it `judges`, and has a line here. Those of values
and of language models are imported for the runs that they judge only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Product

if TYPE_CHECKING:
    from privrl_bench.config.schema import RunConfig
    from privrl_bench.evaluation.evaluator import Evaluator

_MODULES = {
    Product.POLICY: "returns",
    Product.VALUES: "mspbe",
    Product.TEXT_POLICY: "generations",
}


def evaluator_of(run: RunConfig) -> type[Evaluator]:
    """The class that judges what the releases of a run are."""
    module = importlib.import_module(f"{__name__}.{_MODULES[run.algo.traits.releases]}")
    found: type[Evaluator] = module.EVALUATOR
    return found
