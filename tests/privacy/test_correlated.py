"""Correlated noise: its covariance over rounds, what one user can move, repeated rounds, and restarts."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gate import ONE, TWO, make_account, rows_for, send

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.calibrate import calibrated_z
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.accounting.strategy import Strategy
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SecureNoise, SeededNoise
from privrl_bench.privacy.rules import check, rules

KNOWN_EPSILON = "privacy/test_correlated.py::test_known_epsilons"
SENSITIVITY = "privacy/test_correlated.py::test_no_user_moves_c_g_further_than_the_sensitivity"
LEAKS = "audit/test_leaks.py::test_every_algorithm_as_it_is_shipped"  # dppg, reinforce
AUDIT = (
    "privacy/test_mechanism_registry.py::test_an_audit_of_one_release_does_not_contradict_epsilon"
)


def plan_of(**config):
    return make_account(**{"mechanism": "correlated", "rounds": 8, **config})


def matrix(strategy, rounds):
    """C [rounds, rounds], written out."""
    c = np.zeros((rounds, rounds))
    for k, value in enumerate(strategy.coefficients[:rounds]):
        c += np.diag(np.full(rounds - k, value), -k)
    return c


def epsilon_of(plan, sensitivity):
    """Of a Gaussian mechanism with multiplier 1, whose noise has the strategy's scale."""
    z = plan.mechanism.strategy.scale / sensitivity
    return ledger_epsilon([ReleaseEvent("gaussian", z, "zero_out", sampling="fixed")], 1e-5)


def noise_of(plan, rounds, size, value=0.0):
    """[rounds, size] noise in units of z * clip: what is released when everybody sends `value`."""
    found = []
    for index in range(rounds):
        rows = {"actor": torch.full((1, 4, size), value)}
        total = 4 * send(plan, rows, index).values["actor"][0].double() - 4 * value
        found.append(total.numpy() / (plan.config.z * 0.5))
    return np.stack(found)


# -- the strategy


@settings(max_examples=60)
@given(
    a=st.floats(0.0, 1.0),
    rounds=st.integers(1, 9),
    bands=st.none() | st.integers(1, 9),
    separation=st.integers(1, 4),
    participation=st.integers(1, 5),
)
def test_the_sensitivity_is_that_of_the_worst_rounds_and_rows(
    a, rounds, bands, separation, participation
):
    """Against every admissible set of rounds, on C as a matrix."""
    strategy = Strategy.damped_square_root(a, rounds, bands)
    gram = matrix(strategy, rounds).T @ matrix(strategy, rounds)
    worst = 0.0
    for chosen in range(2**rounds):
        places = [t for t in range(rounds) if chosen >> t & 1]
        apart = all(y - x >= separation for x, y in itertools.pairwise(places))
        if len(places) <= participation and apart:
            worst = max(worst, float(gram[np.ix_(places, places)].sum()))
    assert strategy.sensitivity(participation, separation) == pytest.approx(math.sqrt(worst))
    assert strategy.norm() == pytest.approx(math.sqrt(gram.diagonal().max()))


def test_the_coefficients_are_the_damped_square_root():
    whole = Strategy.damped_square_root(1.0, 30)
    sums = np.tril(np.ones((30, 30)))
    np.testing.assert_allclose(matrix(whole, 30) @ matrix(whole, 30), sums, atol=1e-12)
    np.testing.assert_allclose(
        matrix(whole, 30)[:, 0] @ np.diag(0.8 ** np.arange(30)),
        matrix(Strategy.damped_square_root(0.8, 30, bands=30), 30)[:, 0],
    )
    assert Strategy.damped_square_root(0.0, 10**9).coefficients == (1.0,)
    assert Strategy.damped_square_root(0.95, 2**50).bands == 81
    assert Strategy.damped_square_root(0.95, 2**50, bands=7).bands == 7
    cut = Strategy.damped_square_root(0.9, 1000)
    assert cut.coefficients[-1] >= 1e-3 > 0.9 * cut.coefficients[-1]


