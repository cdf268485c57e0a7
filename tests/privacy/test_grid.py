"""The integer grid: what a row can be, sums in any order, integer noise, and what discrete noise costs."""

import math

import numpy as np
import pytest
import torch
from helpers import release
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy import noise
from privrl_bench.privacy.clip import clip_rows
from privrl_bench.privacy.contribution import Block, Contribution
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.grid import BITS, L1, L2, MARGIN, MOST_USERS, discrete_cost, unit_of
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.mechanisms.correlated import Past
from privrl_bench.privacy.noise import SecureNoise, SeededNoise, discrete_gaussian, discrete_laplace
from privrl_bench.privacy.row_sum import RowSum

CHANCE = 1e-6  # of a test that fails without a defect
BLOCKS = (Block("actor", 6, 0.5), Block("critic", 3, 2.0, noise_ratio=3.0))


@given(st.floats(1e-30, 1e30))
def test_a_unit_is_a_power_of_two_and_a_clip_has_enough_of_them(clip):
    assert math.frexp(unit_of(clip))[0] == 0.5
    assert 2.0**BITS <= clip / unit_of(clip) < 2.0 ** (BITS + 1)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 3000), power=st.floats(-3, 30))
def test_the_norm_of_an_integer_row_leaves_the_margin_free(seed, size, power):
    """In exact arithmetic."""
    bound, stream = 0.37, torch.Generator().manual_seed(seed)
    rows, _ = clip_rows(
        10.0**power * torch.randn(1, 1, size, generator=stream), bound, unit_of(bound)
    )
    square = sum(int(x) ** 2 for x in rows[0, 0])
    assert math.isqrt(square) <= (1 - MARGIN) * bound / unit_of(bound)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 3000), power=st.floats(-3, 30))
def test_the_l1_norm_of_an_integer_row_leaves_the_margin_free(seed, size, power):
    """In exact arithmetic. Numbers of all sizes, most of which are rounded."""
    bound, stream = 0.37, torch.Generator().manual_seed(seed)
    rows = torch.randn(1, 1, size, generator=stream)
    rows = 10.0**power * rows * 10.0 ** (-20 * torch.rand(1, 1, size, generator=stream))
    found, _ = clip_rows(rows, bound, unit_of(bound), L1)
    assert sum(abs(int(x)) for x in found[0, 0]) <= (1 - MARGIN) * bound / unit_of(bound)
    exact = (
        rows.double().abs() * min(1.0, bound / float(rows.double().abs().sum())) / unit_of(bound)
    )
    assert (found.abs() <= exact).all()  # towards zero, or P halves could add up
    assert (found.abs() >= exact * (1 - 5e-6) - 1).all()
    assert (found * rows.sign() >= 0).all()


def test_rounding_to_the_nearest_would_leave_the_l1_ball():
    size, bound = 2**20, 1.0
    unit = unit_of(bound)
    rows = torch.full((1, size), 0.75 * unit, dtype=torch.float64)
    assert int(torch.round(rows / unit).sum()) > float(rows.sum()) / unit * 1.3
    assert not clip_rows(rows, bound, unit, L1)[0].any()


@pytest.mark.parametrize("b", [0.6, 2.0, 7.3])
@pytest.mark.parametrize("distance", [1, 2, 5, 12])
def test_discrete_laplace_noise_costs_what_continuous_noise_at_a_little_more_distance_does(
    b, distance
):
    """Item 5 of the module, against the probabilities themselves."""
    k = np.arange(-2000, 2000)
    p = np.exp(-np.abs(k) / b)
    p, q = p / p.sum(), np.exp(-np.abs(k - distance) / b) / p.sum()
    for epsilon in np.linspace(-1.2 * distance / b, 1.2 * distance / b, 97):
        delta = np.maximum(p - np.exp(epsilon) * q, 0.0).sum()
        far = distance + 1 / (4 * b)
        flat = 1 - math.exp((epsilon - far / b) / 2)
        assert delta <= max(0.0, flat, 1 - math.exp(epsilon)) + 1e-12


