"""The end-to-end attack: the whole algorithm with and without one crafted user, in many replicas.

R replicas start from the same parameters and differ in their seeds (noise and other users). In the first
round, one slot of half of them holds a crafted user and is empty in the other half. The adversary observes
the releases of all rounds and nothing else. Directions and thresholds come from simulations of the adversary
and not from the scored replicas:

- Shadows are pairs of runs with the same seed that differ in the crafted user only, so that noise and other
  users cancel in their difference. They determine the crafted user, the expected release of that user's
  round, and what training then holds besides the released policy (a shared critic), with and without the user.
- Replays take the policy that a real replica had released before a round, let simulated users act with it,
  and compute their rows twice: with what training holds according to the shadows with and without the user.

Row j of the whitened releases is x_j = (C U released)_j / (z_b c_b |C|), concatenated over blocks, under
independent noise N(0, I) (`whitening`). The simulations give the user's effect d_j and the midpoint m_j of
the rows with and without the user. The score is the sum of <x_j - m_j, d_j>, the log likelihood ratio if only
the noise were random; above 0 the guess is "in". There are three findings:

- user's round: the release that the user takes part in. Epsilon must hold. With correlated noise, later rows
  of C contain the user's row, too. They are left out, as paths around the gate would be in them: d_0 is
  smaller by the factor |C| than epsilon allows.
- all rounds: everything released. Epsilon must hold; under a heuristic guarantee it may not.
- later rounds: the releases after the user's, with the user's row kept out of the gate, so that only paths
  around the gate remain. Under a formal guarantee there are none: the claim is epsilon = 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.audit import bounds
from privrl_bench.audit.canary import (
    Whitening,
    clipped,
    long_run,
    noise_of_sums,
    of_length,
    refuse_unauditable,
)
from privrl_bench.audit.finding import Finding, Say, reported
from privrl_bench.audit.watch import Wrapped
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.privacy.rules import rules
from privrl_bench.training.plan import Plan, make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State, UserBatch, generator
from privrl_bench.users import kind_of

_SHADOWS = 200
_REPLAYED_USERS = 16  # simulated users of one replay
_OTHER_SEEDS = 10**6  # of simulated users, after the seeds of all runs
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
    try:
        for _ in reported(range(later + 1), say, f"end-to-end, {len(places)} replicas"):
            session.step()
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


# --- scores


def scores_of_users_round(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """(score, |d|^2) of each real replica from the release of the user's round."""
    effect, middle = _in_users_round(record)
    score = (record.seen[0][record.shadows :] - middle) @ effect
    return score, np.full(len(score), effect @ effect)