@pytest.mark.parametrize(("a", "bands"), [(1.0, None), (0.8, None), (0.95, 5), (0.0, None)])
def test_the_inverse(a, bands):
    strategy = Strategy.damped_square_root(a, 40, bands)
    inverse = np.linalg.inv(matrix(strategy, 40))
    np.testing.assert_allclose(strategy.inverse(40), inverse[:, 0], atol=1e-12)


@pytest.mark.parametrize(("rounds", "norm"), [(61, 1.54), (146, 1.63), (600, 1.76)])
def test_published_norm_of_the_square_root(rounds, norm):
    """Closed forms, computed apart from this package, to two digits."""
    assert Strategy.damped_square_root(1.0, rounds).norm() == pytest.approx(norm, abs=0.005)


# -- the noise


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("a", "bands"),
    [
        *((1.0, None), (0.9, 3)),
        *(pytest.param(x, None, marks=pytest.mark.slow) for x in (0.95, 0.0)),
    ],
)
@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_the_covariance_over_rounds_is_the_strategys(a, bands, source):
    size, rounds = 30_000, 6
    blocks = (Block("actor", size, 0.5),)
    plan = plan_of(blocks=blocks, z=2.0, rounds=rounds, correlation=a, bands=bands)
    if source == "secure":
        plan._noises[0] = SecureNoise()
    found = noise_of(plan, rounds, size)
    strategy = Strategy.damped_square_root(a, rounds, bands)
    inverse = np.linalg.inv(matrix(strategy, rounds))
    expected = strategy.norm() ** 2 * inverse @ inverse.T
    # Standard error of a covariance: at most sqrt(2 / size) times the larger variance, 0.02.
    np.testing.assert_allclose(found @ found.T / size, expected, atol=0.08)
    white = matrix(strategy, rounds) @ found / strategy.norm()
    np.testing.assert_allclose(white @ white.T / size, np.eye(rounds), atol=0.04)


def test_without_correlation_the_release_is_the_gaussian_mechanisms():
    rows = rows_for(TWO)
    one, other = plan_of(blocks=TWO, correlation=0.0), make_account(TWO, rounds=8)
    for index in range(3):
        mine, theirs = (send(plan, rows, index).values for plan in (one, other))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_blocks_and_replicas_have_noise_of_their_own():
    blocks = (Block("actor", 20_000, 0.5), Block("critic", 20_000, 2.0, noise_ratio=3.0))
    plan = plan_of(blocks=blocks, seeds=(0, 1))
    zeros = {b.name: torch.zeros(2, 4, b.size) for b in blocks}
    found = [send(plan, zeros, index).values for index in range(3)]
    last = np.concatenate([found[-1][b.name].numpy() for b in blocks])
    np.testing.assert_allclose(np.corrcoef(last), np.eye(4), atol=0.03)
    scale = plan.mechanism.strategy.norm() * math.sqrt(
        np.square(plan.mechanism.strategy.inverse(3)).sum()
    )
    for block, z in plan.mechanism.multipliers(0).items():
        clip = {b.name: b.clip for b in blocks}[block]
        spread = 4 * float(found[-1][block].std()) / (z * clip)
        assert spread == pytest.approx(scale, rel=0.02)


def test_no_noise_where_z_is_0_and_for_a_replica_that_has_ended():
    plan = make_account(z=0.0, mechanism="correlated")
    assert float(send(plan, {"actor": torch.zeros(1, 4, 6)}).values["actor"].abs().max()) == 0.0
    assert math.isinf(plan.guarantee(0, 1).epsilon)
    assert not plan.mechanism.describe_noise(0)
    shown = plan_of().mechanism.describe_noise(0)
    assert shown == "Gaussian, correlated over 8 rounds (privacy.correlation=0.95)"
    both = plan_of(seeds=(0, 1))
    send(both, rows_for(ONE, replicas=2))
    both.end(0)
    later = send(both, rows_for(ONE, replicas=2), 1).values["actor"]
    assert float(later[0].abs().max()) == 0.0
    assert float(later[1].abs().max()) > 0.0


