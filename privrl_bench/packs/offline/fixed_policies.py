"""Fixed public policies over discrete actions: functions from raw observations to action probabilities.

Policy evaluation uses two of them, the target policy and the behaviour policy. A name is one of

- `uniform`: all actions with equal probability;
- `<file>`, `<file>:greedy`: the action with the largest value, linear in the Fourier features of a file.
  The file is one of the package (`packs/offline/policies/`) or a path that ends in .json;
- `<file>:epsilon:0.05`: a uniform action with this probability, otherwise the greedy one;
- `<file>:softmax:0.5`: probabilities proportional to exp(value / 0.5);
- a run folder, or its policy.pt: the policy that was trained, acting stochastically.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.training.trained_policy import FILE, check_fits, read_policy
from privrl_bench.types import EnvSpec

POLICIES = Path(__file__).parent / "policies"
UNIFORM = "uniform"
MODES = ("greedy", "epsilon", "softmax")
_KEY = "policy"
_MOST_WAVES = 100_000


def fourier_waves(inputs: int, order: int, joint: int | None = None) -> Tensor:
    """Return the coefficients of a Fourier basis: vectors c in {0, ..., order}^D, the last entry fastest.

    Args:
        inputs: D.
        order: Largest coefficient.
        joint: Keep vectors with at most this many nonzero entries; None: all (order + 1)^D.

    Returns:
        [F, D] integers, as float64.

    Raises:
        ValueError: The basis is too large.

    Source:
        Konidaris, Osentoski and Thomas 2011.
    """
    if order < 0 or inputs < 1 or (order + 1) ** inputs > _MOST_WAVES:
        raise ValueError(f"no Fourier basis of order {order} in {inputs} dimensions")
    every = itertools.product(range(order + 1), repeat=inputs)
    kept = [c for c in every if joint is None or sum(x > 0 for x in c) <= joint]
    return torch.tensor(kept, dtype=torch.float64)


def fourier_features(obs: Tensor, low: Tensor, high: Tensor, waves: Tensor) -> Tensor:
    """Compute the Fourier features cos(pi c . s), s = x scaled from a box to [0, 1]^D and clipped.

    The first feature, of c = 0, is constantly 1.

    Args:
        obs: [..., D] x.
        low: [D] lower corner of the box.
        high: [D] upper corner.
        waves: [F, D] the vectors c, see `fourier_waves`.

    Returns:
        [..., F].
    """
    s = ((obs - low) / (high - low)).clamp(0.0, 1.0)
    return (s @ waves.to(s).T).mul_(math.pi).cos_()


@dataclass(frozen=True)
class FixedPolicy:
    """A public policy over discrete actions.

    Attributes:
        name: See `fixed_policy`.
        rule: From raw observations [..., D] to probabilities [..., A], in double precision.
    """

    name: str
    rule: Callable[[Tensor], Tensor]

    def probabilities(self, obs: Tensor) -> Tensor:
        """Return action probabilities [..., A] of raw observations [..., D], in the precision of `obs`."""
        return self.rule(obs.double()).to(obs.dtype)

    def draws(self, generator: torch.Generator, steps: int) -> Tensor:
        """Return the random numbers [T] of one episode, for `begin`."""
        return torch.rand(steps, generator=generator, dtype=torch.float64)

    def begin(self) -> Callable[[np.ndarray, Tensor], tuple[np.ndarray, np.ndarray]]:
        """Return the function from observations [n, D] and draws [n] to actions [n] and their probabilities."""
        return self._act

    def _act(self, obs: np.ndarray, draws: Tensor) -> tuple[np.ndarray, np.ndarray]:
        offered = self.probabilities(torch.from_numpy(obs).double()).numpy()
        chosen = choose(offered, draws.numpy())
        return chosen, np.take_along_axis(offered, chosen[:, None], -1)[:, 0]


def choose(behavior_probs: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """[n] actions with the probabilities [n, A], from uniforms [n] in [0, 1); never one of probability 0."""
    reached = np.cumsum(behavior_probs, axis=-1)
    first = (uniforms[:, None] >= reached).sum(-1)
    # Rounded sums may end below 1; then the last action with a positive probability is taken.
    last = behavior_probs.shape[-1] - 1 - (behavior_probs[:, ::-1] > 0).argmax(-1)
    return np.asarray(np.minimum(first, last))


@dataclass(frozen=True)
class LinearValues:
    """Action values of a policy file, linear in Fourier features of raw observations.

    Attributes:
        env_id: Gymnasium id of their environment.
        order: See `fourier_waves`.
        joint: See `fourier_waves`.
        low: [D] lower corner of the box of the features.
        high: [D] upper corner.
        weights: [F, A].
        about: Origin and scores, for documentation.
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
        """Vectors of `fourier_waves`, [F, D]."""
        return fourier_waves(len(self.low), self.order, self.joint)

    def __call__(self, obs: Tensor) -> Tensor:
        """Return action values [..., A] of raw observations [..., D] in double precision."""
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
    """Return the names of the package's policy files."""
    return sorted(path.stem for path in POLICIES.glob("*.json"))


