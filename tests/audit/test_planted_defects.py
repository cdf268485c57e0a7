"""Eight ways to get privacy wrong, planted in the real code one at a time. Each must be found.

The audited code is that of `privrl audit epsilon`; the tests without a defect are its false alarms.
"""

import numpy as np
import pytest
import torch
from helpers import release

from privrl_bench.audit import bounds, canary
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.privacy import contribution, gate, row_sum
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.contribution import Block, Contribution
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.mechanisms import on_grid
from privrl_bench.privacy.noise import SeededNoise
from privrl_bench.privacy.sampling.poisson import Poisson
from privrl_bench.privacy.sampling.sampler import Sampler
from privrl_bench.training import plan as assembling

SMALL = (
    *("env=cartpole", "algo=dppg", "algo.critic=private", "algo.hidden=[8]", "algo.epochs=1"),
    *("algo.minibatches=1", "algo.critic_features=16", "env.user=fresh", "env.user_steps=4"),
    *("privacy.users_per_round=6", "privacy.z=1"),
)
POISSON = ("privacy=poisson", "privacy.population=300", "env.user=fresh")


SLOW = pytest.mark.slow


def audit(*words, scores=800):
    return canary.attack(compose(later_wins([*SMALL, *words])), scores, 4, 0.99, lambda text: None)


def contradicted(finding):
    return bool(finding.exceeded())


# -- no defect


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="plain"),
        pytest.param(("privacy.adjacency=replace_one",), id="replace-one", marks=SLOW),
        pytest.param(("algo.critic_noise_ratio=1",), id="even blocks", marks=SLOW),
        pytest.param(("env.user=segment", "env.max_episode_steps=5"), id="segments", marks=SLOW),
        pytest.param(POISSON, id="poisson"),
        pytest.param(("privacy.noise=secure",), id="secure"),
    ],
)
def test_the_shipped_code_is_not_contradicted(words):
    finding = audit(*words)
    assert not finding.exceeded()
    assert not finding.problems
    assert finding.best.epsilon > 0.3 * finding.claim  # and it is really measured


# -- 1. noise


def test_half_the_noise_is_found(monkeypatch):
    real = SeededNoise.normal

    def weak(self, sizes, round_index, attempt):
        return [0.5 * x for x in real(self, sizes, round_index, attempt)]

    monkeypatch.setattr(SeededNoise, "normal", weak)
    finding = audit()
    assert contradicted(finding)
    assert finding.best.mu > 1.5


# -- 2. clip


@pytest.mark.slow
def test_a_missing_clip_is_found(monkeypatch):
    def no_clip(rows, bound, unit, norm):
        return (rows.double() / unit).round().long(), rows.double().norm(dim=-1)

    monkeypatch.setattr(row_sum, "clip_rows", no_clip)
    assert contradicted(audit())


# -- 3. joint clip


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_blocks_that_each_get_the_noise_of_one_are_found(monkeypatch, ratio):
    """All multipliers z: two blocks together cost sqrt(2) of what is claimed. (The gate's own check
    of the joint multiplier is planted over, too.)"""
    same = lambda z, blocks, norm=2: {b.name: z for b in blocks}  # noqa: E731
    monkeypatch.setattr(contribution, "block_multipliers", same)
    monkeypatch.setattr(on_grid, "joint_z", lambda multipliers, norm: next(iter(multipliers)))
    # With an uneven split the defect is small (mu 1.1): more scores.
    finding = audit(f"algo.critic_noise_ratio={ratio}", scores=1600 if ratio == 1 else 16_000)
    assert contradicted(finding)


def test_the_gate_refuses_multipliers_that_do_not_make_the_joint_one(monkeypatch):
    same = lambda z, blocks, norm=2: {b.name: z for b in blocks}  # noqa: E731
    monkeypatch.setattr(contribution, "block_multipliers", same)
    with pytest.raises(gate.PrivacyError, match="joint z"):
        audit()


# -- 4. divisor


def send(plan, scales, valid=None):
    """The noised sum [50] when user u sends a row of length scales[u]; clip and z are 1."""
    rows = torch.full((1, 4, 50), 50**-0.5) * torch.tensor(scales)[None, :, None]
    valid = torch.ones(1, 4, dtype=torch.bool) if valid is None else torch.tensor([valid])
    return 4 * release(plan, Contribution({"actor": rows}, valid), 0).values["actor"][0].double()


def presence_is_visible():
    """Whether a user without data is distinguishable from an absent user."""
    scales = [0.0, 1.0, 1.0, 1.0]
    here = send(small_plan(), scales)
    return not torch.equal(here, send(small_plan(), scales, [False, True, True, True]))


def small_plan(seed=0, ledger=None):
    config = PrivacyConfig(z=1.0, clip=1.0, users_per_round=4)
    return Gate(
        configs=[config],
        blocks=(Block("actor", 50, 1.0),),
        unit=Unit("one user", 1),
        rounds=1,
        noises=[SeededNoise(seed, 0)],
        ledgers=[ledger or Ledger(None)],
    )


