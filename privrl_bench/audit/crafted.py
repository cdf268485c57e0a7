"""Training of many replicas with and without a crafted user, and the record of their releases.

`end_to_end` computes scores from the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit.canary import long_run, of_length
from privrl_bench.audit.finding import ProgressLines, Say
from privrl_bench.audit.watch import Wrapped
from privrl_bench.audit.whitening import Whitening
from privrl_bench.config.schema import RunConfig
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.run.plan import Plan, make_plan
from privrl_bench.run.trainer import Trainer
from privrl_bench.types import State, UserBatch, generator

ROUNDING = 1e-5  # relative to a tensor's size
_CANDIDATES = 8  # crafted users that are tried on shadow runs
_CANDIDATE_SHADOWS = 128
_SIGNS_TAG = 63
_PLANNED_ROUNDS = 1000  # learning rates are those of the start of a long run


@dataclass
class Record:
    """The record of training R replicas.

    Attributes:
        parts: of all replicas.
        shadows: number of shadow replicas, which come first.
        present: [R] bool, whether the crafted user takes part; true for every second replica.
        seen: whitened row [R, P] of each round (`whitening`).
        states: tensors [R, ...] of all replicas before each round, by name.
    """

    parts: Plan
    shadows: int
    present: np.ndarray
    seen: list[np.ndarray]
    states: list[dict[str, Tensor]]

    def guess(self, index: int, names: set[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(with, without): tensors [1, ...] before round `index`, averaged over shadows."""
        here = torch.from_numpy(self.present[: self.shadows])
        held = {n: x[: self.shadows] for n, x in self.states[index].items() if n in names}
        inside, outside = (
            {name: x[chosen].mean(0, keepdim=True) for name, x in held.items()}
            for chosen in (here, ~here)
        )
        return inside, outside


class Crafted(Wrapped):
    """Puts a crafted user into slot 0 of the first round and records what the adversary may use.

    Args:
        record: to be filled. In replicas where `present` is false, slot 0 is empty.
        signs: [D] of the user's two states, see `craft`.
        through_gate: False makes the user's row invalid at the gate, so that the user affects only
            paths around the gate.
    """

    def __init__(self, record: Record, signs: Tensor, through_gate: bool):
        super().__init__(record.parts.algo)
        self._white = Whitening(record.parts)
        self._record = record
        self._present = torch.from_numpy(record.present)
        self._signs = signs
        self._through_gate = through_gate

    def user_update(self, state: State, users: UserBatch, streams: Any) -> Contribution:
        """Compute the real rows of a cohort with or without the crafted user."""
        if users.first == 0:
            self._record.states.append({n: x.clone() for n, x in state.tensors.items()})
        if state.round > 0 or users.first > 0:
            return self._algo.user_update(state, users, streams)
        crafted = craft(users, self._present, self._signs, self._record.parts)
        contribution = self._algo.user_update(state, crafted, streams)
        if self._through_gate:
            return contribution
        diagnostics = contribution.diagnostics
        rows, valid, bypass = contribution.take()
        valid = valid.clone()
        valid[:, 0] = False
        return Contribution(rows, valid, bypass, diagnostics)

    def server(self, state: State, released: Any) -> State:
        """Record the release, then continue training with it."""
        users = self._record.parts.config.privacy.users_per_round
        sums = {name: x.double() * users for name, x in released.values.items()}
        self._record.seen.append(self._white.row(sums))
        return self._algo.server(state, released)


def craft(users: UserBatch, present: Tensor, signs: Tensor, parts: Plan) -> UserBatch:
    """Replace slot 0 by one action in two opposite states, with extreme rewards of either sign.

    Every step ends its episode, so the return of a state is its reward. Rewards and observations stay
    within the public bounds of the environment's configuration.

    Args:
        users: the real batch.
        present: [R] bool; where false, slot 0 is empty.
        signs: [D] of +-1; the user's states are `signs` and `-signs`.
        parts: for the public bounds.
    """
    copies = {
        f.name: getattr(users, f.name) for f in fields(users) if f.name not in ("stats", "first")
    }
    made = replace(users, **{name: x.clone() for name, x in copies.items() if x is not None})
    steps = users.mask.shape[-1]
    sign = torch.where(torch.arange(steps) % 2 == 0, 1.0, -1.0)
    made.obs[:, 0] = sign[:, None] * signs
    made.next_obs[:, 0] = sign[:, None] * signs
    made.rewards[:, 0] = sign * parts.config.env.reward_clip
    made.actions[:, 0] = 0 if parts.spec.discrete or parts.spec.choices else 1.0
    for name in ("terminated", "done", "mask"):
        getattr(made, name)[:, 0] = True
    made.valid[:, 0] = present
    return made


# --- training


def parts_of(config: RunConfig, places: Sequence[int]) -> Plan:
    """Replicas of a long run; their seeds are the configuration's plus `places`."""
    configs = [replace(config, seed=(config.seed + place) % 2**32) for place in places]
    steps = long_run(config).round_steps
    runs = [of_length(c, _PLANNED_ROUNDS, steps) for c in configs]
    return make_plan(runs)


def train(
    config: RunConfig,
    shadows: int,
    replicas: int,
    later: int,
    signs: Tensor,
    through_gate: bool,
    say: Say,
) -> Record:
    """Train all replicas for the first round and `later` more.

    Args:
        config: of the runs.
        shadows: number of shadow replicas, even; every second one has the crafted user.
        replicas: number of real replicas, even; every second one has the crafted user.
        later: rounds after the user's.
        signs: see `Crafted`.
        through_gate: see `Crafted`.
        say: receives lines of progress.
    """
    # Shadows come in pairs of one seed, so that their difference is due to the crafted user only.
    places = [r // 2 if r < shadows else r for r in range(shadows + replicas)]
    parts = parts_of(config, places)
    record = Record(parts, shadows, np.arange(len(places)) % 2 == 0, [], [])
    planted = Crafted(record, signs, through_gate)
    session = Trainer(replace(parts, algo=cast(Any, planted)))
    # Initial parameters are public. They are the same for all, so that shadows resemble the others.
    same = {n: x[:1].expand_as(x).clone() for n, x in session.state.tensors.items()}
    session.state = State(0, same)
    progress = ProgressLines(say, f"end-to-end, {len(places)} replicas", later + 1)
    try:
        for index in range(later + 1):
            session.step()
            progress.after(index + 1)
    finally:
        session.close()
    return record


def choose_signs(config: RunConfig, say: Say) -> Tensor:
    """[D] signs of the crafted user with the largest effect on the next round around the gate."""
    width = long_run(config).spec.obs_dim
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
            say("end-to-end: a user has no effect around the gate")
            return chosen
    say(
        f"end-to-end: the best of {_CANDIDATES} crafted users changes the next round by {best**0.5:.3g}"
    )
    return chosen