@given(st.floats(0.01, 5), st.floats(0.01, 5), st.floats(-1, 1))
@settings(max_examples=30, deadline=None)
def test_two_laplace_numbers_cost_at_most_one_at_the_sum_of_their_distances(d, e, share):
    from scipy.integrate import quad

    epsilon = share * (d + e)

    def one(far, at):
        return max(0.0, 1 - math.exp((at - far) / 2), 1 - math.exp(at))

    # Losses of the first number: d at x <= 0, d - 2 x between, -d beyond.
    between, _ = quad(lambda x: math.exp(-x) / 2 * one(e, epsilon - d + 2 * x), 0, d, limit=200)
    delta = one(e, epsilon - d) / 2 + between + math.exp(-d) / 2 * one(e, epsilon + d)
    assert delta <= one(d + e, epsilon) + 1e-9


def test_rounding_moves_a_row_by_half_a_unit_at_most():
    rows = 0.01 * torch.randn(1, 3, 50, generator=torch.Generator().manual_seed(0))
    unit = unit_of(1.0)
    found, _ = clip_rows(rows, 1.0, unit)
    assert (found.double() * unit - rows.double()).abs().max() <= unit / 2


def contributions(seed, users, parts):
    """The same users in random order and parts."""
    stream = torch.Generator().manual_seed(seed)
    rows = {b.name: torch.randn(2, users, b.size, generator=stream) for b in BLOCKS}
    rows["critic"][0, 1, 0] = math.inf
    valid = torch.rand(2, users, generator=stream) < 0.8
    order = np.random.default_rng(parts).permutation(users)
    for who in np.array_split(order, parts):
        yield Contribution({name: x[:, who] for name, x in rows.items()}, valid[:, who])


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), users=st.integers(2, 20), parts=st.integers(1, 6))
def test_sums_do_not_depend_on_order_or_grouping(seed, users, parts):
    whole, merged = RowSum(BLOCKS, L2, 2), RowSum(BLOCKS, L2, 2)
    (everyone,) = contributions(seed, users, 1)
    whole.add(everyone)
    for one in contributions(seed, users, parts):
        some = RowSum(BLOCKS, L2, 2)
        some.add(one)
        merged.merge(some)
    assert merged.users == whole.users == users
    for name in whole.sums:
        assert torch.equal(merged.sums[name], whole.sums[name])
    for name in ("valid", "at_bound", "invalid"):
        assert torch.equal(getattr(merged, name), getattr(whole, name))


def test_what_is_not_a_row_comes_once():
    beside = {"shared critic": {"critic": torch.zeros(1, 3)}}
    rows = {"actor": torch.zeros(1, 2, 6)}
    total, valid = RowSum(BLOCKS[:1], L2, 1), torch.ones(1, 2, dtype=torch.bool)
    total.add(Contribution(dict(rows), valid, beside))
    with pytest.raises(PrivacyError, match="once in a round"):
        total.add(Contribution(dict(rows), valid, beside))


# -- noise


def test_discrete_gaussian_numbers_have_their_law():
    """Against the probabilities themselves, where single integers can be counted."""
    std, size = 2.3, 40_000
    drawn = discrete_gaussian(size, std).numpy()
    k = np.arange(-7, 8)
    weights = np.exp(-(k**2) / (2 * std**2))
    inside = np.abs(drawn) <= 7
    counts = np.bincount(drawn[inside] + 7, minlength=15)
    assert stats.chisquare(counts, weights / weights.sum() * inside.sum()).pvalue > CHANCE
    assert np.mean(~inside) < 2 * stats.norm.sf(6.5 / std)


@pytest.mark.parametrize("source", [SeededNoise(3, 0), SecureNoise()], ids=["seeded", "secure"])
def test_both_sources_have_the_same_law_on_the_grid(source):
    """At the size that a gate uses, discrete Gaussian and rounded normal numbers cannot be told apart."""
    std = 1.7 * 2.0**BITS
    (drawn,) = source.integers([20_000], [std], 0, 0)
    assert drawn.dtype == torch.int64
    assert stats.kstest(drawn.numpy() / std, "norm").pvalue > CHANCE
    low = np.bincount(drawn.numpy() & 15, minlength=16)
    assert stats.chisquare(low).pvalue > CHANCE  # low bits are uniform


