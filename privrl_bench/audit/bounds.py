"""Lower bounds on epsilon from the correct guesses of an attack. Pure functions without privacy code.

Every bound holds with probability at least `confidence` over the attack's scores, if the threshold was
fixed independently of them. Two forms use the same counts:

- direct: any (epsilon, delta)-DP mechanism has TPR <= e^epsilon FPR + delta, and the same with the two
  hypotheses exchanged.
- gdp: any mu-Gaussian-DP mechanism has Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu (Dong, Roth and Su 2022).
  Gaussian releases with multiplier z have exactly mu = 1/z, so a larger mu contradicts the claim.
  This form determines the whole trade-off curve from one point and is much tighter.

Sources: Nasr et al. 2023, "Tight auditing of differentially private machine learning"; Steinke, Nasr and
Jagielski 2023, "Privacy auditing with one (1) training run"; Clopper and Pearson 1934.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize
from scipy.stats import beta, binom, chi2, norm


@dataclass(frozen=True)
class Bound:
    """One lower bound.

    Attributes:
        form: direct | gdp | one-run.
        epsilon: the lower bound, at the delta it was computed for.
        mu: lower bound on the Gaussian-DP parameter (gdp only).
        assumes: assumptions beyond the mechanism's own claim; empty if there are none.
        details: threshold and counts.
    """

    form: str
    epsilon: float
    mu: float | None
    assumes: str
    details: dict[str, float]


# --- rates


def upper_limit(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson upper limit of a probability, exceeded by the true one with chance <= `alpha`.

    >>> round(upper_limit(0, 100, 0.05), 5)
    0.02951
    """
    if trials < 1 or not 0 <= hits <= trials:
        raise ValueError(f"need 0 <= hits <= trials and trials >= 1, got {hits} of {trials}")
    return 1.0 if hits == trials else float(beta.ppf(1.0 - alpha, hits + 1, trials - hits))


def epsilon_direct(fpr: float, fnr: float, delta: float) -> float:
    """Smallest epsilon that these error rates allow at `delta`; 0 if they imply no bound.

    >>> round(epsilon_direct(0.01, 0.1, 1e-5), 4)
    4.4998
    """
    found = 0.0
    for one, other in ((fpr, fnr), (fnr, fpr)):
        power = 1.0 - other - delta
        if power > 0:
            found = max(found, math.inf if one <= 0 else math.log(power / one))
    return found


