"""DDPG, which collects the datasets of offline algorithms, from random to expert. Not private.

The episodes of a round are played with one policy; the gradient steps follow (`algo.updates`). Exploration is
independent Gaussian noise, not a correlated process.

Source: Lillicrap et al. 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.value.actor_critic import DdpgLearner
from privrl_bench.algorithms.value.replay import Replay, ReplayConfig, bounded_box
from privrl_bench.errors import require
from privrl_bench.models.bounded import DeterministicPolicy
from privrl_bench.models.mlp import Mlp


@dataclass
class DdpgConfig(ReplayConfig):
    """Settings of DDPG."""

    name: str = "ddpg"
    exploration: float = 0.1  # std of the noise on actions, the box being [-1, 1]
    decay: float = 1e-2  # L2 penalty of the critic

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.exploration", self.exploration >= 0, ">= 0", self.exploration)
        require("algo.decay", self.decay >= 0, ">= 0", self.decay)


class Ddpg(Replay):
    """DDPG; see the module.

    Args:
        config: settings of the algorithm.
        setup: context of the run.

    Raises:
        ConfigError: actions are not a bounded box.
    """

    def __init__(self, config: DdpgConfig, setup: AlgorithmContext):
        spec, hidden = bounded_box(setup.spec, config.name), tuple(config.hidden)
        critic = Mlp(spec.obs_dim + spec.actions, hidden, 1, "relu")
        policy = DeterministicPolicy(spec, hidden, config.exploration)
        super().__init__(config, setup, DdpgLearner(policy, critic, config.rates(), config.decay))


ALGORITHM, CONFIG = Ddpg, DdpgConfig
