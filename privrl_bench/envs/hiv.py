"""HIV treatment: two drugs, each on or off for five days at a time, 200 times.

State of a patient, per ml: T1, T2 healthy CD4 cells and macrophages, infected ones T1*, T2*, free virus V,
cytotoxic lymphocytes E. Actions: 0 none, 1 reverse transcriptase inhibitor (RTI), 2 protease inhibitor (PI),
3 both. Observations are the decimal logarithms of the state. The reward of the state after the five days is
1000 E - 0.1 V - 20000 e1^2 - 2000 e2^2 with efficacies e1 (0.7 with RTI) and e2 (0.3 with PI).

All patients are equal, and the environment is deterministic, unless `env.kwargs` sets a spread.

Source:
    Ernst et al. 2006, after Adams et al. 2004; constants as in three public implementations (RLPy, HiP-MDP,
    WhyNot), which agree. Dormand and Prince 1980 for the integration.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.classic import ClassicSlots
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.kernels.jit import exact_jit, exact_part

DAYS, DECISIONS = 5.0, 200
START = np.array([163573.0, 5.0, 11945.0, 46.0, 63919.0, 24.0])
EFFICACY = np.array([[0.0, 0.0], [0.7, 0.0], [0.0, 0.3], [0.7, 0.3]])  # (RTI, PI) of each action
# Rates that may differ between patients (`rate_spread`): rows 6 to 17 of the state.
RATES = ("l1", "l2", "d1", "d2", "f", "k1", "k2", "delta", "m1", "m2", "NT", "c")
USUAL = np.array([1e4, 31.98, 0.01, 0.01, 0.34, 8e-7, 1e-4, 0.7, 1e-5, 1e-5, 100.0, 13.0])
# Rates equal for all patients: rho1, rho2, lE, bE, Kb, dE, Kd, deltaE.
_RHO1, _RHO2, _LE, _BE, _KB, _DE, _KD, _DELTA_E = 1.0, 1.0, 1.0, 0.3, 100.0, 0.25, 500.0, 0.1
# Tolerances of one step. Results over 1000 days are correct to six digits or more (tested).
_RELATIVE, _ABSOLUTE = 1e-9, 1e-10
# Dormand-Prince tableau: weights of the previous slopes in stages 2 to 7, and of the error estimate.
_STAGES = np.array(
    [
        [1 / 5, 0, 0, 0, 0, 0],
        [3 / 40, 9 / 40, 0, 0, 0, 0],
        [44 / 45, -56 / 15, 32 / 9, 0, 0, 0],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729, 0, 0],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ]
)
_ERROR = np.array(
    [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40],
)


@exact_part
def _slope(y, rates, e1, e2, out):  # type: ignore[no-untyped-def]
    """Write the derivatives [6] per day of one patient to `out`."""
    l1, l2, d1, d2, f = rates[0], rates[1], rates[2], rates[3], rates[4]
    k1, k2, delta = rates[5], rates[6], rates[7]
    m1, m2, nt, c = rates[8], rates[9], rates[10], rates[11]
    infects1 = (1.0 - e1) * k1 * y[0]  # per virus
    infects2 = (1.0 - f * e1) * k2 * y[1]
    ill = y[2] + y[3]
    out[0] = l1 - d1 * y[0] - infects1 * y[4]
    out[1] = l2 - d2 * y[1] - infects2 * y[4]
    out[2] = infects1 * y[4] - delta * y[2] - m1 * y[5] * y[2]
    out[3] = infects2 * y[4] - delta * y[3] - m2 * y[5] * y[3]
    out[4] = (1.0 - e2) * nt * delta * ill - c * y[4]
    out[4] -= (_RHO1 * infects1 + _RHO2 * infects2) * y[4]
    out[5] = _LE + (_BE * ill / (ill + _KB) - _DE * ill / (ill + _KD) - _DELTA_E) * y[5]


@exact_jit
def _days(state, efficacies, days):  # type: ignore[no-untyped-def]
    """Integrate states [n, 6 + 12] in place over `days` with efficacies [n, 2], patient by patient.

    Embedded Runge-Kutta method of order 5(4) with a step size of each patient's own. Returns whether all
    integrations succeeded.
    """
    k = np.empty((7, 6))
    y, z = np.empty(6), np.empty(6)
    for i in range(len(state)):
        e1, e2, rates = efficacies[i, 0], efficacies[i, 1], state[i, 6:]
        y[:] = state[i, :6]
        t, h = 0.0, 1e-3
        _slope(y, rates, e1, e2, k[0])
        while t < days * (1.0 - 1e-14):
            if not h > 1e-12:  # also NaN
                return False
            h = min(h, days - t)
            for stage in range(1, 7):  # the last stage is at the end of the step
                for j in range(6):
                    z[j] = y[j]
                    for s in range(stage):
                        z[j] += h * _STAGES[stage - 1, s] * k[s, j]
                _slope(z, rates, e1, e2, k[stage])
            worst = 0.0
            for j in range(6):
                wrong = 0.0
                for s in range(7):
                    wrong += h * _ERROR[s] * k[s, j]
                size = _ABSOLUTE + _RELATIVE * max(abs(y[j]), abs(z[j]))
                wrong = abs(wrong) / size
                worst = max(worst, wrong) if wrong < np.inf else np.inf
            if worst <= 1.0:
                t += h
                y[:] = z
                k[0] = k[6]
            h *= min(5.0, max(0.2, 0.9 * worst**-0.2)) if worst > 0.0 else 5.0
        state[i, :6] = y
    return True


def slope(y: np.ndarray, action: int, rates: np.ndarray = USUAL) -> np.ndarray:
    """Return the derivatives [6] per day of the state y [6] of one patient."""
    found = np.empty(6)
    e1, e2 = EFFICACY[action]
    _slope(np.asarray(y, dtype=np.float64), rates, e1, e2, found)
    return found


def after_days(state: np.ndarray, actions: np.ndarray, days: float = DAYS) -> np.ndarray:
    """Integrate all patients; each is independent of the others.

    Args:
        state: [18, n] states and rates.
        actions: [n].
        days: Length of the integration.

    Returns:
        [18, n] states after `days`, and the rates.

    Raises:
        EnvironmentFailure: A state does not stay finite.
    """
    found = np.array(state.T, order="C")
    if not _days(found, EFFICACY[np.asarray(actions, dtype=np.int64)], days):
        raise EnvironmentFailure("a patient's state does not stay finite")
    return np.ascontiguousarray(found.T)


def reward(state: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the rewards [n] of next states [>= 6, n] after `actions` [n]."""
    e1, e2 = EFFICACY[np.asarray(actions, dtype=np.int64)].T
    return 1000.0 * state[5] - 0.1 * state[4] - 20000.0 * e1**2 - 2000.0 * e2**2


