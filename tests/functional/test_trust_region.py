"""Propositions 4.4 to 4.7 by simulation, and known results."""

import numpy as np
import pytest

from privrl_bench.functional.trust_region import (
    kl_clip,
    l2_clip,
    l2_clip_markov,
)

ALPHA, BETA, DIM = 3.5, 0.4, 8
DRAWS = 200_000


def steps(eta, z, clip, gradient, seed=0):
    """[DRAWS, d] noised steps of a clipped gradient."""
    xi = np.random.default_rng(seed).normal(size=(DRAWS, len(gradient)))
    clipped = gradient * min(1.0, clip / np.linalg.norm(gradient))
    return eta * (clipped + z * clip * xi)


@pytest.mark.parametrize(
    ("z", "exact", "markov", "kl"),
    [(3.77648, 0.241384, 0.155974, 0.304806), (0.75530, 1.096633, 0.709405, 1.028785)],
)
def test_known_answers(z, exact, markov, kl) -> None:
    for eta in (1.0, 12.0):
        assert eta * l2_clip(eta, z, ALPHA, BETA, DIM) == pytest.approx(exact, rel=2e-5)
        assert eta * l2_clip_markov(eta, z, ALPHA, BETA, DIM) == pytest.approx(markov, rel=2e-5)
        assert eta * kl_clip(eta, z, ALPHA, BETA, 1.5, 2.008) == pytest.approx(kl, rel=2e-5)


@pytest.mark.parametrize("z", [0.3, 1.0, 3.77648])
def test_the_quantile_clip_holds_with_exactly_its_probability_if_the_gradient_is_clipped(z) -> None:
    clip = float(l2_clip(2.0, z, ALPHA, BETA, DIM))
    moved = steps(2.0, z, clip, 100.0 * np.ones(DIM))
    assert ((moved**2).sum(1) / 2 <= ALPHA).mean() == pytest.approx(1 - BETA, abs=0.006)
    small = steps(2.0, z, clip, 1e-9 * np.ones(DIM))
    assert ((small**2).sum(1) / 2 <= ALPHA).mean() > 1 - BETA


def test_markov_is_safe_and_smaller() -> None:
    clip = float(l2_clip_markov(2.0, 1.0, ALPHA, BETA, DIM))
    assert clip < l2_clip(2.0, 1.0, ALPHA, BETA, DIM)
    moved = steps(2.0, 1.0, clip, np.ones(DIM))
    assert ((moved**2).sum(1) / 2 <= ALPHA).mean() > 1 - BETA


def test_without_noise_the_clip_alone_is_the_region() -> None:
    for z in (0.0, 1e-6):
        bound = np.sqrt(2 * ALPHA) / 2
        assert l2_clip(2.0, z, ALPHA, BETA, DIM) == pytest.approx(bound, rel=1e-5)
    below, above = (float(l2_clip(1.0, z, ALPHA, BETA, DIM)) for z in (0.99e-4, 1.01e-4))
    assert below == pytest.approx(above, rel=1e-5)


def test_the_fisher_metric_holds_with_its_half_and_not_without() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(DIM, DIM))
    fisher = root @ root.T / DIM
    largest, trace = np.linalg.eigvalsh(fisher)[-1], np.trace(fisher)
    worst = np.linalg.eigh(fisher)[1][:, -1]
    clip = float(kl_clip(1.5, 0.5, ALPHA, BETA, largest, trace))
    moved = steps(1.5, 0.5, clip, 50.0 * worst)
    squared = np.einsum("nd,de,ne->n", moved, fisher, moved)
    assert (squared / 2 <= ALPHA).mean() >= 1 - BETA
    # One direction and little noise: the step is all but certain, and twice the bound allows.
    flat = np.diag([1.0, *[1e-9] * (DIM - 1)])
    clip = float(kl_clip(1.0, 1e-3, ALPHA, 0.9, 1.0, 1.0))
    moved = steps(1.0, 1e-3, clip, np.eye(DIM)[0] * 50)
    squared = np.einsum("nd,de,ne->n", moved, flat, moved)
    assert (squared / 2 <= ALPHA).all()
    assert not (squared <= ALPHA).any()
