"""The record of one finished or unfinished run, as tables and figures read it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.evaluation.objective import RETURN, Objective, objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.mechanisms.none import NoMechanism
from privrl_bench.reporting.style import (
    NAMES,
    PALETTE,
    LineMark,
    empty,
    figure,
    legend,
    looks,
    steps_axis,
)
from privrl_bench.reporting.table_writer import short

SEED_KEY = "seed"
ENVIRONMENT_STEPS = "environment steps"
TRAINING = "training_return"
LENGTHS = ("rounds", "total_steps")
_LAST = 0.1  # share of a run that its training return is of
# Settings that change no result.
_IRRELEVANT = ("seed", "resume", "plan_only", "hyperparameter_source")


@dataclass(repr=False)
class Run:
    """One run as plain data, from a run folder or from a row of a results store.

    Attributes:
        folder: The run folder; of a stored run, the store's folder and the name of the run.
        metrics: Rows that may be published: of released parameters and simulated episodes.
        private_metrics: Rows of users' data without noise; epsilon does not cover them.
        digest: Version and hash of the run's identity.
        problems: One line for each file that could not be read. The rest remains valid.
    """

    folder: Path
    status: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    private_metrics: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
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
            return "users' steps (rounds x U x T)"
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

    def frame(self, private: bool = False) -> Any:
        """The metrics as a pandas DataFrame, a row for each round; `private`: the private ones.

            run = pb.load_run("outputs/dppg/cartpole/epsilon=1,seed=0")
            run.frame().dropna(subset="eval/return_mean").plot(x="steps", y="eval/return_mean")

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError("frame", "needs pip install 'privrl-bench[frame]'") from None
        return pandas.DataFrame(self.private_metrics if private else self.metrics)

    def plot(self, path: str | Path = "curve.png") -> Path:
        """Draw the evaluations along the run, beside what it is compared with, and write the picture.

            run = pb.load_run("outputs/dppg/cartpole/epsilon=1,seed=0")
            run.plot("cartpole.png")

        The band is the 95 % interval over episodes. Epsilon is a second axis, on top, where it grows.

        Returns: The path.
        """
        steps, returns = self.curve()
        with figure(Path(path), 1) as (axes,):
            (look,) = looks([LineMark(self.algo)])
            axes.plot(steps, returns, color=look.colour, marker=look.marker, label=self.algo)
            if self.measure.interval:
                ends = (dict(zip(*self.curve(name), strict=True)) for name in self.measure.interval)
                low, high = ([known.get(step, math.nan) for step in steps] for known in ends)
                axes.fill_between(steps, low, high, color=look.colour, alpha=0.2, linewidth=0)
                if len(steps) == 1:  # a band has no width
                    axes.vlines(steps, low, high, color=look.colour)
            if not len(steps):
                empty(axes, "no evaluation yet")
            known = self.summary.get("references") or {}
            for at, (name, reference) in enumerate(known.items(), start=1):
                value = number(reference.get("mean"))
                label = f"{name} ({self.measure.show(value)})"
                axes.axhline(value, color=PALETTE[-at % len(PALETTE)], linestyle="--", label=label)
            axes.set_title(_title(self))
            steps_axis(axes, self.measure.label, self.steps_name)
            _epsilon_axis(axes, self)
            if self.measure.direction == "down":
                axes.set_yscale("log", nonpositive="mask")
            legend([axes])
        return Path(path)

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
            for row in (*self.metrics, *self.private_metrics)
            if name in row and "steps" in row
        }
        steps = sorted(points)
        return np.array(steps, dtype=float), np.array([points[step] for step in steps], dtype=float)


Runs = Mapping[Any, Sequence[Run]]  # a setting -> its finished runs


def usable(runs: Iterable[Run]) -> list[Run]:
    """The finished runs with a final objective. Tables and plots count these."""
    return [run for run in runs if run.state == "done" and math.isfinite(run.final_value)]


