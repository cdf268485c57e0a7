"""Base class of PPO and A2C: an actor and a critic trained on the pooled data of all users. Not private."""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, annealed, each_replica
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import A2cConfig, PpoConfig
from privrl_bench.algorithms.pooled_algorithm import POOLED, PooledAlgorithm
from privrl_bench.functional.discounted_returns import gae
from privrl_bench.functional.rng import Streams
from privrl_bench.models.cnn import make_network
from privrl_bench.models.policy import NetPolicy, make_policy
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.types import State, UserBatch


class PooledActorCritic(PooledAlgorithm):
    """Base class of pooled actor-critics; subclasses implement `update`.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    policy: NetPolicy

    optimizer_tensors: tuple[str, ...] = ()

    def __init__(self, config: PpoConfig | A2cConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.policy = make_policy(context.spec, config.hidden, config.network, config.log_std_init)
        self.value_net = make_network(context.spec, tuple(config.hidden), 1, config.network)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        tensors = {
            "actor": torch.stack([self.policy.init(s.torch("init", 0)) for s in streams]),
            "critic": torch.stack([self.value_net.init(s.torch("init", 1), 1.0) for s in streams]),
        }
        for part in ("actor", "critic"):
            for name in self.optimizer_tensors:
                tensors[f"{name}_{part}"] = torch.zeros_like(tensors[part])
        return State(0, tensors)

    def learning_rate(self, round_index: int) -> float:
        """Step size of a round."""
        rounds = self._context.schedule.rounds
        return annealed(self.config.lr, self.config.anneal_lr, round_index, rounds)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """See `learning_rate`."""
        return each_replica(state, lr=self.learning_rate(state.round - 1))

    def pooled_data(self, state: State, users: UserBatch) -> dict[str, Tensor]:
        """Compute the columns of the minibatches from all users.

        Returns:
            Tensors [R, U * T, ...]: obs, action, old (log probability), advantage, value, target.
        """
        critic = state.tensors["critic"]
        values = self.value_net.values(critic, users.obs)
        advantages = gae(
            users.rewards,
            values,
            self.value_net.values(critic, users.next_obs),
            users.terminated,
            users.done,
            self.config.gamma,
            self.config.gae_lambda,
        )
        data = {
            "obs": users.obs,
            "action": users.actions,
            "advantage": advantages,
            "value": values,
            "target": advantages + values,
        }
        pooled = {name: x.reshape(x.shape[0], -1, *x.shape[3:]) for name, x in data.items()}
        with torch.no_grad():
            pooled["old"], _ = self.policy.log_prob(
                state.tensors["actor"], pooled["obs"], pooled["action"]
            )
        return pooled

    def update(
        self, state: State, data: dict[str, Tensor], streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Train on pooled data.

        Args:
            state: current state.
            data: the tensors of `pooled_data`.
            streams: random streams of each replica.

        Returns:
            The tensors of the next state.
        """
        raise TypeError("PooledActorCritic is abstract; use Ppo or A2c")

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row per replica: the change of the policy on the data of all users."""
        tensors = self.update(state, self.pooled_data(state, users), streams)
        change = tensors.pop("actor") - state.tensors["actor"]
        # A round with an invalid user is skipped: pooled data cannot be separated by user.
        usable = users.valid.all(dim=1) & torch.isfinite(change).all(-1)
        for name, new in tensors.items():
            tensors[name] = torch.where(usable[:, None], new, state.tensors[name])
        return Contribution({"actor": change[:, None]}, usable[:, None], {POOLED: tensors})
