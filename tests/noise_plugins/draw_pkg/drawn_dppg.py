"""DPPG for cohorts that are drawn without replacement."""

from dataclasses import dataclass

from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig


@dataclass
class DrawnDppgConfig(DppgConfig):
    name: str = "drawn_dppg"
    samplings = ("without_replacement",)


class DrawnDppg(Dppg):
    pass


ALGORITHM, CONFIG = DrawnDppg, DrawnDppgConfig
