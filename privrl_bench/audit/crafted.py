"""Training with and without one crafted user, many replicas at once, and all that they release.

See `end_to_end`, which scores it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit.canary import Say, Wrapped
from privrl_bench.config.schema import RunConfig
from privrl_bench.experiment.builder import RunComponents, build
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.privacy.contribution import Contribution, block_multipliers
from privrl_bench.types import State, UserBatch, generator

ROUNDING = 1e-5  # of a tensor's size
_CANDIDATES = 8  # crafted users tried in the laboratory
_CANDIDATE_SHADOWS = 128
_SIGNS_TAG = 63
_PLANNED_ROUNDS = 1000  # the learning rate is that of the start of a long run


@dataclass
class Record:
    """What training many replicas left behind. The first `shadows` replicas are shadows.

    Attributes:
        parts: of all replicas.
        present: [R] bool, she is in; every second replica.
        seen: whitened release [R, P] of each round.
        states: tensors [R, ...] of all replicas before each round, by name.
    """

    parts: RunComponents
    shadows: int
    present: np.ndarray
    seen: list[np.ndarray]
    states: list[dict[str, Tensor]]

    def guess(self, index: int, names: set[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(with her, without her): tensors [1, ...] before round `index`, averaged over shadows."""
        here = torch.from_numpy(self.present[: self.shadows])
        held = {n: x[: self.shadows] for n, x in self.states[index].items() if n in names}
        with_her, without = (
            {name: x[who].mean(0, keepdim=True) for name, x in held.items()}
            for who in (here, ~here)
        )
        return with_her, without


class Crafted(Wrapped):
    """Puts a crafted user into slot 0 of the first round and keeps what the adversary may use.

    Args:
        record: is filled; its `present` says which replicas have her, elsewhere slot 0 holds nobody.
        signs: [D] of her two states, see `craft`.
        through_gate: False voids her row at the gate; all that is left of her goes past it.
        scale: block name -> factor that makes the noise of a release N(0, I).
    """

    def __init__(self, record: Record, signs: Tensor, through_gate: bool, scale: dict[str, float]):
        super().__init__(record.parts.algo)
        self._record = record
        self._present = torch.from_numpy(record.present)
        self._signs = signs
        self._through_gate = through_gate
        self._scale = scale

    def local(self, state: State, users: UserBatch, streams: Any) -> Contribution:
        """The real rows, of a cohort with or without her."""
        self._record.states.append({n: x.clone() for n, x in state.tensors.items()})
        if state.round > 0:
            return self._algo.local(state, users, streams)
        crafted = craft(users, self._present, self._signs, self._record.parts)
        contribution = self._algo.local(state, crafted, streams)
        if self._through_gate:
            return contribution
        diagnostics = contribution.diagnostics
        rows, valid, bypass = contribution.take()
        valid = valid.clone()
        valid[:, 0] = False
        return Contribution(rows, valid, bypass, diagnostics)

    def server(self, state: State, released: Any) -> State:
        """Keep the release, then let training go on with it."""
        self._record.seen.append(whitened(released.values, self._scale))
        return self._algo.server(state, released)


def whitened(values: dict[str, Tensor], scale: dict[str, float]) -> np.ndarray:
    """[R, P] of all blocks, scaled."""
    return torch.cat([values[name].double() * x for name, x in scale.items()], dim=-1).numpy()


