"""What `policy.pt` holds of one replica: released parameters, public constants, values of declared caveats."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privrl_bench.experiment.trainer import Trainer


def policy_content(session: Trainer, r: int) -> dict[str, Any]:
    """The content of replica r, but for its guarantee.

    The leak test compares it: nothing in it may depend on a user but through releases and declared caveats.
    """
    config = session.parts.config
    content: dict[str, Any] = {
        "actor": session.parts.algo.actor(session.state)[r].clone(),
        "algo": asdict(config.algo),
        "env": asdict(config.env),
    }
    if config.env.obs_scaling == "running":
        saved = session.rollout.scaler.get_state()
        content["running_obs_mean"] = saved["obs_mean"][r].mean(0)
        content["running_obs_var"] = saved["obs_var"][r].mean(0)
    scaling = session.parts.algo.scaling(session.state)
    if scaling is not None and scaling.obs_mean is not None and scaling.obs_std is not None:
        content["private_obs_mean"] = scaling.obs_mean[r].clone()
        content["private_obs_std"] = scaling.obs_std[r].clone()
    return content
