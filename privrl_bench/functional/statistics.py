"""Statistics over runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def mean_ci(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the mean of `values` [n] and the half width of its Student t interval.

    The half width of a single value is NaN.

    Raises:
        ValueError: There are no values.
    """
    data = np.asarray(values, dtype=float).ravel()
    if data.size == 0:
        raise ValueError("no values")
    mean = float(data.mean())
    if data.size == 1:
        return mean, float("nan")
    from scipy.special import stdtrit  # scipy.stats takes a third of a second to import

    error = float(data.std(ddof=1)) / float(np.sqrt(data.size))
    return mean, float(stdtrit(data.size - 1, 0.5 + confidence / 2)) * error


_RESAMPLES = 4000
_MANY = 500  # values, from which on the mean is as good as normal


def bootstrap_ci(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Compute a bootstrap interval of the mean of `values` [n]: (low, high).

    It lies between the smallest and the largest value, so it never leaves the range that values can have.
    Percentiles of the resampled means are expanded for small n: alpha / 2 is replaced by
    Phi(-sqrt(n / (n - 1)) t_(1 - alpha / 2, n - 1)), without which few values give too narrow an interval. The
    resampling is seeded: equal values give equal intervals. From 500 values on it is the t interval, cut to the
    values' range.

    Returns:
        (NaN, NaN) for a single value.

    Raises:
        ValueError: There are no values.

    Source:
        Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 5.3.
    """
    data = np.asarray(values, dtype=float).ravel()
    mean, half = mean_ci(data, confidence)
    n = data.size
    if n == 1:
        return float("nan"), float("nan")
    least, most = float(data.min()), float(data.max())
    if n >= _MANY or not np.isfinite(data).all():
        return max(mean - half, least), min(mean + half, most)
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(-np.sqrt(n / (n - 1)) * stdtrit(n - 1, 0.5 + confidence / 2)))
    picks = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
    means = np.sort(data)[picks].mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(np.clip(low, least, mean)), float(np.clip(high, mean, most))


FEWEST = (
    5  # values, below which no interval is called 95 %: of two, the bootstrap gives their range
)


def shown_interval(values: ArrayLike) -> tuple[float, float]:
    """Compute what is shown beside the mean of `values` [n]: the bootstrap interval, of few values their range.

    `interval_name` says which one it is. (NaN, NaN) for a single value.

    Raises:
        ValueError: There are no values.
    """
    data = np.asarray(values, dtype=float).ravel()
    if 1 < data.size < FEWEST:
        return float(data.min()), float(data.max())
    return bootstrap_ci(data)


def interval_name(count: int, what: str = "runs") -> str:
    """Return what `shown_interval` of `count` values is; empty for one, which has none.

    >>> interval_name(2)
    'range of 2 runs'
    >>> interval_name(5)
    '95 % interval'
    """
    if count < 2:
        return ""
    return f"range of {count} {what}" if count < FEWEST else "95 % interval"


def iqm_ci(
    scores: ArrayLike,
    generator: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """Compute the interquartile mean and its stratified bootstrap percentile interval.

    floor(n / 4) of n scores are dropped on each side, as in Agarwal et al. 2021.
    Runs are resampled with replacement within each task.

    Args:
        scores: [runs, tasks]; the tasks must have a common scale.
        generator: For the resampling.
        repetitions: Number of resamples.
        confidence: Coverage of the interval.

    Returns:
        (IQM, low, high).

    Raises:
        ValueError: `scores` is empty or not two-dimensional.
    """
    data = np.asarray(scores, dtype=float)
    if data.ndim != 2 or data.size == 0:
        raise ValueError(f"scores must be [runs, tasks] and not empty, got shape {data.shape}")
    runs, tasks = data.shape
    picks = generator.integers(runs, size=(repetitions, runs, tasks))
    samples = np.sort(data[picks, np.arange(tasks)].reshape(repetitions, -1), axis=1)
    inner = slice(data.size // 4, data.size - data.size // 4)
    values = samples[:, inner].mean(axis=1)
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(np.sort(data.ravel())[inner].mean()), float(low), float(high)


def profile(scores: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    """Compute the performance profile [k]: the fraction of `scores` [n] above each of `thresholds` [k].

    Raises:
        ValueError: There are no scores.

    Source:
        Agarwal et al. 2021, section 4.2.
    """
    data = np.asarray(scores, dtype=float).ravel()
    if data.size == 0:
        raise ValueError("no scores")
    return (data[None, :] > np.asarray(thresholds, dtype=float)[:, None]).mean(axis=1)


def improvement(
    x: ArrayLike,
    y: ArrayLike,
    generator: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float, float]:
    """Estimate the probability of improvement of `x` over `y` and its bootstrap percentile interval.

    Args:
        x: [n] scores.
        y: [m] scores. A tie counts as 1/2.
        generator: For the resampling of the runs of both, with replacement.
        repetitions: Number of resamples.
        confidence: Coverage of the interval.

    Returns:
        (probability, low, high).

    Raises:
        ValueError: `x` or `y` is empty.

    Source:
        Agarwal et al. 2021, section 4.3.
    """
    a, b = (np.asarray(one, dtype=float).ravel() for one in (x, y))
    if not a.size or not b.size:
        raise ValueError("no scores")
    wins = (a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :])
    rows = generator.integers(a.size, size=(repetitions, a.size))
    columns = generator.integers(b.size, size=(repetitions, b.size))
    values = np.array(
        [wins[np.ix_(r, c)].mean() for r, c in zip(rows, columns, strict=True)], dtype=float
    )
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(wins.mean()), float(low), float(high)
