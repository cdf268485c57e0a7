"""The Fourier basis against known results."""

import pytest
import torch

from privrl_bench.packs.offline.fixed_policies import fourier_features, fourier_waves

LOW, HIGH = torch.tensor([[-1.2, -0.07], [0.6, 0.07]], dtype=torch.float64)


def at(x, v):
    point = torch.tensor([x, v], dtype=torch.float64)
    return fourier_features(point, LOW, HIGH, fourier_waves(2, 5))


def test_order_five_in_two_dimensions_has_36_features() -> None:
    waves = fourier_waves(2, 5)
    assert waves.shape == (36, 2)
    assert waves[:7].tolist() == [[0, j] for j in range(6)] + [[1, 0]]
    assert fourier_waves(6, 1).shape == (64, 6)
    assert fourier_waves(6, 2).shape == (729, 6)


def test_corners_and_a_point_have_the_known_values() -> None:
    assert at(-1.2, -0.07).tolist() == pytest.approx([1.0] * 36)
    signs = [(-1.0) ** (i + j) for i in range(6) for j in range(6)]
    assert at(0.6, 0.07).tolist() == pytest.approx(signs)
    bottom = at(-0.5, 0.0)
    assert bottom[:6].tolist() == pytest.approx([1, 0, -1, 0, 1, 0], abs=1e-12)
    assert bottom[6:9].tolist() == pytest.approx([0.34202014, -0.93969262, -0.34202014], abs=1e-8)
    assert float(bottom.sum()) == pytest.approx(0.94438193, abs=1e-8)
    assert float(bottom.square().sum()) == pytest.approx(18, abs=1e-12)


def test_any_shape_and_points_outside_are_at_the_border() -> None:
    points = torch.tensor([[[-2.0, 0.0], [-1.2, 0.0]], [[9.0, 0.0], [0.6, 0.0]]]).double()
    found = fourier_features(points, LOW, HIGH, fourier_waves(2, 3))
    assert found.shape == (2, 2, 16)
    assert torch.equal(found[:, 0], found[:, 1])


def test_waves_of_few_coordinates() -> None:
    waves = fourier_waves(6, 3, joint=2)
    assert len(waves) == 1 + 6 * 3 + 15 * 9
    assert int((waves > 0).sum(-1).max()) == 2


def test_a_basis_too_large_to_be_meant() -> None:
    with pytest.raises(ValueError, match="order 5 in 17"):
        fourier_waves(17, 5)
