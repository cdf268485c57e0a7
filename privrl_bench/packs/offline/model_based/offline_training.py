"""Base class of PriMORL and MOPO: an ensemble trained on rounds of trajectories, and a policy inside it.

    repeat for every round:
        model <- model + released change                                     (`user_update` of a subclass)
        every `check_every` rounds: measure the loss on public data; keep the best model; stop after
            `patience` measurements without progress
        every `improve_every` rounds: `policy_steps` steps of SAC (of DQN where actions are discrete) in the
            best model so far
    then, without releases: `policy_turns` times `policy_steps` more steps

Everything after a release depends on released parameters and public data only.

Source: "Differentially Private Deep Model-Based RL" (Rio, Barlier, Colin, Thomas), algorithms 1 to 4; MOPO
(Yu et al. 2020).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    AlgorithmTerms,
    TrainingProgress,
)
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.errors import ConfigError
from privrl_bench.functional.averaging import AVERAGE, averaged
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.offline.model_based.ensemble import (
    Ensemble,
    Simulated,
    Units,
    likelihood,
    model_rollouts,
)
from privrl_bench.packs.offline.model_based.inner import endings, inside
from privrl_bench.packs.offline.model_based.model_based_settings import ModelBasedConfig
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.types import State, UserBatch

_PROGRESS = 0.01  # relative fall of the public loss that counts (MOPO)
_CHECKED = 20_000  # public steps that the loss is measured on


class ModelBased(Algorithm):
    """Base class of model-based offline algorithms; subclasses implement `user_update` and `blocks`.

    State tensors: those of the learner inside; `model` [R, M * P]; `best`, the model with the smallest public
    loss; [R, 1] `best_loss`, `loss`, `waited` (measurements without progress), `stopped` (0 or 1), `seen`
    (releases) and `iterations` (pieces of policy training after the last release).

    Args:
        config: settings of the algorithm.
        context: Context of the run, with a public dataset.

    Raises:
        ConfigError: there is no public dataset.
    """

    policy: SquashedPolicy | QPolicy

    def __init__(self, config: ModelBasedConfig, context: AlgorithmContext):
        spec = context.spec
        if context.sources.transitions is None:
            raise ConfigError("data.id", f"algo={config.name} learns from a dataset")
        self.config, self._context = config, context
        self._learner = inside(config, spec)
        self.policy = self._learner.policy
        public = context.sources.transitions
        action = self._learner.recorded(public.actions)
        raw = torch.cat([public.next_obs - public.obs, public.rewards.unsqueeze(-1)], dim=-1)
        units = Units(raw.mean(0), raw.std(0).clamp_min(1e-6))
        width = spec.obs_dim + spec.actions
        net = Mlp(width, tuple(config.model_hidden), 2 * (spec.obs_dim + 1), "swish")
        self.ensemble = Ensemble(config.members, net, units)
        ahead = torch.where(public.terminated, 0.0, config.gamma)
        self.public_steps = Batch(public.obs, action, public.rewards, public.next_obs, ahead)
        self._ends = endings(spec, public.next_obs, public.terminated)
        self._inputs = torch.cat([public.obs, self._learner.encoded(action)], dim=-1)
        self._targets = self.ensemble.target(public.obs, public.next_obs, public.rewards)

    def terms(self) -> AlgorithmTerms:
        """Policy training goes on after the last release."""
        return AlgorithmTerms(iterations_after=self.config.policy_turns)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        models = torch.stack([self.ensemble.init(s.torch("init", 3)) for s in streams])
        zero = torch.zeros(len(streams), 1)
        tensors = self._learner.init(streams) | {"model": models, "best": models.clone()}
        if self.config.averaging is not None:
            tensors[AVERAGE] = tensors["actor"].clone()
        tensors["best_loss"] = torch.full_like(zero, torch.inf)
        tensors["loss"] = torch.full_like(zero, torch.nan)
        return State(
            0, tensors | {k: zero.clone() for k in ("waited", "stopped", "seen", "iterations")}
        )

    @abstractmethod
    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Rows of model changes; see `Algorithm.user_update`."""

    def inputs_of(self, users: UserBatch) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the models.

        Args:
            users: steps of the users.

        Returns:
            [R, U, T, D + A] inputs and [R, U, T, D + 1] targets.
        """
        action = self._learner.encoded(self._learner.recorded(users.actions))
        inputs = torch.cat([users.obs, action], dim=-1)
        return inputs, self.ensemble.target(users.obs, users.next_obs, users.rewards)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The public loss of each replica's model at the last measurement; users' step size."""
        lr = self.config.model_lr
        return [{"model/public_loss": float(x), "lr": lr} for x in state.tensors["loss"]]

    def server(self, state: State, released: Released) -> State:
        """Add the released changes to the models."""
        change = torch.cat([released.values[block.name] for block in self.blocks()], dim=-1)
        tensors = dict(state.tensors)
        going = 1.0 - tensors["stopped"]
        tensors["model"] = tensors["model"] + going * change
        tensors["seen"] = tensors["seen"] + going
        return State(state.round + 1, tensors)

    # -- after a release ----------------------------------------------------------------------

    def progress(self, state: State) -> TrainingProgress:
        """No release after early stopping; the end is that of policy training."""
        stopped = state.tensors["stopped"].bool()
        trained = state.tensors["iterations"] >= self.config.policy_turns
        return TrainingProgress(
            releases=tuple(int(x) for x in state.tensors["seen"]),
            needs_release=tuple(not bool(x) for x in stopped),
            finished=bool((stopped & trained).all()),
        )

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """Measure the public loss, and train the policy, in the rounds where they are due."""
        config, tensors, index = self.config, dict(state.tensors), state.round
        over = index >= self._context.schedule.rounds
        stopped = tensors["stopped"].bool()
        if not bool(stopped.all()) and (index % config.check_every == 0 or over):
            tensors |= self._measured(tensors)
        if bool(stopped.all()) or index > self._context.schedule.rounds:
            # All replicas in the same piece, whenever each stopped: the random numbers of a piece depend on
            # its index. (A replica that diverged keeps its state and never stops.)
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

    def _measured(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Measure the public loss of the models, keep the best, and stop those without progress."""
        with torch.inference_mode():
            step = max(len(self._inputs) // _CHECKED, 1)
            x = self._inputs[::step].expand(len(tensors["model"]), -1, -1)
            mean, log_var = self.ensemble.predict(tensors["model"], x)
            loss = likelihood(mean, log_var, self._targets[::step]).mean((1, 2, 3)).unsqueeze(-1)
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
        """Initial observations of rollouts [R, B, D]: states of public trajectories."""
        obs, size = self._inputs[:, : self._context.spec.obs_dim], self.config.rollouts
        return torch.stack([obs[torch.randint(len(obs), (size,), generator=g)] for g in draws])

    def real(self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]) -> Batch:
        """Hook: replace a part of a minibatch by real steps, in private algorithms by public ones."""
        return batch

    def _train_policy(
        self, tensors: dict[str, Tensor], due: Tensor, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """Train the policy for one piece of `policy_steps` steps.

        Args:
            tensors: state tensors.
            due: [R, 1] whether a replica is trained; the others are unchanged.
            draws: random stream of each replica.

        Returns:
            The new state tensors.
        """
        config = self.config
        now, memory = dict(tensors), list[Batch]()
        for step in range(config.policy_steps):
            if step % config.rollout_every == 0:
                begin = self.starts(tensors, draws)
                params = tensors["best"], self._learner.acting(now["actor"])
                simulated = Simulated(self.ensemble, self._learner.encoded, self._ends)
                memory.append(model_rollouts(simulated, self.policy, config, params, begin, draws))
                pool = Batch(*(torch.cat(parts, dim=1) for parts in zip(*memory, strict=True)))
            size = pool.obs.shape[1]
            rows = torch.stack([torch.randint(size, (config.batch,), generator=g) for g in draws])
            batch = Batch(*(x[torch.arange(len(rows))[:, None], rows] for x in pool))
            now = self._learner.step(now, self.real(now, batch, draws), draws)
            now = averaged(now, config.averaging, now["steps"] - 1.0)
        return {name: torch.where(_wide(due, x), x, tensors[name]) for name, x in now.items()}


def with_first(batch: Batch, steps: Batch) -> Batch:
    """The minibatch [R, B, ...] with `steps` [R, n, ...] in place of its first n."""
    count = steps.obs.shape[1]
    return Batch(
        *(torch.cat([new, old[:, count:]], 1) for new, old in zip(steps, batch, strict=True))
    )


def _wide(where: Tensor, like: Tensor) -> Tensor:
    """View of [R, 1] with as many axes as `like`."""
    return where.view(-1, *[1] * (like.dim() - 1))