def test_memory_is_the_bands_before_this_round():
    plan = plan_of(rounds=40, bands=5)
    noise_of(plan, 40, 6)
    rows = plan.mechanism._past[0]._rows.values()
    assert [row.shape for row in rows] == [(6,)] * 4
    short = plan_of(rounds=40, correlation=1.0)
    noise_of(short, 3, 6)
    assert len(short.mechanism._past[0]._rows) < 8


# -- what one user can move


def test_no_user_moves_c_g_further_than_the_sensitivity():
    """The same noise with and without the user: C times the difference is one column times the row."""
    for participates in ((2,), (0,), (0, 1, 2), (5, 6, 7)):
        unit = Unit("u", len(participates))
        plans = [plan_of(unit=unit, blocks=TWO, z=0.7) for _ in range(2)]
        moved = {block.name: [] for block in TWO}
        for index in range(8):
            rows = rows_for(TWO, scale=10.0)  # the same direction in every round: the worst case
            without = {name: x.clone() for name, x in rows.items()}
            if index in participates:
                for x in without.values():
                    x[0, 2] = 0.0
            one, two = send(plans[0], rows, index).values, send(plans[1], without, index).values
            for block in TWO:
                difference = (one[block.name] - two[block.name])[0].double().numpy()
                moved[block.name].append(4 * difference)
        mechanism = plans[0].mechanism
        c, total = matrix(mechanism.strategy, 8), 0.0
        for block in TWO:
            spread = mechanism.stds(0)[block.name]
            total += float(np.square(c @ np.stack(moved[block.name]) / spread).sum())
        claimed = math.sqrt(len(participates)) / 0.7
        event = ReleaseEvent("gaussian", 1 / claimed, "zero_out", sampling="fixed")
        assert plans[0].planned_epsilon(0) == pytest.approx(ledger_epsilon([event], 1e-5))
        assert math.sqrt(total) <= claimed * 1.01
        if participates in ((0,), (0, 1, 2)):
            assert math.sqrt(total) >= claimed * 0.99


@pytest.mark.parametrize(
    ("adjacency", "z", "known"),
    [
        ("zero_out", 1.0, 4.377178),
        ("zero_out", 24.0, 0.1311),
        ("replace_one", 2.0, 4.377178),
    ],
)
def test_known_epsilons(adjacency, z, known):
    """A user in one round: one Gaussian, exact by Balle and Wang 2018 (4.377178: their own code)."""
    for a in (0.0, 0.8, 1.0):
        plan = plan_of(z=z, adjacency=adjacency, correlation=a, rounds=146)
        assert plan.planned_epsilon(0) == pytest.approx(known, abs=1e-4)
    assert (plan.guarantee(0).notion, plan.guarantee(0).status) == ("central", "formal")
    z_back = calibrated_z(plan, 0, plan.planned_epsilon(0) * (1 + 1e-9))
    assert z_back == pytest.approx(z, rel=1e-3)


def test_several_rounds_of_one_user_cost_what_they_cost_with_independent_noise():
    plan = plan_of(unit=Unit("u", 2), z=3.0, correlation=1.0, bands=2)
    independent = make_account(unit=Unit("u", 2), z=3.0, rounds=8)
    assert plan.planned_epsilon(0) == pytest.approx(independent.planned_epsilon(0), rel=1e-9)
    # C has columns (1, 1/2); two in a row make (1, 3/2, 1/2) of squared norm 7/2.
    assert plan.mechanism.unit_noise(ONE[0]) == pytest.approx(0.5 * math.sqrt(3.5 / 2))
    one = ReleaseEvent("correlated", 3.0 * math.sqrt(3.5 / 2 / 1.25), "zero_out", sampling="fixed")
    assert plan.event(0).z == pytest.approx(one.z)
    counted = ledger_epsilon({plan.event(0): 2}, 1e-5)  # from lines alone: norms of columns add up
    assert counted > plan.planned_epsilon(0)
    z = calibrated_z(plan, 0, 1.0)
    cheaper = plan_of(unit=Unit("u", 2), z=z, correlation=1.0, bands=2)
    assert 0.999 < cheaper.planned_epsilon(0) <= 1.0