def test_a_divisor_that_counts_users_is_found(monkeypatch):
    assert not presence_is_visible()
    real = Gate.release

    def by_number_present(self, round_index):
        valid = self._sum.valid
        released = real(self, round_index)
        public, present = self.config.users_per_round, valid.clamp_min(1)[:, None]
        for name, x in released.values.items():
            released.values[name] = x * public / present
        return released

    monkeypatch.setattr(Gate, "release", by_number_present)
    assert presence_is_visible()


def test_the_size_of_a_poisson_cohort_does_not_scale_the_release():
    """The noise of an empty and of a full cohort is the same: the divisor is the public U."""
    config = compose(later_wins([*SMALL, *POISSON, "total_steps=100_000"]))
    spread = []
    for count in (1, 12):
        parts = assembling.make_plan([config])
        rows = {b.name: torch.zeros(1, parts.gate.slots, b.size) for b in parts.gate.blocks}
        valid = torch.arange(parts.gate.slots)[None, :] < count
        spread.append(release(parts.gate, Contribution(rows, valid), 0).values["actor"].std())
    assert spread[0] == spread[1]


# -- 5. participation


@pytest.mark.slow
def test_a_unit_that_is_in_two_rounds_and_counted_once_is_found(monkeypatch):
    words = ("env.user=segment", "env.max_episode_steps=5")  # two segments of four steps
    honest = assembling.make_plan([compose(later_wins([*SMALL, *words]))]).gate
    once = lambda *_: Unit("an episode", 1)  # noqa: E731
    monkeypatch.setattr(assembling, "unit_of", once)
    finding = audit(*words, scores=3000)  # 4.4 against the true 6.6: a bound must come close
    assert honest.planned_epsilon(0) == pytest.approx(
        ledger_epsilon([ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")] * 2, 1e-5)
    )
    assert finding.claim == pytest.approx(4.377178, abs=1e-5)
    assert contradicted(finding)
    assert any("can enter 2 rounds, the plan counts 1" in line for line in finding.problems)


# -- 6. Poisson


@pytest.mark.slow
def test_a_fixed_cohort_that_claims_poisson_is_found(monkeypatch):
    monkeypatch.setattr(Poisson, "sizes", Sampler.sizes)  # U users in every round
    finding = audit(*POISSON)
    assert any("not those of Poisson sampling" in line for line in finding.problems)


@pytest.mark.slow
def test_a_person_who_is_always_in_exceeds_what_poisson_claims():
    """Cohorts filled by arrival: the user is in with probability 1, the claim assumes U / population."""
    config = compose(later_wins([*SMALL, *POISSON]))
    finding = audit(*POISSON)  # scores of rounds that the user is in
    parts = assembling.make_plan([config])
    subsampled = ledger_epsilon([parts.gate.event(0)], config.privacy.delta)
    direct = next(b for b in finding.bounds if b.form == "direct")
    assert subsampled < direct.epsilon < finding.claim


# -- 7. the same noise twice


def resumed_pairs(count):
    """(scores with the user in the second attempt, without; claimed epsilon of a repeated round).

    Every round is released, the process dies, and the round is released again from other data: the
    last user does not come back, and half of the time the first does not either. The adversary
    subtracts one release from the other.
    """
    coins = np.arange(count) % 2 == 0
    scores = np.zeros(count)
    for index, coin in enumerate(coins):
        ledger = Ledger(None)
        first = send(small_plan(seed=index, ledger=ledger), [1.0, 1.0, 1.0, 1.0])
        plan = small_plan(seed=index, ledger=ledger)
        second = send(plan, [float(coin), 1.0, 1.0, 0.0])
        scores[index] = float((second - first).sum()) / 50**0.5 + 1.0
    return scores[coins], scores[~coins], plan.spent_epsilon(0)


def test_noise_that_is_used_again_after_a_resume_is_found(monkeypatch):
    def measured():
        inside, outside, claim = resumed_pairs(200)
        return bounds.gdp_bound(inside, outside, -0.5, 1e-5, 0.99), claim

    bound, claim = measured()
    assert bound.epsilon <= claim
    monkeypatch.setattr(Ledger, "came_out", lambda self, *args: True)
    bound, claim = measured()
    assert bound.epsilon > claim


# -- 8. the ledger


def test_missing_ledger_lines_are_found(monkeypatch):
    real = Ledger.intend

    def every_second(self, round_index, *args, **kwargs):
        return 0 if round_index % 2 else real(self, round_index, *args, **kwargs)

    monkeypatch.setattr(Ledger, "intend", every_second)
    finding = audit("privacy=fixed", scores=200)
    assert any("25 of 50 releases have no line in the ledger" in line for line in finding.problems)


def test_a_run_whose_ledger_is_empty_claims_nothing_and_is_found(monkeypatch):
    monkeypatch.setattr(Ledger, "intend", lambda self, *args, **kwargs: 0)
    finding = audit(scores=400)
    assert finding.claim == 0.0
    assert contradicted(finding)


def test_a_repeated_round_is_spent_twice():
    ledger = Ledger(None)
    for scale in (1.0, 0.0):
        plan = small_plan(ledger=ledger)
        send(plan, [scale, 1.0, 1.0, 1.0])
    twice = ledger_epsilon([ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")] * 2, 1e-5)
    assert plan.spent_epsilon(0) == pytest.approx(twice)
