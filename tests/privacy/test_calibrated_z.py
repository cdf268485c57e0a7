"""privacy.z=auto: the least noise for an epsilon, of every mechanism and sampling; the exact accountant."""

import math
import random
from collections import Counter

import dp_accounting
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity, noise_key
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.privacy.accounting import calibrate, exact_gaussian
from privrl_bench.privacy.accounting.accountants import epsilon
from privrl_bench.privacy.accounting.calibrate import least_noise
from privrl_bench.privacy.accounting.cost import analysed, ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.mechanisms import mechanism_class
from privrl_bench.privacy.mechanisms.correlated import Correlated
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.training.plan import make_plan

DPPG = "algo=dppg env=cartpole total_steps=81920"
POISSON = f"{DPPG} privacy=poisson privacy.users_per_round=16"
# (mechanism, sampling, words)
CASES = [
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=1"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=1e-3"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=1e6"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=1 privacy.adjacency=replace_one"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=1 privacy.accountant=rdp"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=3 privacy.noise=secure"),
    ("gaussian", "fixed", f"{DPPG} privacy=fixed privacy.epsilon=3 env.user=segment"),
    ("correlated", "fixed", f"{DPPG} privacy.epsilon=2"),
    ("correlated", "fixed", f"{DPPG} privacy.epsilon=2 env.user=segment"),
    ("gaussian", "poisson", f"{POISSON} privacy.population=1000 privacy.epsilon=1"),
    ("gaussian", "poisson", f"{POISSON} privacy.population=100 privacy.epsilon=8"),
    ("gaussian", "poisson", "algo=dqn env=riverswim rounds=200 privacy.epsilon=1"),
    ("tree", "fixed", "algo=ucbvi env=riverswim privacy=tree rounds=50 privacy.epsilon=2"),
    ("local", "fixed", "algo=ppo env=cartpole privacy=local privacy.epsilon=10"),
    (
        "gaussian",
        "uniform_single_user",
        "algo=gpope env=chain data.policy=uniform privacy.population=100 rounds=200 privacy.epsilon=1",
    ),
]


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(("mechanism", "sampler", "line"), CASES)
def test_all_rounds_cost_what_was_asked_for_and_at_most_a_thousandth_less(mechanism, sampler, line):
    asked = compose(line.split())
    assert asked.privacy.z is None
    parts = make_plan([asked])
    config, target = parts.config, asked.privacy.epsilon
    assert (config.privacy.mechanism, config.privacy.sampling) == (mechanism, sampler)
    planned = parts.gate.planned_epsilon(0)
    assert 0.999 * target <= planned <= target
    assert parts.gate.guarantee(0).epsilon == planned
    whole = config.rounds or config.total_steps // parts.round_steps
    assert parts.rounds == whole
    # The same run with the number as the user's own: the same identity, hence the same noise.
    (numbers,) = make_plan([asked]).given
    own = compose([*line.split(), f"privacy.z={numbers.privacy.z!r}"])
    assert identity(own) == identity(numbers)
    assert noise_key(own) == noise_key(numbers)
    assert make_plan([own]).gate.planned_epsilon(0) == planned


def test_every_mechanism_and_sampling_with_a_calibration_has_a_case():
    calibrated = {name for name in mechanisms.names() if mechanism_class(name).calibrated}
    assert calibrated == {mechanism for mechanism, _, _ in CASES}
    taken = {
        kind.name
        for kind in sampling.REGISTRY.classes()
        if any(kind.accepts(mechanism_class(name)) for name in calibrated)
    }
    assert taken == {sampler for _, sampler, _ in CASES}


def test_one_gaussian_release_has_the_noise_that_balle_and_wang_give():
    for target in (0.1, 1.0, 8.0):
        words = ["privacy=fixed", f"privacy.epsilon={target}"]
        z = make_plan([compose(words)]).config.privacy.z
        exact = dp_accounting.get_sigma_gaussian(target, 1e-5)
        assert exact <= z <= 1.001 * exact
    assert dp_accounting.get_sigma_gaussian(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)


