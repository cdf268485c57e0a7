"""Ways to get correlated noise wrong, planted in the real code one at a time. Each must be found.

The audited code is that of `privrl audit epsilon`; the tests without a defect are its false alarms.
"""

import numpy as np
import pytest
import torch
from helpers import release
from scipy import stats

from privrl_bench.audit import bounds, canary, end_to_end
from privrl_bench.audit import end_to_end as crafted
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.privacy.accounting.strategy import Strategy
from privrl_bench.privacy.contribution import Block, Contribution
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.mechanisms import correlated
from privrl_bench.privacy.noise import SecureNoise, SeededNoise
from privrl_bench.training import plan as assembling

SMALL = (
    *("env=cartpole", "algo=dppg", "algo.critic=private", "algo.hidden=[8]", "algo.epochs=1"),
    *("algo.minibatches=1", "algo.critic_features=16", "env.user=fresh", "env.user_steps=4"),
    *("privacy=correlated", "privacy.users_per_round=6", "privacy.z=1"),
)
SEGMENTS = ("env.user=segment", "env.max_episode_steps=5")  # two segments of four steps
EPSILON = 4.377178  # of z = 1 at delta = 1e-5


def audit(*words, scores=600):
    config = compose(later_wins([*SMALL, *words]))
    return canary.attack(config, scores, 4, 0.99, lambda text: None)


# -- no defect


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "claim"),
    [
        pytest.param((), EPSILON, id="plain"),
        pytest.param(("privacy.adjacency=replace_one",), 9.997256, id="replace-one", marks=SLOW),
        pytest.param(SEGMENTS, 6.572970, id="segments"),
        pytest.param(("privacy.noise=secure",), EPSILON, id="secure", marks=SLOW),
        pytest.param(("privacy.correlation=0.5",), EPSILON, id="half", marks=SLOW),
        pytest.param(("privacy.correlation=1.0",), EPSILON, id="root"),
        pytest.param(
            ("privacy.correlation=1.0", "privacy.bands=4", *SEGMENTS), None, id="four bands"
        ),
        pytest.param(("algo.critic_noise_ratio=1",), EPSILON, id="even blocks", marks=SLOW),
    ],
)
def test_the_shipped_code_is_not_contradicted(words, claim):
    finding = audit(*words)
    if claim is not None:
        assert finding.claim == pytest.approx(claim, abs=1e-5)
    assert not finding.exceeded()
    assert not finding.problems
    assert finding.best.epsilon > 0.2 * finding.claim  # and it is really measured
    start = finding.start
    assert stats.kstest(finding.outside - start, "norm").pvalue > 1e-5
    assert stats.kstest(finding.inside - start - finding.mu, "norm").pvalue > 1e-5


def test_the_last_canary_is_followed_by_rounds_that_cancel_its_noise():
    run = canary.run_canaries(compose(later_wins(SMALL)), 40, 4, lambda text: None)
    more = canary.run_canaries(
        compose(later_wins([*SMALL, "privacy.bands=4", *SEGMENTS])), 40, 4, lambda text: None
    )
    assert run.rounds == 10 + 9  # C of a run of ten rounds has ten bands
    assert more.rounds == 2 * 10 + 3
    strategy = more.parts.gate.mechanism.strategy
    assert more.mu == strategy.sensitivity(2) / strategy.scale


# -- 1. the size of the noise


@pytest.mark.slow
def test_noise_without_the_norm_of_the_strategy_is_found(monkeypatch):
    monkeypatch.setattr(correlated.Correlated, "unit_noise", lambda self, block: block.clip)
    finding = audit("privacy.correlation=1", scores=800)
    assert finding.exceeded()
    assert any("times the claimed variance" in line for line in finding.problems)


# -- 2. another strategy


