"""The end-to-end attack: the whole algorithm with and without one crafted user, many times over.

R replicas start from the same parameters and differ in their seeds: noise, other users, everything. In the
first round one slot of half of them holds a crafted user, of the other half nobody. The adversary sees what
a run releases, in every round, and nothing else. She also has laboratories of her own, where she simulates
whatever she likes; directions and thresholds come from there, so that no score both teaches and counts.

- Shadows are runs in pairs of one seed that differ in the crafted user alone, so that noise and other users
  cancel in their difference. They tell what to send, what her round's release looks like, and what training
  then holds beside the released policy (a shared critic), with her and without.
- Replays take the policy that a real run had released before a round, let simulated users act with it, and
  compute their rows twice, with what the shadows say training holds with her and without.

In round j the whitened release is x_j = U released / (z_b c_b), block after block, under noise N(0, I). A
laboratory says how far she moves it, d_j, and m_j halfway between with her and without. The score is the sum
of <x_j - m_j, d_j>, the log likelihood ratio if nothing but the noise were random; above 0 the guess is
"in". Three findings:

- her round: what the release she is in tells about her. Epsilon must hold.
- all rounds: everything released. Epsilon must hold; under a heuristic guarantee it may not.
- later rounds: what the following rounds tell when her row is kept out of the gate, so that all that is
  left of her is what went past it. Under a formal guarantee that is nothing: the claim is epsilon = 0.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from privrl_bench.audit import bounds
from privrl_bench.audit.bounds import Bound
from privrl_bench.audit.canary import Finding, Say, refuse_unauditable
from privrl_bench.audit.crafted import ROUNDING, Record, choose_signs, parts_of, scale_of, train
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.builder import RunComponents
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.types import State

_SHADOWS = 200
_REPLAYED_USERS = 16  # simulated users of one replay
_FAR = 10**6


def scores_of_her_round(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """(score, |d|^2) of each real replica from the release she may be in; shadows say where to look."""
    x, lab = record.seen[0], record.present[: record.shadows]
    shadow = x[: record.shadows]
    with_her, without = shadow[lab].mean(0), shadow[~lab].mean(0)
    moved, place = with_her - without, (with_her + without) / 2.0
    score = (x[record.shadows :] - place) @ moved
    return score, np.full(len(score), moved @ moved)


def hidden_tensors(past: Record) -> set[str]:
    """Names of what training holds of her when her row was kept out of the gate.

    Before the second round a pair of shadows has released the same; what differs came past the gate.
    """
    if len(past.states) < 2:
        return set()
    here = torch.from_numpy(past.present[: past.shadows])
    found = set()
    for name, x in past.states[1].items():
        with_her, without = x[: past.shadows][here], x[: past.shadows][~here]
        moved = (with_her - without).abs().mean()
        # Replicas are computed in one batch, and a place in it can cost the last bit.
        if float(moved) > ROUNDING * float(without.square().mean().sqrt()):
            found.add(name)
    return found


def scores_of_later_rounds(
    config: RunConfig, record: Record, hidden: set[str], say: Say
) -> tuple[np.ndarray, np.ndarray]:
    """(score, squared size) of each real replica from the rounds after hers, by replays.

    A replay knows what the replica had released before the round, exactly; of the tensors `hidden` it
    knows what the shadows hold. All zero if nothing is hidden.
    """
    real = range(record.shadows, len(record.present))
    score, size = np.zeros(len(real)), np.zeros(len(real))
    if not hidden:
        return score, size
    people = replace(config.privacy, users_per_round=_REPLAYED_USERS)
    # Other seeds than any run's: simulated users are not the real ones.
    parts = parts_of(replace(config, privacy=people), [_FAR + r for r in real])
    session = Trainer(parts)
    scale = scale_of(config, parts)
    reported = time.perf_counter()
    try:
        for index in range(1, len(record.seen)):
            known = {n: x[record.shadows :] for n, x in record.states[index].items()}
            worlds = []
            for guess in record.guess(index, hidden):
                wide = {n: x.expand(len(real), *x.shape[1:]) for n, x in guess.items()}
                worlds.append(State(index, {**known, **wide}))
            session.collector.scaler.use(parts.algo.scaling(worlds[1]))
            actor = parts.algo.actor(worlds[1])
            users = session.collect(actor, index)
            rows = [_whitened_rows(parts, state, users, scale) for state in worlds]
            moved, place, spread = _expected(rows[0], rows[1], config.privacy.users_per_round)
            weights = np.linalg.solve(spread, moved.T).T
            score += ((record.seen[index][record.shadows :] - place) * weights).sum(-1)
            size += (moved * weights).sum(-1)
            if time.perf_counter() - reported > 10.0:
                reported = time.perf_counter()
                say(f"end-to-end: round {index} of {len(record.seen) - 1} replayed")
    finally:
        session.close()
    return score, size


def _whitened_rows(
    parts: RunComponents, state: State, users: Any, scale: dict[str, float]
) -> np.ndarray:
    """[R, users, P] clipped rows of simulated users, where the noise of a sum of rows is N(0, I)."""
    rows, valid, _ = parts.algo.local(state, users, parts.streams).take()
    found = []
    for block in parts.gate.blocks:
        x = torch.where(valid[..., None], rows[block.name], 0.0).double()
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-300)
        found.append(x * (block.clip / norms).clamp(max=1.0) * scale[block.name])
    return torch.cat(found, dim=-1).numpy()


def _expected(
    with_her: np.ndarray, without: np.ndarray, users: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the release of a round: (her effect [R, P], point halfway [R, P], covariance [P, P]).

    Args:
        with_her, without: [R, simulated users, P] rows, U times as long as one user's.
        users: U, users of a real round.
    """
    one, zero = with_her.mean(1), without.mean(1)
    rest = (without - zero[:, None]).reshape(-1, without.shape[-1])
    freedom = without.shape[0] * (without.shape[1] - 1)
    spread = rest.T @ rest / freedom / users + np.eye(rest.shape[-1])
    return one - zero, (one + zero) / 2.0, spread