def craft(users: UserBatch, present: Tensor, signs: Tensor, parts: RunComponents) -> UserBatch:
    """The batch with slot 0 replaced: one action in two opposite states, extreme rewards of either sign.

    Every step ends its episode, so a step's reward is all that is learned of its state. Rewards and
    observations stay within the public bounds of the environment's configuration.

    Args:
        users: the real ones.
        present: [R] bool; elsewhere slot 0 holds nobody.
        signs: [D] numbers of +-1; her states are `signs` and their opposite.
        parts: for the public bounds.
    """
    copies = {f.name: getattr(users, f.name) for f in fields(users) if f.name != "stats"}
    made = replace(users, **{name: x.clone() for name, x in copies.items() if x is not None})
    steps = users.mask.shape[-1]
    sign = torch.where(torch.arange(steps) % 2 == 0, 1.0, -1.0)
    made.obs[:, 0] = sign[:, None] * signs
    made.next_obs[:, 0] = sign[:, None] * signs
    made.rewards[:, 0] = sign * parts.config.env.reward_clip
    made.actions[:, 0] = 0 if parts.spec.discrete else 1.0
    for name in ("terminated", "done", "mask"):
        getattr(made, name)[:, 0] = True
    made.valid[:, 0] = present
    return made


# --- training


def parts_of(config: RunConfig, places: Sequence[int]) -> RunComponents:
    """Replicas of a long run whose seeds are `places` after the configuration's."""
    configs = [replace(config, seed=(config.seed + place) % 2**32) for place in places]
    probe = build([replace(config, total_steps=2**62)], [None])
    steps = _PLANNED_ROUNDS * probe.round_steps
    return build([replace(c, total_steps=steps) for c in configs], [None] * len(configs))


def scale_of(config: RunConfig, parts: RunComponents) -> dict[str, float]:
    """Block name -> U / (z_b c_b)."""
    multipliers = block_multipliers(config.privacy.z, parts.gate.blocks)
    users = config.privacy.users_per_round
    return {b.name: users / (multipliers[b.name] * b.clip) for b in parts.gate.blocks}


def train(
    config: RunConfig,
    shadows: int,
    replicas: int,
    later: int,
    signs: Tensor,
    through_gate: bool,
    say: Say,
) -> Record:
    """Train all replicas through the first round and `later` more.

    Args:
        config: of the runs.
        shadows, replicas: how many of each, both even; every second one has the crafted user.
        later: rounds after hers.
        signs, through_gate: see `Crafted`.
        say: takes lines of progress.
    """
    # Shadows come in pairs of one seed: all else equal, a difference is hers.
    places = [r // 2 if r < shadows else r for r in range(shadows + replicas)]
    parts = parts_of(config, places)
    record = Record(parts, shadows, np.arange(len(places)) % 2 == 0, [], [])
    planted = Crafted(record, signs, through_gate, scale_of(config, parts))
    session = Trainer(replace(parts, algo=cast(Any, planted)))
    # The first parameters are public: the same for all, so that shadows resemble the others.
    same = {n: x[:1].expand_as(x).clone() for n, x in session.state.tensors.items()}
    session.state = State(0, same)
    reported = time.perf_counter()
    try:
        for index in range(later + 1):
            session.step()
            if time.perf_counter() - reported > 10.0:
                reported = time.perf_counter()
                say(f"end-to-end: round {index + 1} of {later + 1}, {len(places)} runs at once")
    finally:
        session.close()
    return record


def choose_signs(config: RunConfig, say: Say) -> Tensor:
    """[D] signs of the crafted user who moves the round after hers the most, past the gate."""
    width = build([replace(config, total_steps=2**62)], [None]).spec.obs_dim
    source = generator(config.seed, _SIGNS_TAG)
    best, chosen = -1.0, torch.ones(width)
    for _ in range(_CANDIDATES):
        signs = 2.0 * torch.randint(0, 2, (width,), generator=source) - 1.0
        record = train(config, _CANDIDATE_SHADOWS, 0, 1, signs, False, say)
        pairs = record.seen[1][record.present] - record.seen[1][~record.present]
        moved = float((pairs**2).sum(-1).mean())
        if moved > best:
            best, chosen = moved, signs
        if best < ROUNDING:
            say("end-to-end: a user moves nothing past the gate")
            return chosen
    say(
        f"end-to-end: the best of {_CANDIDATES} crafted users moves the next round by {best**0.5:.3g}"
    )
    return chosen
