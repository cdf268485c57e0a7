"""Simulated patients with high blood pressure: records as a clinic has them, and the truth about a policy.

    python clinic.py records visits.parquet --patients 20_000   # treated by the clinic's rule, with exploration
    python clinic.py truth RUN                                  # new patients, treated by the policy of a run

A patient comes once a month for a year. Systolic pressure follows the dose with a delay; higher doses have more
side effects in prone patients. All numbers are made up, and nothing here is for treatment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

VISITS, DOSES = 12, 5  # a year; dose steps 0 to 4
LOWER, KEEP, RAISE = 0, 1, 2
ACTIONS = ("lower", "keep", "raise")
TARGET, LOW = 130.0, 105.0  # mmHg
EXPLORED = 0.3  # chance that the clinic draws the action at random
OBSERVED = ("pressure", "age", "dose", "side_effects", "month")
# What a visit costs, in mmHg above the target: so much do side effects and a pressure that is too low count.
SIDE_EFFECT, TOO_LOW = 10.0, 20.0

Choose = Callable[[np.ndarray], np.ndarray]  # observations [n, 5] -> actions [n]


class Patients:
    """n patients at a visit, all at the same month.

    Args:
        count: n.
        rng: of everything about them.
    """

    def __init__(self, count: int, rng: np.random.Generator):
        self._rng = rng
        self.age = rng.integers(35, 80, count).astype(float)
        self._untreated = 148.0 + 0.25 * (self.age - 55.0) + rng.normal(0.0, 10.0, count)
        self._response = 7.0 * np.exp(rng.normal(0.0, 0.35, count))  # mmHg of a dose step
        self._prone = np.exp(rng.normal(0.0, 0.6, count)) * (1.0 + (self.age > 65))
        self.dose = rng.integers(0, 2, count)
        self._pressure = self._untreated - self._response * self.dose
        self.side_effects = np.zeros(count)
        self.month = 0

    def seen(self) -> np.ndarray:
        """[n, 5] what the clinic knows at the visit; the measurement has an error of 5 mmHg."""
        measured = self._pressure + self._rng.normal(0.0, 5.0, len(self.age))
        month = np.full(len(self.age), float(self.month))
        return np.stack([measured, self.age, self.dose, self.side_effects, month], axis=1)

    def treat(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A month with the changed dose. Returns the cost [n] of it, in mmHg, and the pressure [n] after it."""
        self.dose = np.clip(self.dose + actions - KEEP, 0, DOSES - 1)
        goal = self._untreated - self._response * self.dose
        drift = self._rng.normal(0.0, 3.0, len(goal))
        self._pressure += 0.7 * (goal - self._pressure) + drift
        risk = 1.0 - np.exp(-0.04 * self._prone * self.dose**1.5)
        self.side_effects = (self._rng.random(len(goal)) < risk).astype(float)
        self.month += 1
        above = np.maximum(self._pressure - TARGET, 0.0)
        return above + SIDE_EFFECT * self.side_effects + TOO_LOW * (
            self._pressure < LOW
        ), self._pressure


def rule(seen: np.ndarray) -> np.ndarray:
    """The clinic's rule [n]: raise above 150 mmHg, lower below 110 mmHg or with side effects, else keep."""
    pressure, side_effects = seen[:, 0], seen[:, 3]
    raised = np.where(pressure > 150.0, RAISE, KEEP)
    return np.where((pressure < 110.0) | (side_effects > 0), LOWER, raised)


def records(count: int, seed: int) -> dict[str, np.ndarray]:
    """Columns with a row for each visit; `probability`: how likely the action was."""
    rng = np.random.default_rng(seed)
    patients, rows = Patients(count, rng), []
    for month in range(VISITS):
        seen = patients.seen()
        usual, drawn = rule(seen), rng.integers(0, len(ACTIONS), count)
        actions = np.where(rng.random(count) < EXPLORED, drawn, usual)
        probability = EXPLORED / len(ACTIONS) + (1.0 - EXPLORED) * (actions == usual)
        cost, _ = patients.treat(actions)
        one = {"patient": np.arange(count), "visit": np.full(count, month)}
        one |= dict(zip(OBSERVED, seen.T, strict=True))
        one |= {"action": np.array(ACTIONS)[actions], "reward": -cost / VISITS}
        rows.append(one | {"probability": probability, "last": np.full(count, month == VISITS - 1)})
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def truth(choose: Choose, count: int = 20_000, seed: int = 1) -> dict[str, float]:
    """What a policy gives new patients, by name, in a clinician's units."""
    patients = Patients(count, np.random.default_rng(seed))
    costs, pressures, effects = [], [], []
    for _ in range(VISITS):
        cost, pressure = patients.treat(choose(patients.seen()))
        costs.append(cost)
        pressures.append(pressure.copy())
        effects.append(patients.side_effects)
    pressure = np.array(pressures)
    return {
        "value": -float(np.mean(costs)),
        "mean pressure at the end of the year, mmHg": float(pressure[-1].mean()),
        "months at or below 130 mmHg, %": 100.0 * float((pressure <= TARGET).mean()),
        "months below 105 mmHg, %": 100.0 * float((pressure < LOW).mean()),
        "months with side effects, %": 100.0 * float(np.mean(effects)),
    }


def policy_of(folder: str) -> Choose:
    """The greedy policy of a run, whose choices are in the order of the import (`privrl import` prints it)."""
    import privrl_bench as pb

    policy = pb.load_policy(folder)
    return lambda seen: np.asarray(policy.act(seen.astype(np.float32), greedy=True)).reshape(-1)


def main() -> None:
    """Write records, or print the truth about policies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("records")
    write.add_argument("out", type=Path)
    write.add_argument("--patients", type=int, default=20_000)
    write.add_argument("--seed", type=int, default=0)
    check = commands.add_parser("truth")
    check.add_argument("runs", nargs="*")
    args = parser.parse_args()
    if args.command == "records":
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table(records(args.patients, args.seed))
        parquet.write_table(table, args.out)
        print(f"{args.out}: {table.num_rows:,} visits of {args.patients:,} patients")
        return
    for name, choose in [
        ("the clinic's rule", rule),
        *((run, policy_of(run)) for run in args.runs),
    ]:
        print(name)
        for what, number in truth(choose).items():
            print(f"  {number:8.2f}  {what}")


if __name__ == "__main__":
    main()
