"""The algorithms, by the name that `algo=` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privrl_bench.algos.a2c import A2c
from privrl_bench.algos.base import Algorithm, Setup
from privrl_bench.algos.dppg import Dppg
from privrl_bench.algos.ppo import Ppo

ALGORITHMS: dict[str, Callable[[Any, Setup], Algorithm]] = {"dppg": Dppg, "ppo": Ppo, "a2c": A2c}
