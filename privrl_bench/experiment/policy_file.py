"""Content of `policy.pt`: released parameters, public constants, values of declared caveats of one replica."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privrl_bench.experiment.trainer import Trainer


def policy_content(trainer: Trainer, r: int) -> dict[str, Any]:
    """The content for replica r, without its guarantee.

    Guarantee: it depends on users through releases and declared caveats only. The leak test
    compares it.
    """
    config = trainer.parts.config
    content: dict[str, Any] = {
        "actor": trainer.parts.algo.actor(trainer.state)[r].clone(),
        "algo": asdict(config.algo),
        "env": asdict(config.env),
    }
    if config.env.obs_scaling == "running":
        saved = trainer.collector.scaler.get_state()
        content["running_obs_mean"] = saved["obs_mean"][r].mean(0)
        content["running_obs_var"] = saved["obs_var"][r].mean(0)
    scaling = trainer.parts.algo.scaling(trainer.state)
    if scaling is not None and scaling.obs_mean is not None and scaling.obs_std is not None:
        content["private_obs_mean"] = scaling.obs_mean[r].clone()
        content["private_obs_std"] = scaling.obs_std[r].clone()
    return content
