"""What a finished run leaves beside its metrics: policy.pt, exported models, the picture, the printed lines."""

from __future__ import annotations

from pathlib import Path

import torch

from privrl_bench.evaluation import evaluator_of
from privrl_bench.evaluation.baselines import references
from privrl_bench.experiment import policy_file
from privrl_bench.experiment.plan import Plan
from privrl_bench.experiment.run_dir import RunDir, read_lines
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.loggers.text_samples import before_and_after

POLICY, CURVE = "policy.pt", "curve.png"


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
    path = rundir / POLICY
    torch.save(policy_file.policy_content(trainer, r) | {"guarantee": guarantee}, path)
    return path


def released(trainer: Trainer, r: int, rundir: RunDir) -> list[Path]:
    """Return the files that W&B may get: the picture, and policy.pt.

    Not policy.pt where it was learned from users of an environment or a dataset without any bound, or is
    a policy of another run.
    """
    parts = trainer.parts
    unbounded = parts.gate.guarantee(r, trainer.releases(r)).status == "none"
    private = parts.users.may_be_real and unbounded
    kept = private or parts.algo.terms().policy_guarantee is not None
    return [rundir / CURVE, *([] if kept else [rundir / POLICY])]


def draw(rundir: RunDir) -> Path:
    """Draw the picture of a run whose other files are there."""
    from privrl_bench.reporting.learning_curve import learning_curve
    from privrl_bench.reporting.run_loader import load_run

    learning_curve(load_run(rundir.path), rundir / CURVE)
    return rundir / CURVE


def save_results(trainer: Trainer, r: int, rundir: RunDir) -> list[str]:
    """Write the files of a finished run, whose summary is there; returns the names of those to look at."""
    save_policy(trainer, r, rundir)
    names = []
    if trainer.parts.configs[r].log.plot:
        names.append(draw(rundir).name)
    names += [path.name for path in trainer.parts.algo.export(trainer.state, r, rundir.path)]
    for line in before_and_after(read_lines(rundir / "samples.jsonl")):
        print(line, flush=True)
    return names