@pytest.mark.slow
def test_noise_that_is_sized_for_a_weaker_correlation_is_found(monkeypatch):
    """The accountant's C is not that of the noise, which the adversary knows."""
    weaker = Strategy.damped_square_root(0.5, 600)
    size = lambda self, block: block.clip * weaker.norm()  # noqa: E731
    monkeypatch.setattr(correlated.Correlated, "unit_noise", size)
    assert audit("privacy.correlation=1", scores=1200).exceeded()


def past_of(strategy):
    """Makes the noise of this strategy, whatever the public one is."""
    real = correlated.Past
    return lambda coefficients: real(strategy.coefficients)


class Multiplied(correlated.Past):
    """C w instead of C^-1 w."""

    def __init__(self, coefficients):
        super().__init__([-c for c in coefficients])

    def correlated(self, fresh, round_index):
        self._fresh = fresh
        return super().correlated(fresh, round_index)

    def keep(self, round_index, noise):
        super().keep(round_index, self._fresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("public", "past"),
    [
        (0.95, Multiplied),
        (0.5, past_of(Strategy.damped_square_root(1.0, 600))),
        (0.95, past_of(Strategy.damped_square_root(1.0, 300, bands=5))),  # a norm of 1.25 for 1.28
        (0.95, past_of(Strategy((1.0,), 300))),
    ],
    ids=["the inverse", "stronger", "another of nearly equal norm", "none"],
)
def test_noise_that_is_not_of_the_public_strategy_is_found(monkeypatch, public, past):
    """All but the stronger one are large enough for epsilon, so that no bound can exceed the claim. The scores
    are the best ones against the public strategy, and miss the stronger one, too."""
    monkeypatch.setattr(correlated, "Past", past)
    finding = audit(f"privacy.correlation={public}", scores=400)
    assert any(line.startswith("the noise") for line in finding.problems)


# -- 3. resumed runs

_ROUNDS = 4


def gate(noise, ledger):
    config = PrivacyConfig(mechanism="correlated", z=1.0, clip=1.0, users_per_round=2)
    plan = Gate(
        configs=[config],
        blocks=(Block("actor", 50, 1.0),),
        unit=Unit("one user", 1),
        rounds=_ROUNDS,
        noises=[SeededNoise(0, 0)],
        ledgers=[ledger],
    )
    plan._noises[0] = noise  # a gate refuses noise that is not from noise.py
    return plan


def send(plan, round_index, scales):
    """The noised sum of a round when user u sends a row of length scales[u], along that row."""
    rows = torch.full((1, 2, 50), 50**-0.5) * torch.tensor(scales)[None, :, None]
    contribution = Contribution({"actor": rows}, torch.ones(1, 2, dtype=torch.bool))
    return 2 * float(release(plan, contribution, round_index).values["actor"].sum()) / 50**0.5


class Restarted(SeededNoise):
    """Draws the noise of the first two rounds again."""

    def normal(self, sizes, round_index, attempt):
        return super().normal(sizes, round_index % 2, attempt)


class Forgotten(Restarted):
    """The same, and the correlation begins anew."""

    name = "secure"


def resumed(first, second, whitened):
    """(bound, claim) of runs that died after two of four rounds; the user is in the third or not.

    The adversary compares the first release after the resume with the first of all, in rows of C X or as
    they are; the noise of both together has the variance 2 |C|^2.
    """
    coins, scores = np.arange(200) % 2 == 0, np.zeros(200)
    for index, coin in enumerate(coins):
        ledger = Ledger(None)
        before, after = gate(first(index, 0), ledger), gate(second(index, 0), ledger)
        c = before.mechanism.strategy.coefficients
        x = [send(before, t, [0.0, 0.0]) for t in (0, 1)]
        x += [send(after, t, [float(coin and t == 2), 0.0]) for t in (2, 3)]
        third = x[2] + c[1] * x[1] + c[2] * x[0] if whitened else x[2]
        scores[index] = third - x[0]
    found = bounds.gdp_bound(scores[coins], scores[~coins], 0.5, 1e-5, 0.99)
    return found.epsilon, after.spent_epsilon(0)