def test_epsilon_of_a_run_grows_with_the_rows_that_the_first_user_is_in():
    plan = plan_of(correlation=1.0, rounds=8)
    spent = []
    for index in range(8):
        send(plan, rows_for(ONE), index)
        spent.append(plan.spent_epsilon(0))
    assert spent == sorted(spent)
    assert spent[0] == pytest.approx(
        ledger_epsilon(
            [ReleaseEvent("gaussian", plan.mechanism.strategy.scale, "zero_out", sampling="fixed")],
            1e-5,
        )
    )
    assert spent[-1] == pytest.approx(plan.planned_epsilon(0))
    assert plan.spent_epsilon(0, 3) == spent[2]
    assert plan.guarantee(0, 3).epsilon == plan.planned_epsilon(0)


# -- repeated rounds and restarts


def restarted(plan, **config):
    """Another process with the same ledger."""
    new = plan_of(**config)
    new.ledgers[0] = plan.ledgers[0]
    return new


def test_a_resumed_seeded_run_goes_on_with_the_same_noise():
    settings_ = {"correlation": 0.9, "bands": 4, "rounds": 8}
    expected = noise_of(plan_of(**settings_), 8, 6)
    first = plan_of(**settings_)
    noise_of(first, 5, 6)
    second = restarted(first, **settings_)
    for index in range(3, 8):  # rounds 3 and 4 are repeated alike
        zeros = {"actor": torch.zeros(1, 4, 6)}
        noise = 4 * send(second, zeros, index).values["actor"][0].double().numpy() / 0.5
        np.testing.assert_array_equal(noise, expected[index])
    assert second.ledgers[0].summary() == {"lines": 8, "rounds": 8, "repeated": 0}
    assert second.spent_epsilon(0) == second.planned_epsilon(0)


