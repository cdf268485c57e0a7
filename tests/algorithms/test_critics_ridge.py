"""Ridge regressions of the users, for the private critic, against least squares in double precision."""

import pytest
import torch

from privrl_bench.algorithms.policy_gradient.critics import ridge_regressions


def problem(users=5, steps=9, size=12):
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(users, steps, size, generator=g)
    count = torch.randint(1, steps + 1, (users,), generator=g).float()
    here = (torch.arange(steps) < count[:, None]).float()
    return phi * here[..., None], torch.randn(users, steps, generator=g) * here, count


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_solutions(steps):
    phi, target, count = problem(steps=steps)
    found = ridge_regressions(phi, target, count, 0.1)
    left = (phi.mT @ phi / count[:, None, None] + 0.1 * torch.eye(12)).double()
    right = (phi * target[..., None]).sum(1).double() / count[:, None]
    expected = torch.linalg.solve(left, right)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_users_solution_depends_on_nobody_else_and_not_on_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        phi, target, count = problem()
        found = ridge_regressions(phi, target, count, 0.1)
        for u in range(len(phi)):
            alone = ridge_regressions(phi[u : u + 1], target[u : u + 1], count[u : u + 1], 0.1)
            assert torch.equal(found[u], alone[0])
        phi[2, 0, 0] = torch.nan
        other = ridge_regressions(phi, target, count, 0.1)
    finally:
        torch.set_num_threads(before)
    assert not torch.isfinite(other[2]).all()
    assert torch.equal(other[[0, 1, 3, 4]], found[[0, 1, 3, 4]])


def test_features_that_repeat_give_finite_solutions():
    """Rounding makes pivots negative here; a Cholesky factorisation without care ends in NaN."""
    phi, target, count = problem(steps=40)
    phi[..., 6:] = phi[..., :6]
    found = ridge_regressions(phi, target, count, 1e-8)
    assert torch.isfinite(found).all()
