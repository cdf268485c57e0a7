"""`policy.pt`: released parameters of one replica, what they belong to, and their guarantee.

`result_files.policy_content` is what a run writes, `read_policy` the only reader. A file can be read without
the configuration or the environment it was trained with.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.registry import registered
from privrl_bench.composition.plugins import load_installed
from privrl_bench.config.overrides import explicit_keys
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.errors import ConfigError
from privrl_bench.models.policy import Policy
from privrl_bench.types import EnvSpec, Image

FORMAT = 1
FILE = "policy.pt"
_LOAD = "install it, or call privrl_bench.register with its PLUGIN first"
SPACES = ("observation_space", "action_space")
BOUNDS = ("action_low", "action_high")


@dataclass(frozen=True)
class PolicyFile:
    """A `policy.pt`.

    Attributes:
        path: of the file.
        spec: public facts of the environment it was trained in.
        policy: the policy's class for these facts.
        params: [P] the released parameters.
        scaling: of observations; arrays [1, 1, D].
        algo: settings of the algorithm.
        env: settings of the environment.
        eval: how the run evaluated.
        guarantee: as in `summary.json`.
    """

    path: Path
    spec: EnvSpec
    policy: Policy
    params: Tensor
    scaling: FrozenScaling
    algo: dict[str, Any]
    env: dict[str, Any]
    eval: dict[str, Any]
    guarantee: dict[str, Any]


def read_policy(path: str | Path, key: str = "path") -> PolicyFile:
    """Read a policy.

    Args:
        path: a run folder or a `policy.pt`.
        key: of the setting or the argument that names it, for messages.

    Raises:
        ConfigError: there is none, it is damaged or of another version, or the run has no policy of its own.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    if not file.is_file():
        more = (
            _unfinished(file.parent) if file.name == FILE else "; name a run folder or a policy.pt"
        )
        raise ConfigError(key, f"there is no {file}{more}")
    try:
        content = dict(torch.load(file, weights_only=True, map_location="cpu"))
    except Exception as error:  # torch raises many kinds
        raise ConfigError(key, f"{file} is not a policy file ({type(error).__name__})") from None
    if content.get("format") != FORMAT:
        raise ConfigError(
            key, f"{file} is of another version of this program; train again, or use that version"
        )
    algo = str(content["algo"]["name"])
    if content["spec"]["observation_space"] is None:
        raise ConfigError(key, f"{file} is of a language model: load the run's adapter/ with peft")
    if content["policy"] is None:
        raise ConfigError(key, f"{file} holds no policy: algo={algo} estimates the value of one")
    spec = _spec_of(content["spec"])
    return PolicyFile(
        path=file,
        spec=spec,
        policy=_policy_of(file, content["policy"], spec, key),
        params=content["actor"],
        scaling=_scaling_of(content, spec.obs_dim),
        algo=content["algo"],
        env=content["env"],
        eval=content["eval"],
        guarantee=content["guarantee"],
    )


def _unfinished(folder: Path) -> str:
    """Why a folder has no policy."""
    if not (folder / "status.json").exists():
        return "; name the folder of a finished run, or a policy.pt"
    return "; the run is not finished: rerun its command to resume it"


def _spec_of(content: Mapping[str, Any]) -> EnvSpec:
    from minari.serialization import deserialize_space

    found = dict(content)
    for name in BOUNDS:
        found[name] = None if found[name] is None else np.array(found[name], np.float64)
    for name in SPACES:
        found[name] = deserialize_space(found[name])
    found["image"] = None if found["image"] is None else Image(*found["image"])
    return EnvSpec(**found)


def _policy_of(file: Path, content: Mapping[str, Any], spec: EnvSpec, key: str) -> Policy:
    """The policy. A file names a class; only classes of this package and of its plugins are imported."""
    load_installed()
    module, _, name = str(content["class"]).partition(":")
    package = module.partition(".")[0]
    ours = {"privrl_bench"} | {one.module.partition(".")[0] for one in registered().values()}
    if package not in ours:
        raise ConfigError(key, f"{file} needs the plugin {package}: {_LOAD}")
    try:
        kind = getattr(importlib.import_module(module), name)
        policy: Policy = kind(spec, **content["arguments"])
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            key, f"{file}: its policy {module}.{name} cannot be made: {error}"
        ) from error
    return policy


def _scaling_of(content: Mapping[str, Any], dim: int) -> FrozenScaling:
    """The scaling of observations at the end of training, as `SignalScaler.frozen` has it."""
    env = content["env"]
    mode, clip = env["obs_scaling"], float(env["obs_clip"])
    if mode == "none":
        return FrozenScaling(None, None, clip)
    if mode == "running":
        mean, var = (content[f"running_obs_{name}"].numpy() for name in ("mean", "var"))
    else:
        mean = np.zeros(dim) + np.asarray(env["obs_mean"] or 0.0)
        std = np.ones(dim) * np.asarray(env["obs_std"] or 1.0)
        if "private_obs_mean" in content:
            mean = mean + std * content["private_obs_mean"].double().numpy()
            std = std * content["private_obs_std"].double().numpy()
        var = np.square(std)
    return FrozenScaling(mean[None, None], np.sqrt(var + 1e-8)[None, None], clip)


def env_config(file: PolicyFile) -> EnvConfig:
    """The environment of training."""
    known = {field.name for field in fields(EnvConfig)} - {"text"}
    return EnvConfig(**{key: value for key, value in file.env.items() if key in known})


def changed_env(file: PolicyFile, composed: EnvConfig, words: Iterable[str]) -> EnvConfig:
    """The environment of training with the keys that `words` set, whose values `composed` has.

    Of a nested key, such as env.kwargs.g, the whole entry is taken.
    """
    given = {key.split(".")[1] for key in explicit_keys(words) if key.startswith("env.")}
    changes = {name: getattr(composed, name) for name in given}
    return replace(env_config(file), **changes)


def env_words(file: PolicyFile) -> list[str]:
    """Words of a command line that name the environment of training."""
    own = file.env
    return [f"env={own['name']}"] + [
        f"env.{key}={own[key]}" for key in ("id", "domain", "task") if own.get(key)
    ]


def check_fits(file: PolicyFile, spec: EnvSpec, label: str) -> None:
    """Raise `ConfigError` if the policy does not fit an environment.

    Args:
        file: of the policy.
        spec: public facts of the environment.
        label: its name, for the message.
    """
    for name, theirs, ours in (
        ("observations have", spec.obs_dim, file.spec.obs_dim),
        ("actions have", spec.actions, file.spec.actions),
    ):
        if theirs != ours or spec.discrete != file.spec.discrete:
            raise ConfigError(
                "env",
                f"{label} does not fit the policy: {name} {theirs} numbers or choices there, "
                f"{ours} in {file.path}",
            )