def selected(runs: Iterable[Run], words: Iterable[str]) -> list[Run]:
    """The runs with all of these settings, `key=value`; also `algo=`, `env=`, `seed=`.

    Raises:
        ConfigError: no run has such a setting, or such a value of it.
    """
    left = list(runs)
    for word in words:
        key, equals, wanted = word.partition("=")
        if not equals:
            raise ConfigError("--where", f"write key=value, got {word}")
        known = [(run, _settings_of(run)) for run in left]
        values = {str(found[key]) for _, found in known if key in found}
        if not values:
            near = suggest(key, {name for _, found in known for name in found})
            raise ConfigError("--where", f"no run has the setting {key!r}{near}")
        left = [run for run, found in known if key in found and _is(found[key], wanted)]
        if not left:
            raise ConfigError("--where", f"{word}: the runs have {', '.join(sorted(values))}")
    return left


def _settings_of(run: Run) -> dict[str, Any]:
    return run.settings() | {"algo": run.algo, "env": run.env, "seed": run.seed}


def _is(value: Any, wanted: str) -> bool:
    """Whether a setting has this value, in the notation of the command line or as a number."""
    if wanted in (str(value), str(value).lower(), "null" if value is None else ""):
        return True
    return isinstance(value, int | float) and number(wanted.replace("_", "")) == float(value)


def of_one_length(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """(runs, notes): of each algorithm and environment those of the length that most of them have.

    A length is `total_steps`, and `rounds` where no population limits them. Of two that are as frequent the
    longer one counts. A note says how many runs of which length were left out.
    """
    lengths: dict[tuple[str, str], dict[tuple[Any, ...], list[Run]]] = {}
    for run in runs:
        own = tuple(run.settings().get(key) for key in LENGTHS)
        if run.settings().get("privacy.population"):
            own = (None, *own[1:])
        lengths.setdefault((run.algo, run.env), {}).setdefault(own, []).append(run)
    left_out, notes = set(), []
    for (algo, env), found in lengths.items():
        most = max(found, key=lambda own: (len(found[own]), [number(x) for x in own[::-1]]))
        for own, some in found.items():
            if own != most:
                left_out |= {id(run) for run in some}
                words = " ".join(
                    f"{key}={value}" for key, value in zip(LENGTHS, own, strict=True) if value
                )
                count = f"{len(some)} run{'' if len(some) == 1 else 's'}"
                notes.append(f"{count} of {algo} on {env} with {words}")
    return [run for run in runs if id(run) not in left_out], notes


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


def _epsilon_axis(axes: Any, run: Run) -> None:
    """Epsilon spent at some of the steps, on top; nothing where it is unknown, infinite or constant."""
    if "used once" in str(nested(run.summary, "guarantee", "unit")):
        return  # each user's round costs all of it
    steps, spent = run.curve("privacy/epsilon")
    after = (steps > 0) & np.isfinite(spent)
    steps, spent = steps[after], spent[after]
    if len(spent) < 2 or not spent[-1] > spent[0]:
        return
    width = float(steps[-1])
    wanted = width * np.linspace(0.2, 1.0, 5)
    places = sorted({int(np.abs(steps - one).argmin()) for one in wanted})
    ticks: dict[str, float] = {}  # of equal labels the first: epsilon hardly grows after it
    for place in places:
        ticks.setdefault(shown_epsilon(float(spent[place])), float(steps[place]))
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(ticks.values()), list(ticks))
    top.set_xlabel("epsilon spent")


def _title(run: Run) -> str:
    """Title in lines that fit: the run, and its guarantee."""
    what = f"{NAMES.get(run.env, run.env)}, {run.algo}"
    what += "" if run.z is None else f", z = {run.z:g}"
    what += "" if run.seed is None else f", seed {run.seed}"
    if not run.summary:
        return f"{what}\n{run.state}"
    if math.isinf(run.epsilon):
        return f"{what}\nnot private (epsilon inf)"
    notion = nested(run.summary, "guarantee", "unit")
    unit = f"unit: {notion}" if notion else ""
    delta = short(number(run.summary.get("delta")))
    epsilon = f"epsilon {shown_epsilon(run.epsilon)} at delta {delta}"
    guarantee = f"{epsilon}, {run.guarantee_status} guarantee"
    return "\n".join([what, guarantee, *textwrap.wrap(unit, 56)])


def _relevant(key: str) -> bool:
    return key not in _IRRELEVANT and not key.startswith(("log.", "hardware.", "budget."))