def mu_from_rates(fpr: float, fnr: float) -> float:
    """Smallest mu whose Gaussian trade-off curve allows these error rates; 0 if they imply no bound.

    >>> round(mu_from_rates(0.3085375387, 0.3085375387), 6)
    1.0
    """
    return max(0.0, float(norm.ppf(1.0 - fpr) - norm.ppf(fnr)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Epsilon of a mu-Gaussian-DP mechanism (exact: Balle and Wang 2018).

    >>> round(epsilon_of_mu(1.0, 1e-5), 4)
    4.3772
    """
    import dp_accounting

    return 0.0 if mu <= 0 else float(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta))


# --- bounds from scores


def _limits(
    inside: np.ndarray, outside: np.ndarray, threshold: float, alpha: float
) -> tuple[float, float, dict[str, float]]:
    """Upper limits of FPR and FNR of "in if score > threshold", both true with chance 1 - alpha."""
    false_in = int((outside > threshold).sum())
    false_out = int((inside <= threshold).sum())
    fpr = upper_limit(false_in, len(outside), alpha / 2)
    fnr = upper_limit(false_out, len(inside), alpha / 2)
    counts = {
        "threshold": float(threshold),
        "inside": len(inside),
        "outside": len(outside),
        "missed": false_out,
        "false_alarms": false_in,
    }
    return fpr, fnr, counts


def direct_bound(
    inside: np.ndarray, outside: np.ndarray, threshold: float, delta: float, confidence: float
) -> Bound:
    """Lower bound on the epsilon of any (epsilon, delta)-DP mechanism.

    Args:
        inside: scores with the user; a larger score means "in".
        outside: scores without the user.
        threshold: fixed independently of these scores.
        delta: the claim's delta.
        confidence: that epsilon is not below the bound.
    """
    fpr, fnr, counts = _limits(inside, outside, threshold, 1.0 - confidence)
    return Bound("direct", epsilon_direct(fpr, fnr, delta), None, "", counts)


def gdp_bound(
    inside: np.ndarray, outside: np.ndarray, threshold: float, delta: float, confidence: float
) -> Bound:
    """Lower bound on mu of a mechanism that claims Gaussian DP, and the epsilon of that mu.

    Arguments as `direct_bound`. It implies nothing for a claim that is not Gaussian DP.
    """
    fpr, fnr, counts = _limits(inside, outside, threshold, 1.0 - confidence)
    mu = mu_from_rates(fpr, fnr)
    return Bound("gdp", epsilon_of_mu(mu, delta), mu, "the claim is Gaussian DP", counts)


# --- thresholds that do not depend on the scores


def tail(mu: float, count: int, delta: float, confidence: float) -> float:
    """The threshold with the best expected direct bound for `count` N(0,1) and `count` N(mu,1).

    Args:
        mu: distance under the claim.
        count: scores of each kind.
        delta: of the claim.
        confidence: of the bound.
    """
    alpha = (1.0 - confidence) / 2
    grid = np.linspace(mu / 2.0, mu + 4.0, 200)
    false_in = np.round(count * norm.sf(grid))
    false_out = np.round(count * norm.cdf(grid - mu))
    fpr = beta.ppf(1.0 - alpha, false_in + 1, np.maximum(count - false_in, 1e-9))
    fnr = beta.ppf(1.0 - alpha, false_out + 1, np.maximum(count - false_out, 1e-9))
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.log(np.maximum(1.0 - fnr - delta, 0.0)) - np.log(fpr)
    return float(grid[int(np.nanargmax(gain))])


def threshold_bounds(
    inside: np.ndarray,
    outside: np.ndarray,
    mu: float,
    start: float,
    delta: float,
    confidence: float,
    count: int,
) -> list[Bound]:
    """The gdp and the direct bound, with thresholds for N(start, 1) against N(start + mu, 1).

    The thresholds depend on the claim only, so all scores count.

    Args:
        inside: scores with the user.
        outside: scores without the user.
        mu: distance under the claim.
        start: mean of `outside` under the claim.
        delta: of the claim.
        confidence: of each bound.
        count: expected number of scores of each kind, for `tail`.
    """
    far = start + tail(mu, count, delta, confidence)
    return [
        gdp_bound(inside, outside, start + mu / 2.0, delta, confidence),
        direct_bound(inside, outside, far, delta, confidence),
    ]


# --- one run


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95
) -> float:
    """Largest epsilon under which so many correct guesses in one run are too unlikely.

    Args:
        canaries: m, each included by its own fair coin.
        guesses: r of them were guessed; there is no guess for the others.
        right: v guesses were correct.
        delta: of the claim.
        confidence: that epsilon is not below the result.

    Source: Steinke, Nasr and Jagielski 2023, theorem 5.2: with q = 1 / (1 + e^-epsilon) the chance of
    v or more is at most P[Bin(r, q) >= v] + 2 m delta max_i P[v > Bin(r, q) >= v - i] / i.

    >>> round(one_run_epsilon(100, 100, 100, 1e-5), 4)
    3.4902
    """
    if not 0 <= right <= guesses <= canaries:
        raise ValueError("need 0 <= right <= guesses <= canaries")
    if right == 0:
        return 0.0
    below = np.arange(right - 1, -1, -1)
    steps = np.arange(1, right + 1)

    def excess(epsilon: float) -> float:
        q = 1.0 / (1.0 + math.exp(-epsilon))
        slack = float((np.cumsum(binom.pmf(below, guesses, q)) / steps).max())
        chance = float(binom.sf(right - 1, guesses, q)) + 2.0 * canaries * delta * slack
        return chance - (1.0 - confidence)

    if excess(0.0) >= 0.0:
        return 0.0
    most = 64.0
    return most if excess(most) < 0.0 else float(optimize.brentq(excess, 0.0, most))


def one_run_plan(mu: float, most: int, delta: float, confidence: float) -> tuple[int, int]:
    """(canaries, guesses) with the best expected one-run bound under the claim mu.

    More canaries give a better bound until the term 2 m delta dominates; fewer guesses are more often
    correct. The scores of the run are not used.

    Args:
        mu: distance under the claim.
        most: maximum number of canaries.
        delta: of the claim.
        confidence: of the bound.
    """
    best, chosen = -1.0, (min(most, 100), min(most, 100))
    sizes = {most} | {m for m in (100, 200, 500, 1000, 2000, 5000, 10_000) if m < most}
    for canaries in sorted(sizes):
        for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0):
            guesses = 2 * int(share * canaries / 2)
            if guesses < 2:
                continue
            cut = _mixture_tail(mu, share / 2)
            odds = norm.sf(cut - mu) / (norm.sf(cut - mu) + norm.sf(cut))
            value = one_run_epsilon(canaries, guesses, int(guesses * odds), delta, confidence)
            if value > best:
                best, chosen = value, (canaries, guesses)
    return chosen


def _mixture_tail(mu: float, share: float) -> float:
    """Where half N(0,1) and half N(mu,1) has `share` of its mass above."""

    def excess(x: float) -> float:
        return float(norm.sf(x) + norm.sf(x - mu)) / 2.0 - share

    return float(optimize.brentq(excess, -10.0, mu + 10.0))


# --- cohort sizes


def cohort_chance(sizes: list[int], population: int, users: int, cap: int) -> float:
    """P-value of a chi-square test that `sizes` are min(Binomial(population, users/population), cap)."""
    law = binom(population, users / population)
    weights = law.pmf(np.arange(cap + 1))
    weights[cap] = law.sf(cap - 1)
    counts = np.bincount(np.asarray(sizes), minlength=cap + 1).astype(float)
    expected = weights * len(sizes)
    merged: list[list[float]] = [[0.0, 0.0]]
    for seen, hoped in zip(counts, expected, strict=True):  # bins with at least 5 expected
        if merged[-1][1] >= 5.0:
            merged.append([0.0, 0.0])
        merged[-1][0] += seen
        merged[-1][1] += hoped
    if len(merged) > 1 and merged[-1][1] < 5.0:
        seen, hoped = merged.pop()
        merged[-1][0] += seen
        merged[-1][1] += hoped
    if len(merged) < 2:
        return 1.0
    statistic = sum((seen - hoped) ** 2 / hoped for seen, hoped in merged)
    return float(chi2.sf(statistic, len(merged) - 1))
