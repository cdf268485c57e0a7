"""Rules to compare with, and the evaluation of any controller on newly drawn patients.

Basal-bolus treatment is common with a pump: basal insulin all day; at an announced meal a bolus for its
carbohydrate, and, if glucose is above 150 mg/dl, a correction towards 140 mg/dl (the rule and the numbers of
simglucose's controller). A simulated patient has the carbohydrate ratio and the correction factor of the
published patient that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privrl_insulin.env import STEPS, Insulin, bolus_action
from privrl_insulin.patients import Patient

TARGET, CORRECTED_ABOVE = 140.0, 150.0  # mg/dl

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
    """Return the bolus [U] at `glucose` [mg/dl] for announced carbohydrate [g]; 0 without a meal."""
    if carbs <= 0.0:
        return 0.0
    correction = (glucose - TARGET) / patient.correction_factor
    return carbs / patient.carb_ratio + correction * (glucose > CORRECTED_ABOVE)


def basal_bolus(env: Insulin, obs: np.ndarray) -> float:
    """Return the action of basal-bolus treatment."""
    return bolus_action(env.patient, bolus(env.patient, float(obs[0]), env.day.announced[env.t]))


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