def _in_users_round(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """[P] the user's effect on the release of their round and the midpoint, from shadows."""
    shadow, here = record.seen[0][: record.shadows], record.present[: record.shadows]
    inside, outside = shadow[here].mean(0), shadow[~here].mean(0)
    return inside - outside, (inside + outside) / 2.0


def hidden_tensors(past: Record) -> set[str]:
    """Names of tensors that depend on the user although the user's row was kept out of the gate.

    A pair of shadows has equal releases before the second round, so a difference is a path around the gate.
    """
    if len(past.states) < 2:
        return set()
    here = torch.from_numpy(past.present[: past.shadows])
    found = set()
    for name, x in past.states[1].items():
        inside, outside = x[: past.shadows][here], x[: past.shadows][~here]
        moved = (inside - outside).abs().mean()
        # Rounding can depend on a replica's place in the batch.
        if float(moved) > ROUNDING * float(outside.square().mean().sqrt()):
            found.add(name)
    return found


def scores_of_later_rounds(
    config: RunConfig, record: Record, hidden: set[str], say: Say
) -> tuple[np.ndarray, np.ndarray]:
    """(score, squared size) of each real replica from the rounds after the user's, by replays.

    A replay uses the released tensors of the replica before the round, and the average over shadows of the
    tensors `hidden`. A row of C contains earlier rounds, each with its own effect and midpoint. All values are
    zero if none is hidden.
    """
    real = range(record.shadows, len(record.present))
    score, size = np.zeros(len(real)), np.zeros(len(real))
    if not hidden:
        return score, size
    privacy = replace(config.privacy, users_per_round=_REPLAYED_USERS)
    parts = parts_of(replace(config, privacy=privacy), [_OTHER_SEEDS + r for r in real])
    session = Trainer(parts)
    strategy, sent = parts.gate.mechanism.strategy, config.privacy.users_per_round
    scale = {name: sent / std for name, std in noise_of_sums(parts).items()}
    means = [_in_users_round(record)]  # of every round so far
    try:
        for index in reported(range(1, len(record.seen)), say, "end-to-end, replays"):
            known = {n: x[record.shadows :] for n, x in record.states[index].items()}
            states = []
            for guess in record.guess(index, hidden):
                wide = {n: x.expand(len(real), *x.shape[1:]) for n, x in guess.items()}
                states.append(State(index, {**known, **wide}))
            session.collector.scaler.use(parts.algo.scaling(states[1]))
            users = session.collect(parts.algo.actor(states[1]), index)
            rows = [_whitened_rows(parts, state, users, scale) for state in states]
            summed = float(strategy.cumulated[min(index, strategy.bands - 1)])
            spread = _spread(rows[1]) * summed / sent + np.eye(rows[1].shape[-1])
            one, zero = (x.mean(1) for x in rows)
            means.append((one - zero, (one + zero) / 2.0))
            latest = list(zip(strategy.coefficients, reversed(means), strict=False))
            effect = sum(c * moved for c, (moved, _) in latest)
            middle = sum(c * between for c, (_, between) in latest)
            weights = np.linalg.solve(spread, effect.T).T
            score += ((record.seen[index][record.shadows :] - middle) * weights).sum(-1)
            size += (effect * weights).sum(-1)
    finally:
        session.close()
    return score, size


def _whitened_rows(parts: Plan, state: State, users: Any, scale: dict[str, float]) -> np.ndarray:
    """[R, users, P] clipped rows of simulated users, in the unit where the noise of a sum is N(0, I)."""
    rows, valid, _ = parts.algo.user_update(state, users, parts.streams).take()
    found = []
    for block in parts.gate.blocks:
        x = torch.where(valid[..., None], rows[block.name], 0.0).double()
        found.append(clipped(x, block.clip) * scale[block.name])
    return torch.cat(found, dim=-1).numpy()


def _spread(rows: np.ndarray) -> np.ndarray:
    """[P, P] covariance of rows [R, simulated users, P], U times as long as one user's."""
    rest = (rows - rows.mean(1, keepdims=True)).reshape(-1, rows.shape[-1])
    return rest.T @ rest / (rows.shape[0] * (rows.shape[1] - 1))


# --- the attack


def _refuse(config: RunConfig) -> None:
    """Raise `ConfigError` if the attack does not apply."""
    refuse_unauditable(config)
    if rules(config.privacy).sampler.independent:
        raise ConfigError("--attack", "end-to-end is for cohorts of fixed size; use canary")
    if kind_of(config).from_data or not kind_of(config).in_environments:
        raise ConfigError(
            "--attack", "end-to-end crafts steps of live simulators; use canary or one-run"
        )
    if config.privacy.users_per_round < 2:
        raise ConfigError("privacy.users_per_round", "the end-to-end attack needs at least 2")


def attack(
    config: RunConfig, replicas: int, later: int, confidence: float, say: Say
) -> list[Finding]:
    """Train with the user's row in the gate and with the row kept out of it, and bound epsilon.

    Args:
        config: of one run; sizes should be small. Noise is seeded, since shadows come in pairs of equal noise.
        replicas: number of real runs, in addition to the shadow runs.
        later: rounds observed after the user's.
        confidence: of each bound.
        say: receives lines of progress.

    Raises:
        ConfigError: no noise, Poisson sampling, no live users, or cohorts of one user.
    """
    _refuse(config)
    replaced = config.privacy.noise != "seeded"
    config = replace(config, privacy=replace(config.privacy, noise="seeded"))
    replicas += replicas % 2
    started = time.perf_counter()
    signs = choose_signs(config, say)
    past = train(config, _SHADOWS, replicas, later, signs, False, say)
    hidden = hidden_tensors(past)
    around = scores_of_later_rounds(config, past, hidden, say)
    middle = time.perf_counter()
    full = train(config, _SHADOWS, replicas, later, signs, True, say)
    first = scores_of_users_round(full)
    following = scores_of_later_rounds(config, full, hidden, say)
    end = time.perf_counter()

    guarantee = full.parts.gate.guarantee(_SHADOWS)
    everything = f"everything released about {guarantee.unit}"
    here = full.present[_SHADOWS:]
    both = (first[0] + following[0], first[1] + following[1])
    found = [
        _finding("user's round", first, here, guarantee, everything, confidence),
        _finding("all rounds", both, here, guarantee, everything, confidence),
    ]
    found[0].seconds = end - middle
    if later:
        apart = "later rounds, with the user's row kept out of the gate"
        last = _finding("later rounds", around, here, guarantee, apart, confidence)
        found.append(_judged(last, hidden, guarantee))
        last.seconds = middle - started
    for finding in found:
        finding.notes.insert(
            0, f"{replicas} runs, {later} rounds after the user's; {_SHADOWS} shadow runs"
        )
        if replaced:
            finding.notes.append("with seeded noise: two shadows of one pair need the same noise")
    return found


def _finding(
    name: str,
    scores: tuple[np.ndarray, np.ndarray],
    here: np.ndarray,
    guarantee: Guarantee,
    claim_of: str,
    confidence: float,
) -> Finding:
    """Bounds from (score, squared size) of each replica.

    The simulations determine thresholds and the unit of the scores. `here` is true for replicas with the user.
    """
    score, size = scores
    mu = float(np.sqrt(size.mean()))
    score = score / (mu or 1.0)
    inside, outside = score[here], score[~here]
    values = bounds.threshold_bounds(
        inside, outside, mu, -mu / 2.0, guarantee.delta, confidence, len(inside)
    )
    return Finding(f"end-to-end, {name}", guarantee.epsilon, claim_of, values, inside, outside)


def _judged(finding: Finding, hidden: set[str], guarantee: Guarantee) -> Finding:
    """The finding about later rounds, which depend on the user in the tensors `hidden`, with its claim."""
    names, formal = ", ".join(sorted(hidden)), guarantee.status == "formal"
    finding.claim = 0.0 if formal else None
    finding.notes.append(
        f"training depends on the user besides its releases in: {names}"
        if hidden
        else "training does not depend on the user besides its releases, up to rounding"
    )
    if formal and hidden:
        finding.problems.append(
            f"the guarantee is formal, but training depends on the user besides what it released: {names}"
        )
    if not formal and finding.best.epsilon <= 0:
        caveats = ", ".join(guarantee.caveats)
        finding.notes.append(f"the user was not detected; {caveats} stays: this is no proof")
    return finding
