"""Rules to compare with, and the evaluation of any controller on newly drawn patients.

Basal-bolus treatment is common with a pump: basal insulin all day; at an announced meal a bolus for its
carbohydrate, and, if glucose is above 150 mg/dl, a correction towards 140 mg/dl (the rule and the numbers of
simglucose's controller). `with_corrections` also corrects between meals, and stops the pump at low glucose. A
simulated patient has the carbohydrate ratio and the correction factor of the published patient that they are
made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privrl_insulin.env import LARGEST, STEPS, Insulin, bolus_action
from privrl_insulin.patients import Patient

TARGET, CORRECTED_ABOVE = 140.0, 150.0  # mg/dl
STOPPED_BELOW = 80.0  # mg/dl

Controller = Callable[[Insulin, np.ndarray], float]


@dataclass(frozen=True)
class Scores:
    """Results of N days, each [N]: return; shares of the day in 70-180, below 70 and below 54 mg/dl."""

    returns: np.ndarray
    in_range: np.ndarray
    low: np.ndarray
    very_low: np.ndarray

    def means(self) -> dict[str, float]:
        """Return the mean of each score by its name."""
        return {name: float(values.mean()) for name, values in vars(self).items()}


def bolus(patient: Patient, glucose: float, carbs: float) -> float:
    """Return the bolus [U] at `glucose` [mg/dl] for announced carbohydrate [g], with the correction."""
    correction = (glucose - TARGET) / patient.correction_factor
    return carbs / patient.carb_ratio + correction * (glucose > CORRECTED_ABOVE)


def basal_bolus(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of basal-bolus treatment."""
    carbs = env.day.announced[env.t]
    return bolus_action(env.patient, bolus(env.patient, float(obs[0]), carbs)) if carbs else 0.0


def with_corrections(steps: int) -> Controller:
    """Return basal-bolus treatment that also corrects between meals, and stops at low glucose.

    Without an announced meal: below 80 mg/dl the pump gives its least dose; above 150 mg/dl a correction, if
    the last bolus was at least `steps` steps before.
    """
    last = -steps

    def controller(env: Insulin, obs: np.ndarray) -> float:
        nonlocal last
        last = -steps if env.t == 0 else last
        glucose, carbs = float(obs[0]), env.day.announced[env.t]
        if not carbs and glucose < STOPPED_BELOW:
            return -LARGEST
        dose = bolus(env.patient, glucose, carbs) if carbs or env.t - last >= steps else 0.0
        last = env.t if dose > 0.0 else last
        return bolus_action(env.patient, dose)

    return controller


def basal_only(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of no control: basal insulin."""
    return 0.0


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
