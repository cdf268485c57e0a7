"""The canary attack: worst-case rows through the gate of a real training run.

In every round, canaries replace the rows of some slots of the cohort. A fair coin decides what a canary
sends: a row of ten times the clip, or nothing (zero-out); the row or its opposite (replace-one). The gate
of the run clips, sums, writes its ledger, adds noise and divides; the attack reads the result.

The adversary knows the rows of all other users, as the definition of differential privacy assumes, and
subtracts them (`others="unknown"` leaves them in). A joint release of blocks b with clip c_b and
multiplier z_b adds c_b u_b to the sum of block b under noise N(0, (z_b c_b)^2 I). The log likelihood ratio
is linear in

    score = z * sum over b of <U released_b - known_b, u_b> / (z_b^2 c_b),    |u_b| = 1,

which is N(0, 1) without the canary and N(1/z, 1) with it, because 1/z^2 = sum of 1/z_b^2: no attack on one
release is more powerful. Canaries of one round have disjoint supports, so their noises are independent.
A unit that takes part in m rounds has one coin for m rounds, and the sum of its scores over sqrt(m).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit import bounds
from privrl_bench.audit.finding import Finding, Progress, Say
from privrl_bench.audit.watch import Wrapped
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.builder import RunComponents, build
from privrl_bench.experiment.declared_users import in_order
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.privacy.accounting.releases import ReleaseEvent, ledger_epsilon
from privrl_bench.privacy.contribution import Contribution, block_multipliers
from privrl_bench.types import State, UserBatch, generator

_LENGTH = 10.0  # of a canary's row, in clips
_COIN_TAG, _DIRECTION_TAG = 61, 62
_COHORT_LEVEL = 1e-4  # a correct sampler fails the test of cohort sizes with this probability


class Canaries(Wrapped):
    """Puts canaries into the first `per_round` slots and scores what is released.

    Args:
        parts: of one replica.
        coins: [groups, per_round] bool; the coins of a group hold for `repeat` rounds.
        repeat: rounds that one unit takes part in.
        known: subtract the other users' rows.

    Attributes:
        scores: [groups, per_round] float64.
        cohorts: users of each round so far.
    """

    def __init__(self, parts: RunComponents, coins: np.ndarray, repeat: int, known: bool):
        super().__init__(parts.algo)
        self.coins = coins
        self.scores = np.zeros(coins.shape)
        self.cohorts: list[int] = []
        self._parts = parts
        self._repeat = repeat
        self._known = known
        config = parts.config.privacy
        self._z = config.z
        self._multipliers = block_multipliers(config.z, parts.gate.blocks)
        self._others = -1.0 if config.adjacency == "replace_one" else 0.0
        self._around: dict[str, Tensor] = {}
        self._units: dict[str, Tensor] = {}

    def _directions(self, round_index: int) -> dict[str, Tensor]:
        """[per_round, P_b] unit rows with disjoint supports, new in every round."""
        source = generator(self._parts.config.seed, _DIRECTION_TAG, round_index)
        count = self.coins.shape[1]
        found = {}
        for block in self._parts.gate.blocks:
            signs = 2.0 * torch.randint(0, 2, (block.size,), generator=source).double() - 1.0
            mine = torch.arange(block.size) % count == torch.arange(count)[:, None]
            rows = signs * mine
            found[block.name] = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return found

    def local(self, state: State, users: UserBatch, streams: Any) -> Contribution:
        """Compute the real rows, and replace those of the first slots by canaries."""
        contribution = self._algo.local(state, users, streams)
        diagnostics = contribution.diagnostics
        rows, valid, bypass = contribution.take()
        self.cohorts.append(int(users.mask[0, :, 0].sum()))
        count = self.coins.shape[1]
        self._around = self._clipped_sums(rows, valid, count)
        self._units = self._directions(state.round)
        coins = self.coins[state.round // self._repeat]
        sent = torch.where(torch.from_numpy(coins), 1.0, self._others)[:, None]
        rows = {name: x.clone() for name, x in rows.items()}
        for block in self._parts.gate.blocks:
            canaries = _LENGTH * block.clip * sent * self._units[block.name]
            rows[block.name][0, :count] = canaries.float()
        valid = valid.clone()
        valid[0, :count] = True
        return Contribution(rows, valid, bypass, diagnostics)

    def _clipped_sums(
        self, rows: dict[str, Tensor], valid: Tensor, start: int
    ) -> dict[str, Tensor]:
        """Sum of the clipped rows of the users in slots from `start` on, which the adversary knows."""
        usable = valid[0, start:].clone()
        for x in rows.values():
            usable &= torch.isfinite(x[0, start:]).all(-1)
        sums = {}
        for block in self._parts.gate.blocks:
            mine = rows[block.name][0, start:].double()
            mine = torch.where(usable[:, None], mine, torch.zeros_like(mine))
            sums[block.name] = clipped(mine, block.clip).sum(0)
        return sums

    def server(self, state: State, released: Any) -> State:
        """Score the release, then continue training with it."""
        users = self._parts.config.privacy.users_per_round
        score = torch.zeros(self.coins.shape[1], dtype=torch.float64)
        for block in self._parts.gate.blocks:
            total = released.values[block.name][0].double() * users
            if self._known:
                total = total - self._around[block.name]
            weight = self._z / (self._multipliers[block.name] ** 2 * block.clip)
            score += weight * (self._units[block.name] @ total)
        self.scores[state.round // self._repeat] += score.numpy() / math.sqrt(self._repeat)
        return self._algo.server(state, released)


def clipped(rows: Tensor, clip: float) -> Tensor:
    """Rows [..., P] with norm at most `clip`; independent of the gate's own clipping."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-300)
    return rows * (clip / norms).clamp(max=1.0)


