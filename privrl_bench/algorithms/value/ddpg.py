"""DDPG, which collects the datasets of offline algorithms, from random to expert. Not private.

The episodes of a round are played with one policy; the gradient steps follow (`algo.updates`). Exploration is
independent Gaussian noise, not a correlated process.

Source: Lillicrap et al. 2016.
"""

from __future__ import annotations

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.value.actor_critic import DdpgLearner, Rates
from privrl_bench.algorithms.value.replay import Replay
from privrl_bench.algorithms.value.value_settings import DdpgConfig
from privrl_bench.models.bounded import DeterministicPolicy
from privrl_bench.models.mlp import Mlp


class Ddpg(Replay):
    """DDPG; see the module.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    def __init__(self, config: DdpgConfig, context: AlgorithmContext):
        spec, hidden = context.spec, tuple(config.hidden)
        critic = Mlp(spec.obs_dim + spec.actions, hidden, 1, "relu")
        policy = DeterministicPolicy(spec, hidden, config.exploration)
        super().__init__(
            config, context, DdpgLearner(policy, critic, Rates(config.lr, config.tau, config.decay))
        )


ALGORITHM = Ddpg
