"""The measured results that are nearest to a planned run, for `privrl plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from privrl_bench.config.overrides import conf_dir
from privrl_bench.evaluation.objective import OBJECTIVES
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting.run_loader import read_rows, stores

FEW = 3  # runs; a result of fewer is shown only where there is no other


@dataclass(frozen=True)
class Measured:
    """Finished runs of one setting, which differ in the seed.

    Attributes:
        item: `<paper>/<item>`, the folder in the store; and the commit, if the words give other settings today.
        words: of the command line, without the seed.
        runs: number of runs.
        objective: name of what they are judged by.
        steps: of a run.
        mean, low, high: over the runs.
        epsilon, delta, adjacency: of their guarantee, which is formal.
    """

    item: str
    env: str
    words: str
    runs: int
    steps: int
    objective: str
    mean: float
    low: float
    high: float
    epsilon: float
    delta: float
    adjacency: str

    def line(self) -> str:
        """The result in one line.

        >>> Measured("dppg/fig2", "chain", "privacy.z=3", 10, 6000, "return", 5.0, 4.0, 5.0, 1.27, 1e-5,
        ...          "zero-out").line()
        'chain, 10 seeds, 6,000 steps, epsilon 1.27 (zero-out, delta 1e-05): mean return 5.0 (4.0 to 5.0)'
        """
        known = OBJECTIVES.get(self.objective)
        mean, low, high = (
            known.show(x) if known else f"{x:.4g}" for x in (self.mean, self.low, self.high)
        )
        seeds = f"{self.runs} seed{'s' if self.runs > 1 else ''}"
        which = f"epsilon {shown_epsilon(self.epsilon)} ({self.adjacency}, delta {self.delta:g})"
        spread = f" ({low} to {high})" if self.runs > 1 else ""
        return f"{self.env}, {seeds}, {self.steps:,} steps, {which}: mean {self.objective} {mean}{spread}"


def store() -> Path | None:
    """The committed results, which a source tree has and an installed wheel has not."""
    folder = conf_dir().parent / "outputs" / "paper"
    return folder if folder.is_dir() else None


def stored_rows(store: Path, **wanted: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(`<paper>/<item>`, row) of the runs with these cells, without curves: a fraction of a second.

    Args:
        store: results, `<paper>/<item>/runs.csv`.
        wanted: column -> cell.
    """
    for folder in stores(store):
        for row in read_rows(folder):
            if wanted.items() <= row.items():
                yield "/".join(folder.parts[-2:]), row


def nearest(
    algo: str,
    env: str,
    epsilons: Mapping[str, float],
    settings: Mapping[str, Any],
    folder: Path,
    most: int = 3,
) -> list[Measured]:
    """Results with a formal guarantee of the same algorithm and environment, the nearest epsilon first.

    Results for an adjacency for which the plan has no epsilon are left out: they cannot be compared. Among
    epsilons that are within 5 % of each other, settings that agree with the plan come first.

    Args:
        algo: name of the algorithm.
        env: `EnvConfig.label`.
        epsilons: adjacency (zero_out, ..) -> epsilon of the plan.
        settings: dotted key -> value of the plan.
        folder: the store.
        most: number of results.
    """
    ranked: list[tuple[tuple[float, ...], str, Measured]] = []
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for item, row in stored_rows(folder, algo=algo, env=env, status="formal"):
        groups.setdefault((item, row["overrides"], row["settings"]), []).append(row)
    for (item, *_), rows in groups.items():
        one = _measured(item, rows)
        if one is None:
            continue
        planned = epsilons.get(one.adjacency.replace("-", "_"), math.inf)  # other neighbours: none
        if not 0.0 < planned < math.inf:
            continue
        distance = abs(math.log(one.epsilon / planned))
        kept = json.loads(rows[0]["settings"])
        other = sum(settings.get(key) != value for key, value in kept.items())
        rank = (one.runs < FEW, round(distance / 0.05), other, -one.runs, distance)
        ranked.append((rank, item, one))
    ranked.sort(key=lambda entry: entry[:2])
    found: dict[tuple[str, float], Measured] = {}
    for _, _, one in ranked:  # a run may be in several items
        found.setdefault((one.words, one.mean), one)
    return list(found.values())[:most]


def _measured(item: str, rows: list[dict[str, str]]) -> Measured | None:
    """The runs of one setting; None: no result."""
    values = [float(row["value"]) for row in rows if row["value"]]
    first = rows[0]
    if not values or not first["epsilon"] or not 0.0 < float(first["epsilon"]) < math.inf:
        return None
    return Measured(
        item=item,
        env=first["env"],
        words=first["overrides"],
        runs=len(values),
        steps=int(float(first["steps"] or 0)),
        objective=first["objective"],
        mean=fmean(values),
        low=min(values),
        high=max(values),
        epsilon=float(first["epsilon"]),
        delta=float(first["delta"] or "nan"),
        adjacency=first["adjacency"],
    )
