"""The critics that DPPG can use. Each says what its part of a row is, and what it leaks."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, per_user
from privrl_bench.algorithms.policy_gradient.local_training import (
    LocalOptimizerConfig,
    LocalTrainer,
    ValueObjective,
)
from privrl_bench.config.schema import DppgConfig
from privrl_bench.functional.optim import adam_start
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.ridge import ridge_regressions
from privrl_bench.models.features import FourierFeatures
from privrl_bench.models.mlp import Mlp
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import State, UserBatch, generator

SHARED_CRITIC = "shared critic"
# The features are public and the same for every run, so that they cannot depend on anybody's data.
_FEATURE_WORDS = (20250117, 7)


# A user's part of the rows, and what bypasses the gate: caveat -> tensors.
MetricWriter = tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]


class TrainingBatch(NamedTuple):
    """What a critic learns from in one round."""

    values: Tensor  # [R, U, T] of the critic as it is
    targets: Tensor  # [R, U, T] lambda-returns
    order: Tensor  # [E, R * U, M, B] from `base.step_order`
    lr: float


class Critic(Protocol):
    """A state-value estimate and the way it learns from users."""

    caveats: ClassVar[dict[str, str]]

    def blocks(self) -> tuple[Block, ...]:
        """Its part of a user's row."""
        ...

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Its tensors in the state."""
        ...

    def values(self, state: State, obs: Tensor) -> Tensor:
        """[R, U, T, D] observations -> [R, U, T] values."""
        ...

    def local(self, state: State, users: UserBatch, lesson: TrainingBatch) -> MetricWriter:
        """Its part of a contribution."""
        ...

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Its tensors after a release."""
        ...


class SharedCritic:
    """The paper's critic: a network whose users' changes are averaged without noise. It leaks."""

    caveats: ClassVar[dict[str, str]] = {
        SHARED_CRITIC: "the average of users' critic changes carries no noise and steers later users' "
        "updates"
    }

    def __init__(self, config: DppgConfig, setup: AlgorithmContext):
        self._config = config
        self._setup = setup
        self._net = Mlp(setup.spec.obs_dim, tuple(config.hidden), 1)
        self._train = LocalTrainer(ValueObjective(self._net), setup.device)

    def blocks(self) -> tuple[Block, ...]:
        """None: it bypasses the gate."""
        return ()

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Orthogonal initial weights."""
        made = [self._net.init(s.torch("init", 1), last_gain=1.0) for s in streams]
        tensors = {"critic": torch.stack(made)}
        if self._config.local_adam == "seeded":
            tensors["last_critic"] = torch.zeros_like(tensors["critic"])
        return tensors

    def values(self, state: State, obs: Tensor) -> Tensor:
        """See `Critic.values`."""
        with torch.no_grad():
            flat = obs.reshape(obs.shape[0], -1, obs.shape[-1])
            return self._net.forward(state.tensors["critic"], flat).reshape(obs.shape[:-1])

    def local(self, state: State, users: UserBatch, lesson: TrainingBatch) -> MetricWriter:
        """Local Adam on a quarter of the squared error, in a ball of `critic_clip`."""
        replicas, count = users.valid.shape
        start = state.tensors["critic"].repeat_interleave(count, dim=0)
        adam = adam_start(start)
        if "last_critic" in state.tensors and state.round > 0:
            last = state.tensors["last_critic"].repeat_interleave(count, dim=0)
            done = state.round * lesson.order[:, 0, :, 0].numel()
            adam = adam._replace(m=last, v=last**2, step=done)

        data = {"obs": per_user(users.obs), "target": per_user(lesson.targets)}
        descent = LocalOptimizerConfig(lesson.order, lesson.lr, self._config.critic_clip, adam)
        change = self._train(start, data, descent)
        change = change.reshape(replicas, count, -1)
        usable = users.valid & torch.isfinite(change).all(-1)
        change = torch.where(usable[..., None], change, 0.0)
        return {}, {SHARED_CRITIC: {"change": change.sum(1) / self._setup.privacy.users}}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Add the un-noised mean change."""
        change = released.bypass[SHARED_CRITIC]["change"]
        tensors = {"critic": state.tensors["critic"] + change}
        if "last_critic" in state.tensors:
            tensors["last_critic"] = change
        return tensors


class PrivateCritic:
    """A critic linear in fixed random Fourier features, released as a second block of the row.

    Each user sends the ridge regression of her own residuals, clipped at `critic_clip`.
    """

    caveats: ClassVar[dict[str, str]] = {}

    def __init__(self, config: DppgConfig, setup: AlgorithmContext):
        self._config = config
        self._features = FourierFeatures(
            setup.spec.obs_dim,
            config.critic_features,
            config.critic_frequency,
            generator(*_FEATURE_WORDS),
        )

    def blocks(self) -> tuple[Block, ...]:
        """One block of feature weights."""
        config = self._config
        return (
            Block("critic", self._features.size, config.critic_clip, config.critic_noise_ratio),
        )

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Weights of zero."""
        return {"critic": torch.zeros(len(streams), self._features.size)}

    def values(self, state: State, obs: Tensor) -> Tensor:
        """See `Critic.values`."""
        return torch.einsum("rutf,rf->rut", self._features(obs), state.tensors["critic"])

    def local(self, state: State, users: UserBatch, lesson: TrainingBatch) -> MetricWriter:
        """Ridge solution on the user's residuals: (Phi' Phi / n + ridge I)^-1 Phi' residual / n."""
        weight = users.mask.to(users.obs.dtype)
        phi = self._features(users.obs) * weight[..., None]
        residual = (lesson.targets - lesson.values) * weight
        count = weight.sum(-1).clamp_min(1.0)
        arrays = (phi.flatten(0, 1), residual.flatten(0, 1), count.flatten())
        solution = ridge_regressions(*arrays, self._config.critic_ridge)
        solution = solution.reshape(*count.shape, -1)
        return {"critic": solution}, {}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Add the noised mean change."""
        return {"critic": state.tensors["critic"] + released.values["critic"]}


class NoCritic:
    """No critic: the advantage is the user's own discounted reward-to-go."""

    caveats: ClassVar[dict[str, str]] = {}

    def blocks(self) -> tuple[Block, ...]:
        """None."""
        return ()

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def values(self, state: State, obs: Tensor) -> Tensor:
        """Zero everywhere."""
        return torch.zeros(obs.shape[:-1])

    def local(self, state: State, users: UserBatch, lesson: TrainingBatch) -> MetricWriter:
        """Nothing."""
        return {}, {}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Nothing."""
        return {}


def make_critic(config: DppgConfig, setup: AlgorithmContext) -> Critic:
    """The critic that `algo.critic` names."""
    if config.critic == "shared":
        return SharedCritic(config, setup)
    if config.critic == "private":
        return PrivateCritic(config, setup)
    return NoCritic()
