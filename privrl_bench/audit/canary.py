"""The canary attack: worst-case rows through the gate of a real training run.

In every round, canaries replace the rows of some slots of the cohort. A fair coin decides what a canary
sends: a row of ten times the clip, or nothing (zero-out); the row or its opposite (replace-one). The gate
of the run clips, sums, writes its ledger, adds noise and divides; the attack reads the result.

The adversary knows the rows of all other users, as the definition of differential privacy assumes, those of
other canaries included, and subtracts them. A joint release of blocks b with clip c_b and multiplier z_b adds
c_b u_b to the sum of block b, |u_b| = 1. The noise of the sums X [rounds, P_b] is z_b c_b |C| C^-1 w, with w
standard normal and C the mechanism's public strategy (independent noise: the identity), so the rows of C X have
independent noise N(0, (z_b c_b |C|)^2 I). A unit in m rounds has one coin and one direction u for all of them.
It is in row s with v_s, the sum of its columns of C. The log likelihood ratio is linear in

    score = z / (|v| |C|) * sum over rounds s and blocks b of v_s <(C X)_s, u_b> / (z_b^2 c_b),

which is N(0, 1) without the canary and N(mu, 1) with it, mu = |v| / (|C| z), because 1/z^2 = sum of 1/z_b^2: no
attack is more powerful. Equal rows in consecutive rounds are the worst case. With independent noise,
|v| = sqrt(m) and |C| = 1.

Canaries of one round have disjoint supports, so their noises are independent. Where C correlates rounds,
further rounds without canaries follow, until C has no more of the last unit (at most `_MOST_FURTHER`; mu is an
upper value then). Scores of units in different rounds share rows of the noise, but their directions are random:
they are uncorrelated, and nearly independent where rows are long.

The rows of C X, divided by z_b c_b |C| (`Whitening`), are computed from the claim and with no code of the
mechanism. No information is lost, since C is invertible.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit import bounds
from privrl_bench.audit.finding import Finding, Say, reported
from privrl_bench.audit.watch import Wrapped
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.contribution import Contribution, block_multipliers
from privrl_bench.privacy.rules import not_auditable, rules
from privrl_bench.privacy.sampling.fixed import Fixed
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State, UserBatch, generator
from privrl_bench.users import kind_of

_COIN_TAG = 61
_MOST_FURTHER = 200  # rounds after the last canary's
_COHORT_LEVEL = 1e-4  # a correct sampler fails the test of cohort sizes with this probability
LENGTH = 10.0  # of a canary's row, in clips
_DIRECTION_TAG = 62
_MOST_ERRORS = 5.0  # standard errors; correct noise is further off with probability 1e-6


def noise_of_sums(parts: Plan) -> dict[str, float]:
    """Block name -> z_b clip_b k, the standard deviation of the noise in a row of C X."""
    multipliers = block_multipliers(parts.config.privacy.noise_multiplier, parts.gate.blocks)
    scale = parts.gate.mechanism.strategy.scale
    return {b.name: multipliers[b.name] * b.clip * scale for b in parts.gate.blocks}


class Whitening:
    """Turns the sums X of successive rounds into rows of C X with noise N(0, I).

    Args:
        parts: of the run.
    """

    def __init__(self, parts: Plan):
        self._noise = noise_of_sums(parts)
        self._later = parts.gate.mechanism.strategy.coefficients[1:]
        self._past: deque[np.ndarray] = deque(maxlen=len(self._later))  # the latest first

    def row(self, sums: dict[str, Tensor]) -> np.ndarray:
        """[..., P] row of all blocks, from the sums [..., P_b] of the next round."""
        x = torch.cat([sums[name].double() / std for name, std in self._noise.items()], dim=-1)
        one = x.numpy()
        row = one.copy()
        for c, past in zip(self._later, self._past, strict=False):  # fewer rounds than coefficients
            row += c * past
        self._past.appendleft(one)
        return row


class NoiseTest:
    """Tests whether whitened noise has variance 1 and successive rows are not correlated.

    The noise of another C fails, also if it is large enough for its epsilon.
    """

    def __init__(self) -> None:
        self._count, self._pairs = 0, 0
        self._squares, self._products = 0.0, 0.0
        self._last: np.ndarray | None = None

    def add(self, row: np.ndarray) -> None:
        """The whitened noise [P] of the next round."""
        self._count += row.size
        self._squares += float(row @ row)
        if self._last is not None:
            self._pairs += row.size
            self._products += float(row @ self._last)
        self._last = row

    def problems(self) -> list[str]:
        """How the noise differs from the claimed one."""
        found = []
        variance = self._squares / max(1, self._count)
        if abs(variance - 1.0) > _MOST_ERRORS * math.sqrt(2.0 / max(1, self._count)):
            found.append(f"the noise has {variance:.3g} times the claimed variance")
        shared = self._products / max(1, self._pairs)
        if abs(shared) > _MOST_ERRORS / math.sqrt(max(1, self._pairs)):
            found.append(
                f"the noise is not that of the claimed strategy: correlation {shared:.2g} "
                "of successive rows where 0 is claimed"
            )
        return found


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

    Attributes:
        scores: [groups, per_round] float64.
        cohorts: users of each round so far.
        noise: test of the noise where it is correlated.
    """

    def __init__(self, parts: Plan, coins: np.ndarray, repeat: int, rounds: int):
        super().__init__(parts.algo)
        self.coins = coins
        self.scores = np.zeros(coins.shape)
        self.cohorts: list[int] = []
        self.noise = NoiseTest()
        self._parts = parts
        self._repeat, self._rounds = repeat, rounds
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
        rest = {
            name: released.values[name][0].double() * users - expected
            for name, expected in self._expected.items()
        }
        row = self._white.row(rest)
        if self._strategy.bands > 1:
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


