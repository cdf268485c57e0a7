"""DP-LSW: what is released, of whom."""

import pytest
import torch
from evaluation_runs import CHAIN, check_neighbours, check_pieces, full_batch, parts_of

from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.ope.policy_evaluation import Visits, dp_lsw, first_visits
from privrl_bench.privacy.mechanisms.smooth import smoothness
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer


def test_pieces_do_not_matter(monkeypatch):
    check_pieces("dp_lsw", monkeypatch)


def test_a_replica_does_not_depend_on_its_neighbours():
    check_neighbours("dp_lsw")


def test_dp_lsw_answers_with_mean_first_visit_returns():
    parts = parts_of("algo=dp_lsw", "algo.return_high=1")
    users = full_batch(parts)
    algo = parts.algo
    seen = algo.total_visits([users], 1)
    found, there = first_visits(
        users.obs.argmax(-1), users.rewards, users.done, users.mask, 0.99, 4
    )
    mean = found.sum(1) / there.sum(1)
    torch.testing.assert_close(algo.answer(seen).theta, mean)
    assert (mean > 0.9).all()
    (block,) = algo.blocks()
    assert float(algo.answer(seen).bound) >= block.clip


def test_the_weights_are_those_of_the_configuration_whatever_was_visited():
    """The authors' program multiplies them by visits; then the theorem does not hold."""
    given = torch.tensor([1.0, 0.5, 2.0, 4.0], dtype=torch.float64)
    words = ("algo.weights=[1,0.5,2,4]", "algo.return_high=1", "privacy.epsilon=0.5")
    algo = parts_of("algo=dp_lsw", *words).algo
    beta = smoothness(0.5, 1e-5, 4)
    for visits in ([40.0, 3.0, 1.0, 0.0], [5.0, 40.0, 20.0, 2.0]):
        seen = Visits(torch.tensor([visits]).double() / 2, torch.tensor([visits]).double())
        expected = dp_lsw(seen, torch.eye(4), given, beta, 1.0)
        found = algo.answer(seen)
        torch.testing.assert_close(found.bound, expected.bound)
        torch.testing.assert_close(found.theta, expected.theta)
        # With weights multiplied by visits the bound would be another one.
        wrong = dp_lsw(seen, torch.eye(4), given * (1 + seen.visits[0]), beta, 1.0)
        assert not torch.allclose(found.bound, wrong.bound)


def test_a_person_without_numbers_is_nobody():
    parts = parts_of("algo=dp_lsw")
    users = full_batch(parts)
    whole = parts.algo.total_visits([users], 1)
    users.rewards[0, 3] = torch.nan
    users.obs[0, 5] = torch.inf
    users.rewards[0, 7] = 1e9
    less = parts.algo.total_visits([users], 1)
    assert torch.isfinite(less.total).all()
    assert float(less.total.max()) <= 40 * 100.0
    assert 0 < float((whole.visits - less.visits).max()) <= 2


@pytest.mark.parametrize("words", [(), ("algo.features=fourier", "algo.order=2", "algo.grid=5")])
def test_dp_lsw_on_real_observations(words):
    """States are cells of a public grid."""
    base = ("env=mountain_car", "env.obs_scaling=none", "env.reward_scaling=none")
    steps = ("env.max_episode_steps=20", "algo.return_low=-20", "algo.return_high=0")
    if not words:
        with pytest.raises(ConfigError, match=r"^algo.features: tabular needs"):
            parts_of("algo=dp_lsw", *base, *steps)
        return
    parts = make_plan([compose(["algo=dp_lsw", *base, *CHAIN[2:], *steps, *words, "log=none"])])
    session = Trainer(parts)
    session.step()
    assert torch.isfinite(parts.algo.actor(session.state)).all()
    assert parts.gate.guarantee(0).status == "formal"
