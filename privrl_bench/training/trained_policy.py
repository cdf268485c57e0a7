"""A trained policy in use, observations in and actions out, and `policy.pt`, from which it is read."""

from __future__ import annotations

import importlib
import warnings
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
from privrl_bench.envs.spaces import ActionMap
from privrl_bench.errors import ConfigError, no_run
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.policy import Policy, Sampler
from privrl_bench.types import EnvSpec, Image


class TrainedPolicy:
    """A released policy with the scaling of its observations and the mapping of its actions.

    Acting is post-processing of released parameters: it costs no privacy, however often it is done.

    Args:
        file: of `read_policy`.
        seed: of stochastic actions; None: drawn from the operating system.

    Attributes:
        file: what the policy was read from, with its guarantee.
    """

    def __init__(self, file: PolicyFile, seed: int | None = None):
        self.file = file
        self._params = file.params.unsqueeze(0)
        self._to_space = ActionMap(file.spec.action_space)
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self.reset()

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee of the parameters, as in `summary.json`."""
        return self.file.guarantee

    @property
    def epsilon(self) -> float:
        """Epsilon of the parameters; infinite without privacy."""
        return float(self.guarantee["epsilon"])

    def reset(self) -> None:
        """Begin a new episode. Needed by policies with a table for each step (`algo=ucbvi`) only."""
        self._sample: Sampler = self.file.policy.sampler(self._params)

    def act(self, observation: Any, *, greedy: bool = False) -> Any:
        """Actions for observations.

        Args:
            observation: of the environment (an array of the space's shape, a dict, a tuple, an integer), or a
                batch: an array with one more axis, or a list. A flat vector [D] is taken, too. Of logs: a
                dict of columns, or a list of them.
            greedy: the most likely action instead of a random one.

        Returns:
            An action of the environment's action space, or a batch [B, ...] of them. For columns: the name
            of the choice, or a dict of an action's columns.

        Raises:
            ValueError: the observation has another shape or other columns than the policy takes, or is not
                finite, or the actions are not finite.

        Warns:
            UserWarning: a number of a column is outside the range of the import.
        """
        if self.file.spec.obs_names:
            if isinstance(observation, dict):
                return self._act_by_name([observation], greedy)[0]
            if isinstance(observation, list) and isinstance(observation[0], dict):
                return self._act_by_name(observation, greedy)
        flat, batched = self._flat(observation)
        actions = self._to_space(self.choose(flat, greedy=greedy))
        if batched:
            return actions
        return actions[0] if self.file.spec.discrete else actions[0, ...]

    def choose(self, observations: np.ndarray, *, greedy: bool = False) -> np.ndarray:
        """What the policy chooses, before it is made an action of the environment's space.

        Args:
            observations: [B, D], flat.
            greedy: as in `act`.

        Returns:
            Numbers [B, A], or choices [B] or [B, A].

        Raises:
            ValueError: an observation is not finite.
        """
        if not np.isfinite(observations).all():
            raise ValueError("the observation has non-finite values")
        scaled = self.file.scaling.obs(observations[None])
        obs, policy = torch.from_numpy(scaled).float(), self.file.policy
        by_step = getattr(policy, "by_step", False)
        with torch.inference_mode():
            if greedy and not by_step:
                found = policy.greedy(self._params, obs)
            else:
                noise = policy.draw(self._generator, len(observations)).unsqueeze(0)
                found = self._sample(obs, noise)
        return policy.to_env(found[0].numpy())

    def _act_by_name(self, observations: list[dict[str, Any]], greedy: bool) -> list[Any]:
        """Actions by name for columns by name."""
        spec, flat = self.file.spec, np.stack([self._of_columns(one) for one in observations])
        actions = self._to_space(self.choose(flat, greedy=greedy)).tolist()
        names = spec.action_names
        if not names:
            return actions
        return [
            names[one] if spec.discrete else dict(zip(names, one, strict=True)) for one in actions
        ]

    def _of_columns(self, columns: dict[str, Any]) -> np.ndarray:
        """The observation [D] of named columns."""
        names = self.file.spec.obs_names
        words: dict[str, list[str]] = {}  # column -> its choices
        for name in names:
            column, mark, word = name.partition("=")
            words.setdefault(column, []).extend([word] if mark else [])
        if columns.keys() != words.keys():
            raise ValueError(
                f"the policy takes the columns {', '.join(words)}; got {', '.join(columns)}"
            )
        found: list[float] = []
        for column, allowed in words.items():
            value = columns[column]
            if allowed and str(value) not in allowed:
                raise ValueError(f"{column} must be one of {', '.join(allowed)}, got {value!r}")
            found += [str(value) == one for one in allowed] if allowed else [_number(column, value)]
        numbers = np.array(found, np.float64)
        space = self.file.spec.observation_space
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        for k in np.flatnonzero((numbers < low) | (numbers > high)):
            warnings.warn(
                f"{names[k]}={numbers[k]:g} is outside its range, {low[k]:g} to {high[k]:g}: what the policy "
                "does there is not learned from data",
                stacklevel=4,
            )
        return numbers

    def _flat(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations [B, D], and whether they are a batch."""
        from gymnasium import spaces

        space, dim = self.file.spec.observation_space, self.file.spec.obs_dim
        if not isinstance(space, spaces.Box):
            return self._flat_of(space, observation)
        array = np.asarray(observation, np.float64)
        for shape in (space.shape, (dim,)):
            if array.shape == shape:
                return array.reshape(1, dim), False
            if array.shape[1:] == shape and array.ndim == len(shape) + 1:
                return array.reshape(len(array), dim), True
        raise ValueError(
            f"the observation has shape {array.shape}; the policy takes {space.shape} or a batch of them"
        )

    def _flat_of(self, space: Any, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations of a space without a shape, as Gymnasium flattens them."""
        from gymnasium import spaces

        dim, array = self.file.spec.obs_dim, isinstance(observation, np.ndarray)
        if array and observation.shape == (dim,) != space.shape and observation.dtype.kind == "f":
            return observation[None].astype(np.float64), False
        states = isinstance(space, spaces.Discrete)
        if isinstance(observation, list) or (array and states and observation.ndim == 1):
            many = [int(x) if states and np.ndim(x) == 0 else x for x in observation]
            return np.concatenate([self._flat_of(space, one)[0] for one in many]), True
        if isinstance(space, spaces.Dict) and isinstance(observation, dict):  # env.obs_parts
            observation = {k: x for k, x in observation.items() if k in space.spaces}
        if not space.contains(observation):
            raise ValueError(f"the observation is not in {space}")
        return np.asarray(spaces.flatten(space, observation), np.float64)[None], False

    def __repr__(self) -> str:
        env, algo = self.file.env, self.file.algo["name"]
        return (
            f"TrainedPolicy({algo} on {env.get('id') or env['name']}, "
            f"epsilon {shown_epsilon(self.epsilon)} {self.guarantee['status']})"
        )


def _number(column: str, value: Any) -> float:
    """A finite or infinite number of a column. Raises ValueError."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{column} must be a number, got {value!r}") from None


def load_policy(path: str | Path, *, seed: int | None = None) -> TrainedPolicy:
    """Load the policy of a finished run.

        env = gymnasium.make("CartPole-v1")
        policy = pb.load_policy("outputs/dppg/cartpole/epsilon=1,seed=0")
        action = policy.act(env.reset()[0])

    Args:
        path: the run folder, or its `policy.pt`.
        seed: of stochastic actions; None: drawn from the operating system.

    Raises:
        ConfigError: there is no policy that can be read.
    """
    return TrainedPolicy(read_policy(path), seed)


# --- policy.pt


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
        if (file.parent / "status.json").exists():
            rerun = "the run is not finished: rerun its command to resume it"
            raise ConfigError(key, f"there is no {file}; {rerun}")
        raise no_run(key, Path(path))
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
        raise ConfigError(
            key, f"{file} is no policy of an environment: load what algo={algo} exports beside it"
        )
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


def _spec_of(content: Mapping[str, Any]) -> EnvSpec:
    from minari.serialization import deserialize_space

    found = dict(content)
    for name in BOUNDS:
        found[name] = None if found[name] is None else np.array(found[name], np.float64)
    for name in SPACES:
        found[name] = deserialize_space(found[name])
    for name in ("obs_names", "action_names"):
        found[name] = tuple(found.get(name, ()))
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
    for name in ("obs_names", "action_names"):
        theirs, ours = getattr(spec, name), getattr(file.spec, name)
        if theirs and ours and theirs != ours:
            raise ConfigError(
                "env",
                f"{label} does not fit the policy: {', '.join(theirs)} there, {', '.join(ours)} in {file.path}",
            )
