"""Insulin dosing for one day of one virtual patient. Importing the module registers `Insulin-v0`.

A day has 48 steps of 30 minutes from 6:00. Up to six meals come at random times. A meal is announced when it
begins with a chance of 80 %, with an error of about 20 % in its carbohydrate; other meals are not announced.
The sensor's noise is that of simglucose (Breton and Kovatchev 2008), every 15 minutes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from privrl_insulin.glucose_model import basal_state, fasting_stomach, simulate
from privrl_insulin.patients import Patient, draw, numbered

STEPS, MINUTES = 48, 30  # of a day; of a step
START = 6  # hour of the day
LARGEST = 5.0  # bound of the action: 32 times the basal rate
ANNOUNCED = 0.8  # chance that a meal is announced
COUNTING = 0.2  # standard deviation of the logarithm of (announced / true carbohydrate)
LOWEST, HIGHEST = 20.0, 600.0  # mg/dl, range of the risk index
_DECAY = float(np.exp(-MINUTES / 120.0))  # of the insulin that is counted as active
# Meals: earliest and latest step, chance, grams for a body weight of 70 kg (others: times sqrt(weight / 70)).
MEALS = (
    (2, 6, 0.95, 45.0),
    (8, 10, 0.3, 10.0),
    (12, 16, 0.95, 70.0),
    (19, 22, 0.3, 10.0),
    (24, 29, 0.95, 80.0),
    (31, 33, 0.3, 10.0),
)
# Noise of the sensor every 15 minutes: a Johnson transform of an autoregressive sequence.
_MEMORY, _XI, _LAMBDA, _GAMMA, _DELTA = 0.7, -5.47, 15.9574, -0.5444, 1.6898
_SENSOR_LOW, _SENSOR_HIGH = 39.0, 600.0  # mg/dl


class Day(NamedTuple):
    """What happens in a day, each [48]: carbohydrate [g], what is announced of it [g], sensor noise [mg/dl]."""

    carbs: np.ndarray
    announced: np.ndarray
    noise: np.ndarray


def risk(glucose: np.ndarray) -> np.ndarray:
    """Return the blood glucose risk index of glucose [mg/dl]: 0 to 100, 0 at 112.5 (Kovatchev et al. 1997)."""
    bounded = np.clip(glucose, LOWEST, HIGHEST)
    symmetric = 1.509 * (np.log(bounded) ** 1.084 - 5.381)
    return np.minimum(10.0 * symmetric**2, 100.0)


def draw_day(rng: np.random.Generator, weight: float) -> Day:
    """Draw meals and sensor noise.

    Args:
        rng: Source of the random numbers.
        weight: Body weight, kg.

    Returns:
        The day.
    """
    carbs, announced = np.zeros(STEPS), np.zeros(STEPS)
    for first, last, chance, grams in MEALS:
        eaten, told = rng.random(2)
        at, size = rng.integers(first, last + 1), 1.0 + 0.2 * np.clip(rng.normal(), -2.0, 2.0)
        error = np.exp(COUNTING * np.clip(rng.normal(), -2.0, 2.0))
        if eaten < chance:
            carbs[at] = grams * np.sqrt(weight / 70.0) * size
            announced[at] = carbs[at] * error * (told < ANNOUNCED)
    shocks = rng.normal(size=2 * STEPS + 1)
    sequence = np.empty_like(shocks)
    sequence[0] = shocks[0]
    for i in range(1, len(shocks)):
        sequence[i] = _MEMORY * (sequence[i - 1] + shocks[i])
    noise = _XI + _LAMBDA * np.sinh((sequence - _GAMMA) / _DELTA)
    return Day(carbs, announced, noise[::2])


def bolus_action(patient: Patient, bolus: float) -> float:
    """Return the action that gives basal insulin and, within the step, a bolus [U]."""
    return float(np.log2(1.0 + max(bolus, 0.0) / (MINUTES * patient.basal)))


class Insulin(gym.Env):
    """One day of one virtual patient.

    Action, float32 [1] in [-5, 5]: the pump infuses 2 ** action times the patient's basal rate for 30 minutes.

    Observation, float32 [8]:
        0  glucose, by the sensor [mg/dl]
        1  its change since the last step [mg/dl]
        2  active insulin beyond basal, by exponential decay over two hours [hours of basal insulin]
        3  sine of the time of day; 4  cosine
        5  the action that gives basal and, for the carbohydrate announced now, a bolus by the user's ratio
        6  body weight [kg]
        7  basal insulin [U per kg and day]

    Reward: minus the mean risk index of the 30 minutes, divided by 100: -1 to 0. An episode does not end early;
    at 20 mg/dl and below each step costs 1.

    The `info` of a step has `glucose` (mean, mg/dl), `in_range` (share of the day's minutes so far in 70 to 180
    mg/dl), `low` (below 70) and `very_low` (below 54).

    Args:
        users: Number of real users, N, or None: the environment declares none. See `reset`.
        scattered: False: simulated patients are the 30 published ones as they are.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, users: int | None = None, scattered: bool = True):
        self.users, self.scattered = users, scattered
        low = [0.0, -600.0, -100.0, -1.0, -1.0, 0.0, 0.0, 0.0]
        high = [600.0, 600.0, 1000.0, 1.0, 1.0, 20.0, 300.0, 10.0]
        self.observation_space = Box(
            np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32
        )
        self.action_space = Box(-LARGEST, LARGEST, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a day.

        Args:
            seed: Of the day (meals, noise, first glucose), and of the patient where none is named.
            options: `{"user": k}` for numbered patient k; `{"user": None, "evaluation": True}` or None for
                a newly drawn patient, who is none of the numbered ones.

        Returns:
            The observation, and an empty dict.

        Raises:
            ValueError: The number is not in 0 to N - 1.
        """
        super().reset(seed=seed)
        user = (options or {}).get("user")
        if user is not None and not 0 <= user < (self.users or 0):
            raise ValueError(f"user {user} of {self.users} declared users")
        self.patient = self._simulated() if user is None else numbered(user)
        p = self.patient.parameters
        self.day = draw_day(self.np_random, p.BW)
        self.state, self.stomach = basal_state(p), fasting_stomach()
        factor = np.exp(0.2 * np.clip(self.np_random.normal(), -2.0, 2.0))
        self.state[[3, 4, 12]] *= factor  # glucose
        self.t, self.active = 0, 0.0
        self.minutes = np.empty(STEPS * MINUTES)  # glucose, mg/dl
        self.sensed = self._sense()
        return self._observe(self.sensed), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Simulate 30 minutes; see the class and `gymnasium.Env.step`."""
        multiple = float(2.0 ** np.clip(np.asarray(action).flat[0], -LARGEST, LARGEST))
        insulin = np.full(MINUTES, multiple * self.patient.basal)
        carbs = np.zeros(MINUTES)
        carbs[0] = self.day.carbs[self.t]
        glucose = self.minutes[self.t * MINUTES : (self.t + 1) * MINUTES]
        simulate(self.state, self.stomach, self.patient.parameters, insulin, carbs, glucose)
        self.active = _DECAY * (self.active + (multiple - 1.0) * MINUTES / 60.0)
        self.t += 1
        before, self.sensed = self.sensed, self._sense()
        reward = -float(risk(glucose).mean()) / 100.0
        return self._observe(before), reward, False, False, self._info(glucose)

    def _simulated(self) -> Patient:
        """A patient of no number."""
        return draw(self.np_random, self.scattered)

    def _sense(self) -> float:
        """The sensor's reading now, mg/dl."""
        true = self.state[12] / self.patient.parameters.Vg
        return float(np.clip(true + self.day.noise[self.t], _SENSOR_LOW, _SENSOR_HIGH))

    def _observe(self, before: float) -> np.ndarray:
        angle = 2.0 * np.pi * (START + self.t * MINUTES / 60.0) / 24.0
        # The last observation of a day has no announcement.
        announced = self.day.announced[self.t] if self.t < STEPS else 0.0
        p = self.patient
        values = [
            self.sensed,
            self.sensed - before,
            self.active,
            np.sin(angle),
            np.cos(angle),
            bolus_action(p, announced / p.carb_ratio),
            p.parameters.BW,
            1440.0 * p.basal / p.parameters.BW,
        ]
        return np.array(values, np.float32)

    def _info(self, glucose: np.ndarray) -> dict[str, Any]:
        day = self.minutes[: self.t * MINUTES]
        return {
            "glucose": float(glucose.mean()),
            "in_range": float(((day >= 70.0) & (day <= 180.0)).mean()),
            "low": float((day < 70.0).mean()),
            "very_low": float((day < 54.0).mean()),
        }


gym.register("Insulin-v0", entry_point="privrl_insulin.env:Insulin", max_episode_steps=STEPS)
