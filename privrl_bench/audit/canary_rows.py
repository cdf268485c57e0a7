"""Canaries in the rounds of a training run, and the scores of what is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit.watch import Wrapped
from privrl_bench.audit.whitening import NoiseTest, Whitening
from privrl_bench.privacy.contribution import Contribution, block_multipliers
from privrl_bench.run.plan import Plan
from privrl_bench.types import State, UserBatch, generator

LENGTH = 10.0  # of a canary's row, in clips
_DIRECTION_TAG = 62


def clipped(rows: Tensor, clip: float) -> Tensor:
    """Rows [..., P] with norm at most `clip`; independent of the gate's own clipping."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-300)
    return rows * (clip / norms).clamp(max=1.0)


@dataclass
class _Group:
    """The units of a group, whose rows are in releases from its first round on.

    Attributes:
        first: their first round.
        sent: [per_round] 1: the row, 0: nothing, -1: its opposite.
        direction: [P] where a unit's row moves a whitened row, for all units, each scaled to norm 1.
        size: |v|, as far as the run goes.
    """

    first: int
    sent: Tensor
    direction: np.ndarray
    size: float


class Canaries(Wrapped):
    """Puts canaries into the first `per_round` slots and scores what is released.

    Args:
        parts: of one replica.
        coins: [groups, per_round] bool; the coins of a group hold for `repeat` rounds. Rounds after the
            last group's have no canaries.
        repeat: rounds that one unit takes part in.
        rounds: of the run.
        known: subtract the other users' rows.

    Attributes:
        scores: [groups, per_round] float64.
        cohorts: users of each round so far.
        noise: test of the noise where it is correlated and can be separated from the users' rows.
    """

    def __init__(self, parts: Plan, coins: np.ndarray, repeat: int, rounds: int, known: bool):
        super().__init__(parts.algo)
        self.coins = coins
        self.scores = np.zeros(coins.shape)
        self.cohorts: list[int] = []
        self.noise = NoiseTest()
        self._parts = parts
        self._repeat, self._rounds = repeat, rounds
        self._known = known
        self._strategy = parts.gate.mechanism.strategy
        self._white = Whitening(parts)
        # v: how much a unit's rows are in the rows of C X from its first round on.
        self._column = np.convolve(np.ones(repeat), self._strategy.coefficients)
        self._open: list[_Group] = []
        self._units: dict[str, Tensor] = {}  # of the last group
        self._expected: dict[str, Tensor] = {}
        per_round = coins.shape[1]
        slots = torch.cat([torch.arange(block.size) % per_round for block in parts.gate.blocks])
        self._slots = np.eye(per_round)[slots.numpy()]  # [P, per_round]

    def _begin(self, index: int) -> None:
        """Begin a group: [per_round, P_b] unit rows with disjoint supports, new in every group.

        They are the same in all rounds of the group, which is the worst case for every C.
        """
        privacy, blocks = self._parts.config.privacy, self._parts.gate.blocks
        multipliers = block_multipliers(privacy.noise_multiplier, blocks)
        source = generator(self._parts.config.seed, _DIRECTION_TAG, index)
        count = self.coins.shape[1]
        direction = []
        for block in blocks:
            signs = 2.0 * torch.randint(0, 2, (block.size,), generator=source).double() - 1.0
            mine = torch.arange(block.size) % count == torch.arange(count)[:, None]
            rows = signs * mine
            unit = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            self._units[block.name] = unit
            direction.append(unit.sum(0) * (privacy.noise_multiplier / multipliers[block.name]))
        other = -1.0 if privacy.adjacency == "replace_one" else 0.0
        sent = torch.where(torch.from_numpy(self.coins[index]), 1.0, other).double()
        first = index * self._repeat
        size = float(np.linalg.norm(self._column[: self._rounds - first]))
        self._open.append(_Group(first, sent, torch.cat(direction).numpy(), size))

    def user_update(self, state: State, users: UserBatch, streams: Any) -> Contribution:
        """Compute the real rows, and replace those of the first slots by canaries."""
        contribution = self._algo.user_update(state, users, streams)
        diagnostics = contribution.diagnostics
        rows, valid, bypass = contribution.take()
        index, first = state.round // self._repeat, users.first
        planted = index < len(self.coins)
        if first == 0:
            self.cohorts.append(0)
            self._expected = {b.name: torch.zeros(b.size).double() for b in self._parts.gate.blocks}
            if planted and state.round % self._repeat == 0:
                self._begin(index)
        self.cohorts[-1] += int(users.mask[0, :, 0].sum())
        # The canaries are in the first slots of the round; these are some of them.
        there = range(first, min(first + valid.shape[1], self.coins.shape[1] if planted else 0))
        for name, x in self._clipped_sums(rows, valid, len(there)).items():
            self._expected[name] += x
        if not there:
            return Contribution(rows, valid, bypass, diagnostics)
        own = slice(there.start, there.stop)
        sent = self._open[-1].sent[own, None]
        rows = {name: x.clone() for name, x in rows.items()}
        for block in self._parts.gate.blocks:
            canaries = block.clip * sent * self._units[block.name][own]
            rows[block.name][0, : len(there)] = (LENGTH * canaries).float()
            self._expected[block.name] += canaries.sum(0)
        valid = valid.clone()
        valid[0, : len(there)] = True
        return Contribution(rows, valid, bypass, diagnostics)

    def _clipped_sums(
        self, rows: dict[str, Tensor], valid: Tensor, start: int
    ) -> dict[str, Tensor]:
        """Sum of the clipped rows of the users in slots from `start` on, if the adversary knows it."""
        usable = valid[0, start:].clone()
        for x in rows.values():
            usable &= torch.isfinite(x[0, start:]).all(-1)
        sums = {}
        for block in self._parts.gate.blocks:
            mine = rows[block.name][0, start:].double()
            mine = torch.where(usable[:, None], mine, torch.zeros_like(mine))
            sums[block.name] = clipped(mine, block.clip).sum(0) * float(self._known)
        return sums

    def server(self, state: State, released: Any) -> State:
        """Score the release, then continue training with it."""
        users = self._parts.config.privacy.users_per_round
        rest = {
            name: released.values[name][0].double() * users - expected
            for name, expected in self._expected.items()
        }
        row = self._white.row(rest)
        if self._known and self._strategy.bands > 1:
            self.noise.add(row)
        for group in self._open:
            self._score(group, row, float(self._column[state.round - group.first]))
        if self._open and state.round + 1 == self._open[0].first + len(self._column):
            self._open.pop(0)
        return self._algo.server(state, released)

    def _score(self, group: _Group, row: np.ndarray, v: float) -> None:
        """Add what a whitened row says about each unit of a group, whose rows are in it with weight v."""
        # The canaries' own rows were subtracted, too: their effect is added again.
        own = (
            group.sent.numpy()
            * v
            / (self._strategy.scale * self._parts.config.privacy.noise_multiplier)
        )
        seen = (group.direction * row) @ self._slots + own
        self.scores[group.first // self._repeat] += v / group.size * seen