@settings(max_examples=25)
@given(
    kills=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans()), max_size=3),
    a=st.sampled_from([0.5, 1.0]),
    bands=st.sampled_from([None, 2, 3]),
)
def test_every_line_is_a_row_of_a_longer_strategy(kills, a, bands):
    """Runs that are killed and resumed, from data that may differ, against the definition.

    For each line: (row of the longer C) times the noise of the lines it contains is the fresh draw of this
    line, and the largest column of the longer C is what the ledger's epsilon says.
    """
    rounds, config = 7, {"correlation": a, "bands": bands, "rounds": 7}
    strategy = Strategy.damped_square_root(a, rounds, bands)
    plan, start, value = plan_of(**config), 0, 0.0
    noise, rows = {}, {}  # of each line: its noise, and the lines it contains
    for end, back, other_data in [*kills, (rounds, 0, False)]:
        now = {r: n - 1 for r in range(start) if (n := plan.ledgers[0].attempts(r))}
        for index in range(start, min(end + start, rounds) if end < rounds else rounds):
            sent = {"actor": torch.full((1, 4, 6), value)}
            total = 4 * send(plan, sent, index).values["actor"][0].double().numpy()
            line = index, plan.ledgers[0].attempts(index) - 1
            now[index] = line[1]
            noise[line] = (total - 4 * value) / 0.5
            rows[line] = dict(now)
            reached = index + 1
        start = max(0, reached - back)
        plan, value = restarted(plan, **config), value + 0.01 * other_data
    source, names = SeededNoise(0, 0), sorted(rows)
    longer = np.zeros((len(names), len(names)))
    for i, line in enumerate(names):
        for earlier in rows[line].items():
            ago = line[0] - earlier[0]
            if ago < strategy.bands:
                longer[i, names.index(earlier)] = strategy.coefficients[ago]
    white = longer @ np.stack([noise[line] for line in names]) / strategy.norm()
    fresh = np.stack([source.normal([6], *line)[0].numpy() for line in names])
    np.testing.assert_allclose(white, fresh, atol=0.05)  # the grid
    assert len({tuple(row) for row in fresh}) == len(names)
    moved = np.abs(longer) ** 2
    # A user of one round sends a row in every attempt at it, each of any direction.
    per_round = [
        math.sqrt(sum(moved[:, j].sum() for j, line in enumerate(names) if line[0] == r))
        for r in range(rounds)
    ]
    exact = epsilon_of(plan, max(per_round))
    assert plan.spent_epsilon(0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_a_restarted_secure_run_begins_anew_and_what_it_repeats_counts():
    size, plans = 20_000, []
    blocks = (Block("actor", size, 0.5),)
    found = np.zeros((8, size))
    for first, last in ((0, 5), (3, 8)):
        plan = plan_of(blocks=blocks)
        plan._noises[0] = SecureNoise()
        if plans:
            plan.ledgers[0] = plans[0].ledgers[0]
        plans.append(plan)
        for index in range(first, last):
            zeros = {"actor": torch.zeros(1, 4, size)}
            found[index] = 4 * send(plan, zeros, index).values["actor"][0].double().numpy() / 0.5
    correlation = np.corrcoef(found)
    assert abs(correlation[2, 3]) < 0.03  # nothing of the lost noise is cancelled
    assert correlation[3, 4] < -0.2
    assert plans[1].ledgers[0].summary()["repeated"] == 2
    c = plans[1].mechanism.strategy.coefficients
    # A user of round 3: the rows 3 and 4 of the first process, 3 to 7 of the second.
    moved = math.sqrt(sum(x**2 for x in c[:2]) + sum(x**2 for x in c[:5]))
    assert plans[1].spent_epsilon(0) == pytest.approx(epsilon_of(plans[1], moved))
    assert plans[1].guarantee(0, 8).epsilon > plans[1].planned_epsilon(0)


def test_a_checkpoint_from_before_a_repeat_is_refused():
    first = plan_of()
    noise_of(first, 6, 6)
    noise_of_other = restarted(first)
    send(noise_of_other, {"actor": torch.ones(1, 4, 6)}, 2)  # other data: a second attempt
    third = restarted(noise_of_other)
    with pytest.raises(PrivacyError, match="round 3 cancels"):
        send(third, {"actor": torch.zeros(1, 4, 6)}, 6)


# -- refused


def test_what_has_no_analysis_is_refused():
    poisson = {"sampling": "poisson", "population": 9, "adjacency": "add_or_remove"}
    with pytest.raises(ConfigError, match=r"privacy\.mechanism"):
        check(PrivacyConfig(users_per_round=4, mechanism="correlated", **poisson))
    one = {"sampling": "uniform_single_user", "population": 9, "adjacency": "replace_one"}
    with pytest.raises(ConfigError, match=r"privacy\.mechanism"):
        check(PrivacyConfig(users_per_round=1, mechanism="correlated", **one))
    for wrong in ({"correlation": 1.1}, {"correlation": -0.1}, {"bands": 0}):
        with pytest.raises(ConfigError, match=f"privacy.{next(iter(wrong))}"):
            PrivacyConfig(mechanism="correlated", **wrong)
    with pytest.raises(PrivacyError, match="bounded number of rounds"):
        plan_of(unit=Unit("u", None))


def test_the_guarantee_says_where_secure_noise_lies():
    config = PrivacyConfig(mechanism="correlated", noise="secure")
    assert "memory of the process" in rules(config).mechanism.notes(config)["noise in memory"]
    assert not rules(config).mechanism.notes(PrivacyConfig(mechanism="correlated"))


@pytest.mark.parametrize(
    "other", [{"correlation": 0.5}, {"bands": 2}, {"rounds": 40}, {"unit": Unit("u", 2)}]
)
def test_a_ledger_of_another_strategy_is_refused(other):
    """Found by an auditor: noise that cancels noise of another size costs more than it says."""
    plan = plan_of()
    send(plan, rows_for(ONE))
    config = {"mechanism": "correlated", "users_per_round": 4, "z": 1.0}
    config |= {key: other[key] for key in other if key in ("correlation", "bands")}
    unit, rounds = other.get("unit", Unit("one user", 1)), other.get("rounds", 8)
    with pytest.raises(PrivacyError, match="other settings"):
        Gate([PrivacyConfig(**config)], ONE, unit, rounds, [SeededNoise(0, 0)], plan.ledgers)


def test_the_ledger_of_a_gate_says_the_strategy():
    plan = plan_of(bands=3, correlation=0.8)
    send(plan, rows_for(ONE))
    line = plan.ledgers[0].lines[0]
    assert (line["mechanism"], line["correlation"], line["bands"]) == ("correlated", 0.8, 3)
    with pytest.raises(PrivacyError, match="other settings"):
        Gate(
            [PrivacyConfig(users_per_round=4)],
            ONE,
            Unit("u", 1),
            8,
            [SeededNoise(0, 0)],
            plan.ledgers,
        )
    assert isinstance(plan.ledgers[0], Ledger)


# -- repeats, and rounding on the grid


def with_repeats(plan, repeats):
    """The plan's ledger with one line of every round, and so many more of some."""
    ledger = plan.ledgers[0]
    for index in range(plan.rounds):
        for _ in range(1 + repeats.get(index, 0)):
            ledger.intend(index, plan.event(0), {}, repeatable=False)
    return ledger


@settings(max_examples=60)
@given(
    rounds=st.integers(1, 12),
    bands=st.integers(1, 5),
    own=st.sets(st.integers(0, 11), min_size=1, max_size=3),
    repeats=st.dictionaries(st.integers(0, 11), st.integers(0, 9)),
)
def test_the_rows_of_a_user_are_at_most_those_that_are_counted(rounds, bands, own, repeats):
    own = {t for t in own if t < rounds} or {0}
    plan = plan_of(rounds=rounds, bands=bands, unit=Unit("u", len(own)))
    ledger = with_repeats(plan, {t: n for t, n in repeats.items() if t < rounds})
    bands = plan.mechanism.strategy.bands
    rows = sum(ledger.attempts(t) for t in range(rounds) if any(s <= t < s + bands for s in own))
    seen = []
    plan.mechanism._is_covered = lambda n: not seen.append(n)
    assert not plan.mechanism.too_many(ledger, None)
    assert rows <= (seen or [plan.mechanism._planned_rows])[0]
    assert rows <= plan.mechanism._planned_rows + ledger.repeats()


@pytest.mark.slow
def test_repeats_of_one_users_rounds_are_counted_for_them():
    """Of rows of 1e8 numbers rounding may move 682 rows: 7 rounds of a user, and 675 repeats of them.

    The check of the plan allows for 114 rows, and T + 100 repeats were allowed wherever they are.
    """
    config = {"bands": 7, "rounds": 1000, "blocks": (Block("actor", 10**8, 1.0),)}
    spread = plan_of(**config)
    with_repeats(spread, dict.fromkeys(range(1000), 1))
    assert spread.spent_epsilon(0) < math.inf
    most = next(n for n in range(1000) if not spread.mechanism._is_covered(n + 1)) - 7
    for count, known in ((most, True), (most + 1, False)):
        plan = plan_of(**config)
        with_repeats(plan, {400: count - 1, 406: 1, 407: 50})
        assert (plan.spent_epsilon(0) < math.inf) is known
        assert (plan.guarantee(0).status == "formal") is known
    assert 600 < most < 1000


def test_more_repeats_than_are_analysed_are_an_infinite_epsilon():
    for count, known in ((108, True), (109, False)):
        plan = plan_of()
        with_repeats(plan, {3: count})
        assert (plan.spent_epsilon(0) < math.inf) is known
