"""Virtual patients who differ: the 30 of simglucose, and a population of any size around them.

The tables are read from the installed package simglucose (`pip install --no-deps simglucose==0.2.11`). Nothing
of it is imported.

Patient k of the population is one of the 30, drawn at random, whose weight, insulin sensitivity and rates of
absorption are multiplied by independent log-normal factors (`SCATTER`). This scatter is ours: it is simple, and
it is not fitted to data. Production of glucose is adjusted so that the patient's published fasting glucose is
steady under their basal insulin.
"""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from privrl_insulin.glucose_model import PMOL_PER_UNIT, Parameters

# Parameters that share a factor, and the standard deviation of its logarithm.
SCATTER: tuple[tuple[tuple[str, ...], float], ...] = (
    (("BW",), 0.1),  # body weight
    (("Vmx",), 0.25),  # insulin sensitivity of uptake
    (("kp3",), 0.25),  # insulin sensitivity of production
    (("kabs",), 0.2),  # absorption in the intestine
    (("kmax", "kmin"), 0.2),  # emptying of the stomach
    (("p2u",), 0.2),  # delay of insulin action on uptake
    (("ki",), 0.2),  # and on production
    (("ka1", "ka2", "kd"), 0.2),  # absorption of insulin
)
_LARGEST = 2.0  # standard deviations; larger deviations are cut
_POPULATION = 20260101  # seed of the numbered patients


@dataclass(frozen=True)
class Patient:
    """One virtual patient.

    Attributes:
        name: Of the published patient that this one is or is made of.
        parameters: Of the model.
        carb_ratio: Carbohydrate that one unit of insulin compensates, g/U.
        correction_factor: Fall of glucose by one unit of insulin, (mg/dl)/U.
    """

    name: str
    parameters: Parameters
    carb_ratio: float
    correction_factor: float

    @property
    def basal(self) -> float:
        """Basal insulin, U/min."""
        return self.parameters.u2ss * self.parameters.BW / PMOL_PER_UNIT


def _table(name: str) -> dict[str, dict[str, str]]:
    """Return a table of the installed simglucose: rows by the name of the patient.

    Raises:
        ModuleNotFoundError: simglucose is not installed.
    """
    found = importlib.util.find_spec("simglucose")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "the virtual patients need simglucose: pip install --no-deps simglucose==0.2.11"
        )
    path = Path(found.origin).parent / "params" / name
    with path.open(encoding="utf-8", newline="") as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


@cache
def published() -> tuple[Patient, ...]:
    """Return the 30 published patients: ten adolescents, ten adults, ten children.

    Raises:
        ModuleNotFoundError: simglucose is not installed.
    """
    rows, clinic = _table("vpatient_params.csv"), _table("Quest.csv")
    return tuple(
        Patient(
            name,
            Parameters(**{key: float(row[key]) for key in Parameters._fields}),
            carb_ratio=float(clinic[name]["CR"]),
            correction_factor=float(clinic[name]["CF"]),
        )
        for name, row in rows.items()
    )


def draw(rng: np.random.Generator, scattered: bool = True) -> Patient:
    """Draw a patient: a published one whose parameters are scattered.

    Carbohydrate ratio and correction factor stay those of the published patient.

    Args:
        rng: Source of the random numbers.
        scattered: False: the published patient as they are.

    Returns:
        The patient.
    """
    known = published()
    base = known[int(rng.integers(len(known)))]
    if not scattered:
        return base
    changed: dict[str, float] = {}
    for names, spread in SCATTER:
        factor = float(np.exp(spread * np.clip(rng.standard_normal(), -_LARGEST, _LARGEST)))
        changed.update({name: factor * getattr(base.parameters, name) for name in names})
    p = base.parameters._replace(**changed)
    p = p._replace(kp1=p.EGPb + p.kp2 * p.Gpb + p.kp3 * p.Ib)
    return Patient(base.name, p, base.carb_ratio, base.correction_factor)


def numbered(user: int) -> Patient:
    """Return patient number `user` (>= 0) of the population: the same patient at every call."""
    return draw(np.random.default_rng([_POPULATION, user]))
