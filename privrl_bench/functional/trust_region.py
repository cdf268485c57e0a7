"""Clip norms that keep a noised gradient step inside a trust region with probability 1 - beta.

A step moves the parameters by eta (g + z S xi), with a gradient |g| <= S after clipping and
xi ~ N(0, I_d). Each function returns the largest S, in the units of g, for which the step stays within the
region with probability 1 - beta. Arguments and results are floats or arrays that broadcast.

Source:
    "Differentially Private Policy Gradient" (Rio, Barlier, Colin), propositions 4.4, 4.5 and 4.7. Errors of
    the text are corrected here and noted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import chndtrix, ndtri

_SMALL = 1e-4  # noise multiplier


def l2_clip(eta: Any, z: Any, alpha: float, beta: float, dim: int) -> Any:
    """Compute proposition 4.4: half the squared norm of the step is at most `alpha`; exact if |g| = S.

    The squared norm divided by (eta z S)^2 is noncentral chi-squared with `dim` degrees of freedom and
    noncentrality |g|^2 / (z S)^2 <= 1 / z^2. Without noise, the clip alone bounds the step.

    >>> round(float(l2_clip(1.0, 3.77648, 3.5, 0.4, 8)), 6)
    0.241384
    """
    eta, z = np.broadcast_arrays(np.asarray(eta, float), np.asarray(z, float))
    usual = z > _SMALL
    safe = np.where(usual, z, 1.0)
    reach = safe**2 * chndtrix(1.0 - beta, dim, safe**-2.0)
    # For small z the component along g dominates, which is Gaussian; the quantile function fails there.
    reach = np.where(usual, reach, np.maximum(1.0 + 2.0 * z * ndtri(1.0 - beta), 1.0))
    return np.sqrt(2.0 * alpha / reach) / eta


def l2_clip_markov(eta: Any, z: Any, alpha: float, beta: float, dim: int) -> Any:
    """Compute proposition 4.5: as `l2_clip`, by Markov's inequality, hence smaller.

    >>> round(float(l2_clip_markov(1.0, 3.77648, 3.5, 0.4, 8)), 6)
    0.155974
    """
    return np.sqrt(2.0 * alpha * beta / (1.0 + np.asarray(z, float) ** 2 * dim)) / eta


def kl_clip(eta: Any, z: Any, alpha: float, beta: float, largest: Any, trace: Any) -> Any:
    """Compute proposition 4.7: half the squared step in the Fisher metric is at most `alpha`, by Markov.

    E[d' F d] <= eta^2 S^2 (largest eigenvalue of F + z^2 trace F). Without the factor 1/2, as in the
    proposition's last line, the probability is only 1 - 2 beta.

    >>> round(float(kl_clip(1.0, 3.77648, 3.5, 0.4, 1.5, 2.008)), 6)
    0.304806
    """
    spread = np.asarray(largest, float) + np.asarray(z, float) ** 2 * np.asarray(trace, float)
    return np.sqrt(2.0 * alpha * beta / spread) / eta
