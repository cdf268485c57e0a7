"""SAC, a non-private reference for continuous control.

The episodes of a round are played with one policy; the gradient steps follow (`algo.updates`).

Source: Haarnoja et al. 2018 (arXiv 1812.05905).
"""

from __future__ import annotations

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.value.actor_critic import Rates, SacLearner
from privrl_bench.algorithms.value.replay import Replay
from privrl_bench.algorithms.value.value_settings import SacConfig
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.mlp import Mlp


class Sac(Replay):
    """SAC; see the module.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    def __init__(self, config: SacConfig, context: AlgorithmContext):
        spec = context.spec
        hidden, goal = tuple(config.hidden), config.target_entropy
        critic = Mlp(spec.obs_dim + spec.actions, hidden, 1, "relu")
        entropy = -float(spec.actions) if goal is None else goal
        policy = SquashedPolicy(spec, hidden)
        super().__init__(
            config, context, SacLearner(policy, critic, Rates(config.lr, config.tau), entropy)
        )


ALGORITHM = Sac
