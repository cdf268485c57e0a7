"""Values of linear estimators without a simulator: the mean over the public users' first states."""

import numpy as np
import pytest
from walk_logs import SIDE, trained, walk_logs

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.ope.start_value import StartValueEvaluator

pytestmark = pytest.mark.usefixtures("datasets")
OPEN = ("privacy.z=0", "privacy.clip=1000", "algo.ridge=0", "algo.weighting=step")


def value_of(one):
    (found,) = (
        StartValueEvaluator.of(one.parts)
        ._kind(*StartValueEvaluator.of(one.parts)._arguments)
        .evaluate(one.parts.algo.actor(one.state), 1, None)
    )
    return found.value


def exact(gamma):
    """By the equations of the walk: half a step to either side, 1 for the step to its end."""
    a = np.eye(SIDE)
    for place in range(SIDE):
        a[place, max(place - 1, 0)] -= gamma / 2
        if place + 1 < SIDE:
            a[place, place + 1] -= gamma / 2
    return np.linalg.solve(a, np.eye(SIDE)[-1] / 2)[:3].mean()


SCALED = ("env.reward_scaling=public", "env.reward_scale=0.05")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "words", [("lstd",), ("wis_lstd",), ("dp_lstd", *OPEN), ("dp_lstd", *OPEN, *SCALED)]
)
def test_without_noise_it_is_the_value_of_the_walk(words):
    algo, *more = words
    basis = ("algo.features=fourier", "algo.order=3", "algo.gamma=0.8")
    one = trained(algo, walk_logs("walks/b-v0", users=3000), *basis, *more)
    assert value_of(one) == pytest.approx(exact(0.8), rel=0.15)


def test_the_unit_of_rewards_does_not_change_what_dp_lstd_clips():
    """With a small clip, too: b is in units of the public users."""
    name, clip = walk_logs("walks/b-v0", users=1000), ("privacy.z=0", "privacy.clip=0.02")
    words = ("dp_lstd", name, "algo.features=linear", "algo.gamma=0.8", *clip)
    scaled = ("env.reward_scaling=public", "env.reward_scale=5")
    assert value_of(trained(*words, *scaled)) == pytest.approx(value_of(trained(*words)), rel=1e-3)


def test_the_policy_that_acted_need_not_be_known_and_a_target_needs_one_of_its_names():
    name = walk_logs("walks/b-v0")
    assert trained("lstd", name, "algo.features=linear").parts.algo.target is None
    with pytest.raises(ConfigError, match=r"^algo.target: no policy 'x'"):
        trained("lstd", name, "algo.features=linear", "algo.target=x")
