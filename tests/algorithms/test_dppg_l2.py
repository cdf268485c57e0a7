"""The radius of DPPG-L2."""

import numpy as np
import pytest
import torch
from helpers import CHOICE, in_double, open_gate, random_users
from test_trajectory_gradient import SETUP, STREAMS

from privrl_bench.algorithms.loglinear.dppg_l2 import DppgL2
from privrl_bench.algorithms.loglinear.loglinear_settings import DppgL2Config
from privrl_bench.functional.trust_region import l2_clip
from privrl_bench.types import State


def test_the_radius_is_the_trust_regions_and_the_server_undoes_it() -> None:
    algo = DppgL2(DppgL2Config(), SETUP)
    state = in_double(algo.init(STREAMS))
    for index, eta in ((0, 2.4), (49, 2.4), (50, 0.48), (100, 0.096), (1000, 0.055)):
        assert algo.learning_rate(index) == pytest.approx(eta)
        expected = l2_clip(eta, np.array([0.5, 2.0]), 3.5, 0.4, 7)
        np.testing.assert_allclose(algo.radius(State(index, {})).numpy(), expected)
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    values, bypass = open_gate(algo.user_update(state, users, STREAMS))
    released = type("Released", (), {"values": values, "bypass": bypass})
    moved = algo.server(state, released).tensors["actor"] - state.tensors["actor"]
    step = 2.4 * algo.radius(state)[:, None] * values["actor"]
    torch.testing.assert_close(moved, step.to(moved.dtype), rtol=1e-4, atol=1e-4)
    loose = DppgL2(DppgL2Config(markov=True), SETUP)
    assert (loose.radius(state) < algo.radius(state)).all()
