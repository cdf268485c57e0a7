"""Noise has the right size, is not reused, and secure noise is never the same."""

import numpy as np
import pytest
import torch
from scipy import stats

from privrl_bench.privacy.noise import SecureNoise, SeededNoise, noise_source

SIZE = 40_000


@pytest.mark.parametrize("source", [SeededNoise(3), SecureNoise()], ids=["seeded", "secure"])
def test_noise_is_standard_normal(source):
    (x,) = source.normal([SIZE], 0, 0)
    assert x.dtype == torch.float64
    x = x.numpy()
    assert x.std() == pytest.approx(1.0, abs=5 / np.sqrt(2 * SIZE))
    assert stats.kstest(x, "norm").pvalue > 1e-4


def test_seeded_noise_repeats_only_for_the_same_round_and_attempt():
    def draw(seed, index, attempt):
        return SeededNoise(seed).normal([5], index, attempt)[0]

    first = draw(0, 7, 0)
    assert torch.equal(first, draw(0, 7, 0))
    for other in (draw(0, 8, 0), draw(0, 7, 1), draw(1, 7, 0)):
        assert not torch.equal(first, other)


def test_secure_noise_differs_between_processes_and_calls():
    one, two = noise_source("secure", 0), noise_source("secure", 0)
    draws = [s.normal([5], 0, 0)[0] for s in (one, one, two)]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_blocks_get_different_noise():
    a, b = SeededNoise(0).normal([5, 5], 0, 0)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("source", [SeededNoise(0), SecureNoise()], ids=["seeded", "secure"])
def test_cohorts_are_binomial(source):
    draws = [source.binomial(1000, 0.01, i) for i in range(3000)]
    assert np.mean(draws) == pytest.approx(10, abs=5 * np.sqrt(9.9 / 3000))
    assert np.var(draws) == pytest.approx(9.9, rel=0.15)
