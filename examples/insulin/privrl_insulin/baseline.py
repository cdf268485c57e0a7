"""Rules to compare with, and the evaluation of any controller on newly drawn patients.

Basal-bolus treatment is common with a pump: basal insulin all day; at an announced meal a bolus for its
carbohydrate, and, if glucose is above 150 mg/dl, a correction towards 140 mg/dl (the rule and the numbers of
simglucose's controller). `suspended` also suspends the pump at low glucose; `with_corrections` also corrects
between meals, with or without suspension. A simulated patient has the carbohydrate ratio and the correction
factor of the published patient that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privrl_bench.functional.statistics import bootstrap_ci
from privrl_insulin.env import LARGEST, STEPS, Insulin, bolus_action
from privrl_insulin.patients import Patient

TARGET, CORRECTED_ABOVE = 140.0, 150.0  # mg/dl
STOPPED_BELOW = 80.0  # mg/dl
MEASURES = ("risk", "in_range", "below_70", "below_54")  # of a policy

Controller = Callable[[Insulin, np.ndarray], float]


@dataclass(frozen=True)
class Scores:
    """Results of N days, each [N]: return; shares of the day in 70-180, below 70 and below 54 mg/dl."""

    returns: np.ndarray
    in_range: np.ndarray
    below_70: np.ndarray
    below_54: np.ndarray

    @property
    def risk(self) -> np.ndarray:
        """Mean blood glucose risk index of each day, [N]: the return times -100 / 48."""
        return self.returns * (-100.0 / STEPS)

    def summary(self) -> dict[str, float]:
        """Return the mean return, and of each of `MEASURES` the mean and its 95 % interval over days.

        The interval of `risk` is `risk_low` to `risk_high`, of the others likewise.
        """
        found = {"returns": float(self.returns.mean())}
        for name in MEASURES:
            values = getattr(self, name)
            low, high = bootstrap_ci(values)
            found |= {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}
        return found


def bolus(patient: Patient, glucose: float, carbs: float) -> float:
    """Return the bolus [U] at `glucose` [mg/dl] for announced carbohydrate [g], with the correction."""
    correction = (glucose - TARGET) / patient.correction_factor
    return carbs / patient.carb_ratio + correction * (glucose > CORRECTED_ABOVE)


def basal_bolus(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of basal-bolus treatment."""
    carbs = env.day.announced[env.t]
    return bolus_action(env.patient, bolus(env.patient, float(obs[0]), carbs)) if carbs else 0.0


def suspended(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of basal-bolus treatment with suspension at low glucose.

    Below 80 mg/dl, and without an announced meal, the pump gives its least dose.
    """
    low = float(obs[0]) < STOPPED_BELOW and not env.day.announced[env.t]
    return -LARGEST if low else basal_bolus(env, obs)


def with_corrections(steps: int, suspends: bool = True) -> Controller:
    """Return basal-bolus treatment that also corrects between meals.

    Args:
        steps: Above 150 mg/dl and without an announced meal there is a correction, if the last bolus was at
            least so many steps before.
        suspends: The pump is suspended at low glucose, as by `suspended`.

    Returns:
        The rule.
    """
    last = -steps

    def controller(env: Insulin, obs: np.ndarray) -> float:
        nonlocal last
        last = -steps if env.t == 0 else last
        glucose, carbs = float(obs[0]), env.day.announced[env.t]
        if suspends and not carbs and glucose < STOPPED_BELOW:
            return -LARGEST
        dose = bolus(env.patient, glucose, carbs) if carbs or env.t - last >= steps else 0.0
        last = env.t if dose > 0.0 else last
        return bolus_action(env.patient, dose)

    return controller


def basal_only(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of no control: basal insulin."""
    return 0.0


RULES: dict[str, Controller] = {
    "basal-bolus": basal_bolus,
    "suspension below 80": suspended,
    "corrections after 2 h, no suspension": with_corrections(4, suspends=False),
    "corrections after 2 h": with_corrections(4),
    "corrections after 3 h": with_corrections(6),
    "basal only": basal_only,
}


def evaluate(controller: Controller, days: int, seed: int = 0) -> Scores:
    """Evaluate a controller, each day with a newly drawn patient.

    Args:
        controller: Gets the environment and the observation [8]; returns the action.
        days: Number of days, N.
        seed: Two controllers with the same seed get the same patients, meals and noise.

    Returns:
        The scores.
    """
    env, rows = Insulin(), []
    for day in range(days):
        obs, _ = env.reset(seed=seed * 1_000_003 + day)
        total = 0.0
        for _ in range(STEPS):
            obs, reward, _, _, info = env.step(np.array([controller(env, obs)]))
            total += reward
        rows.append((total, info["in_range"], info["low"], info["very_low"]))
    return Scores(*np.array(rows).T)
