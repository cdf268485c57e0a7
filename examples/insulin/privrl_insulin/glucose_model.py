"""The UVa/Padova model of glucose and insulin in type 1 diabetes, compiled.

The 13 states of one patient, per kg of body weight where a unit says so:

    0, 1    glucose in the stomach, solid and liquid [mg]
    2       glucose in the intestine [mg]
    3, 4    glucose in plasma and fast tissues, and in slow tissues [mg/kg]
    5, 9    insulin in plasma and in the liver [pmol/kg]
    6       insulin action on glucose uptake [pmol/l]
    7, 8    delayed insulin, two stages, which acts on glucose production [pmol/l]
    10, 11  insulin under the skin, two stages [pmol/kg]
    12      glucose under the skin [mg/kg]

Source:
    Dalla Man, Rizza and Cobelli 2007 (meals, glucose, insulin); Kovatchev et al. 2009 (type 1 diabetes, insulin
    under the skin). Equations, units and rate of eating agree with `T1DPatient` of simglucose 0.2.11, and
    tests/test_insulin.py compares the two. The integration is Runge-Kutta of order four with one-minute steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

STATES = 13
EATING_RATE = 5.0  # g of carbohydrate per minute
PMOL_PER_UNIT = 6000.0  # insulin


class Parameters(NamedTuple):
    """Parameters of one patient, with the names and units of simglucose's table."""

    BW: float  # body weight, kg
    kabs: float  # 1/min: absorption in the intestine
    kmax: float  # 1/min: emptying of the stomach, fastest
    kmin: float  # 1/min: slowest
    b: float  # share of a meal after which emptying slows down
    d: float  # share of a meal after which it recovers
    f: float  # share of absorbed glucose that reaches plasma
    Vg: float  # dl/kg: distribution volume of glucose
    Vi: float  # l/kg: of insulin
    Vm0: float  # mg/kg/min: uptake without insulin action
    Vmx: float  # mg/kg/min per pmol/l: uptake for each unit of insulin action
    Km0: float  # mg/kg
    k1: float  # 1/min: plasma to tissue
    k2: float  # 1/min: tissue to plasma
    p2u: float  # 1/min: delay of insulin action on uptake
    ki: float  # 1/min: delay of insulin action on production
    kp1: float  # mg/kg/min: glucose production without glucose and insulin
    kp2: float  # 1/min
    kp3: float  # mg/kg/min per pmol/l
    Fsnc: float  # mg/kg/min: uptake of brain and blood cells
    ke1: float  # 1/min: renal excretion
    ke2: float  # mg/kg: its threshold
    m1: float  # 1/min: liver to plasma
    m2: float  # 1/min: plasma to liver
    m4: float  # 1/min: loss from plasma
    m30: float  # 1/min: loss from the liver
    Ib: float  # pmol/l: basal insulin in plasma
    ka1: float  # 1/min: first stage under the skin to plasma
    ka2: float  # 1/min: second stage to plasma
    kd: float  # 1/min: first stage to second stage
    ksc: float  # 1/min: plasma to the glucose under the skin
    u2ss: float  # pmol/kg/min: basal insulin infusion
    EGPb: float  # mg/kg/min: basal glucose production
    Gpb: float  # mg/kg: basal glucose in plasma
    Gtb: float  # mg/kg: in slow tissues
    Ipb: float  # pmol/kg: basal insulin in plasma
    Ilb: float  # pmol/kg: in the liver


def basal_state(p: Parameters) -> np.ndarray:
    """Return the steady state [13] under basal insulin and without meals."""
    first = p.u2ss / (p.ka1 + p.kd)
    second = p.kd * first / p.ka2
    state = [0.0, 0.0, 0.0, p.Gpb, p.Gtb, p.Ipb, 0.0, p.Ib, p.Ib, p.Ilb, first, second, p.Gpb]
    return np.array(state)


def fasting_stomach() -> np.ndarray:
    """Return the memory of meals [4] of a patient who has not eaten.

    Its entries: food that waits to be eaten [g], glucose in the stomach when the meal began [mg], eaten since
    then [g], food of the last minute [g].
    """
    return np.zeros(4)


