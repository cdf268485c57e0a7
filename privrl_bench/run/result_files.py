"""What a finished run leaves beside its metrics: policy.pt, exported models, the picture, the printed lines."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from privrl_bench.evaluation import evaluator_of
from privrl_bench.evaluation.baselines import references
from privrl_bench.functional.averaging import deployed
from privrl_bench.models.policy import ParameterFree, Policy
from privrl_bench.run.plan import Plan
from privrl_bench.run.policy_file import BOUNDS, FILE, FORMAT, SPACES
from privrl_bench.run.run_dir import RunDir, read_lines
from privrl_bench.run.text_samples import before_and_after
from privrl_bench.run.trainer import Trainer
from privrl_bench.types import EnvSpec

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