# --- a run with canaries


def rounds_of_one_unit(parts: Plan) -> int:
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
        mu: distance between the means of the scores with and without the canary under the claim, at most.
        repeat: rounds that one unit takes part in.
        rounds: rounds of the run.
        seconds: its run time.
        cohorts: users of each round.
        problems: how the noise differs from the claimed noise.
    """

    parts: Plan
    coins: np.ndarray
    scores: np.ndarray
    mu: float
    repeat: int
    rounds: int
    seconds: float
    cohorts: list[int]
    problems: list[str]

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores with and without the canary."""
        return self.scores[self.coins], self.scores[~self.coins]


def long_run(config: RunConfig) -> Plan:
    """Plan of a run with room for a round of any size; of one round where there are few users."""
    if kind_of(config).scarce:
        return make_plan([replace(config, rounds=1)])
    return make_plan([replace(config, total_steps=2**62)])


def of_length(config: RunConfig, rounds: int, round_steps: int) -> RunConfig:
    """The same run with so many rounds, whether its configuration counts rounds or steps."""
    counted = None if config.rounds is None else rounds  # it would win over the steps
    return replace(config, total_steps=rounds * round_steps, rounds=counted)


def refuse_unauditable(config: RunConfig) -> None:
    """Raise `ConfigError` if epsilon is infinite, since no lower bound can exceed it."""
    if why := not_auditable(config.privacy):
        raise ConfigError("privacy", why)
    if config.privacy.noise_cohort is not None:
        raise ConfigError(
            "privacy.noise_cohort", "a preview has no guarantee to measure; leave it out"
        )
    if config.privacy.noise_multiplier == 0:
        raise ConfigError("privacy.z", "without noise epsilon is infinite; give a z > 0 to measure")


def run_canaries(
    config: RunConfig, scores: int, per_round: int, say: Say, name: str = "canary"
) -> CanaryRun:
    """Train one run with canaries.

    Args:
        config: of the run; its number of rounds is replaced by the one that `scores` requires.
        scores: minimum number of canary units.
        per_round: canary units of a round; fewer where a block or a cohort is too small.
        say: receives lines of progress.
        name: of the attack, for these lines.

    Raises:
        ConfigError: epsilon is infinite.
    """
    refuse_unauditable(config)
    if config.algo.traits.one_cohort:
        config, per_round = _one_cohort(config, scores), scores
    probe = long_run(config)
    repeat = rounds_of_one_unit(probe)
    room = min(probe.gate.slots, *(block.size for block in probe.gate.blocks))
    per_round = max(1, min(per_round, room))
    groups = 1 if config.algo.traits.one_cohort else max(1, math.ceil(scores / per_round))
    rounds = groups * repeat
    parts = _run_of(config, rounds, probe.round_steps)
    further = min(parts.gate.mechanism.strategy.bands - 1, _MOST_FURTHER)
    if further:
        rounds += further
        parts = _run_of(config, rounds, probe.round_steps)
    source = generator(config.seed, _COIN_TAG)
    coins = torch.randint(0, 2, (groups, per_round), generator=source).bool().numpy()
    planted = Canaries(parts, coins, repeat, rounds)
    session = Trainer(replace(parts, algo=cast(Any, planted)))
    started = time.perf_counter()
    try:
        for index in reported(range(rounds), say, name):
            session.step()
            if parts.users.returning:  # the draw has users who arrive later, too
                collector = session.collector
                drawn = parts.gate.draw(index, collector.population, collector.used_once)
                planted.cohorts[-1] = drawn.sizes[0]
    finally:
        session.close()
    distance = 2.0 if config.privacy.adjacency == "replace_one" else 1.0
    strategy = parts.gate.mechanism.strategy  # of the whole run: its norm depends on the rounds
    moved = strategy.sensitivity(repeat) / strategy.scale
    return CanaryRun(
        parts=parts,
        coins=coins,
        scores=planted.scores,
        mu=distance * moved / config.privacy.noise_multiplier,
        repeat=repeat,
        rounds=rounds,
        seconds=time.perf_counter() - started,
        cohorts=planted.cohorts,
        problems=planted.noise.problems(),
    )


