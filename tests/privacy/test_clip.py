"""The bound holds for anything a user can send."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.privacy.clip import clip_rows, row_norms
from privrl_bench.privacy.grid import L1, L2, unit_of

ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("norm", [L1, L2])
@settings(max_examples=200)
@given(values=st.lists(ANY, min_size=1, max_size=20), bound=st.floats(1e-3, 1e3))
def test_no_row_leaves_the_ball(norm, values, bound):
    sent = torch.tensor([[values]], dtype=torch.float32)
    before = sent.clone()
    rows, norms = clip_rows(sent, bound, unit_of(bound), norm)
    assert float(torch.linalg.vector_norm(rows.double() * unit_of(bound), norm)) <= bound
    assert torch.equal(norms.nan_to_num(-1.0), row_norms(sent, norm).nan_to_num(-1.0))
    finite = all(math.isfinite(v) for v in values)
    assert bool(torch.isfinite(norms)) == finite
    if finite:
        assert torch.allclose(norms, sent.double().norm(norm, dim=-1))
    else:
        assert not rows.any()
    # The caller's rows are not changed.
    assert torch.equal(sent.nan_to_num(7.0), before.nan_to_num(7.0))


def test_rows_inside_the_ball_stay_as_they_are():
    rows = torch.tensor([[[0.3, 0.4]]])
    unit = unit_of(1.0)
    assert torch.equal(clip_rows(rows, 1.0, unit)[0], torch.round(rows.double() / unit).long())


def test_huge_rows_whose_float32_norm_overflows_keep_their_direction():
    clipped, _ = clip_rows(torch.full((1, 1, 4), 3e38), 2.0, unit_of(2.0))
    assert torch.allclose(clipped.double() * unit_of(2.0), torch.ones(1, 1, 4).double(), atol=1e-4)


def test_one_users_nan_leaves_the_others_alone():
    rows = torch.ones(1, 3, 2) * 0.1
    rows[0, 1, 0] = float("nan")
    clipped, norms = clip_rows(rows, 1.0, unit_of(1.0))
    assert torch.isfinite(norms).tolist() == [[True, False, True]]
    assert torch.allclose(clipped[0, 0].double() * unit_of(1.0), rows[0, 0].double())
    assert not clipped[0, 1].any()