class HivSlots(ClassicSlots):
    """`Slots` of the treatment. State rows: the six components, then the patient's twelve rates (`RATES`).

    `env.kwargs`: `start_spread` and `rate_spread`, p in [0, 1). Each component of a patient's initial state,
    respectively each rate, is the standard one times 1 + Uniform(-p, p). The choice of rates is ours.
    """

    size, max_episode_steps = 6 + len(RATES), DECISIONS

    def __init__(self, config: EnvConfig, count: int):
        self._spread = self.spreads(**self._known(config))
        super().__init__(config, count)

    @staticmethod
    def _known(config: EnvConfig) -> dict[str, Any]:
        unknown = set(config.kwargs) - {"start_spread", "rate_spread"}
        if unknown:
            raise ConfigError("env.kwargs", f"unknown for hiv: {', '.join(sorted(unknown))}")
        return dict(config.kwargs)

    @staticmethod
    def spreads(start_spread: float = 0.0, rate_spread: float = 0.0) -> np.ndarray:
        """Return p of every state row, [18]. Raises ConfigError."""
        for key, p in (("start_spread", start_spread), ("rate_spread", rate_spread)):
            if not 0.0 <= p < 1.0:
                raise ConfigError(f"env.kwargs.{key}", f"must be in [0, 1), got {p}")
        return np.array([start_spread] * 6 + [rate_spread] * len(RATES))

    @staticmethod
    def spaces(config: EnvConfig) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        """Return the observation and action spaces."""
        return gym.spaces.Box(-5.0, 8.0, (6,)), gym.spaces.Discrete(4)

    def begin(self, rng: np.random.Generator) -> np.ndarray:
        """See `ClassicSlots.begin`."""
        usual = np.concatenate([START, USUAL])
        return usual * (1.0 + self._spread * rng.uniform(-1.0, 1.0, self.size))

    def observe(self, state: np.ndarray) -> np.ndarray:
        """See `ClassicSlots.observe`."""
        return np.log10(state[:6]).T.astype(np.float32)

    def advance(
        self, state: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `ClassicSlots.advance`."""
        after = after_days(state, actions)
        return after, reward(after, actions), np.zeros(after.shape[1], dtype=bool)
