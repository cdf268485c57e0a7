"""Insulin dosing for type-1 diabetes over one day: Dosing-0 (fixed meals) and Dosing-1 (random meals).

The state of a patient is y = (G, X, I, S1, S2, Q): glucose [mg/dL], remote and plasma insulin, two insulin
depots and the gut; u is the insulin rate [mU/min], d the meal disturbance. With time in minutes

    G' = -p1 (G - Gb) - si X G + f kabs / vg Q + f / vg d        X' = p2 (I - X)       I' = -ke I + u
    S1' = u - kemp S1        S2' = kemp (S1 - S2)        Q' = kemp S2 - kabs Q

All equations but the first are linear with constant coefficients and solved by a matrix exponential. Given
their solution the first is linear, too, and solved by an integrating factor with Gauss quadrature. Equal
within 1e-6 to an integration with tolerance 1e-10 (tested).

Source:
    The "Dosing" tasks of "Differentially Private Policy Gradient" (Rio, Barlier, Colin), from Strong
    Analytics' dosing-rl-gym. Kept as published although implausible: insulin, not food, fills the gut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from scipy.linalg import expm
from scipy.signal import savgol_filter
from scipy.special import ndtr, ndtri

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import TorchSlots
from privrl_bench.errors import ConfigError

MINUTES = 10  # of one step
GRID = 145  # points of a day
STEPS = 143  # of an episode; the first interval of the day precedes the first observation

_GB, _P1, _SI, _P2, _KE = 291.0, 3.17e-2, 2.9e-2, 1.23e-2, 9.0e-2
_KABS, _KEMP, _F, _VG = 1.2e-2, 1.8e-1, 0.8, 12.0
_TARGET, _WIDTH, _LOWEST, _HIGHEST = 80.0, 7.0, 65.0, 105.0  # mg/dL

_FIXED_FROM = 43  # grid index at which the meals of Dosing-0 begin
_FIXED_BASE = 1000.0
# fmt: off
_FIXED = np.array([
    1259, 1451, 1632, 1632, 1468, 1314, 1240, 1187, 1139, 1116, 1099, 1085, 1077, 1071, 1066, 1061, 1057,
    1053, 1046, 1040, 1034, 1025, 1018, 1010, 1000, 993, 985, 976, 970, 964, 958, 954, 952, 950, 950, 951,
    1214, 1410, 1556, 1603, 1445, 1331, 1226, 1173, 1136, 1104, 1088, 1078, 1070, 1066, 1063, 1061, 1059,
    1056, 1052, 1048, 1044, 1037, 1030, 1024, 1014, 1007, 999, 989, 982, 975, 967, 962, 957, 953, 951, 950,
    1210, 1403, 1588, 1593, 1434, 1287, 1212, 1159, 1112, 1090, 1075, 1064, 1059, 1057, 1056, 1056, 1056,
    1055, 1054, 1052, 1049, 1045, 1041, 1033, 1027, 1020, 1011, 1003, 996, 986,
], dtype=np.float64)
# fmt: on


class Meal(NamedTuple):
    """A meal of Dosing-1: probability, earliest, latest and mean hour, amount and its deviation."""

    probability: float
    earliest: float
    latest: float
    hour: float
    amount: float
    spread: float


MEALS = (
    Meal(0.95, 5, 9, 7, 2500, 100),
    Meal(0.20, 9, 10, 9.5, 1250, 50),
    Meal(0.95, 11, 13, 12, 2800, 100),
    Meal(0.20, 14, 16, 15, 1250, 50),
    Meal(0.95, 16.5, 29.5, 18, 2800, 100),  # 29.5 as published; probably 19.5 was meant
    Meal(0.20, 20, 22, 21, 1250, 50),
)
_TIME_SPREAD = 10.0  # grid steps
_LAST_MEAL = 143


# --- physics


def _nodes(panels: int = 12, order: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in one interval [min] and weights of composite Gauss-Legendre quadrature."""
    x, w = np.polynomial.legendre.leggauss(order)
    width = MINUTES / panels
    starts = width * np.arange(panels)
    times = starts[:, None] + width * (x + 1.0) / 2.0
    return times.ravel(), np.tile(w * width / 2.0, panels)


def _propagators(times: np.ndarray) -> np.ndarray:
    """Linear maps [len(times), 6, 7] from (X, I, S1, S2, Q, u, 1) to (X, I, S1, S2, Q, A) after `times` [min].

    A is the integral of p1 + si X from the start of the interval.
    """
    m = np.zeros((8, 8))  # X, I, S1, S2, Q, A, u, 1
    m[0, 0], m[0, 1] = -_P2, _P2
    m[1, 1], m[1, 6] = -_KE, 1.0
    m[2, 2], m[2, 6] = -_KEMP, 1.0
    m[3, 2], m[3, 3] = _KEMP, -_KEMP
    m[4, 3], m[4, 4] = _KEMP, -_KABS
    m[5, 0], m[5, 7] = _SI, _P1
    found = np.stack([expm(m * t) for t in times])
    return found[:, :6][:, :, [0, 1, 2, 3, 4, 6, 7]]  # A starts at 0