def rounds_of_one_unit(parts: RunComponents) -> int:
    """Number of rounds that one unit can enter, counted instead of taken from the plan.

    1 for sampled cohorts, where the audit considers one round that the user is in.
    """
    if parts.config.env.user != "segment":
        return 1
    max_episode_steps, steps = parts.spec.max_episode_steps, parts.steps
    return max(
        len({(start + t) // steps for t in range(max_episode_steps)}) for start in range(steps)
    )


@dataclass
class CanaryRun:
    """Scores of one training run with canaries.

    Attributes:
        parts: of the run.
        coins: [groups, per_round] bool, whether the canary was included.
        scores: [groups, per_round].
        mu: distance between the means of the scores with and without the canary under the claim.
        repeat: rounds that one unit takes part in.
        rounds: rounds of the run.
        seconds: its run time.
        cohorts: users of each round.
    """

    parts: RunComponents
    coins: np.ndarray
    scores: np.ndarray
    mu: float
    repeat: int
    rounds: int
    seconds: float
    cohorts: list[int]

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores with and without the canary."""
        return self.scores[self.coins], self.scores[~self.coins]


def long_run(config: RunConfig) -> RunComponents:
    """Components of a run with room for a round of any size; one round where texts are used up."""
    if config.env.kind == "text":
        return build([replace(config, rounds=1)], [None])
    return build([replace(config, total_steps=2**62)], [None])


def refuse_unauditable(config: RunConfig) -> None:
    """Raise `ConfigError` if epsilon is infinite, since no lower bound can exceed it."""
    if config.privacy.rules.mechanism.not_auditable:
        raise ConfigError("privacy", config.privacy.rules.mechanism.not_auditable)
    if config.privacy.z == 0:
        raise ConfigError("privacy.z", "without noise epsilon is infinite; give a z > 0 to measure")


def run_canaries(
    config: RunConfig, scores: int, per_round: int, known: bool, say: Say, name: str = "canary"
) -> CanaryRun:
    """Train one run with canaries.

    Args:
        config: of the run; `total_steps` is replaced by the number that `scores` requires.
        scores: minimum number of canary units.
        per_round: canary units of a round; fewer where a block or a cohort is too small.
        known: subtract the other users' rows.
        say: receives lines of progress.
        name: of the attack, for these lines.

    Raises:
        ConfigError: epsilon is infinite.
    """
    refuse_unauditable(config)
    probe = long_run(config)
    repeat = rounds_of_one_unit(probe)
    room = min(probe.gate.slots, *(block.size for block in probe.gate.blocks))
    per_round = max(1, min(per_round, room))
    groups = max(1, math.ceil(scores / per_round))
    rounds = groups * repeat
    planned = rounds if config.algo.evaluator == "mspbe" else config.rounds
    steps = rounds * probe.round_steps
    if in_order(config) and config.data.id is None:
        users = rounds * config.privacy.users_per_round
        config = replace(config, privacy=replace(config.privacy, population=users))
    parts = build([replace(config, total_steps=steps, rounds=planned)], [None])
    source = generator(config.seed, _COIN_TAG)
    coins = torch.randint(0, 2, (groups, per_round), generator=source).bool().numpy()
    planted = Canaries(parts, coins, repeat, known)
    session = Trainer(replace(parts, algo=cast(Any, planted)))
    started, progress = time.perf_counter(), Progress(say, name, rounds)
    try:
        for index in range(rounds):
            session.step()
            if config.collector == "returning_users":  # the draw has users who arrive later, too
                collector = session.collector
                drawn = parts.gate.draw(index, collector.population, collector.used_once)
                planted.cohorts[-1] = drawn.sizes[0]
            progress.after(index + 1)
    finally:
        session.close()
    distance = 2.0 if config.privacy.adjacency == "replace_one" else 1.0
    return CanaryRun(
        parts=parts,
        coins=coins,
        scores=planted.scores,
        mu=distance * math.sqrt(repeat) / config.privacy.z,
        repeat=repeat,
        rounds=rounds,
        seconds=time.perf_counter() - started,
        cohorts=planted.cohorts,
    )


def claim_of(run: CanaryRun) -> tuple[float, str]:
    """(epsilon, what it covers) that the run's own ledger claims for one canary."""
    plan, config = run.parts.gate, run.parts.config.privacy
    sampler = config.rules.sampler
    if sampler.random:
        once = ReleaseEvent("gaussian", config.z, sampler.inside)
        return ledger_epsilon([once], config.delta), f"one release that {sampler.audited}"
    # Computed from the ledger as it is; `contradictions` reports what the guarantee would refuse.
    return plan.spent_epsilon(0), f"everything released about {plan.unit.text}"


def contradictions(run: CanaryRun) -> list[str]:
    """Contradictions between the claim and the run's ledger or sampler; scores are not used."""
    plan, config = run.parts.gate, run.parts.config.privacy
    found = []
    lost = plan.ledgers[0].missing(run.rounds)
    if lost:
        found.append(f"{len(lost)} of {run.rounds} releases have no line in the ledger")
    claimed = plan.participation
    if claimed is not None and claimed < run.repeat:
        found.append(f"one unit can enter {run.repeat} rounds, the plan counts {claimed}")
    if config.rules.sampler.independent:
        chance = bounds.cohort_chance(
            run.cohorts, int(config.population or 0), config.users_per_round, plan.slots
        )
        if chance < _COHORT_LEVEL:
            found.append(f"cohort sizes are not those of Poisson sampling (p = {chance:.1e})")
    return found


def attack(
    config: RunConfig, scores: int, per_round: int, known: bool, confidence: float, say: Say
) -> Finding:
    """Train with canaries and bound epsilon from below.

    Args:
        config: see `run_canaries`.
        scores: see `run_canaries`.
        per_round: see `run_canaries`.
        known: see `run_canaries`.
        confidence: of each bound.
        say: see `run_canaries`.
    """
    run = run_canaries(config, scores, per_round, known, say)
    inside, outside = run.split()
    delta = config.privacy.delta
    claim, what = claim_of(run)
    start = -run.mu / 2.0 if config.privacy.adjacency == "replace_one" else 0.0
    found = bounds.threshold_bounds(
        inside, outside, run.mu, start, delta, confidence, run.coins.size // 2
    )
    per = run.coins.shape[1]
    notes = [
        f"{run.rounds} rounds, {per} canary unit{'s' if per > 1 else ''} in each, rows of "
        f"{_LENGTH:g} x clip in every block"
        + (f", one coin for {run.repeat} rounds" if run.repeat > 1 else ""),
        "the adversary knows the other users' rows"
        if known
        else "the other users' rows are unknown: scores are independent only roughly",
    ]
    if run.parts.gate.caveats:
        notes.append(
            "canaries test the gate only; paths around it "
            f"({', '.join(run.parts.gate.caveats)}) are tested by the end-to-end attack"
        )
    return Finding(
        attack="canary",
        claim=claim,
        claim_of=what,
        bounds=found,
        inside=inside,
        outside=outside,
        mu=run.mu,
        seconds=run.seconds,
        problems=contradictions(run),
        notes=notes,
        start=start,
    )