def test_an_epsilon_that_no_noise_gives_is_refused_in_one_line():
    words = ["privacy=fixed", "privacy.accountant=rdp", "privacy.epsilon=1e-4"]  # its orders end
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: .* privacy\.accountant=pld"):
        make_plan([compose(words)])
    with pytest.raises(ConfigError, match=r"privacy\.epsilon: epsilon 1e\+300 is more than noise"):
        make_plan([compose(["privacy=fixed", "privacy.epsilon=1e300"])])


@settings(max_examples=50)
@given(st.floats(-8.0, 8.0), st.floats(0.5, 2.5), st.floats(-3.0, 3.0))
def test_the_search_finds_the_least_noise_of_any_power_law(log_scale, power, log_target):
    exact = math.exp((log_scale - log_target) / power)
    target, calls = math.exp(log_target), []

    def cost(z):
        calls.append(z)
        return math.exp(log_scale) * z**-power

    if not 1e-5 < exact < 1e5:
        return
    z = least_noise(cost, target)
    assert (1 - 2e-4) * target <= cost(z) <= target
    assert len(calls) <= 20


@settings(max_examples=50)
@example(2e-4, 1.0, 5)  # z just below 1, which the search approaches from above
@given(st.floats(-3.0, 3.0), st.floats(0.5, 2.5), st.integers(1, 5))
def test_with_digits_one_unit_less_would_be_too_little(log_target, power, digits):
    target = math.exp(log_target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrate, "ledger_epsilon", lambda counts, *_: next(iter(counts)) ** -power)
        z = calibrate.z_for(target, lambda z: z, 1, 1e-5, digits=digits)
    unit = 10.0 ** (math.floor(math.log10(z)) - digits + 1)
    assert z / unit == pytest.approx(round(z / unit), abs=1e-6)
    assert z**-power <= target
    assert z <= unit * 1.001 or target < (z - unit * (1 + 1e-9)) ** -power


def test_the_search_ends_where_the_cost_jumps_is_infinite_or_never_reaches_the_target():
    z = least_noise(lambda z: 2.0 if z < 3.0 else 0.5, 1.0)
    assert 3.0 <= z < 3.0001
    z = least_noise(lambda z: math.inf if z < 0.1 else 1.0 / z, 9.5)
    assert 9.5 * (1 - 2e-4) <= 1 / z <= 9.5
    with pytest.raises(PrivacyError, match="no noise multiplier"):
        least_noise(lambda z: 1.0 + 1.0 / z, 0.5)
    with pytest.raises(PrivacyError, match="more than noise"):
        least_noise(lambda z: 0.0, 0.5)


# --- the exact accountant


@pytest.mark.parametrize("count", [200, pytest.param(500, marks=pytest.mark.slow)])
def test_exact_epsilons_equal_those_of_dp_accounting_to_the_last_bit(count):
    draw = random.Random(0)
    with np.errstate(divide="ignore"):
        for _ in range(count):
            sigma, delta = 10 ** draw.uniform(-5, 4), 10 ** draw.uniform(-90, -0.01)
            expected = float(dp_accounting.get_epsilon_gaussian(sigma, delta))
            assert exact_gaussian.epsilon_at(sigma, delta) == expected, (sigma, delta)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("record", ["gaussian", "correlated"])
def test_without_dp_accounting_a_ledger_costs_the_same(record, adjacency):
    for releases in ({0.7: 3}, {0.7: 3, 1.5: 2}, {2.0: 1, 30.0: 100}, {0.0: 1, 2.0: 1}):
        counts = Counter(
            {ReleaseEvent(record, z, adjacency, sampling="fixed"): n for z, n in releases.items()}
        )
        event, chosen, relation = analysed(counts, "pld")
        assert ledger_epsilon(counts, 1e-5) == epsilon(event, 1e-5, chosen, relation)


def test_a_subclass_is_not_taken_for_its_base():
    once = ((ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed"), 1),)
    for kind in (Gaussian, Correlated):
        assert kind.gaussians(once) == ((1.0, 1),)
        assert type("Other", (kind,), {}).gaussians(once) is None
    drawn = ((ReleaseEvent("gaussian", 1.0, "add_or_remove", 0.5, sampling="poisson"), 1),)
    assert Gaussian.gaussians(drawn) is None
