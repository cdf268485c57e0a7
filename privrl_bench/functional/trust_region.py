"""Clips that keep a noised gradient step inside a trust region with a stated chance.

A step moves the parameters by eta (g + z S xi), where |g| <= S was clipped and xi ~ N(0, I_d). Each
function gives the largest S, in the units of g, for which the step stays within the region with chance
1 - beta. All take and return floats or arrays that broadcast.

Source: "Differentially Private Policy Gradient" (Rio, Barlier, Colin), propositions 4.4 to 4.7. Where the
text slips, what is true is written here and said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import chndtrix, ndtri

_SMALL = 1e-4  # noise multiplier


def l2_clip(eta: Any, z: Any, alpha: float, beta: float, dim: int) -> Any:
    """Proposition 4.4: half the squared length of the step is at most `alpha`; exact where |g| = S.

    The squared length over (eta z S)^2 is noncentral chi-squared with `dim` degrees of freedom and
    noncentrality |g|^2 / (z S)^2 <= 1 / z^2. Without noise the clip alone holds the step.

    >>> round(float(l2_clip(1.0, 3.77648, 3.5, 0.4, 8)), 6)
    0.241384
    """
    eta, z = np.broadcast_arrays(np.asarray(eta, float), np.asarray(z, float))
    usual = z > _SMALL
    safe = np.where(usual, z, 1.0)
    reach = safe**2 * chndtrix(1.0 - beta, dim, safe**-2.0)
    # With little noise its part along g decides, which is Gaussian; the quantile function fails there.
    reach = np.where(usual, reach, np.maximum(1.0 + 2.0 * z * ndtri(1.0 - beta), 1.0))
    return np.sqrt(2.0 * alpha / reach) / eta


def l2_clip_markov(eta: Any, z: Any, alpha: float, beta: float, dim: int) -> Any:
    """Proposition 4.5: the same by Markov's inequality, hence smaller.

    >>> round(float(l2_clip_markov(1.0, 3.77648, 3.5, 0.4, 8)), 6)
    0.155974
    """
    return np.sqrt(2.0 * alpha * beta / (1.0 + np.asarray(z, float) ** 2 * dim)) / eta


def gap_clip(eta: Any, z: Any, lam: float, beta: float, gradient_norm: Any) -> Any:
    """Proposition 4.6: noise costs the linearised objective at most `lam` with chance 1 - beta, by Cantelli.

    The objective changes by eta <g, clipped g + z S xi>, whose noise has standard deviation eta z S |g|.
    `gradient_norm` is a person's: a clip that uses it is not public (the paper does not say so).

    >>> round(float(gap_clip(1.0, 1.0, 1.0, 0.05, 2.0)), 6)
    0.114708
    """
    spread = np.asarray(eta, float) * z * gradient_norm
    return lam / spread * np.sqrt(beta / (1.0 - beta))


def gap_clip_exact(eta: Any, z: Any, lam: float, beta: float, gradient_norm: Any) -> Any:
    """The same with the Gaussian's own quantile: 2.65 times as large at beta = 0.05."""
    return lam / (np.asarray(eta, float) * z * gradient_norm * ndtri(1.0 - beta))


def kl_clip(eta: Any, z: Any, alpha: float, beta: float, largest: Any, trace: Any) -> Any:
    """Proposition 4.7: half the squared step in the Fisher metric is at most `alpha`, by Markov.

    E[d' F d] <= eta^2 S^2 (largest eigenvalue of F + z^2 trace F). The half belongs to the statement; without
    it, as the proposition's last line has it, the chance is 1 - 2 beta only.

    >>> round(float(kl_clip(1.0, 3.77648, 3.5, 0.4, 1.5, 2.008)), 6)
    0.304806
    """
    spread = np.asarray(largest, float) + np.asarray(z, float) ** 2 * np.asarray(trace, float)
    return np.sqrt(2.0 * alpha * beta / spread) / eta


def kl_moments(
    eta: float, z: float, clip: float, gradient: np.ndarray, fisher: np.ndarray
) -> tuple[float, float]:
    """Mean and variance of half the squared step in the Fisher metric (equations 13 and 14).

    The text attaches the two terms of the variance to each other's factors; here as they belong.

    Args:
        gradient: [d], clipped.
        fisher: [d, d], symmetric.
    """
    noise = (z * clip) ** 2
    mean = eta**2 / 2.0 * (gradient @ fisher @ gradient + noise * np.trace(fisher))
    pulled = fisher @ gradient
    variance = eta**4 / 4.0 * (4 * noise * pulled @ pulled + 2 * noise**2 * np.sum(fisher * fisher))
    return float(mean), float(variance)