def load_values(name: str) -> LinearValues:
    """Load the package's policy file `name`, or the .json file at this path.

    Raises:
        ConfigError: On policy: the file does not exist or is invalid.
    """
    path = Path(name) if name.endswith(".json") else POLICIES / f"{name}.json"
    allowed = [UNIFORM, *shipped()]
    if not path.is_file():
        raise ConfigError(
            _KEY,
            f"no policy {name!r}{suggest(name, allowed)}; allowed: {', '.join(allowed)}, a run folder, or the "
            "path of a .json file",
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
        raise ConfigError(_KEY, f"{name} is not a policy file: {reason}") from None
    return values


def is_trained(name: str) -> bool:
    """Whether a policy is named by a run folder, or a file policy.pt."""
    return name.endswith(".pt") or (Path(name) / FILE).is_file()


def is_given(name: str) -> bool:
    """Whether a policy is a run's or in a file: how it was made is not known here."""
    return is_trained(name) or Path(name.partition(":")[0]).is_file()


def fixed_policy(name: str, config: EnvConfig, spec: EnvSpec) -> FixedPolicy:
    """Return the policy of this name for an environment.

    Args:
        name: See the module's docstring.
        config: The environment.
        spec: Its public facts.

    Raises:
        ConfigError: On policy: an unknown name or mode, an invalid number or file, or a file of another
            environment.
    """
    if not spec.discrete:
        raise ConfigError(
            _KEY,
            f"fixed policies need discrete actions; those of env={config.label} are continuous",
        )
    if is_trained(name):
        return _trained(name, config, spec)
    file, *rest = name.split(":")
    if file == UNIFORM:
        if rest:
            raise ConfigError(_KEY, f"uniform has no mode, got {name!r}")
        return FixedPolicy(name, lambda obs: _uniform(obs, spec.actions))
    rule = _rule(name, rest)
    values = load_values(file)
    if values.env_id != config.id or values.weights.shape[1] != spec.actions:
        raise ConfigError(_KEY, f"{file} is for {values.env_id}, not for env={config.label}")
    if len(values.low) != spec.obs_dim:
        raise ConfigError(
            _KEY,
            f"{file} needs observations of size {len(values.low)}, env={config.label} has {spec.obs_dim}",
        )
    return FixedPolicy(name, lambda obs: rule(values(obs)))


def _trained(name: str, config: EnvConfig, spec: EnvSpec) -> FixedPolicy:
    """The policy of a run. Raises ConfigError: it does not fit, or has no probabilities of its own."""
    file = read_policy(name, _KEY)
    check_fits(file, spec, config.label)
    offered = getattr(file.policy, "probabilities", None)
    if offered is None or getattr(file.policy, "by_step", False):
        algo = file.algo["name"]
        raise ConfigError(_KEY, f"{name}: a policy of algo={algo} has no probabilities of actions")

    def rule(obs: Tensor) -> Tensor:
        seen = file.scaling.obs(obs.reshape(1, -1, obs.shape[-1]).numpy())
        with torch.inference_mode():
            found = offered(file.params[None], torch.from_numpy(seen).float(), 1)[0, 0]
        return found.double().reshape(*obs.shape[:-1], -1)

    return FixedPolicy(name, rule)


def _uniform(obs: Tensor, actions: int) -> Tensor:
    return obs.new_full((*obs.shape[:-1], actions), 1.0 / actions)


def greedy(values: Tensor) -> Tensor:
    """Return greedy probabilities of action values [..., A]: 1 for the first maximum."""
    return torch.nn.functional.one_hot(values.argmax(-1), values.shape[-1]).to(values.dtype)


def epsilon_greedy(values: Tensor, epsilon: float) -> Tensor:
    """Return epsilon-greedy probabilities of action values [..., A]."""
    return (1.0 - epsilon) * greedy(values) + epsilon / values.shape[-1]


def _rule(name: str, words: list[str]) -> Callable[[Tensor], Tensor]:
    """Parse the mode after the file's name: from action values to probabilities. Raises ConfigError."""
    mode, *numbers = words or ["greedy"]
    if mode not in MODES:
        raise ConfigError(
            _KEY, f"no mode {mode!r} in {name!r}{suggest(mode, MODES)}; allowed: {', '.join(MODES)}"
        )
    if mode == "greedy":
        if numbers:
            raise ConfigError(_KEY, f"greedy has no parameter, got {name!r}")
        return greedy
    try:
        (number,) = (float(x) for x in numbers)
    except ValueError:
        number = math.nan
    if mode == "epsilon":
        if not 0 <= number <= 1:
            raise ConfigError(
                _KEY, f"epsilon needs a probability in [0, 1]: <file>:epsilon:0.05, got {name!r}"
            )
        return lambda values: epsilon_greedy(values, number)
    if not 0 < number < math.inf:
        raise ConfigError(
            _KEY, f"softmax needs a temperature > 0: <file>:softmax:0.5, got {name!r}"
        )
    return lambda values: torch.softmax(values / number, dim=-1)
