"""Files of a finished run that W&B gets beside its metrics, and the chart of return against epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from privrl_bench.evaluation.objective import objective_of
from privrl_bench.privacy.mechanisms.none import NoMechanism

# The only files of a run folder that are sent, and as what. The leak test compares the content of policy.pt and
# every number that the picture shows.
RELEASED = {"policy.pt": "policy", "curve.png": "picture"}
CHART = "return_against_epsilon"


def tags_of(config: Mapping[str, Any], guarantee: Mapping[str, Any]) -> list[str]:
    """Return algorithm, environment, status of the guarantee and z, of 64 characters at most.

    >>> tags_of({"algo": {"name": "dppg"}, "privacy": {"z": 1.0}}, {"status": "formal"})
    ['dppg', 'formal', 'z=1']
    """
    env, privacy = config.get("env") or {}, config.get("privacy") or {}
    label = env.get("id") if env.get("name") == "gym" else env.get("name")
    z = privacy.get("z") if privacy.get("mechanism") != NoMechanism.name else None
    found = [(config.get("algo") or {}).get("name"), label, guarantee.get("status")]
    found.append(None if z is None else f"z={z:g}")
    return [str(one)[:64] for one in found if one]


def send_files(run: Any, files: Iterable[Path], guarantee: Mapping[str, Any]) -> None:
    """Send those of the released files that exist.

    Raises:
        ValueError: a file is not one of `RELEASED`.
    """
    import wandb

    for path in files:
        if path.name not in RELEASED:
            raise ValueError(f"{path.name} is not released: only {', '.join(RELEASED)} may be sent")
        if not path.exists():
            continue
        if RELEASED[path.name] == "picture":
            run.log({"curve": wandb.Image(str(path))})
            continue
        about = {key: guarantee[key] for key in ("status", "epsilon", "delta") if key in guarantee}
        artifact = wandb.Artifact(f"policy-{run.id}", type="policy", metadata=about)
        artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact)


def send_point(run: Any, summary: Mapping[str, Any]) -> None:
    """Send a scatter chart with the run's final value and epsilon, where both are finite.

    W&B draws charts of one name together: for the runs of a group they are one panel of return against epsilon.
    """
    import wandb

    measure = objective_of(dict(summary))
    value, epsilon = (summary.get(measure.name) or {}).get("mean"), summary.get("epsilon")
    numbers = [x for x in (value, epsilon) if isinstance(x, float | int) and math.isfinite(x)]
    if len(numbers) < 2:
        return
    table = wandb.Table(columns=["epsilon", measure.name], data=[[epsilon, value]])
    title = f"final {measure.label} against epsilon"
    run.log({CHART: wandb.plot.scatter(table, "epsilon", measure.name, title=title)})
