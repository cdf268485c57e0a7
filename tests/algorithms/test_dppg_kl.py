"""The Fisher matrices of DPPG-KL: a bound, simulated, or released."""

import numpy as np
import pytest
import torch
from helpers import CHOICE, random_users
from test_trajectory_gradient import LENGTHS, SETUP, STREAMS

from privrl_bench.algorithms.loglinear.dppg_kl import DppgKl
from privrl_bench.algorithms.loglinear.loglinear_settings import DppgKlConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.functional.trust_region import kl_clip
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State


def test_a_constant_fisher_matrix_is_the_worst_there_is() -> None:
    algo = DppgKl(DppgKlConfig(), SETUP)
    expected = kl_clip(2.4, np.array([0.5, 2.0]), 3.5, 0.4, 2.001, 2.007)
    np.testing.assert_allclose(algo.radius(algo.init(STREAMS)).numpy(), expected)


def parts(*words):
    return make_plan(
        [compose(later_wins(["algo=dppg_kl", "env=riverswim", "total_steps=200", *words]))]
    )


def test_a_public_fisher_matrix_is_that_of_simulated_episodes() -> None:
    made = parts("algo.fisher=public", "algo.fisher_episodes=400")
    session = Trainer(made)
    fisher = session.state.tensors["fisher"][0]
    assert float(fisher.trace()) == pytest.approx(2.0, abs=1e-5)
    assert float(fisher[6, 6] + fisher[7, 7]) == pytest.approx(1.0, abs=1e-5)
    assert float(fisher[6, 7]) == 0.0
    before = fisher.clone()
    session.step()
    assert not torch.equal(session.state.tensors["fisher"][0], before)
    assert "public simulator" in made.gate.guarantee(0).notes
    assert made.gate.guarantee(0).status == "formal"
    session.close()


def test_a_private_fisher_matrix_is_released_and_counted() -> None:
    made = parts("algo.fisher=private", "privacy.z=1e-3")
    assert [b.name for b in made.gate.blocks] == ["actor", "fisher"]
    assert made.gate.blocks[1].clip == 2.0
    session = Trainer(made)
    for _ in range(4):
        session.step()
    fisher = session.state.tensors["fisher"][0]
    assert float(fisher.trace()) == pytest.approx(2.0, abs=0.2)
    assert torch.equal(fisher, fisher.T)
    plain = parts("privacy.z=1e-3")
    assert made.gate.planned_epsilon(0) == plain.gate.planned_epsilon(0)
    session.close()


def test_no_row_of_second_moments_is_longer_than_its_clip() -> None:
    algo = DppgKl(DppgKlConfig(fisher="private"), SETUP)
    users = random_users(CHOICE, 2, 3, 9, seed=1, lengths=LENGTHS)
    users.obs *= 100
    state = algo.init(STREAMS)
    state = State(0, {n: x.double() for n, x in state.tensors.items()})
    rows, _, _ = algo.user_update(state, users, STREAMS).take()
    assert float(rows["fisher"].norm(dim=-1).max()) <= algo.policy.bound + 1e-9
