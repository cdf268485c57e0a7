"""How a run ended: its result, the content of `summary.json`, and whether it was solved."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.config.schema import EvalConfig
from privrl_bench.evaluation.objective import Objective, objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.run.epsilon_words import again
from privrl_bench.run.metric_writer import MetricWriter
from privrl_bench.run.plan_summary import preview_facts
from privrl_bench.run.run_dir import RunDir, read_lines
from privrl_bench.run.trainer import Trainer


@dataclass
class RunResult:
    """How one run ended.

    Attributes:
        status: done | failed | interrupted | planned | skipped.
        reason: why it is not done; empty otherwise.
        folder: the run folder.
        summary: content of summary.json.
        exit_code: what a lone run exits with.
        failed_with_group: it failed because its group did; trained alone it may succeed.
    """

    status: str
    reason: str
    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    failed_with_group: bool = False


class SolvedCheck:
    """Whether the mean of the last evaluations reached `eval.solved`.

    Args:
        config: the target and the number of evaluations.
        measure: whether larger or smaller values are better.
        replicas: how many runs are checked.
    """

    def __init__(self, config: EvalConfig, measure: Objective, replicas: int):
        self._target, self._measure = config.solved, measure
        self._recent = [deque[float](maxlen=config.window) for _ in range(replicas)]

    def restore(self, r: int, values: Iterable[float]) -> None:
        """Add the values of earlier parts of a run."""
        self._recent[r].extend(values)

    def add(self, r: int, value: float) -> bool:
        """Add the value of an evaluation and return whether the run is solved."""
        recent = self._recent[r]
        recent.append(value)
        if self._target is None or len(recent) < (recent.maxlen or 0):
            return False
        above = float(np.mean(recent)) - self._target
        return above >= 0 if self._measure.direction == "up" else above <= 0


def summary_of(
    trainer: Trainer,
    rows: MetricWriter,
    rundir: RunDir,
    r: int,
    status: str,
    rounds: int,
    timing: dict[str, float],
) -> dict[str, Any]:
    """Return the summary of one replica.

    Args:
        trainer: the trainer.
        rows: with the last evaluation.
        rundir: its run folder.
        r: the replica.
        status: how the run ended.
        rounds: rounds that it trained.
        timing: of the clock.
    """
    parts, gate, config = trainer.parts, trainer.parts.gate, trainer.parts.configs[r]
    measure = trainer.evaluator.objective
    guarantee = gate.guarantee(r, min(rounds, trainer.releases(r)))
    result: dict[str, Any] = {"mean": None, "ci95": None, "definition": None}
    if rows.evaluations:
        row = rows.evaluations[r].metrics()
        result = {
            "mean": row.get(measure.metric),
            "ci95": None if measure.spread is None else row.get(measure.spread),
            **_interval(measure, row),
            "definition": measure.definition.format(
                after=f"after round {rows.evaluated}",
                episodes=config.eval.episodes,
                policy=config.eval.policy,
            ),
            "last_fifth": _last_fifth(rundir, measure.metric, parts.iterations * parts.round_steps),
        }
    # Of a failed run the last release may have no line on the disk.
    metrics = {} if status == "failed" else parts.algo.metrics(trainer.state)[r]
    head = "release/"
    numbers = {k.removeprefix(head): x for k, x in metrics.items() if k.startswith(head)}
    return {
        "status": status,
        "algo": config.algo.name,
        "env": config.env.label,
        "seed": config.seed,
        "z": config.privacy.z,
        "measure": measure.name,
        measure.name: result,
        "epsilon": guarantee.epsilon,
        "epsilon_planned": gate.planned_epsilon(r),
        "epsilon_paper": gate.paper_epsilon(r),
        "delta": guarantee.delta,
        "guarantee": guarantee.to_dict(),
        **preview_facts(gate, r),
        **({"released": numbers} if numbers else {}),
        "ledger": gate.ledgers[r].summary(),
        "steps": rounds * parts.round_steps,
        **timing,
    }


def _interval(measure: Objective, row: dict[str, float]) -> dict[str, float | None]:
    """Return the ends of the bootstrap interval, where the objective has one."""
    return {
        end: row.get(name)
        for end, name in zip(("low", "high"), measure.interval or (), strict=False)
    }


def result_text(
    summary: dict[str, Any], folder: Path, files: Sequence[str], from_data: bool = False
) -> str:
    """Return what a finished run reached, beside which references, and its files.

    `from_data`: see `Users.from_data`. Such a run counts rounds, others environment steps.
    """
    measure, guarantee = objective_of(summary), summary["guarantee"]
    shown, solved = summary[measure.name], summary.get("solved")
    solution = "" if solved is None else f"solved after round {solved}, "
    spread = measure.interval_text(shown.get("low"), shown.get("high"))
    beside = "".join(
        f", {name} {measure.show(known['mean'])}"
        for name, known in summary.get("references", {}).items()
    )
    numbers = "".join(f"{name} {x:.6g}, " for name, x in summary.get("released", {}).items())
    evaluated = "simulated " if numbers else ""
    return (
        f"done  {numbers}{solution}{evaluated}{measure.name} {measure.show(shown['mean'])}{spread}{beside}\n"
        f"      epsilon {shown_epsilon(summary['epsilon'])} at delta {summary['delta']:g} "
        f"({guarantee['status']}, unit: {guarantee['unit']})\n"
        f"{_since_the_plan(summary, folder)}"
        f"      {_pace(summary, from_data)}\n"
        f"      results: {folder}" + (f" ({', '.join(files)})" if files else "")
    )


def _since_the_plan(summary: dict[str, Any], folder: Path) -> str:
    """Return lines with what was released beyond the plan, and caveats that the plan did not have."""
    lines, ledger = [], summary["ledger"]
    if ledger["repeated"] and summary["epsilon"] > summary["epsilon_planned"]:
        planned = f"the planned {shown_epsilon(summary['epsilon_planned'])}"
        lines.append(f"more than {planned}: {again(ledger['repeated'])}")
    plan = folder / "plan.json"
    known = json.loads(plan.read_text())["guarantee"]["caveats"] if plan.exists() else []
    lines += [f"caveat {one}" for one in summary["guarantee"]["caveats"] if one not in known]
    return "".join(f"      {line}\n" for line in lines)


def _pace(summary: dict[str, Any], from_data: bool) -> str:
    """Return how much was done in how much time."""
    count, speed, unit = summary["steps"], summary["steps_per_second"], "steps"
    if from_data:
        rounds = summary["ledger"]["rounds"]
        count, speed, unit = rounds, speed * rounds / max(count, 1), "rounds"
    digits = 0 if speed >= 10 else 2
    one = unit.removesuffix("s") if count == 1 else unit
    return f"{count} {one} in {summary['wall_seconds']:.0f} s, {speed:.{digits}f} {unit}/s"


def values_of(rundir: RunDir, metric: str, after: float = -1) -> list[float]:
    """Return a metric of a run's evaluations after so many steps."""
    rows = read_lines(rundir / "metrics.jsonl")
    return [row[metric] for row in rows if metric in row and row["steps"] > after]


def _last_fifth(rundir: RunDir, metric: str, steps: int) -> dict[str, float | None]:
    """Return the mean of the evaluations in the last fifth of the planned steps."""
    means = values_of(rundir, metric, 0.8 * steps)
    return {"mean": float(np.mean(means)) if means else None, "evaluations": len(means)}
