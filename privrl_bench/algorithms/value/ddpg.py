"""DDPG, which collects the datasets of offline algorithms: everything from random to expert. Not private.

Source: Lillicrap et al. 2016. Here a round's episodes are played with one policy, then as many gradient
steps follow as `algo.updates` says; exploration is Gaussian noise, not a process in time.
"""

from __future__ import annotations

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.algorithms.value.actor_critic import DdpgLearner, Rates
from privrl_bench.algorithms.value.replay import Replay, bounded_box
from privrl_bench.algorithms.value.value_settings import DdpgConfig
from privrl_bench.models.bounded import DeterministicPolicy
from privrl_bench.models.mlp import Mlp


class Ddpg(Replay):
    """See the module's text."""

    def __init__(self, config: DdpgConfig, setup: AlgorithmContext):
        spec, hidden = bounded_box(setup.spec, config.name), tuple(config.hidden)
        critic = Mlp(spec.obs_dim + spec.actions, hidden, 1, "relu")
        policy = DeterministicPolicy(spec, hidden, config.exploration)
        super().__init__(config, setup, DdpgLearner(policy, critic, Rates(config.lr, config.tau), config.decay))


ALGORITHM = Ddpg