@numba.njit(cache=True)
def _emptying(inside, meal, p):  # type: ignore[no-untyped-def]
    """Return the rate of emptying [1/min] of a stomach with `inside` mg, of a meal of `meal` mg."""
    if meal <= 0.0:
        return p.kmax
    falling = 2.5 / (meal * (1.0 - p.b)) * (inside - p.b * meal)
    rising = 2.5 / (meal * p.d) * (inside - p.d * meal)
    return p.kmin + 0.5 * (p.kmax - p.kmin) * (np.tanh(falling) - np.tanh(rising) + 2.0)


@numba.njit(cache=True)
def _slope(x, p, infused, eaten, meal, out):  # type: ignore[no-untyped-def]
    """Write the derivatives [13] per minute at state x [13] to `out`.

    `infused` is insulin [pmol/kg/min], `eaten` carbohydrate [mg/min], `meal` the size of the meal so far [mg].
    """
    emptied = _emptying(x[0] + x[1], meal, p) * x[1]
    out[0] = eaten - p.kmax * x[0]
    out[1] = p.kmax * x[0] - emptied
    out[2] = emptied - p.kabs * x[2]

    produced = max(p.kp1 - p.kp2 * x[3] - p.kp3 * x[8], 0.0)
    appeared = p.f * p.kabs * x[2] / p.BW
    excreted = p.ke1 * max(x[3] - p.ke2, 0.0)
    used = (p.Vm0 + p.Vmx * x[6]) * x[4] / (p.Km0 + x[4])
    exchanged = p.k1 * x[3] - p.k2 * x[4]
    out[3] = produced + appeared - p.Fsnc - excreted - exchanged
    out[4] = exchanged - used
    out[12] = p.ksc * (x[3] - x[12])

    absorbed = p.ka1 * x[10] + p.ka2 * x[11]
    plasma = x[5] / p.Vi
    out[5] = absorbed + p.m1 * x[9] - (p.m2 + p.m4) * x[5]
    out[6] = p.p2u * (plasma - p.Ib - x[6])
    out[7] = p.ki * (plasma - x[7])
    out[8] = p.ki * (x[7] - x[8])
    out[9] = p.m2 * x[5] - (p.m1 + p.m30) * x[9]
    out[10] = infused - (p.ka1 + p.kd) * x[10]
    out[11] = p.kd * x[10] - p.ka2 * x[11]
    for i in (3, 4, 5, 9, 10, 11, 12):  # amounts that have reached zero stay there
        if x[i] < 0.0:
            out[i] = 0.0


@numba.njit(cache=True)
def _minute(x, p, infused, eaten, meal, k):  # type: ignore[no-untyped-def]
    """Integrate state x [13] over one minute in place; k [5, 13] is working memory."""
    _slope(x, p, infused, eaten, meal, k[0])
    for stage in range(1, 4):
        h = 1.0 if stage == 3 else 0.5
        for i in range(len(x)):
            k[4, i] = x[i] + h * k[stage - 1, i]
        _slope(k[4], p, infused, eaten, meal, k[stage])
    for i in range(len(x)):
        x[i] += (k[0, i] + 2.0 * k[1, i] + 2.0 * k[2, i] + k[3, i]) / 6.0


@numba.njit(cache=True)
def simulate(state, stomach, p, insulin, carbs, glucose):  # type: ignore[no-untyped-def]
    """Simulate one patient, minute by minute, in place.

    Args:
        state: float64 [13], see the module's text; changed.
        stomach: float64 [4], see `fasting_stomach`; changed.
        p: `Parameters`.
        insulin: float64 [M], infused in each minute [U/min].
        carbs: float64 [M], carbohydrate that is put before the patient in each minute [g].
        glucose: float64 [M], receives the glucose under the skin after each minute [mg/dl].
    """
    work = np.empty((5, len(state)))
    for m in range(len(glucose)):
        stomach[0] += carbs[m]
        bite = min(EATING_RATE, stomach[0])
        stomach[0] -= bite
        if bite > 0.0 and stomach[3] <= 0.0:  # a meal begins
            stomach[1], stomach[2] = state[0] + state[1], 0.0
        stomach[2] += bite
        stomach[3] = bite
        infused = insulin[m] * PMOL_PER_UNIT / p.BW
        _minute(state, p, infused, 1000.0 * bite, stomach[1] + 1000.0 * stomach[2], work)
        glucose[m] = state[12] / p.Vg