def secure(index, settings):
    return SecureNoise()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("honest", "planted", "whitened"),
    [
        pytest.param(SeededNoise, Restarted, True, id="remembered"),
        pytest.param(secure, Forgotten, False, id="forgotten", marks=pytest.mark.slow),
    ],
)
def test_noise_of_the_first_rounds_after_a_resume_is_found(honest, planted, whitened):
    bound, claim = resumed(honest, honest, whitened)
    assert bound <= claim == pytest.approx(EPSILON, abs=1e-5)
    bound, claim = resumed(SeededNoise, planted, whitened)
    assert bound > claim


@pytest.mark.slow
def test_noise_that_is_used_again_for_a_repeated_round_is_found(monkeypatch):
    def measured():
        coins, scores = np.arange(200) % 2 == 0, np.zeros(200)
        for index, coin in enumerate(coins):
            ledger = Ledger(None)
            first, second = (gate(SeededNoise(index, 0), ledger) for _ in range(2))
            send(first, 0, [0.0, 0.0])
            before = send(first, 1, [1.0, 1.0])
            scores[index] = send(second, 1, [float(coin), 0.0]) - before + 2.0
        found = bounds.gdp_bound(scores[coins], scores[~coins], 0.5, 1e-5, 0.99)
        return found.epsilon, second.spent_epsilon(0)

    bound, claim = measured()
    assert bound <= claim
    assert claim > EPSILON  # the line of the repeated round counts
    monkeypatch.setattr(Ledger, "came_out", lambda self, *args: True)
    bound, claim = measured()
    assert bound > claim


# -- 4. participation


@pytest.mark.slow
def test_a_unit_that_is_in_two_rounds_and_counted_once_is_found(monkeypatch):
    monkeypatch.setattr(assembling, "unit_of", lambda *_: Unit("an episode", 1))
    finding = audit(*SEGMENTS, scores=800)
    assert finding.claim == pytest.approx(EPSILON, abs=1e-5)
    assert finding.exceeded()
    assert any("can enter 2 rounds, the plan counts 1" in line for line in finding.problems)


# -- end to end


@pytest.fixture
def few_shadows(monkeypatch):
    monkeypatch.setattr(end_to_end, "_SHADOWS", 40)
    monkeypatch.setattr(crafted, "_CANDIDATES", 2)
    monkeypatch.setattr(crafted, "_CANDIDATE_SHADOWS", 20)


@pytest.mark.slow
def test_later_rounds_tell_nothing_although_their_noise_contains_the_users_round(few_shadows):
    words = [*SMALL, "privacy.z=0.3", "algo.epochs=8", "env.user_steps=8", "privacy.noise=secure"]
    own, both, later = end_to_end.attack(
        compose(later_wins(words)), 200, 2, 0.95, lambda text: None
    )
    assert 0 < own.best.epsilon < own.claim
    assert np.array_equal(own.inside, both.inside)
    assert not later.inside.any()
    assert not later.problems
    assert any("with seeded noise" in note for note in later.notes)
    assert later.best.epsilon == later.claim == 0.0


def test_whitened_releases_have_independent_noise(few_shadows):
    config = compose(
        later_wins([*SMALL, "privacy.z=100", "privacy.correlation=1", "privacy.bands=64"])
    )
    record = crafted.train(config, 0, 60, 5, torch.ones(4), True, lambda text: None)
    noise = np.stack(record.seen).reshape(6, -1)  # at z = 100 the rest is nothing
    assert np.abs(np.cov(noise) - np.eye(6)).max() < 5 * (2 / noise.shape[1]) ** 0.5


def test_a_shared_critic_is_followed_through_correlated_rounds(few_shadows):
    words = [*SMALL, "algo.critic=shared", "privacy.z=0.3"]
    *_, both, later = end_to_end.attack(compose(later_wins(words)), 40, 2, 0.95, lambda text: None)
    assert later.claim is None
    assert later.inside.any()
    assert np.isfinite(both.inside).all()