def _one_cohort(config: RunConfig, scores: int) -> RunConfig:
    """The same with room for so many canaries in its one round, which has all there are."""
    users = config.privacy.population
    if kind_of(config).in_environments:  # a dataset has its own number
        users = max(scores, users or 0)
    return replace(config, privacy=replace(config.privacy, users_per_round=1, population=users))


def _run_of(config: RunConfig, rounds: int, round_steps: int) -> Plan:
    """Components of a run of so many rounds."""
    users = rounds * config.privacy.users_per_round  # as many as the attack needs
    config = kind_of(config).with_users(config, users)
    return make_plan([of_length(config, rounds, round_steps)])


def claim_of(run: CanaryRun) -> tuple[float, str]:
    """(epsilon, what it covers) that the run's own ledger claims for one canary."""
    plan, config = run.parts.gate, run.parts.config.privacy
    sampler = rules(config).sampler
    if sampler.random:
        own = config.adjacency
        inside = "zero_out" if own == "add_or_remove" else own
        once = ReleaseEvent("gaussian", config.noise_multiplier, inside, sampling=Fixed.name)
        what = "one release that the user is in (the draw that lowers epsilon is not attacked)"
        return ledger_epsilon([once], config.delta), what
    # Computed from the ledger as it is; `contradictions` reports what the guarantee would refuse.
    return plan.spent_epsilon(0), f"everything released about {plan.unit.text}"


def contradictions(run: CanaryRun) -> list[str]:
    """Contradictions between the claim and the run's ledger, sampler or noise; scores are not used."""
    plan, config = run.parts.gate, run.parts.config.privacy
    found = list(run.problems)
    lost = plan.ledgers[0].missing(run.rounds)
    if lost:
        found.append(f"{len(lost)} of {run.rounds} releases have no line in the ledger")
    claimed = plan.participation
    if claimed is not None and claimed < run.repeat:
        found.append(f"one unit can enter {run.repeat} rounds, the plan counts {claimed}")
    if rules(config).sampler.independent:
        chance = bounds.cohort_chance(
            run.cohorts, int(config.population or 0), config.users_per_round, plan.slots
        )
        if chance < _COHORT_LEVEL:
            found.append(f"cohort sizes are not those of Poisson sampling (p = {chance:.1e})")
    return found


def attack(config: RunConfig, scores: int, per_round: int, confidence: float, say: Say) -> Finding:
    """Train with canaries and bound epsilon from below.

    Args:
        config: see `run_canaries`.
        scores: see `run_canaries`.
        per_round: see `run_canaries`.
        confidence: of each bound.
        say: see `run_canaries`.
    """
    run = run_canaries(config, scores, per_round, say)
    inside, outside = run.split()
    delta = config.privacy.delta
    claim, what = claim_of(run)
    start = -run.mu / 2.0 if config.privacy.adjacency == "replace_one" else 0.0
    found = bounds.threshold_bounds(
        inside, outside, run.mu, start, delta, confidence, run.coins.size // 2
    )
    with_canaries, per = run.coins.shape[0] * run.repeat, run.coins.shape[1]
    further = run.rounds - with_canaries
    notes = [
        f"{with_canaries} rounds, {per} canary unit{'s' if per > 1 else ''} in each, rows of "
        f"{LENGTH:g} x clip in every block"
        + (f", one coin for {run.repeat} rounds" if run.repeat > 1 else "")
        + (f"; {further} more rounds, whose noise cancels earlier noise" if further else ""),
        "the adversary knows the other users' rows",
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
