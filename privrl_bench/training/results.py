"""What a run leaves: rows of metrics, `summary.json`, `policy.pt`, the picture, and the printed result."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.config.schema import EvalConfig
from privrl_bench.evaluation import evaluator_of
from privrl_bench.evaluation.baselines import references
from privrl_bench.evaluation.evaluator import Evaluation
from privrl_bench.evaluation.objective import Objective, objective_of
from privrl_bench.functional.averaging import deployed
from privrl_bench.metrics import CLOCK, again, check_declared, shown_epsilon
from privrl_bench.models.policy import ParameterFree, Policy
from privrl_bench.privacy.ledger import Mark
from privrl_bench.training.describe import preview_facts
from privrl_bench.training.folder import RunDir, read_lines
from privrl_bench.training.plan import Plan
from privrl_bench.training.trained_policy import BOUNDS, FILE, FORMAT, SPACES
from privrl_bench.training.trainer import Trainer
from privrl_bench.training.wandb_logger import WandbLogger
from privrl_bench.types import EnvSpec


class MetricWriter:
    """Rows of all replicas. Rows from an unfinished evaluation on wait for it.

    Attributes:
        evaluations: the last finished ones, of each replica.
        evaluated: after which round; -1: none yet.
    """

    def __init__(self, trainer: Trainer, dirs: list[RunDir], mirrors: list[WandbLogger]):
        self.evaluations: Sequence[Evaluation] = []
        self.evaluated = -1
        self._trainer, self._dirs, self._mirrors = trainer, dirs, mirrors
        self._evaluating: int | None = None  # the round whose evaluation is unfinished
        self._waiting: list[tuple[dict[int, dict[str, float]], list[Mark]]] = []

    @property
    def waiting(self) -> bool:
        """Whether anything is not on the disk yet."""
        return self._evaluating is not None or bool(self._waiting)

    def begin_evaluation(self) -> None:
        """Begin to evaluate the current policies. Raises EnvironmentFailure, also of the one before."""
        self.write()  # one at a time
        self._trainer.begin_evaluation()
        self._evaluating = self._trainer.round

    def add(self, rows: dict[int, dict[str, float]]) -> None:
        """One row for each replica that is training, by replica, with the clock's `CLOCK`."""
        gate = self._trainer.parts.gate
        gate.sync()
        marks = [ledger.mark for ledger in gate.ledgers]
        self._waiting.append((rows, marks))

    def write(self, wait: bool = True) -> None:
        """Write the rows.

        Args:
            wait: for the unfinished evaluation; else the rows from it on stay.

        Raises:
            EnvironmentFailure: of an evaluation.
        """
        if self._evaluating is not None:
            found = self._trainer.take_evaluation(wait)
            if found is None:
                return
            self.evaluations, self.evaluated = found, self._evaluating
            self._evaluating = None
        waiting, self._waiting = self._waiting, []
        for rows, marks in waiting:
            for r, row in rows.items():
                if row["round"] == self.evaluated:
                    row |= self.evaluations[r].metrics()
                    for sample in self.evaluations[r].samples:  # they belong to no user
                        line = {"round": row["round"], "steps": row["steps"], **sample}
                        self._dirs[r].append("samples.jsonl", line)
                self._write(r, row, marks[r])

    def _write(self, r: int, row: dict[str, float], mark: Mark) -> None:
        """timing.jsonl first, with the mark: metrics.jsonl is the same however a run was interrupted."""
        timing = {name: row.pop(name) for name in CLOCK}
        check_declared(row)
        self._dirs[r].append("timing.jsonl", {"round": row["round"], **timing, "ledger": mark})
        self._dirs[r].append("metrics.jsonl", row)
        self._mirrors[r].log({**row, **timing})


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
        row, played = rows.evaluations[r].metrics(), asdict(config.eval)
        result = {
            "mean": row.get(measure.metric),
            "ci95": None if measure.spread is None else row.get(measure.spread),
            **dict(zip(("low", "high"), map(row.get, measure.interval or ()), strict=False)),
            **({"episodes": played["episodes"]} if "eval/episodes" in row else {}),
            **{name: row[metric] for name, metric, _ in measure.beside if metric in row},
            "definition": measure.definition.format(
                after=f"after round {rows.evaluated}", **played
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


_WORSE = "      worse than random actions: see docs/questions.md, My environment does not learn\n"


def result_text(
    summary: dict[str, Any], folder: Path, files: Sequence[str], from_data: bool = False
) -> str:
    """Return what a finished run reached, beside which references, and its files.

    `from_data`: see `Users.from_data`. Such a run counts rounds, others environment steps.
    """
    measure, status = objective_of(summary), summary["guarantee"]["status"]
    shown, solved = summary[measure.name], summary.get("solved")
    solution = "" if solved is None else f"solved after round {solved}, "
    episodes = f" in {count} episodes" if (count := shown.get("episodes")) else ""
    spread = measure.interval_text(shown.get("low"), shown.get("high"), episodes)
    beside = "".join(
        f", {name} {measure.show(known['mean'])}"
        for name, known in summary.get("references", {}).items()
    )
    others = [(words, shown[name]) for name, _, words in measure.beside if name in shown]
    beside += "".join(f", {words} {number:.4g}" for words, number in others)
    numbers = "".join(f"{name} {x:.6g}, " for name, x in summary.get("released", {}).items())
    evaluated = "simulated " if numbers else ""
    spent = f"epsilon {shown_epsilon(summary['epsilon'])} at delta {summary['delta']:g}"
    trivial, most = summary.get("references", {}).get("random"), shown.get("high")
    worse = trivial is not None and most is not None and most < trivial["mean"]
    return (
        f"done  {numbers}{solution}{evaluated}{measure.name} {measure.show(shown['mean'])}{spread}{beside}\n"
        f"{_WORSE if worse else ''}"
        f"      {'not private' if status == 'none' else f'{spent} ({status})'}\n"
        f"{_beyond_the_plan(summary)}"
        f"      {_pace(summary, from_data)}\n"
        f"      results: {folder}" + (f" ({', '.join(files)})" if files else "")
    )


def _beyond_the_plan(summary: dict[str, Any]) -> str:
    """Return a line with what was released beyond the plan; empty: nothing was."""
    repeated, planned = summary["ledger"]["repeated"], summary["epsilon_planned"]
    if not repeated or summary["epsilon"] <= planned:
        return ""
    return f"      more than the planned {shown_epsilon(planned)}: {again(repeated)}\n"


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


# --- files of a finished run


CURVE = "curve.png"


def references_of(parts: Plan, rundir: RunDir) -> dict[str, dict[str, float]]:
    """Return what is reached without learning, by name.

    Of a policy that acts: policies without learning, for at most a fiftieth of the run's steps each. Else what
    the evaluator says of the start (`Evaluator.start`).
    """
    judge = evaluator_of(parts.config)
    if not judge.acts:
        return judge.start(read_lines(rundir / "metrics.jsonl"))
    steps = parts.iterations * parts.round_steps // 50
    return references(parts.config.env, parts.spec, steps)


def save_policy(trainer: Trainer, r: int, rundir: RunDir) -> Path:
    """Write policy.pt of replica r: what may leave the run, with its guarantee."""
    own = trainer.parts.gate.guarantee(r, trainer.releases(r)).to_dict()
    guarantee = trainer.parts.algo.terms().policy_guarantee or own
    path = rundir / FILE
    torch.save(policy_content(trainer, r) | {"guarantee": guarantee}, path)
    return path


def policy_content(trainer: Trainer, r: int) -> dict[str, Any]:
    """The content for replica r, without its guarantee.

    Guarantee: it depends on users through releases and declared caveats only. The leak test
    compares it.
    """
    config, algo = trainer.parts.config, trainer.parts.algo
    content: dict[str, Any] = {
        "format": FORMAT,
        "actor": deployed(trainer.state.tensors, algo.actor(trainer.state))[r].clone(),
        "policy": _described(getattr(algo, "policy", None)),
        "spec": _spec_content(trainer.parts.spec),
        "algo": asdict(config.algo),
        "env": asdict(config.env),
        "eval": asdict(config.eval),
    }
    if config.env.obs_scaling == "running":
        saved = trainer.collector.scaler.get_state()
        content["running_obs_mean"] = saved["obs_mean"][r].mean(0)
        content["running_obs_var"] = saved["obs_var"][r].mean(0)
    scaling = algo.scaling(trainer.state)
    if scaling is not None and scaling.obs_mean is not None and scaling.obs_std is not None:
        content["private_obs_mean"] = scaling.obs_mean[r].clone()
        content["private_obs_std"] = scaling.obs_std[r].clone()
    return content


def _described(policy: Policy | None) -> dict[str, Any] | None:
    """The class of a policy and its arguments; None: the parameters are not those of a policy."""
    if policy is None or isinstance(policy, ParameterFree):
        return None
    kind = type(policy)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "arguments": policy.arguments()}


def _spec_content(spec: EnvSpec) -> dict[str, Any]:
    """Public facts of an environment as plain data."""
    from minari.serialization import serialize_space

    content = {field.name: getattr(spec, field.name) for field in fields(spec)}
    for name in BOUNDS:
        content[name] = None if content[name] is None else content[name].tolist()
    for name in SPACES:
        content[name] = None if content[name] is None else serialize_space(content[name])
    content["image"] = None if spec.image is None else tuple(spec.image)
    return content


def released(trainer: Trainer, r: int, rundir: RunDir) -> list[Path]:
    """Return the files that W&B may get: the picture, and policy.pt.

    Not policy.pt where it was learned from users of an environment or a dataset without any bound, or is
    a policy of another run.
    """
    parts = trainer.parts
    unbounded = parts.gate.guarantee(r, trainer.releases(r)).status == "none"
    private = parts.users.may_be_real and unbounded
    kept = private or parts.algo.terms().policy_guarantee is not None
    return [rundir / CURVE, *([] if kept else [rundir / FILE])]


def draw(rundir: RunDir) -> Path:
    """Draw the picture of a run whose other files are there."""
    from privrl_bench.reporting.run_loader import load_run

    load_run(rundir.path).plot(rundir / CURVE)
    return rundir / CURVE


def save_results(trainer: Trainer, r: int, rundir: RunDir) -> list[str]:
    """Write the files of a finished run, whose summary is there; returns the names of those to look at."""
    save_policy(trainer, r, rundir)
    names = []
    if trainer.parts.configs[r].log.plot:
        names.append(draw(rundir).name)
    names += [path.name for path in trainer.parts.algo.export(trainer.state, r, rundir.path)]
    samples = read_lines(rundir / "samples.jsonl")
    for line in evaluator_of(trainer.parts.config).examples(samples):
        print(line, flush=True)
    return names
