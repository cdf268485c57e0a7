"""Base class of live off-policy algorithms: a replay memory of the steps of all users. Not private."""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, each_replica, take_steps
from privrl_bench.algorithms.pooled_algorithm import POOLED, PooledAlgorithm
from privrl_bench.algorithms.value.actor_critic import Batch, DdpgLearner, SacLearner
from privrl_bench.algorithms.value.q_learning import QLearner
from privrl_bench.algorithms.value.value_settings import ReplayConfig
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.types import State, UserBatch

# Trains on batches of the memory; its state is a dictionary of tensors [R, ...], among them `actor`.
Learner = SacLearner | DdpgLearner | QLearner


class Replay(PooledAlgorithm):
    """Base class of live off-policy algorithms.

    State tensors: those of the learner; `seen` [R, 1], transitions so far; `memory_*` [R, memory, ...], a ring
    buffer.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
        learner: is trained on the memory.
    """

    def __init__(self, config: ReplayConfig, context: AlgorithmContext, learner: Learner):
        super().__init__(config, context)
        self._learner, self.policy = learner, learner.policy

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        spec, count, room = self._context.spec, len(streams), self.config.memory
        action = () if spec.discrete else (spec.actions,)
        widths = {"obs": (spec.obs_dim,), "next_obs": (spec.obs_dim,), "action": action}
        widths |= {"reward": (), "discount": ()}
        memory = {f"memory_{name}": torch.zeros(count, room, *n) for name, n in widths.items()}
        return State(
            0,
            self._learner.init(streams)
            | memory
            | {"seen": torch.zeros(count, 1, dtype=torch.float64)},
        )

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The constant step size."""
        return each_replica(state, lr=self.config.lr)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row per replica: the change of the policy after training on the memory."""
        tensors = self._remember(state.tensors, users)
        tensors = self._learn(tensors, state.round, users.mask.sum((1, 2)), streams)
        change = tensors.pop("actor") - state.tensors["actor"]
        usable = torch.isfinite(change).all(-1)
        for name, new in tensors.items():
            keep = usable.view(-1, *[1] * (new.dim() - 1))
            tensors[name] = torch.where(keep, new, state.tensors[name])
        return Contribution({"actor": change[:, None]}, usable[:, None], {POOLED: tensors})

    def _remember(self, tensors: dict[str, Tensor], users: UserBatch) -> dict[str, Tensor]:
        """Add the steps of valid users to the memory, overwriting the oldest."""
        new = dict(tensors)
        recorded = users.mask & users.valid[..., None]
        named = {
            "obs": users.obs,
            "action": users.actions,
            "reward": users.rewards,
            "next_obs": users.next_obs,
            "discount": self.config.gamma * (~users.terminated).float(),
        }
        room = self.config.memory
        fresh = {name: new[f"memory_{name}"].clone() for name in named}
        for r in range(len(recorded)):
            steps = recorded[r].flatten().nonzero().squeeze(-1)
            place = (int(new["seen"][r]) + torch.arange(len(steps)))[-room:] % room
            steps = steps[-room:]
            for name, x in named.items():
                fresh[name][r, place] = x[r].flatten(0, 1)[steps].to(fresh[name].dtype)
        new |= {f"memory_{name}": x for name, x in fresh.items()}
        new["seen"] = new["seen"] + recorded.sum((1, 2))[:, None]
        return new

    def _learn(
        self, tensors: dict[str, Tensor], index: int, steps: Tensor, streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Gradient steps on random batches of the memory, as many as the longest replica took steps."""
        draws = [s.torch("user_update", index) for s in streams]
        filled = tensors["seen"].clamp(max=self.config.memory)
        if not bool((filled >= 1).all()):
            return tensors
        memory = [tensors[f"memory_{name}"] for name in Batch._fields]
        learned = {k: x for k, x in tensors.items() if not k.startswith("memory_")}
        for _ in range(max(round(float(steps.max()) * self.config.updates), 1)):
            chance = torch.stack([torch.rand(self.config.batch, generator=g) for g in draws])
            rows = (chance * filled).long()
            batch = Batch(*(take_steps(x, rows) for x in memory))
            learned = self._learner.step(learned, batch, draws)
        return tensors | learned