_TIMES, _WEIGHTS = _nodes()
_TO_END = _propagators(np.array([float(MINUTES)]))[0]
_TO_NODES = _propagators(_TIMES)
_INSIDE = np.concatenate([_TO_NODES[:, 4], _TO_NODES[:, 5]])  # Q, then A, at every node


class Tables(NamedTuple):
    """What `interval` multiplies with, as arrays of NumPy or of torch on a device."""

    end: Any
    nodes: Any
    weights: Any


_TABLES = Tables(_TO_END, _INSIDE, _WEIGHTS)


def interval(y: Any, u: Any, d: Any, xp: Any = np, tables: Tables = _TABLES) -> Any:
    """Step all patients by one interval of 10 minutes.

    A patient's next state does not depend on the other patients, to the last bit.

    Args:
        y: [6, n] states.
        u: [n] insulin rates [mU/min].
        d: [n] meal disturbances.
        xp: numpy, or torch.
        tables: as arrays of `xp`.

    Returns:
        [6, n] next states.
    """
    if xp is np and len(u) == 1:  # NumPy sums a single column in another order
        return interval(np.repeat(y, 2, 1), np.repeat(u, 2), np.repeat(d, 2))[:, :1]
    start = (*y[1:], u, xp.ones_like(u))
    end = _times(tables.end, start)
    inside = _times(tables.nodes, start)
    gut, passed = inside[: len(_TIMES)], inside[len(_TIMES) :]
    source = _P1 * _GB + (_F * _KABS / _VG) * gut + (_F / _VG) * d
    # exp(A(s) - A(end)) weights the inflow at time s; it does not overflow, since A increases.
    inflow = tables.weights[:, None] * xp.exp(passed - end[5]) * source
    if xp is np:
        inflow = inflow.sum(0)
    else:  # in a fixed order, as in `_times`
        inflow = sum(inflow[1:], inflow[0])
    return xp.concatenate([(y[0] * xp.exp(-end[5]) + inflow)[None], end[:5]])


def _times(matrix: Any, rows: Any) -> Any:
    """Product of a matrix [m, k] and k rows [n], summed in a fixed order (unlike BLAS)."""
    total = matrix[:, :1] * rows[0]
    for column, row in zip(matrix.T[1:], rows[1:], strict=True):
        total += column[:, None] * row
    return total


def reward(glucose: Any, xp: Any = np) -> Any:
    """Return rewards in [-1, 1]: 1 at 80 mg/dL, near 0 from 95, -1 outside 65 to 105."""
    inside = (glucose >= _LOWEST) & (glucose <= _HIGHEST)
    return xp.where(inside, 1.0 - xp.tanh(xp.abs(glucose - _TARGET) / _WIDTH) ** 2, -1.0)


# --- days


def fixed_day() -> np.ndarray:
    """Return the disturbance of Dosing-0, [145]."""
    day = np.full(GRID, _FIXED_BASE)
    day[_FIXED_FROM:] = _FIXED
    return day


_SMOOTH = savgol_filter(np.eye(GRID), 11, 3, axis=0)


def smoothed(raw: np.ndarray, base: float) -> np.ndarray:
    """Apply a cubic Savitzky-Golay filter of window 11 to `raw` [145], at least `base` everywhere."""
    return np.maximum(_SMOOTH @ raw, base)


def random_day(rng: np.random.Generator) -> np.ndarray:
    """Draw the disturbance of a Dosing-1 day, [145]."""
    base = rng.uniform(800.0, 1200.0)
    raw = np.full(GRID, float(int(base)))
    for meal in MEALS:
        if rng.random() >= meal.probability:
            continue
        low, high, mean = (6 * hour + 1 for hour in (meal.earliest, meal.latest, meal.hour))
        a, b = ndtr((low - mean) / _TIME_SPREAD), ndtr((high - mean) / _TIME_SPREAD)
        index = round(mean + _TIME_SPREAD * float(ndtri(a + rng.random() * (b - a))))
        amount = max(round(rng.normal(meal.amount, meal.spread)), 0)
        raw[min(index, _LAST_MEAL)] = amount
    return smoothed(raw, base)


# --- slots