def test_numbers_of_a_seed_do_not_depend_on_other_blocks_of_the_same_stream():
    a, b = SeededNoise(0, 0).integers([4, 4], [2.0**40, 2.0**41], 5, 0)
    x, y = SeededNoise(0, 0).normal([4, 4], 5, 0)
    assert torch.equal(a, torch.round(2.0**40 * x).long())
    assert torch.equal(b, torch.round(2.0**41 * y).long())


SOURCES = pytest.mark.parametrize(
    "source", [SeededNoise(3, 0), SecureNoise()], ids=["seeded", "secure"]
)


@SOURCES
@pytest.mark.parametrize("scale", [1, 2.5, 6])
def test_discrete_laplace_numbers_have_their_law(source, scale):
    """Against the probabilities themselves, where single integers can be counted."""
    b = math.ceil(scale)
    drawn = discrete_laplace(source.bits(0, 0), 40_000, scale).numpy()
    k = np.arange(-4 * b, 4 * b + 1)
    chance = np.exp(-np.abs(k) / b) * math.tanh(1 / (2 * b))
    inside = np.abs(drawn) <= 4 * b
    counts = [*np.bincount(drawn[inside] + 4 * b, minlength=len(k)), int((~inside).sum())]
    assert (
        stats.chisquare(counts, [*(chance * 40_000), 40_000 * (1 - chance.sum())]).pvalue > CHANCE
    )


@SOURCES
def test_discrete_laplace_numbers_at_the_size_of_a_gate(source):
    scale = 1.7 * 2.0**BITS
    drawn = discrete_laplace(source.bits(1, 0), 20_000, scale)
    assert drawn.dtype == torch.int64
    assert stats.kstest(drawn.numpy() / scale, "laplace").pvalue > CHANCE
    assert stats.chisquare(np.bincount(drawn.numpy() & 15, minlength=16)).pvalue > CHANCE
    for wrong in (0.0, 2.0**55, math.nan, math.inf):
        with pytest.raises(PrivacyError, match="units"):
            discrete_laplace(source.bits(0, 0), 1, wrong)


def test_seeded_bits_are_those_of_one_attempt_and_secure_ones_of_none():
    for source, same in ((SeededNoise(3, 0), True), (SecureNoise(), False)):
        one, again = (source.bits(5, 1)(64) for _ in range(2))
        assert (one == again) is same
        others = [source.bits(5, 0)(64), source.bits(4, 1)(64), SeededNoise(3, 1).bits(5, 1)(64)]
        assert len({one, *others}) == 4
    (normal,) = SeededNoise(3, 0).normal([4], 5, 1)
    assert SeededNoise(3, 0).bits(5, 1)(32) != normal.numpy().tobytes()


