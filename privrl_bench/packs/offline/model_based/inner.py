"""The learner of the policy inside the models: SAC for actions in a box, DQN for discrete ones.

Both keep actions as their policy chooses them; `encoded` makes inputs of the models of them. Where the public
users' episodes end, a logistic regression on their observations says which states of a rollout end it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privrl_bench.algorithms.base import check_actions
from privrl_bench.algorithms.value.actor_critic import Batch, Rates, SacLearner
from privrl_bench.algorithms.value.q_learning import QLearner
from privrl_bench.config.traits import Actions
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.offline.learning.action_values import ActionValuePolicy
from privrl_bench.packs.offline.model_based.model_based_settings import ModelBasedConfig
from privrl_bench.types import EnvSpec

_EXPLORING = 0.1  # chance of a random action in a rollout of DQN
_RIDGE, _NEWTON = 1e-3, 30  # of the regression, per step and state; Newton steps


class SacInside(SacLearner):
    """SAC; actions are those of `SquashedPolicy`.

    Args:
        config: settings of the algorithm.
        spec: of the environment.

    Raises:
        ConfigError: the actions are not in a bounded box.
    """

    def __init__(self, config: ModelBasedConfig, spec: EnvSpec):
        check_actions(Actions.BOX, spec, config.name)
        entropy = config.target_entropy
        super().__init__(
            SquashedPolicy(spec, tuple(config.hidden)),
            Mlp(spec.obs_dim + spec.actions, tuple(config.hidden), 1, "relu"),
            Rates(config.lr, config.tau),
            -float(spec.actions) if entropy is None else entropy,
            config.temperature,
        )

    def recorded(self, actions: Tensor) -> Tensor:
        """[..., A] in [-1, 1] of recorded actions."""
        return torch.from_numpy(self.policy.from_env(actions.numpy())).float()

    def encoded(self, actions: Tensor) -> Tensor:
        """[..., A] inputs of the models."""
        return actions

    def acting(self, actor: Tensor) -> Tensor:
        """[R, P] parameters of the policy that acts in rollouts."""
        return actor


class QInside(QLearner):
    """DQN; actions are numbers of choices, and the saved policy is greedy.

    Args:
        config: settings of the algorithm.
        spec: of the environment.
    """

    def __init__(self, config: ModelBasedConfig, spec: EnvSpec):
        super().__init__(QPolicy(spec, tuple(config.hidden)), Rates(config.lr, config.tau))
        self._choices = spec.actions

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """See `QLearner.init`; epsilon is 0."""
        tensors = super().init(streams)
        tensors["actor"][:, -1] = 0.0
        return tensors | {"steps": tensors["updates"]}

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """See `QLearner.step`."""
        new = super().step(tensors, batch, draws)
        return new | {"steps": new["updates"]}

    def recorded(self, actions: Tensor) -> Tensor:
        """[...] choices."""
        return actions.float()

    def encoded(self, actions: Tensor) -> Tensor:
        """[..., A] inputs of the models: 1 for the choice, else 0."""
        return torch.nn.functional.one_hot(actions.long(), self._choices).float()

    def acting(self, actor: Tensor) -> Tensor:
        """[R, P] parameters of the policy that acts in rollouts: epsilon-greedy."""
        actor = actor.clone()
        actor[:, -1] = _EXPLORING
        return actor


def inside(config: ModelBasedConfig, spec: EnvSpec) -> SacInside | QInside:
    """The learner for the actions of an environment. Raises ConfigError."""
    return QInside(config, spec) if spec.discrete else SacInside(config, spec)


def never(obs: Tensor) -> Tensor:
    """[...] false."""
    return torch.zeros(obs.shape[:-1], dtype=torch.bool)


def endings(spec: EnvSpec, obs: Tensor, ended: Tensor) -> Callable[[Tensor], Tensor]:
    """Whether an episode ends in a state, [...] of scaled observations [..., D].

    Logistic regression on all monomials up to degree 2 of public observations.

    Args:
        spec: of the environment.
        obs: [n, D] public observations after a step.
        ended: [n] bool, the task ended there.
    """
    if not ended.any():
        return never
    features = ActionValuePolicy(spec, "quadratic", 1.0).raw
    x, y = features(obs).double(), ended.double()
    weights, eye = x.new_zeros(x.shape[1]), torch.eye(x.shape[1], dtype=x.dtype)
    for _ in range(_NEWTON):
        chance = torch.sigmoid(x @ weights)
        slope = x.mT @ (chance - y) / len(x) + _RIDGE * weights / len(x) ** 0.5
        curve = (x * (chance * (1 - chance))[:, None]).mT @ x / len(x)
        weights = weights - torch.linalg.solve(curve + _RIDGE * eye / len(x) ** 0.5, slope)
    found = weights.float()
    return lambda states: features(states) @ found > 0.0