# --- the attack


def attack(
    config: RunConfig, replicas: int, later: int, confidence: float, say: Say
) -> list[Finding]:
    """Train with her row in the gate and with her row kept out of it, and bound epsilon.

    Args:
        config: of one run; sizes should be small.
        replicas: real runs; their shadows come on top.
        later: rounds watched after hers.
        confidence: of each bound.
        say: takes lines of progress.

    Raises:
        ConfigError: no noise, Poisson sampling, or a cohort of one.
    """
    refuse_unauditable(config)
    if config.privacy.rules.sampler.independent:
        raise ConfigError("--attack", "end-to-end is for cohorts of fixed size; use canary")
    if config.env.kind == "text":
        raise ConfigError(
            "--attack", "end-to-end crafts steps of simulators; use canary or one-run"
        )
    if config.privacy.users_per_round < 2:
        raise ConfigError("privacy.users_per_round", "the end-to-end attack needs 2 at least")
    replicas += replicas % 2
    started = time.perf_counter()
    signs = choose_signs(config, say)
    past = train(config, _SHADOWS, replicas, later, signs, False, say)
    hidden = hidden_tensors(past)
    beside = scores_of_later_rounds(config, past, hidden, say)
    middle = time.perf_counter()
    full = train(config, _SHADOWS, replicas, later, signs, True, say)
    first = scores_of_her_round(full)
    following = scores_of_later_rounds(config, full, hidden, say)
    end = time.perf_counter()

    guarantee = full.parts.gate.guarantee(_SHADOWS)
    formal = guarantee.status == "formal"
    everything = f"everything released about {guarantee.unit}"
    here = full.present[_SHADOWS:]
    notes = [f"{replicas} runs, {later} rounds after hers; {_SHADOWS} shadow runs to learn from"]
    both = (first[0] + following[0], first[1] + following[1])
    found = [
        _finding("her round", first, here, guarantee, everything, confidence),
        _finding("all rounds", both, here, guarantee, everything, confidence),
    ]
    found[0].seconds = end - middle
    if later:
        nothing = "what later rounds add, her row kept out of the gate"
        last = _finding("later rounds", beside, here, guarantee, nothing, confidence)
        last.claim = 0.0 if formal else None
        last.seconds = middle - started
        if formal and hidden:
            last.problems.append(
                "the guarantee is formal, yet training holds something of her beside what it "
                f"released: {', '.join(sorted(hidden))}"
            )
        last.notes += _about_later_rounds(last.best, hidden, list(guarantee.caveats), formal)
        found.append(last)
    for finding in found:
        finding.notes[:0] = notes
    return found


def _finding(
    name: str,
    scores: tuple[np.ndarray, np.ndarray],
    here: np.ndarray,
    guarantee: Guarantee,
    what: str,
    confidence: float,
) -> Finding:
    """Bounds from (score, squared size) of each replica; `here` says in which she is.

    Thresholds and the unit of the scores are what the laboratories expect.
    """
    score, size = scores
    mu = float(np.sqrt(size.mean()))
    score = score / (mu or 1.0)
    inside, outside = score[here], score[~here]
    delta = guarantee.delta
    far = bounds.tail(mu, len(inside), delta, confidence) - mu / 2.0
    values = [
        bounds.gdp_bound(inside, outside, 0.0, delta, confidence),
        bounds.direct_bound(inside, outside, far, delta, confidence),
        bounds.normal_bound(inside, outside, delta, confidence),
    ]
    return Finding(
        f"end-to-end, {name}", guarantee.epsilon, what, values, inside, outside, None, 0.0, [], []
    )


def _about_later_rounds(
    bound: Bound, hidden: set[str], caveats: list[str], formal: bool
) -> list[str]:
    """What the finding about later rounds means."""
    if hidden:
        lines = [
            f"beside what it released, training holds something of her in: {', '.join(sorted(hidden))}"
        ]
    else:
        lines = ["training holds nothing of her beside what it released, up to rounding"]
    if formal:
        lines.append("the guarantee is formal: nothing of her may be found")
    elif bound.epsilon > 0:
        lines.append(f"she was found again: {', '.join(caveats)} leaks at least this much")
    else:
        lines.append(
            f"she was not found again; {', '.join(caveats)} stays a caveat: this is no proof"
        )
    return lines
