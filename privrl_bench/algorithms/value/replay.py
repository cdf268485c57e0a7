"""What live off-policy algorithms share: a replay memory of everybody's steps. Not private."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.algorithms.policy_gradient.pooled import POOLED
from privrl_bench.algorithms.value.actor_critic import Batch, Rates
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import EnvSpec, State, UserBatch


@dataclass
class ReplayConfig(AlgoConfig):
    """Settings of an off-policy learner and its memory."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)

    hidden: list[int] = field(default_factory=lambda: [256, 256])  # ReLU layers of actor and critic
    lr: float = 3e-4
    tau: float = 0.005  # share of the new critic in the target at every step
    batch: int = 256  # transitions in one gradient step
    memory: int = 100_000  # newest transitions that are kept
    updates: float = 1.0  # gradient steps for one environment step

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = bool(self.hidden) and all(h >= 1 for h in self.hidden)
        require("algo.hidden", ok, "a list of layer widths >= 1", self.hidden)
        require("algo.lr", self.lr > 0, "> 0", self.lr)
        require("algo.tau", 0 < self.tau <= 1, "in (0, 1]", self.tau)
        require("algo.batch", self.batch >= 1, "a whole number >= 1", self.batch)
        require(
            "algo.memory", self.memory >= self.batch, f">= algo.batch={self.batch}", self.memory
        )
        require("algo.updates", self.updates > 0, "> 0", self.updates)

    def rates(self) -> Rates:
        """For a learner."""
        return Rates(self.lr, self.tau)


def bounded_box(spec: EnvSpec, name: str) -> EnvSpec:
    """The environment's facts, if its actions are a bounded box. Raises ConfigError."""
    low, high = spec.action_low, spec.action_high
    if low is None or high is None or not (abs(low) + abs(high) < float("inf")).all():
        raise ConfigError(
            "env", f"algo={name} needs actions in a bounded box, which {spec.name} has not"
        )
    return spec


class Learner(Protocol):
    """What learns from batches of the memory: from tensors [R, ...] to tensors, `actor` among them."""

    @property
    def policy(self) -> Policy:
        """Whose parameters `actor` is."""
        ...

    def init(self, streams: list[Streams]) -> dict[str, Tensor]:
        """Before any data."""
        ...

    def step(
        self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]
    ) -> dict[str, Tensor]:
        """After one step on `batch`; `draws` are random streams of each replica."""
        ...


class Replay(Algorithm):
    """The frame of a live off-policy algorithm; `learner` is what a subclass adds.

    State tensors: the learner's; `seen` [R, 1], transitions so far; `memory_*` [R, memory, ...], a ring.
    It runs through the same loop and gate as private algorithms, with `privacy=none`, as pooled ones do.
    """

    def __init__(self, config: ReplayConfig, setup: AlgorithmContext, learner: Learner):
        self.config, self._learner, self._setup = config, learner, setup
        self.policy = learner.policy

    def blocks(self) -> tuple[Block, ...]:
        """One block, the policy."""
        return (Block("actor", self.policy.size, self._setup.privacy.clip),)

    def caveats(self) -> dict[str, str]:
        """Everything: nothing is clipped or noised."""
        return {POOLED: "everybody's data enter the parameters without clip or noise"}

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        spec, count, room = self._setup.spec, len(streams), self.config.memory
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

    def learning_rate(self, round_index: int) -> float:
        """Constant."""
        return self.config.lr

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row for each replica: the change of the policy after learning from the memory."""
        tensors = self._remember(state.tensors, users)
        tensors = self._learn(tensors, state.round, users.mask.sum((1, 2)), streams)
        change = tensors.pop("actor") - state.tensors["actor"]
        usable = torch.isfinite(change).all(-1)
        for name, new in tensors.items():
            keep = usable.view(-1, *[1] * (new.dim() - 1))
            tensors[name] = torch.where(keep, new, state.tensors[name])
        return Contribution({"actor": change[:, None]}, usable[:, None], {POOLED: tensors})

    def _remember(self, tensors: dict[str, Tensor], users: UserBatch) -> dict[str, Tensor]:
        """Add the steps of valid users, the oldest first out."""
        new = dict(tensors)
        told = users.mask & users.valid[..., None]
        named = {
            "obs": users.obs,
            "action": users.actions,
            "reward": users.rewards,
            "next_obs": users.next_obs,
            "discount": self.config.gamma * (~users.terminated).float(),
        }
        room = self.config.memory
        fresh = {name: new[f"memory_{name}"].clone() for name in named}
        for r in range(len(told)):
            steps = told[r].flatten().nonzero().squeeze(-1)
            place = (int(new["seen"][r]) + torch.arange(len(steps)))[-room:] % room
            steps = steps[-room:]
            for name, x in named.items():
                fresh[name][r, place] = x[r].flatten(0, 1)[steps].to(fresh[name].dtype)
        new |= {f"memory_{name}": x for name, x in fresh.items()}
        new["seen"] = new["seen"] + told.sum((1, 2))[:, None]
        return new

    def _learn(
        self, tensors: dict[str, Tensor], index: int, steps: Tensor, streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Gradient steps on random batches of the memory, as many as the longest replica took steps."""
        draws = [s.torch("local", index) for s in streams]
        filled = tensors["seen"].clamp(max=self.config.memory)
        if not bool((filled >= 1).all()):
            return tensors
        memory = [tensors[f"memory_{name}"] for name in Batch._fields]
        learned = {k: x for k, x in tensors.items() if not k.startswith("memory_")}
        for _ in range(max(round(float(steps.max()) * self.config.updates), 1)):
            chance = torch.stack([torch.rand(self.config.batch, generator=g) for g in draws])
            rows = (chance * filled).long()
            batch = Batch(
                *(
                    x.gather(
                        1, rows.view(*rows.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:])
                    )
                    for x in memory
                )
            )
            learned = self._learner.step(learned, batch, draws)
        return tensors | learned

    def server(self, state: State, released: Released) -> State:
        """Take over the new tensors."""
        tensors = dict(state.tensors) | released.bypass[POOLED]
        tensors["actor"] = state.tensors["actor"] + released.values["actor"]
        return State(state.round + 1, tensors)
