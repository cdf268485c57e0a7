"""Known policies: fixed functions from raw observations to the chances of every action.

Policy evaluation needs two of them: the one that is evaluated and the one that chose the data. They are
public, and nobody's. A name is one of

- `uniform`: every action as likely;
- `<file>`, `<file>:greedy`: the action with the largest value, linear in the Fourier features of a file.
  The file is one of the package (`nets/policies/`) or the path of one of your own, ending in .json;
- `<file>:epsilon:0.05`: any action with this chance, otherwise the greedy one;
- `<file>:softmax:0.5`: chances proportional to exp(value / 0.5).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.models.features import fourier_features, fourier_waves
from privrl_bench.types import EnvSpec

POLICIES = Path(__file__).parent / "policies"
UNIFORM = "uniform"
MODES = ("greedy", "epsilon", "softmax")
_KEY = "policy"


@dataclass(frozen=True)
class FixedPolicy:
    """A policy over choices that nobody's data made.

    Attributes:
        name: as `fixed_policy` takes it.
        behavior_probs: [..., D] raw observations -> [..., A] in double precision.
    """

    name: str
    behavior_probs: Callable[[Tensor], Tensor]

    def probabilities(self, obs: Tensor) -> Tensor:
        """[..., D] raw observations -> [..., A] chances, which sum to 1, in the precision of `obs`."""
        return self.behavior_probs(obs.double()).to(obs.dtype)


@dataclass(frozen=True)
class LinearValues:
    """Action values linear in Fourier features of raw observations, as a policy file holds them.

    Attributes:
        env_id: Gymnasium id of the environment they are for.
        order, joint: of `fourier_waves`.
        low, high: [D] the box of the features.
        weights: [F, A].
        about: where they come from and what they score, for people.
    """

    env_id: str
    order: int
    joint: int | None
    low: list[float]
    high: list[float]
    weights: Tensor
    about: dict[str, Any]

    @functools.cached_property
    def waves(self) -> Tensor:
        """[F, D] of `fourier_waves`."""
        return fourier_waves(len(self.low), self.order, self.joint)

    def __call__(self, obs: Tensor) -> Tensor:
        """[..., D] in double precision -> [..., A]."""
        low, high = obs.new_tensor(self.low), obs.new_tensor(self.high)
        return fourier_features(obs, low, high, self.waves) @ self.weights.to(obs)

    def save(self, path: Path) -> None:
        """Write the file."""
        content = {
            "about": self.about,
            "env_id": self.env_id,
            "order": self.order,
            "joint": self.joint,
            "low": self.low,
            "high": self.high,
            "weights": [[float(f"{w:.8g}") for w in row] for row in self.weights.tolist()],
        }
        text = json.dumps(content, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def shipped() -> list[str]:
    """Names of the package's policy files."""
    return sorted(path.stem for path in POLICIES.glob("*.json"))


def load_values(name: str) -> LinearValues:
    """The file of this name, or at this path. Raises ConfigError on `policy`."""
    path = Path(name) if name.endswith(".json") else POLICIES / f"{name}.json"
    allowed = [UNIFORM, *shipped()]
    if not path.is_file():
        raise ConfigError(
            _KEY,
            f"no policy {name!r}{suggest(name, allowed)}; allowed: {', '.join(allowed)}, or the path of a "
            ".json file",
        )
    try:
        found = json.loads(path.read_text())
        weights = torch.tensor(found["weights"], dtype=torch.float64)
        values = LinearValues(
            str(found["env_id"]),
            int(found["order"]),
            None if found["joint"] is None else int(found["joint"]),
            [float(x) for x in found["low"]],
            [float(x) for x in found["high"]],
            weights,
            dict(found["about"]),
        )
        ok = (
            weights.ndim == 2
            and len(weights) == len(values.waves)
            and bool(weights.isfinite().all())
        )
        ok = ok and len(values.high) == len(values.low)
        ok = ok and all(a < b for a, b in zip(values.low, values.high, strict=True))
        if not ok:
            raise ValueError("weights must be [features, actions], low below high")
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(_KEY, f"{name} is no policy file: {reason}") from None
    return values


def fixed_policy(name: str, config: EnvConfig, spec: EnvSpec) -> FixedPolicy:
    """The policy of this name for an environment.

    Raises:
        ConfigError: on `policy`: no such name, mode or number, a damaged file, or one of another environment.
    """
    if not spec.discrete:
        raise ConfigError(_KEY, f"known policies choose; env={config.label} has real actions")
    file, *rest = name.split(":")
    if file == UNIFORM:
        if rest:
            raise ConfigError(_KEY, f"uniform takes nothing more, got {name!r}")
        return FixedPolicy(name, lambda obs: _uniform(obs, spec.actions))
    rule = _rule(name, rest)
    values = load_values(file)
    if values.env_id != config.id or values.weights.shape[1] != spec.actions:
        raise ConfigError(_KEY, f"{file} is for {values.env_id}, not for env={config.label}")
    if len(values.low) != spec.obs_dim:
        raise ConfigError(
            _KEY,
            f"{file} takes {len(values.low)} observations, env={config.label} has {spec.obs_dim}",
        )
    return FixedPolicy(name, lambda obs: rule(values(obs)))


def _uniform(obs: Tensor, actions: int) -> Tensor:
    return obs.new_full((*obs.shape[:-1], actions), 1.0 / actions)


def greedy(values: Tensor) -> Tensor:
    """[..., A] action values -> chances: 1 for the first of the largest."""
    return torch.nn.functional.one_hot(values.argmax(-1), values.shape[-1]).to(values.dtype)


def epsilon_greedy(values: Tensor, epsilon: float) -> Tensor:
    """[..., A] action values -> chances: epsilon / A each, and 1 - epsilon more for the greedy one."""
    return (1.0 - epsilon) * greedy(values) + epsilon / values.shape[-1]


def _rule(name: str, words: list[str]) -> Callable[[Tensor], Tensor]:
    """From action values to chances, by the words after the file's name. Raises ConfigError."""
    mode, *numbers = words or ["greedy"]
    if mode not in MODES:
        raise ConfigError(
            _KEY, f"no mode {mode!r} in {name!r}{suggest(mode, MODES)}; allowed: {', '.join(MODES)}"
        )
    if mode == "greedy":
        if numbers:
            raise ConfigError(_KEY, f"greedy takes no number, got {name!r}")
        return greedy
    try:
        (number,) = (float(x) for x in numbers)
    except ValueError:
        number = math.nan
    if mode == "epsilon":
        if not 0 <= number <= 1:
            raise ConfigError(
                _KEY, f"epsilon needs a chance in [0, 1]: <file>:epsilon:0.05, got {name!r}"
            )
        return lambda values: epsilon_greedy(values, number)
    if not 0 < number < math.inf:
        raise ConfigError(
            _KEY, f"softmax needs a temperature > 0: <file>:softmax:0.5, got {name!r}"
        )
    return lambda values: torch.softmax(values / number, dim=-1)
