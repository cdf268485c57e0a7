"""Who plays the episodes of a recording: a known policy, or the policy of a finished run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError
from privrl_bench.models.fixed_policies import fixed_policy
from privrl_bench.packs.offline.fixed_policy_episodes import Player
from privrl_bench.run.trained_policy import PolicyFile, TrainedPlayer, check_fits, read_policy
from privrl_bench.types import EnvSpec


class RecordedPolicy(NamedTuple):
    """A policy that is recorded.

    Attributes:
        player: the policy.
        about: what it is, for the card; of a trained policy with a digest of its parameters.
        facts: further entries of the card.
    """

    player: Player
    about: str
    facts: dict[str, Any]


def trained(name: str) -> PolicyFile | None:
    """The trained policy of this name, a run folder or a `policy.pt`; None: the name is of another kind.

    Raises:
        ConfigError: On policy: the file cannot be read, or there is no such path.
    """
    path = Path(name)
    if path.suffix == ".pt" or (path / "status.json").is_file():
        return read_policy(path, "policy")
    if "/" in name and ".json" not in name:
        raise ConfigError("policy", f"{name} is no run folder, policy.pt or .json file of values")
    return None


def played(name: str, config: EnvConfig, spec: EnvSpec) -> RecordedPolicy:
    """The policy of this name for an environment.

    Args:
        name: as in `models/fixed_policies.py`, or a run folder or its `policy.pt`.
        config: the environment.
        spec: its public facts.

    Raises:
        ConfigError: there is no such policy, or it does not fit the environment.
    """
    file = trained(name)
    if file is None:
        known = fixed_policy(name, config, spec)
        about = f"the known policy {name} on {config.label}, with the chance of every action"
        return RecordedPolicy(known, about, {"algorithm_name": name, "policy": name})
    check_fits(file, spec, config.label)
    if not file.params.isfinite().all():
        raise ConfigError("policy", f"{file.path}: its parameters are not finite")
    algo, guarantee = str(file.algo["name"]), file.guarantee
    digest = hashlib.sha256(file.params.numpy().tobytes()).hexdigest()[:8]
    about = f"the policy {name} (algo={algo}, parameters {digest}) on {config.label}"
    claimed = {key: guarantee[key] for key in ("status", "epsilon", "delta")}
    facts = {"algorithm_name": algo, "policy": name, "policy_guarantee": claimed}
    return RecordedPolicy(TrainedPlayer(file), about, facts)