class Dosing0Slots(TorchSlots):
    """`Slots` of Dosing-0. State rows: y (6), previous G, grid index k, the day's disturbance (145).

    Observations [9] float32: G, X, I, S1, S2, Q, d[k], previous G, d[k - 1], unscaled. The action is one dose
    in [0, 10] mU/min, which acts over the next interval together with the unobserved d[k + 1].
    """

    size, max_episode_steps, draws = 8 + GRID, STEPS, 7

    def __init__(self, config: EnvConfig, count: int, xp: Any = np, device: str = "cpu"):
        if config.kwargs:
            raise ConfigError("env.kwargs", f"Dosing takes none, got {', '.join(config.kwargs)}")
        super().__init__(config, count, xp, device)
        self._tables = Tables(*map(self.constant, _TABLES))

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Box]:
        """Return the observation and action spaces."""
        most = np.float32(10.0)
        return gym.spaces.Box(0.0, np.inf, (9,)), gym.spaces.Box(np.float32(0.0), most, (1,))

    def first_dose(self, rng: np.random.Generator) -> float:
        """Return the dose [mU/min] of the interval before the first observation."""
        return 3.0

    def day(self, rng: np.random.Generator) -> np.ndarray:
        """Return the disturbance of an episode, [145]."""
        return fixed_day()

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        y = np.array(
            [
                rng.uniform(65.0, 105.0),
                *rng.normal((33.33, 33.33, 25.0, 25.0, 250.0), 5.0),
            ]
        )
        day, dose = self.day(rng), self.first_dose(rng)
        after = interval(y[:, None], np.array([dose]), day[1:2])[:, 0]
        return np.concatenate([after, [y[0], 1.0], day])

    def start(self, uniforms: Any) -> Any:
        """See `TorchSlots.start`."""
        glucose, rest = 65.0 + 40.0 * uniforms[0], uniforms[6:]
        means = (33.33, 33.33, 25.0, 25.0, 250.0)
        others = [m + 5.0 * self._normal(u) for m, u in zip(means, uniforms[1:6], strict=True)]
        dose, day = self.drawn_day(rest)
        y = self.xp.stack((glucose, *others))
        after = interval(y, dose, day[1], self.xp, self._tables)
        return self.xp.cat((after, glucose[None], 0.0 * dose[None] + 1.0, day))

    def _normal(self, uniform: Any) -> Any:
        """Standard normal numbers from multiples of 2^-24, in torch."""
        return self.xp.special.ndtri(uniform + 2.0**-25)

    def drawn_day(self, uniforms: Any) -> tuple[Any, Any]:
        """The first doses [n] and disturbances [145, n] of episodes, from uniform numbers in torch."""
        day = self.constant(fixed_day())[:, None]
        return 3.0 + 0.0 * uniforms[0], day + 0.0 * uniforms[0]

    def observe(self, state: Any) -> Any:
        """See `ClassicSlots.observe`."""
        k, day = self.whole(state[7]), state[8:]
        parts = (*state[:6], self.picked(day, k), state[6], self.picked(day, k - 1))
        return self.single(self.xp.stack(parts, -1))

    def advance(self, state: Any, actions: Any) -> tuple[Any, Any, Any]:
        """See `ClassicSlots.advance`; doses [n, 1] are clipped to [0, 10]."""
        xp, k = self.xp, self.whole(state[7])
        dose = xp.clip(self.double(actions[:, 0]), 0.0, 10.0)
        # After the end of the day (without a time limit) the last disturbance continues.
        coming = xp.clip(k + 1, 0, GRID - 1)
        after, meal = self.copied(state), self.picked(state[8:], coming)
        after[:6] = interval(state[:6], dose, meal, xp, self._tables)
        after[6], after[7] = state[0], coming
        return after, reward(after[0], xp), k < 0


class Dosing1Slots(Dosing0Slots):
    """`Slots` of Dosing-1: as `Dosing0Slots`, with random meals in every episode."""

    draws = 6 + 2 + 3 * len(MEALS)

    def drawn_day(self, uniforms: Any) -> tuple[Any, Any]:
        """See `Dosing0Slots.drawn_day`; the distribution of `random_day`."""
        xp, base = self.xp, 800.0 + 400.0 * uniforms[1]
        raw = base.floor().repeat(GRID, 1)
        for meal, (eaten, when, size) in zip(MEALS, uniforms[2:].split(3), strict=True):
            low, high, mean = (6 * hour + 1 for hour in (meal.earliest, meal.latest, meal.hour))
            a, b = ndtr((low - mean) / _TIME_SPREAD), ndtr((high - mean) / _TIME_SPREAD)
            time = mean + _TIME_SPREAD * xp.special.ndtri(a + when * (b - a))
            amount = (meal.amount + meal.spread * self._normal(size)).round().clip(0.0)
            index = time.round().long().clip(0, _LAST_MEAL)[None]
            raw.scatter_(
                0, index, xp.where(eaten < meal.probability, amount, raw.gather(0, index)[0])[None]
            )
        day = xp.maximum(_times(self.constant(_SMOOTH), tuple(raw)), base)
        return (7.0 * uniforms[0]).floor(), day

    def first_dose(self, rng: np.random.Generator) -> float:
        """See `Dosing0Slots.first_dose`."""
        return float(rng.integers(0, 7))

    def day(self, rng: np.random.Generator) -> np.ndarray:
        """See `Dosing0Slots.day`."""
        return random_day(rng)
