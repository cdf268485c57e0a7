"""The critics of DPPG.

Each critic declares its blocks of a user's row, and what it releases outside the gate.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, per_user
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.algorithms.policy_gradient.user_training import (
    UserOptimizerConfig,
    UserTrainer,
    ValueObjective,
)
from privrl_bench.functional.optim import adam_start
from privrl_bench.functional.rng import Streams
from privrl_bench.models.cnn import make_network
from privrl_bench.models.features import FourierFeatures
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import State, UserBatch, generator

SHARED_CRITIC = "shared critic"
# The features are public and the same for every run, so that they do not depend on any data.
_FEATURE_WORDS = (20250117, 7)


# The critic's blocks of the users' rows, and what bypasses the gate: caveat -> tensors.
CriticOutput = tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]


class TrainingBatch(NamedTuple):
    """Data that a critic is trained on in one round.

    Attributes:
        values: [R, U, T] values of the current critic.
        targets: [R, U, T] lambda-returns.
        order: [E, R * U, M, B] indices of steps, from `algorithms.base.step_order`.
        lr: step size.
    """

    values: Tensor
    targets: Tensor
    order: Tensor
    lr: float


class Critic:
    """A state-value estimate and its training on users.

    This one is no critic: the advantage is the user's own discounted reward-to-go.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    caveats: ClassVar[dict[str, str]] = {}

    def __init__(self, config: DppgConfig, context: AlgorithmContext):
        self._config, self._context = config, context

    def blocks(self) -> tuple[Block, ...]:
        """The critic's blocks of a user's row."""
        return ()

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """The critic's initial state tensors, from the random streams of each replica."""
        return {}

    def values(self, state: State, obs: Tensor) -> Tensor:
        """Estimate the values of observations.

        Args:
            state: current state.
            obs: [R, U, T, D].

        Returns:
            [R, U, T] values.
        """
        return obs.new_zeros(obs.shape[:-1])

    def user_update(self, state: State, users: UserBatch, batch: TrainingBatch) -> CriticOutput:
        """Compute the critic's part of a contribution.

        Args:
            state: current state.
            users: steps of the users.
            batch: data of this round.

        Returns:
            The critic's blocks of the users' rows by name, and the tensors that bypass the gate by caveat.
        """
        return {}, {}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """The critic's new state tensors after a release."""
        return {}


class SharedCritic(Critic):
    """The paper's critic: a network whose changes of users are averaged without noise.

    It is not private, which `caveats` declares.

    Source: "Differentially Private Policy Gradient", algorithm 3.
    """

    caveats: ClassVar[dict[str, str]] = {
        SHARED_CRITIC: "the average of users' critic changes carries no noise and steers later users' "
        "updates"
    }

    def __init__(self, config: DppgConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._net = make_network(context.spec, tuple(config.hidden), 1, config.network)
        self._train = UserTrainer(ValueObjective(self._net), context.device)

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Orthogonal initial weights [R, P]."""
        made = [self._net.init(s.torch("init", 1), last_gain=1.0) for s in streams]
        tensors = {"critic": torch.stack(made)}
        if self._config.user_adam == "seeded":
            tensors["last_critic"] = torch.zeros_like(tensors["critic"])
        return tensors

    def values(self, state: State, obs: Tensor) -> Tensor:
        """See `Critic.values`."""
        return self._net.values(state.tensors["critic"], obs)

    def user_update(self, state: State, users: UserBatch, batch: TrainingBatch) -> CriticOutput:
        """Train with Adam on a quarter of the squared error, in a ball of radius `critic_clip`."""
        replicas, count = users.valid.shape
        start = state.tensors["critic"].repeat_interleave(count, dim=0)
        adam = adam_start(start)
        if "last_critic" in state.tensors and state.round > 0:
            last = state.tensors["last_critic"].repeat_interleave(count, dim=0)
            steps = state.round * batch.order[:, 0, :, 0].numel()
            adam = adam._replace(m=last, v=last**2, step=steps)

        data = {"obs": per_user(users.obs), "target": per_user(batch.targets)}
        optimizer = UserOptimizerConfig(batch.order, batch.lr, self._config.critic_clip, adam)
        change = self._train(start, data, optimizer)
        change = change.reshape(replicas, count, -1)
        usable = users.valid & torch.isfinite(change).all(-1)
        change = torch.where(usable[..., None], change, 0.0)
        return {}, {SHARED_CRITIC: {"change": change.sum(1) / self._context.privacy.users}}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Add the mean change, which has no noise."""
        change = released.bypass[SHARED_CRITIC]["change"]
        tensors = {"critic": state.tensors["critic"] + change}
        if "last_critic" in state.tensors:
            tensors["last_critic"] = change
        return tensors


def ridge_regressions(phi: Tensor, target: Tensor, count: Tensor, ridge: float) -> Tensor:
    """Solve (phi' phi / n + ridge I) x = phi' target / n for every user.

    On the CPU one user after the other, so that a solution depends on no other user to the last bit; elsewhere
    batched, in calls of always the same shape. In single precision; where rounding leaves a matrix without a
    Cholesky factor, in double precision.

    Args:
        phi: [N, T, F] features, zero where a user has no step.
        target: [N, T] targets, zero where a user has no step.
        count: [N] numbers of steps n.
        ridge: L2 penalty.

    Returns:
        [N, F] solutions.
    """

    def solve(phi: Tensor, target: Tensor, count: Tensor) -> Tensor:
        gram = phi.mT @ phi / count
        gram.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed and phi.dtype is not torch.float64:
            return solve(phi.double(), target.double(), count).to(phi.dtype)
        right = phi.mT @ target / count
        return torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)

    if phi.device.type == "cpu":
        return torch.stack([solve(*one) for one in zip(phi, target, count, strict=True)])
    return batched_ridge_regressions(phi, target, count, ridge)