def test_uniform_integers_are_exact():
    """The largest words, which a plain remainder would count once too often, are drawn again."""
    last = (2**64 - 1).to_bytes(8, "little")
    words = [last, last, (7).to_bytes(8, "little"), last]

    def bits(count):
        taken = words[: count // 8]
        del words[: count // 8]
        return b"".join(taken)

    assert noise._below(bits, 10, 1).tolist() == [7]
    assert noise._below(lambda n: last * (n // 8), 2, 3).tolist() == [1, 1, 1]  # 2 divides 2^64
    drawn = noise._below(SeededNoise(0, 0).bits(0, 0), 3, 30_000)
    assert stats.chisquare(np.bincount(drawn, minlength=3)).pvalue > CHANCE


@pytest.mark.parametrize("part", [0, 1, 3, 4])
def test_events_of_chance_exp(part):
    happened = noise._with_chance_exp(SeededNoise(0, 0).bits(0, 0), np.full(40_000, part), 4)
    assert stats.binomtest(int(happened.sum()), 40_000, math.exp(-part / 4)).pvalue > CHANCE


@pytest.mark.parametrize("sigma", [0.8, 3.0, 11.0])
def test_rounded_and_discrete_gaussian_differ_by_the_proven_factor(sigma):
    """Item 4 of the module, number by number."""
    k = np.arange(-int(6 * sigma), int(6 * sigma) + 1)
    discrete = np.exp(-(k**2) / (2 * sigma**2))
    discrete /= np.exp(-(np.arange(-5000, 5001) ** 2) / (2 * sigma**2)).sum()
    rounded = stats.norm.cdf((k + 0.5) / sigma) - stats.norm.cdf((k - 0.5) / sigma)
    rounded = np.where(k > 0, rounded[::-1], rounded)  # the far tail of cdf is inexact
    ratio, wrap = np.log(rounded / discrete), 3 * math.exp(-2 * math.pi**2 * sigma**2)
    assert (ratio >= -1 / (8 * sigma**2) - wrap).all()
    assert (ratio <= (k / sigma) ** 2 / (8 * sigma**2) + wrap).all()


def plan(noise="seeded", z=1.0, users=4, rounds=10, **config):
    settings_ = PrivacyConfig(z=z, users_per_round=users, noise=noise, **config)
    source = SecureNoise() if noise == "secure" else SeededNoise(0, 0)
    return Gate([settings_], BLOCKS, Unit("one user", 1), rounds, [source], [Ledger(None)])


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gaussian"])
def test_epsilon_of_discrete_noise_is_hardly_larger(accountant):
    seeded, secure = (plan(noise, accountant=accountant) for noise in ("seeded", "secure"))
    assert 0 < secure.planned_epsilon(0) - seeded.planned_epsilon(0) < 1e-6
    assert secure.spent_epsilon(0) == 0.0
    assert "floating point" not in secure.guarantee(0).notes
    assert secure.guarantee(0).status == "formal"


def test_the_cost_of_discrete_noise_is_that_of_its_numbers():
    assert discrete_cost(10**6, 2.0**36) < 1e-16
    assert discrete_cost(10**12, 2.0**36) > 1e-12
    with pytest.raises(ConfigError, match=r"privacy\.z: must be larger"):
        plan("secure", z=1e-6, rounds=10**9)
    assert plan("secure", z=1e-3).planned_epsilon(0) == math.inf  # beyond the tail that is bounded


def test_noise_beyond_the_integers_is_refused():
    with pytest.raises(ConfigError, match=r"privacy\.z: must be at most .*64-bit"):
        plan(z=1e6)
    with pytest.raises(PrivacyError, match=str(MOST_USERS)):
        plan(users=MOST_USERS + 1)


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_releases_are_integers_times_a_public_number(noise):
    gate = plan(noise, users=4)
    rows = {b.name: torch.randn(1, 4, b.size) for b in BLOCKS}
    seen = []
    real = gate.mechanism.privatize

    def watched(sums, attempt):
        seen.extend([sums, real(sums, attempt)])
        return seen[-1]

    gate.mechanism.privatize = watched
    released = release(gate, Contribution(rows, torch.ones(1, 4, dtype=torch.bool)), 0)
    for sums in seen:
        assert all(x.dtype == torch.int64 for x in sums.values())
    for b in BLOCKS:
        assert torch.equal(
            released.values[b.name][0], (seen[1][b.name].double() * (b.unit / 4)).float()
        )


# -- correlated noise on the grid


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    coefficients=st.lists(st.floats(0, 1), min_size=0, max_size=6),
    rounds=st.integers(1, 12),
)
def test_a_users_row_moves_the_integers_as_the_module_says(seed, coefficients, rounds):
    """The same releases with another row s: w moves by an integer vector near c_{t - s} D."""
    c, size = [1.0, *coefficients], 7
    rng = np.random.default_rng(seed)
    w = rng.integers(-(2**40), 2**40, (rounds, size))
    s = int(rng.integers(rounds))
    moved = rng.integers(-(2**36), 2**36, size)

    def noise_of(fresh):
        past, found = Past(c), []
        for t, x in enumerate(fresh):
            found.append(past.correlated(torch.from_numpy(x), t))
            past.keep(t, found[-1])
        return np.stack([x.numpy() for x in found])

    y = noise_of(w)
    other = y.copy()
    other[s] -= moved  # the neighbour's noise, for the same releases
    needed = np.stack([
        other[t] + np.rint(sum([c[k] * other[t - k] for k in range(1, min(len(c), t + 1))], np.zeros(size)))
        for t in range(rounds)
    ]).astype(np.int64)  # fmt: skip
    assert np.array_equal(noise_of(needed), other)
    for t in range(rounds):
        exact = c[t - s] * moved if 0 <= t - s < len(c) else np.zeros(size)
        gap = np.abs((w - needed)[t] - exact)
        assert gap.max() <= (0 if t == s else 1 + 1e-3)


# -- what an audit of the gate found


def one_sum(value=1, replicas=1):
    total = RowSum(BLOCKS[:1], L2, replicas)
    rows = {"actor": torch.full((replicas, 2, 6), 0.01 * value)}
    total.add(Contribution(rows, torch.ones(replicas, 2, dtype=torch.bool)))
    return total


def test_a_sum_is_merged_once_and_into_its_like():
    whole, part = RowSum(BLOCKS[:1], L2, 1), one_sum()
    whole.merge(part)
    with pytest.raises(PrivacyError, match="merged already"):
        whole.merge(part)
    for other in (one_sum(replicas=3), RowSum(BLOCKS, L2, 1), whole):
        with pytest.raises(PrivacyError, match="other blocks or replicas"):
            whole.merge(other)
    assert whole.users == 2


def test_rows_of_a_round_that_was_given_up_are_dropped():
    gate = plan(users=4)
    gate.draw(0, None, False)
    rows = {b.name: torch.full((1, 2, b.size), 0.01) for b in BLOCKS}
    valid = torch.ones(1, 2, dtype=torch.bool)
    gate.add(Contribution({k: x.clone() for k, x in rows.items()}, valid))
    gate.draw(0, None, False)
    for _ in range(2):
        gate.add(Contribution({k: x.clone() for k, x in rows.items()}, valid))
    gate.release(0)


def test_a_failed_addition_leaves_no_block_behind():
    total = RowSum(BLOCKS[:1], L2, 1)
    rows, valid = {"actor": torch.ones(1, 2, 6)}, torch.ones(1, 2, dtype=torch.bool)
    total.add(Contribution(dict(rows), valid, {"beside": {"x": torch.zeros(1)}}))
    before = total.sums["actor"].clone()
    with pytest.raises(PrivacyError, match="once in a round"):
        total.add(Contribution(dict(rows), valid, {"beside": {"x": torch.zeros(1)}}))
    assert torch.equal(total.sums["actor"], before)
    assert total.users == 2


@pytest.mark.parametrize("clip", [1e-170, 1e170])
def test_clips_whose_squares_leave_double_precision_are_refused(clip):
    with pytest.raises(PrivacyError, match="every block needs a clip"):
        Gate(
            [PrivacyConfig(users_per_round=4)], (Block("actor", 2, clip),), Unit("u", 1), 5,
            [SeededNoise(0, 0)], [Ledger(None)],
        )  # fmt: skip


def test_more_repeats_than_rounds_have_no_epsilon():
    gate = plan("secure", rounds=2)
    for _ in range(104):
        gate.ledgers[0].intend(0, gate.event(0), {"noise": "secure"}, repeatable=False)
    assert gate.ledgers[0].repeats(None) == 103
    assert gate.spent_epsilon(0) == math.inf


def test_the_slack_is_added_to_an_epsilon_of_zero():
    assert plan("secure", z=200, delta=1e-2, accountant="gaussian").planned_epsilon(0) > 0
