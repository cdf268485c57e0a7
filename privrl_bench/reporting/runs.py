"""The record of one finished or unfinished run, as tables and figures read it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.evaluation.objective import RETURN, Objective, objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.mechanisms.none import NoMechanism

SEED_KEY = "seed"
ENVIRONMENT_STEPS = "environment steps"
TRAINING = "training_return"
_LAST = 0.1  # share of a run that its training return is of
# Settings that change no result.
_IRRELEVANT = ("seed", "resume", "plan_only", "hyperparameter_source")


@dataclass(repr=False)
class Run:
    """One run as plain data, from a run folder or from a row of a results store.

    Attributes:
        folder: The run folder; of a stored run, the store's folder and the name of the run.
        digest: Version and hash of the run's identity.
        made_at: Of a row of a store whose overrides give other settings today: the commit that made it.
        problems: One line for each file that could not be read. The rest remains valid.
    """

    folder: Path
    status: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    made_at: str = ""
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        found = (
            "" if math.isnan(self.final_value) else f", {self.measure.name} {self.final_value:.4g}"
        )
        spent = "" if math.isnan(self.epsilon) else f", epsilon {shown_epsilon(self.epsilon)}"
        status = f" {self.guarantee_status}" if spent else ""
        return f"Run({self.algo} on {self.env}, {self.state}{found}{spent}{status}, {self.folder})"

    @property
    def reason(self) -> str:
        """Why the run is not done; empty otherwise."""
        return str(self.status.get("reason") or "")

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee in `summary.json`; empty without a summary."""
        return dict(self.summary.get("guarantee") or {})

    @property
    def state(self) -> str:
        """Running | done | failed | interrupted | planned | unreadable."""
        return str(self.status.get("status", "unreadable"))

    @property
    def algo(self) -> str:
        """Name of the algorithm."""
        return str(nested(self.config, "algo", "name") or "?")

    @property
    def env(self) -> str:
        """Name of the environment; for the generic ones (gym, dmc), the task that was named."""
        name = str(nested(self.config, "env", "name") or "?")
        if name == "gym":
            return str(nested(self.config, "env", "id") or name)
        if name == "dmc":
            parts = (nested(self.config, "env", "domain"), nested(self.config, "env", "task"))
            return "-".join(str(part) for part in parts if part) or name
        return name

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.config.get(SEED_KEY)

    @property
    def z(self) -> float | None:
        """Noise multiplier; None for a run without a mechanism."""
        if nested(self.config, "privacy", "mechanism") == NoMechanism.name:
            return None
        value = nested(self.config, "privacy", "z")
        return None if value is None else float(value)

    @property
    def measure(self) -> Objective:
        """The objective that the run is compared by."""
        return objective_of(self.summary)

    @property
    def steps_name(self) -> str:
        """What the steps of the run are, for an axis."""
        evaluates = self.measure is not RETURN
        if evaluates or nested(self.config, "data", "id") is not None:
            return "steps of the users' trajectories (rounds x users x T)"
        if nested(self.config, "env", "kind") == "text":
            return "tokens of answers, counted at their maximum length"
        return ENVIRONMENT_STEPS

    @property
    def final_value(self) -> float:
        """Objective of the final evaluation (mean return, or MSPBE); nan if there is none."""
        return self.evaluated("mean")

    @property
    def epsilon(self) -> float:
        """Epsilon of the run; nan without a summary, inf for a run that is not private."""
        return number(self.summary.get("epsilon"))

    @property
    def guarantee_status(self) -> str:
        """Formal | heuristic | none, or ? without a summary."""
        return str(nested(self.summary, "guarantee", "status") or "?")

    @property
    def caveats(self) -> list[str]:
        """Names of the paths that epsilon does not cover."""
        lines = nested(self.summary, "guarantee", "caveats") or []
        return [str(line).split(":", 1)[0] for line in lines]

    def evaluated(self, *keys: str) -> float:
        """A value in the summary's block of the objective, nan if absent: `("last_fifth", "mean")`."""
        return number(nested(self.summary, self.measure.name, *keys))

    @property
    def training_return(self) -> float:
        """Mean return of the episodes that ended in the last tenth of training; nan if none is recorded.

        It is computed from private metrics, which epsilon does not cover: nan unless users are simulated. Of
        users with fewer steps than an episode it is biased to episodes that end early.
        """
        if TRAINING in self.summary:
            return number(self.summary[TRAINING])
        if "simulated" not in str(self.guarantee.get("unit")):
            return math.nan
        steps, returns = self.curve("train/return_mean")
        episodes = dict(zip(*self.curve("train/episodes"), strict=True))
        late = steps > (1 - _LAST) * number(self.summary.get("steps"))
        weights = np.array([episodes.get(step, 0.0) for step in steps]) * (
            late & np.isfinite(returns)
        )
        return (
            float(np.average(np.nan_to_num(returns), weights=weights))
            if weights.any()
            else math.nan
        )

    def settings(self) -> dict[str, Any]:
        """Every setting that may change a result, by dotted key. Without a config: the overrides."""
        if not self.config:
            pairs = (line.lstrip("+").partition("=") for line in self.overrides)
            return {key: value for key, _, value in pairs if _relevant(key)}
        return {key: value for key, value in flatten(self.config) if _relevant(key)}

    def curve(self, name: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps [k] and values [k] of the rows that have metric `name`, in order of steps.

        Args:
            name: Name of a metric; None for the objective.

        Returns:
            Steps and values. A resumed run may write a step twice; then the later row counts.
        """
        name = name or self.measure.metric
        points = {
            float(row["steps"]): number(row[name])
            for row in self.metrics
            if name in row and "steps" in row
        }
        steps = sorted(points)
        return np.array(steps, dtype=float), np.array([points[step] for step in steps], dtype=float)


Runs = Mapping[Any, Sequence[Run]]  # a setting -> its finished runs


def usable(runs: Iterable[Run]) -> list[Run]:
    """The finished runs with a final objective. Tables and plots count these."""
    return [run for run in runs if run.state == "done" and math.isfinite(run.final_value)]


def differing(runs: Sequence[Run]) -> list[set[str]]:
    """For each run, the settings in which runs of its algorithm and environment differ.

    A setting that only some runs have, as in a store of several versions, differs where those differ.
    """
    by_task: dict[tuple[str, str], list[dict[str, Any]]] = {}
    mine = [run.settings() for run in runs]
    for run, settings in zip(runs, mine, strict=True):
        by_task.setdefault((run.algo, run.env), []).append(settings)
    found = {
        task: {
            key
            for key in set().union(*several)
            if len({repr(one[key]) for one in several if key in one}) > 1
        }
        for task, several in by_task.items()
    }
    return [found[run.algo, run.env] for run in runs]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a nested mapping.

    >>> dict(flatten({"a": {"b": 1}, "c": [2]}))
    {'a.b': 1, 'c': [2]}
    """
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def nested(mapping: Mapping[str, Any], *keys: str) -> Any:
    """The value below `keys`, or None if there is none."""
    value: Any = mapping
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def number(value: Any) -> float:
    """`value` as a float, nan if it is not a number. The text "inf" is a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _relevant(key: str) -> bool:
    return key not in _IRRELEVANT and not key.startswith(("log.", "hardware."))