def batched_ridge_regressions(phi: Tensor, target: Tensor, count: Tensor, ridge: float) -> Tensor:
    """`ridge_regressions` of all users by the same operations."""
    gram = phi.mT @ phi / count[:, None, None]
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
    right = phi.mT @ target[..., None] / count[:, None, None]
    factor, failed = torch.linalg.cholesky_ex(gram)
    found = torch.cholesky_solve(right, factor)[..., 0]
    if phi.dtype is not torch.float64 and bool(failed.any()):
        wide = batched_ridge_regressions(phi.double(), target.double(), count.double(), ridge)
        found = torch.where(failed[:, None] != 0, wide.to(found), found)
    return found


class PrivateCritic(Critic):
    """A critic that is linear in fixed random Fourier features, released as a second block of the row.

    With `algo.network=cnn` the features are those of scaled pixels.

    Each user contributes the ridge regression of their residuals, clipped at `critic_clip`.
    """

    def __init__(self, config: DppgConfig, context: AlgorithmContext):
        super().__init__(config, context)
        image = context.spec.image if config.network == "cnn" else None
        self._features = FourierFeatures(
            context.spec.obs_dim,
            config.critic_features,
            config.critic_frequency * (image.scale if image else 1.0),
            generator(*_FEATURE_WORDS),
        )

    def blocks(self) -> tuple[Block, ...]:
        """One block, the weights of the features."""
        config = self._config
        return (
            Block("critic", self._features.size, config.critic_clip, config.critic_noise_ratio),
        )

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Weights of zero [R, F]."""
        return {"critic": torch.zeros(len(streams), self._features.size)}

    def values(self, state: State, obs: Tensor) -> Tensor:
        """See `Critic.values`."""
        # One replica at a time: the product's rounding depends on how many there are.
        pairs = zip(self._features(obs), state.tensors["critic"], strict=True)
        return torch.stack([torch.einsum("utf,f->ut", phi, weights) for phi, weights in pairs])

    def user_update(self, state: State, users: UserBatch, batch: TrainingBatch) -> CriticOutput:
        """Ridge solution on the user's residuals: (Phi' Phi / n + ridge I)^-1 Phi' residual / n."""
        weight = users.mask.to(users.obs.dtype)
        phi = self._features(users.obs) * weight[..., None]
        residual = (batch.targets - batch.values) * weight
        count = weight.sum(-1).clamp_min(1.0)
        arrays = (phi.flatten(0, 1), residual.flatten(0, 1), count.flatten())
        solution = ridge_regressions(*arrays, self._config.critic_ridge)
        solution = solution.reshape(*count.shape, -1)
        return {"critic": solution}, {}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Add the mean change with noise."""
        return {"critic": state.tensors["critic"] + released.values["critic"]}


def make_critic(config: DppgConfig, context: AlgorithmContext) -> Critic:
    """The critic named by `algo.critic`."""
    kinds = {"shared": SharedCritic, "private": PrivateCritic, "none": Critic}
    return kinds[config.critic](config, context)
