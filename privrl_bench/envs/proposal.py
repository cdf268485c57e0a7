"""Ranges of observations and rewards under random actions, and public scaling constants from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privrl_bench.config.overrides import GENERIC, choice_with_id, choices
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.measure import Play

MOST = 256  # observations with more numbers get no constants
_GAMMA = (
    0.99  # of the return whose standard deviation scales rewards, as Gymnasium's wrapper has it
)


@dataclass(frozen=True)
class EnvMeasures:
    """What random actions showed.

    Attributes:
        steps: environment steps.
        obs_low, obs_high, obs_mean, obs_std: [D], raw.
        reward_low, reward_high, reward_mean: raw.
        reward_scale: one over the standard deviation of the discounted return.
        env: name, kind and id, for the YAML file.
        words: that choose the environment on the command line.
        existing: name of the YAML file that the environment has already, so that none is proposed; or None.
    """

    steps: int
    obs_low: list[float]
    obs_high: list[float]
    obs_mean: list[float]
    obs_std: list[float]
    reward_low: float
    reward_high: float
    reward_mean: float
    reward_scale: float
    env: dict[str, Any]
    words: list[str]
    existing: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def yaml(self) -> str:
        """An environment's YAML file with these constants, ready to use."""
        lines = [
            "# Public constants, from random actions in simulation. They are configuration and not covered",
            "# by epsilon: use them only if they are public knowledge or the simulation has no user's data.",
            f"name: {self.name}  # equal to the file's name",
            *(f"{key}: {value}" for key, value in self.env.items() if key != "name"),
        ]
        comments = {
            "obs_mean": "public mean of each observation",
            "obs_std": "public scale of each observation",
            "reward_scale": "learning uses reward * this",
        }
        if len(self.obs_mean) > MOST:
            comments["obs_scaling"] = f"{len(self.obs_mean)} numbers: too many to list"
        for key, value in self._scaling().items():
            lines.append(f"{key}: {value}" + (f"  # {comments[key]}" if key in comments else ""))
        return "\n".join(lines)

    @property
    def name(self) -> str:
        """Of the environment in a file of its own."""
        return str(self.env["name"])

    def overrides(self) -> list[str]:
        """Words of a command line with the same meaning as the YAML file."""
        values = {key: str(value).replace(" ", "") for key, value in self._scaling().items()}
        return [*self.words, *(f"env.{key}={value}" for key, value in values.items())]

    def _scaling(self) -> dict[str, Any]:
        if len(self.obs_mean) > MOST:
            found: dict[str, Any] = {"obs_scaling": "none"}
        else:
            found = {
                "obs_scaling": "public",
                "obs_mean": self.obs_mean,
                "obs_std": self.obs_std,
            }
        return {**found, "reward_scaling": "public", "reward_scale": self.reward_scale}


def measured(played: Play, config: EnvConfig) -> EnvMeasures:
    """Ranges of what random actions showed; numbers that are not finite are left out."""
    obs = np.array(played.obs)
    obs = obs[np.isfinite(obs).all(axis=1)]
    obs = obs if len(obs) else np.zeros((1, len(played.obs[0])))
    rewards = np.array(played.rewards)
    rewards = rewards[np.isfinite(rewards)]
    rewards = rewards if len(rewards) else np.zeros(1)
    spread = obs.std(axis=0)
    spread[spread < 1e-6] = 1.0  # constant here, which says nothing about its scale
    returns = _returns(played)
    largest = float(np.abs(rewards).max())
    scale = max(float(returns.std()), largest / config.reward_clip) or 1.0  # no reward is clipped
    return EnvMeasures(
        steps=len(played.rewards),
        obs_low=_short(obs.min(axis=0)),
        obs_high=_short(obs.max(axis=0)),
        obs_mean=_short(obs.mean(axis=0)),
        obs_std=_short(spread),
        reward_low=float(rewards.min()),
        reward_high=float(rewards.max()),
        reward_mean=float(rewards.mean()),
        reward_scale=_short(np.array([1.0 / scale]))[0],
        env=_named(config),
        words=_words(config),
        existing=_existing(config),
    )


def _returns(played: Play) -> np.ndarray:
    """Running discounted returns of all steps, which restart with every episode."""
    found, at = [], 0
    for length in played.lengths:
        total = 0.0
        for reward in played.rewards[at : at + length]:
            total = _GAMMA * total + (reward if np.isfinite(reward) else 0.0)
            found.append(total)
        at += length
    return np.array(found or [0.0])


def _short(x: np.ndarray) -> list[float]:
    """Three significant digits."""
    return [float(f"{value:.3g}") for value in x]


def _named(config: EnvConfig) -> dict[str, Any]:
    """The keys of a YAML file that say which environment it is."""
    name = config.name
    if name in GENERIC:
        plain = config.label.split(":")[-1].split("/")[-1].lower()
        name = "".join(c if c.isalnum() else "_" for c in plain)
    if name in choices("env"):
        name = f"my_{name}"  # a file beside the package's cannot have its name
    return {"name": name, "kind": config.kind, **_identity(config)}


def _existing(config: EnvConfig) -> str | None:
    """The name of the YAML file that has this environment, if there is one."""
    if config.wrappers:
        return None  # its constants are those of the environment without them
    if config.name not in GENERIC:
        return config.name
    return None if config.id is None or config.kwargs else choice_with_id(config.id)


def _words(config: EnvConfig) -> list[str]:
    """Words of a command line that choose the environment."""
    if config.name not in GENERIC:
        more = [f"env.wrappers={_flow(config.wrappers)}"] if config.wrappers else []
        return [f"env={config.name}", *more]
    keys = {k: v for k, v in _identity(config).items() if k != "kwargs"}
    words = [f"env.{k}={v}" for k, v in keys.items()]
    more = [f"+env.kwargs.{k}={json.dumps(v)}" for k, v in config.kwargs.items()]
    return [f"env={config.name}", *words, *more]


def _flow(value: Any) -> str:
    """A list as both YAML and an override read it: names without quotes, texts with them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


def _identity(config: EnvConfig) -> dict[str, Any]:
    """The settings that decide which environment it is, where they are given."""
    keys: dict[str, Any] = {}
    for key in ("id", "domain", "task", "max_episode_steps", "obs_parts"):
        if getattr(config, key) is not None:
            keys[key] = getattr(config, key)
    if config.wrappers:
        keys["wrappers"] = _flow(config.wrappers)
    if config.kwargs:
        keys["kwargs"] = json.dumps(config.kwargs)
    return keys
