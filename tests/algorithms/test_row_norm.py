"""The norm at which gradients are cut: rows stay within the clip, and the norm follows the quantile."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privrl_bench.algorithms.policy_gradient.row_norm import NORMS
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.training.plan import make_plan

CLIP = 0.3


@given(st.floats(-20, 20), st.floats(1e-12, 1e12), st.sampled_from([0.1, 0.5, 1.0]))
def test_no_row_is_longer_than_the_clip_and_a_user_says_one_bit(log_norm, size, share):
    norm = NORMS["gradient"](share, CLIP)
    gradients = size * torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).double()
    tensors = {"log_norm": torch.full((2, 1), log_norm, dtype=torch.float64)}
    rows = norm.rows(tensors, gradients)
    assert (rows["actor"].norm(dim=-1) <= CLIP * (1 + 1e-9)).all()
    one, other = (x / x.norm(dim=-1, keepdim=True) for x in (rows["actor"], gradients))
    torch.testing.assert_close(one, other)
    if share < 1:
        above = gradients.norm(dim=-1) > math.exp(log_norm)
        assert torch.equal(rows["norm"][..., 0], above.double() - 0.5)
        assert (rows["actor"].norm(dim=-1)[above] >= CLIP * (1 - 1e-9)).all()


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_norm_comes_to_the_quantile_from_far_below(share):
    norm, generator = NORMS["gradient"](share, CLIP), torch.Generator().manual_seed(1)
    tensors = norm.init(1)
    for _ in range(60):
        gradients = 4.0 * torch.rand(1, 200, 1, generator=generator)
        mean = norm.rows(tensors, gradients)["norm"].mean(1)
        tensors = norm.server(tensors, SimpleNamespace(values={"norm": mean}))
    assert float(tensors["log_norm"].exp()) == pytest.approx(4.0 * (1 - share), rel=0.2)


def test_with_share_one_there_is_no_block():
    norm = NORMS["gradient"](1.0, CLIP)
    assert norm.blocks() == ()
    assert norm.init(2) == {}
    assert not norm.rows({}, torch.zeros(1, 2, 3))["actor"].any()


def test_the_block_is_paid_for():
    """1 / z^2 is the sum over blocks: epsilon stays, the actor's noise grows."""
    words = ["algo=dppg", "env=hopper", "log=none", "algo.critic=none"]
    one, two = (make_plan([compose([*words, f"algo.clipped_share={x}"])]) for x in (1.0, 0.5))
    assert one.gate.guarantee(0).epsilon == two.gate.guarantee(0).epsilon
    assert two.algo.blocks()[1].clip == 0.5  # a user is +-1/2


def test_it_needs_gradients():
    with pytest.raises(ConfigError, match=r"^algo.clipped_share: needs algo.user_update=gradient"):
        NORMS["adam"](0.5, CLIP)
