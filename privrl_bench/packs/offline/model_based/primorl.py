"""PriMORL: private model-based offline reinforcement learning; the privacy unit is one trajectory.

    repeat for every round, their number fixed in advance:
        each of K users participates with probability q
        each participant: one pass of minibatch steps of every member on their own trajectory, each part of the
            displacement projected onto its ball (EnsembleClip)
        model <- model + (sum of displacements + N(0, (z C)^2 I)) / (q K)
    and SAC inside the pessimistic model (`offline_training.py`)

Deviations from the paper: rollouts start at states of public trajectories (the paper's text names the
distribution of initial states, the code it builds on uses private ones: `algo.rollout_start=private`, which is
not private); log variances are bounded by constants; targets are in units of the public data. docs/primorl.md
lists all of them.

Source: "Differentially Private Deep Model-Based RL" (Rio, Barlier, Colin, Thomas), algorithms 1 to 4.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms, per_user, step_order
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.model_based.model_based_settings import PrimorlConfig
from privrl_bench.packs.offline.model_based.offline_training import ModelBased, with_first
from privrl_bench.packs.offline.model_based.user_ensemble import clipping, train
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

PRIVATE_STARTS = "private start states"


class Primorl(ModelBased):
    """PriMORL; see the module.

    Further state tensor with private starts: `starts` [R, B, D].

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    config: PrimorlConfig

    def __init__(self, config: PrimorlConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._clip = clipping(self.ensemble, config.clipping, context.privacy.clip)

    def blocks(self) -> tuple[Block, ...]:
        """One block per separately clipped part, in the order of the parameters."""
        sizes = [b - a for a, b in itertools.pairwise((0, *self._clip.ends))]
        names = [""] if len(sizes) == 1 else [f".layer{k}" for k in range(len(sizes))]
        return tuple(
            Block(f"model{m}{name}", size, self._clip.radius)
            for m in range(self.config.members)
            for name, size in zip(names, sizes, strict=True)
        )

    def terms(self) -> AlgorithmTerms:
        """See `ModelBased.terms`; private start states, if configured, are a caveat."""
        if self.config.rollout_start == "public":
            return super().terms()
        why = "the policy is trained from states of private trajectories, as they are"
        return replace(super().terms(), caveats={PRIVATE_STARTS: why})

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        state = super().init(streams)
        if self.config.rollout_start == "private":
            shape = (len(streams), self.config.rollouts, self._context.spec.obs_dim)
            state.tensors["starts"] = torch.zeros(shape)
        return state

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Displacements of all members, for every participant.

        Guarantee: row u is a function of user u's trajectory and of released models.
        """
        config, valid = self.config, users.valid
        steps = users.mask.shape[-1]
        pieces = max(steps // config.model_batch, 1)
        order = step_order(users, streams, state.round, config.model_epochs, pieces)
        inputs, targets = self.inputs_of(users)
        joined = valid.flatten().nonzero().squeeze(-1)
        change = train(
            self.ensemble,
            state.tensors["model"],
            joined // valid.shape[1],
            (per_user(inputs)[joined], per_user(targets)[joined]),
            order[:, joined],
            config,
            self._clip,
            self._context.device,
        )
        rows = torch.zeros(valid.numel(), change.shape[-1])
        rows[joined] = change
        blocks = self.blocks()
        parts = rows.reshape(*valid.shape, -1).split([b.size for b in blocks], dim=-1)
        named = {block.name: part for block, part in zip(blocks, parts, strict=True)}
        beside = {}
        if config.rollout_start == "private":
            beside[PRIVATE_STARTS] = {"starts": self._private_starts(state, users, streams)}
        return Contribution(named, valid, beside)

    def _private_starts(self, state: State, users: UserBatch, streams: list[Streams]) -> Tensor:
        """[R, B, D] states of this round's users; those of the previous round without participants."""
        found = state.tensors["starts"].clone()
        for r, s in enumerate(streams):
            theirs = users.obs[r][users.mask[r] & users.valid[r, :, None]]
            if len(theirs):
                g = s.torch("user_update", state.round, 1)
                found[r] = theirs[torch.randint(len(theirs), (len(found[r]),), generator=g)]
        return found

    def server(self, state: State, released: Released) -> State:
        """See `ModelBased.server`; private starts bypass the gate and become the state."""
        after = super().server(state, released)
        return State(after.round, after.tensors | released.bypass.get(PRIVATE_STARTS, {}))

    def starts(self, tensors: dict[str, Tensor], draws: list[torch.Generator]) -> Tensor:
        """See `ModelBased.starts`."""
        if self.config.rollout_start == "private":
            return tensors["starts"]
        return super().starts(tensors, draws)

    def real(self, tensors: dict[str, Tensor], batch: Batch, draws: list[torch.Generator]) -> Batch:
        """Replace the first steps of the minibatch by public ones."""
        count = round(self.config.public_ratio * batch.obs.shape[1])
        if not count:
            return batch
        every = len(self.public_steps.obs)
        rows = torch.stack([torch.randint(every, (count,), generator=g) for g in draws])
        return with_first(batch, Batch(*(x[rows] for x in self.public_steps)))


ALGORITHM = Primorl
