"""What PriMORL and MOPO share: an ensemble that rounds of trajectories train, and SAC inside it.

    repeat for every round:
        model <- model + released change                                     (`local` of a subclass)
        every `check_every` rounds: its loss on public data; the best is kept; no progress for long ends it
        every `improve_every` rounds: `policy_steps` steps of SAC in the best model so far
    then, without releases: `policy_turns` times `policy_steps` more steps

What comes after a release sees released parameters and public data only.

Source: "Differentially Private Deep Model-Based RL" (Rio, Barlier, Colin, Thomas), algorithms 1 to 4; MOPO
(Yu et al. 2020).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.algorithms.model_based.model_rollouts import UNCERTAINTY, ModelRollouts
from privrl_bench.algorithms.value.actor_critic import Batch, Rates, SacLearner
from privrl_bench.algorithms.value.replay import bounded_box
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require, require_choice
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.ensemble import Ensemble, Units
from privrl_bench.models.mlp import Mlp
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, UserBatch

_PROGRESS = 0.01  # relative fall of the public loss that counts (MOPO)
_CHECKED = 20_000  # public steps that the loss is measured on


@dataclass
class ModelBasedConfig(AlgoConfig):
    """Settings of the ensemble, of its pessimism and of SAC inside it."""

    offline: ClassVar[bool] = True

    members: int = 3  # M
    model_hidden: list[int] = field(default_factory=lambda: [64, 64])  # swish layers
    model_lr: float = 1e-3
    model_batch: int = 16  # steps in one local minibatch
    model_decay: float = 2.5e-5  # L2 penalty
    check_every: int = 50  # rounds between looks at the public loss
    patience: int = 10  # looks without progress that end model training; 0: never
    improve_every: int = 100  # rounds between pieces of policy training
    policy_steps: int = 1000  # gradient steps of one piece
    policy_turns: int = 10  # pieces after the last release
    rollout_length: int = 20  # H
    rollouts: int = 1000  # started side by side
    rollout_every: int = 250  # gradient steps between rollouts
    n_step: int = 1  # rewards of a rollout that are summed before a value is asked for
    penalty: float = 2.0  # lambda
    uncertainty: str = "mpd"  # mpd: largest distance of two means | ma: largest predicted deviation
    hidden: list[int] = field(default_factory=lambda: [64, 64])  # ReLU layers of actor and critics
    lr: float = 3e-4  # of actor, critics and temperature
    tau: float = 0.005
    batch: int = 256
    temperature: float = 1.0  # of SAC at the start
    target_entropy: float | None = None  # nats; unset: minus the number of action coordinates

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in (
            *("members", "model_batch", "check_every", "improve_every", "policy_steps"),
            *("rollout_length", "rollouts", "rollout_every", "n_step", "batch"),
        ):
            value = getattr(self, key)
            require(f"algo.{key}", value >= 1, "a whole number >= 1", value)
        for key in ("patience", "policy_turns", "penalty", "model_decay"):
            value = getattr(self, key)
            require(f"algo.{key}", value >= 0, ">= 0", value)
        for key in ("model_lr", "lr", "temperature"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))
        require("algo.tau", 0 < self.tau <= 1, "in (0, 1]", self.tau)
        require_choice("algo.uncertainty", self.uncertainty, tuple(UNCERTAINTY))
        for key in ("model_hidden", "hidden"):
            widths = getattr(self, key)
            ok = bool(widths) and all(h >= 1 for h in widths)
            require(f"algo.{key}", ok, "a list of layer widths >= 1", widths)


class ModelBased(Algorithm):
    """See the module's text; `local` and `blocks` are what a subclass adds.

    State tensors: SAC's; `model` [R, M * P]; `best`, the one with the smallest public loss; [R, 1] `best_loss`,
    `loss`, `waited` (looks without progress), `stopped` (0 or 1), `seen` (releases) and `iterations` (pieces of
    policy training after the last release).
    """

    policy: SquashedPolicy

    def __init__(self, config: ModelBasedConfig, setup: AlgorithmContext):
        spec = bounded_box(setup.spec, config.name)
        if setup.sources.transitions is None:
            raise ConfigError("data.id", f"algo={config.name} learns from a dataset")
        self.config, self._setup = config, setup
        self.policy = SquashedPolicy(spec, tuple(config.hidden))
        public = setup.sources.transitions
        action = torch.from_numpy(self.policy.from_env(public.actions.numpy())).float()
        raw = torch.cat([public.next_obs - public.obs, public.rewards.unsqueeze(-1)], dim=-1)
        units = Units(raw.mean(0), raw.std(0).clamp_min(1e-6))
        width = spec.obs_dim + spec.actions
        net = Mlp(width, tuple(config.model_hidden), 2 * (spec.obs_dim + 1), "swish")
        self.ensemble = Ensemble(config.members, net, units)
        self._inputs = torch.cat([public.obs, action], dim=-1)
        self._targets = self.ensemble.target(public.obs, public.next_obs, public.rewards)
        entropy = config.target_entropy
        self._learner = SacLearner(
            self.policy,
            Mlp(width, tuple(config.hidden), 1, "relu"),
            Rates(config.lr, config.tau),
            -float(spec.actions) if entropy is None else entropy,
            config.temperature,
        )
        self._dreams = ModelRollouts(
            self.ensemble,
            self.policy,
            config.uncertainty,
            config.penalty,
            config.rollout_length,
            config.gamma,
            config.n_step,
        )
        self.iterations_after = config.policy_turns

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        models = torch.stack([self.ensemble.init(s.torch("init", 3)) for s in streams])
        zero = torch.zeros(len(streams), 1)
        tensors = self._learner.init(streams) | {"model": models, "best": models.clone()}
        tensors["best_loss"] = torch.full_like(zero, torch.inf)
        tensors["loss"] = torch.full_like(zero, torch.nan)
        return State(
            0, tensors | {k: zero.clone() for k in ("waited", "stopped", "seen", "iterations")}
        )

    def learning_rate(self, round_index: int) -> float:
        """Local step size of the models."""
        return self.config.model_lr

    @abstractmethod
    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Rows of model changes."""

    def inputs_of(self, users: UserBatch) -> tuple[Tensor, Tensor]:
        """Inputs [R, U, T, D + A] and targets [R, U, T, D + 1] of the models."""
        action = torch.from_numpy(self.policy.from_env(users.actions.numpy())).float()
        inputs = torch.cat([users.obs, action], dim=-1)
        return inputs, self.ensemble.target(users.obs, users.next_obs, users.rewards)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The public loss of each replica's model when it was last measured."""
        return [{"model/public_loss": float(x)} for x in state.tensors["loss"]]

    def server(self, state: State, released: Released) -> State:
        """Add what was released to the models."""
        change = torch.cat([released.values[block.name] for block in self.blocks()], dim=-1)
        tensors = dict(state.tensors)
        going = 1.0 - tensors["stopped"]
        tensors["model"] = tensors["model"] + going * change
        tensors["seen"] = tensors["seen"] + going
        return State(state.round + 1, tensors)

    # -- after a release ----------------------------------------------------------------------

    def releases(self, state: State) -> list[int]:
        """See `Algorithm.releases`."""
        return [int(x) for x in state.tensors["seen"]]

    def needs_release(self, state: State) -> list[bool]:
        """See `Algorithm.needs_release`: not after early stopping."""
        return [not bool(x) for x in state.tensors["stopped"]]

    def finished(self, state: State) -> bool:
        """Whether all policies had their pieces of training after the last release."""
        stopped = state.tensors["stopped"].bool()
        done = state.tensors["iterations"] >= self.config.policy_turns
        return bool((stopped & done).all())

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """Look at the public loss, and train the policy where it is time."""
        config, tensors, index = self.config, dict(state.tensors), state.round
        over = index >= self._setup.rounds
        stopped = tensors["stopped"].bool()
        if not bool(stopped.all()) and (index % config.check_every == 0 or over):
            tensors |= self._look(tensors)
        if bool(stopped.all()) or index > self._setup.rounds:
            # Together, whenever each stopped: a turn's random numbers are those of its own count. (A replica
            # that diverged is kept as it was and never stops.)
            turn = int(tensors["iterations"].max())
            if turn < config.policy_turns:
                draws = [s.torch("after_release", turn, 1) for s in streams]
                tensors = self._train_policy(tensors, stopped, draws)
                tensors["iterations"] = tensors["iterations"] + 1.0
        elif index % config.improve_every == 0:
            draws = [s.torch("after_release", index) for s in streams]
            tensors = self._train_policy(tensors, ~stopped, draws)
        if over:
            tensors["stopped"] = torch.ones_like(tensors["stopped"])
        return State(state.round, tensors)

    def _look(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The public loss of the models; the best are kept, and those without progress stop."""
        with torch.inference_mode():
            step = max(len(self._inputs) // _CHECKED, 1)
            x = self._inputs[::step].expand(len(tensors["model"]), -1, -1)
            mean, log_var = self.ensemble.predict(tensors["model"], x)
            error = mean - self._targets[::step]
            loss = (error.square() * (-log_var).exp() + log_var).mean((1, 2, 3)).unsqueeze(-1)
        loss, going = loss.clone(), ~tensors["stopped"].bool()
        best = tensors["best_loss"]
        progress = (loss < best - _PROGRESS * best.abs()) | (best.isinf() & loss.isfinite())
        better = going & progress
        waited = torch.where(progress, 0.0, tensors["waited"] + 1.0)
        enough = (waited >= self.config.patience) & (self.config.patience > 0)
        return {
            "loss": torch.where(going, loss, tensors["loss"]),
            "best_loss": torch.where(better, loss, best),
            "best": torch.where(better, tensors["model"], tensors["best"]),
            "waited": torch.where(going, waited, tensors["waited"]),
            "stopped": (tensors["stopped"].bool() | (going & enough)).float(),
        }

    def starts(self, tensors: dict[str, Tensor], draws: list[torch.Generator]) -> Tensor:
        """[R, B, D] where rollouts begin: states of public trajectories."""
        obs, size = self._inputs[:, : self._setup.spec.obs_dim], self.config.rollouts
        return torch.stack([obs[torch.randint(len(obs), (size,), generator=g)] for g in draws])

    def real(self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]) -> Batch:
        """A minibatch, of which an algorithm without privacy replaces a part by real steps."""
        return batch

    def _train_policy(
        self, tensors: dict[str, Tensor], due: Tensor, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """One piece of SAC for the replicas `due` [R, 1]; the others stay as they are."""
        config = self.config
        now, memory = dict(tensors), list[Batch]()
        for step in range(config.policy_steps):
            if step % config.rollout_every == 0:
                begin = self.starts(tensors, draws)
                memory.append(self._dreams(tensors["best"], now["actor"], begin, draws))
                pool = Batch(*(torch.cat(parts, dim=1) for parts in zip(*memory, strict=True)))
            size = pool.obs.shape[1]
            rows = torch.stack([torch.randint(size, (config.batch,), generator=g) for g in draws])
            batch = Batch(*(x[torch.arange(len(rows))[:, None], rows] for x in pool))
            now = self._learner.step(now, self.real(now, batch, draws), draws)
        return {name: torch.where(_wide(due, x), x, tensors[name]) for name, x in now.items()}


def _wide(where: Tensor, like: Tensor) -> Tensor:
    """[R, 1] with as many axes as `like`."""
    return where.view(-1, *[1] * (like.dim() - 1))
