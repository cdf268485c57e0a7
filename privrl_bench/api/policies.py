"""Trained policies: load, evaluate, export as ONNX and TorchScript files."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.spaces import ActionMap
from privrl_bench.errors import ConfigError, require_choice
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import bootstrap_ci
from privrl_bench.training.trained_policy import (
    PolicyFile,
    TrainedPolicy,
    changed_env,
    check_fits,
    env_config,
    env_words,
    load_policy,
    read_policy,
)
from privrl_bench.training.writable import check_file

__all__ = ["EpisodeReturns", "TrainedPolicy", "env_of", "evaluate", "export", "load_policy"]


@dataclass(frozen=True)
class EpisodeReturns:
    """Whole episodes of a policy in simulated environments, which belong to no user.

    Attributes:
        env: name of the environment.
        returns: [E] undiscounted.
        lengths: [E] steps.
    """

    env: str
    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the mean."""
        return bootstrap_ci(self.returns)


def env_of(file: PolicyFile, words: Iterable[str] = (), config_dir: str | None = None) -> EnvConfig:
    """The environment of a policy, or the one that words name.

    Args:
        file: of the policy.
        words: such as `env=hopper` or `env.max_episode_steps=200`; none: the environment of training.
        config_dir: a folder with YAML files, which win over the package's of their names.

    Raises:
        ConfigError: bad words, or the policy does not fit that environment.
    """
    given = list(words)
    if not given:
        return env_config(file)
    for word in given:
        key = word.partition("=")[0].lstrip("+~")
        if key not in ("env", "plugins") and not key.startswith("env."):
            rule = "words of an environment only, env=<name> or env.<key>=<value>"
            raise ConfigError(key, f"has no effect on a trained policy, which takes {rule}")
    other = any(word.startswith("env=") for word in given)
    words = given if other else env_words(file) + given
    found = compose(["algo=ppo", "tuned=null", *words], config_dir).env
    if not other:  # the environment of training, but for what is given
        found = changed_env(file, found, given)
    check_fits(file, env_spec(found), found.label)
    return found


def evaluate(
    path: str | Path,
    *,
    episodes: int = 100,
    env: str | Iterable[str] = (),
    greedy: bool | None = None,
    seed: int = 0,
    config_dir: str | None = None,
) -> EpisodeReturns:
    """Evaluate the policy of a finished run in whole episodes.

        found = pb.evaluate("outputs/dppg/cartpole/epsilon=1,seed=0", episodes=200)
        print(found.mean, *found.interval)
        found = pb.evaluate("outputs/dppg/cartpole/epsilon=1,seed=0", env="env.max_episode_steps=200")

    It costs no privacy: the policy is released and the episodes are simulated.

    Args:
        path: the run folder, or its `policy.pt`.
        episodes: how many.
        env: words that name another environment; none: that of training.
        greedy: the most likely action; None: as the run evaluated.
        seed: of the episodes.
        config_dir: a folder with YAML files, for `env`.

    Raises:
        ConfigError: there is no policy, or it does not fit the environment.
        RuntimeError: rewards, observations or actions were not finite.
    """
    if episodes < 2:
        raise ConfigError("episodes", f"must be an integer >= 2, got {episodes}")
    file = read_policy(path)
    config = env_of(file, env.split() if isinstance(env, str) else env, config_dir)
    chosen = file.eval["policy"] == "greedy" if greedy is None else greedy
    evaluator = ReturnEvaluator(
        config, env_spec(config), file.policy, [Streams(seed)], episodes, chosen
    )
    try:
        (found,) = evaluator.evaluate(file.params[None], 0, file.scaling)
    finally:
        evaluator.close()
    if found.problem:
        raise RuntimeError(found.problem)
    return EpisodeReturns(config.label, found.returns, found.lengths)


def export(path: str | Path, to: str = "onnx", out: str | Path | None = None) -> Path:
    """Write the greedy policy of a finished run for other programs.

        path = pb.export("outputs/dppg/cartpole/epsilon=1,seed=0", to="onnx")
        session = onnxruntime.InferenceSession(path)
        (actions,) = session.run(None, {session.get_inputs()[0].name: observations})

    The file maps observations [B, D] (float32, flat, as the environment gives them) to actions [B] or [B, A] of
    the environment; scaling and the mapping of actions are inside. The guarantee is in its metadata.

    Args:
        path: the run folder, or its `policy.pt`.
        to: `onnx` (needs the extra `export`) or `torchscript`.
        out: the file; None: `policy.onnx` or `policy.ts` beside `policy.pt`.

    Returns:
        The file.

    Raises:
        ConfigError: there is no policy, it cannot be exported, or a package is missing.
    """
    require_choice("to", to, FORMATS)
    file = read_policy(path)
    suffix, write = FORMATS[to]
    target = Path(out) if out is not None else file.path.with_suffix(suffix)
    check_file("out", target)
    for name, (other, _) in FORMATS.items():
        if name != to and target.suffix == other:
            raise ConfigError("out", f"{target} has the suffix of to={name}; to={to} has {suffix}")
    write(GreedyModule(file), file, target)
    return target


def metadata(file: PolicyFile) -> dict[str, Any]:
    """What an exported file says about itself, as plain data."""
    return {
        "guarantee": file.guarantee,
        "algo": file.algo["name"],
        "env": file.env.get("id") or file.env["name"],
        "obs_dim": file.spec.obs_dim,
        "actions": file.spec.actions,
        "discrete": file.spec.discrete,
        "obs_names": file.spec.obs_names,
        "action_names": file.spec.action_names,
    }


class GreedyModule(nn.Module):
    """From observations [B, D] to the greedy actions of the environment.

    Args:
        file: of the policy.

    Raises:
        ConfigError: the policy depends on the step of the episode.
    """

    params: Tensor
    mean: Tensor
    std: Tensor
    least: Tensor
    most: Tensor
    centre: Tensor
    half_width: Tensor
    start: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, file: PolicyFile):
        super().__init__()
        if getattr(file.policy, "by_step", False):
            raise ConfigError(
                "path",
                f"{file.path}: a policy with a table for each step cannot be exported; use load_policy",
            )
        self._policy, self._clip = file.policy, float(file.scaling.clip)
        self.register_buffer("params", file.params.clone().unsqueeze(0))
        scaling = file.scaling
        mean = np.zeros(file.spec.obs_dim) if scaling.mean is None else scaling.mean
        std = np.ones(file.spec.obs_dim) if scaling.std is None else scaling.std
        self._scaled = scaling.mean is not None
        self.register_buffer("mean", torch.as_tensor(np.asarray(mean).reshape(1, -1)).float())
        self.register_buffer("std", torch.as_tensor(np.asarray(std).reshape(1, -1)).float())
        bounds = file.policy.bounds()
        self._bounded = bounds is not None
        for name, x in zip(("least", "most", "centre", "half_width"), bounds or (), strict=False):
            self.register_buffer(name, torch.as_tensor(x).float().reshape(1, -1))
        # Choices are integers; of several at once, one each.
        self._integers = file.spec.discrete or file.spec.choices is not None
        start = np.asarray(getattr(file.spec.action_space, "start", 0)).reshape(-1)
        self.register_buffer("start", torch.as_tensor(start).long())
        self._box = None if self._integers else ActionMap(file.spec.action_space)
        if self._box is not None:
            self._type = torch.as_tensor(np.zeros(0, file.spec.action_space.dtype)).dtype
            # Single precision holds the bounds of these types exactly; other types need double.
            exact = (torch.float16, torch.float32, torch.int8, torch.uint8, torch.int16)
            self._wide = torch.float32 if self._type in exact else torch.float64
            for name, bound in (("low", self._box.low), ("high", self._box.high)):
                self.register_buffer(name, torch.as_tensor(bound).to(self._wide).unsqueeze(0))

    def forward(self, observations: Tensor) -> Tensor:
        """Actions [B] or [B, A]."""
        x = observations
        if self._scaled:
            x = ((x - self.mean) / self.std).clamp(-self._clip, self._clip)
        actions = self._policy.greedy(self.params, x.unsqueeze(0)).squeeze(0)
        if self._bounded:
            cut = torch.minimum(torch.maximum(actions, self.least), self.most)
            actions = self.centre + self.half_width * cut
        if self._box is not None:  # as `ActionMap.inside`
            numbers = actions.to(self._wide)
            numbers = torch.floor(numbers + 0.5) if self._box.whole else numbers
            return torch.minimum(torch.maximum(numbers, self.low), self.high).to(self._type)
        first = self.start[0] if actions.dim() == 1 else self.start
        return actions.long() + first


def _example(file: PolicyFile) -> Tensor:
    return torch.zeros(2, file.spec.obs_dim)


@contextmanager
def _quiet() -> Iterator[None]:
    """No log messages of the exporter about its own steps."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _onnx(module: GreedyModule, file: PolicyFile, target: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "to",
            f"onnx needs {' and '.join(missing)}: pip install 'privrl-bench[export]', or to=torchscript",
        )
    import onnx

    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (_example(file),),
            str(target),
            input_names=["observations"],
            output_names=["actions"],
            dynamic_shapes={"observations": {0: torch.export.Dim("batch")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(target))
    for key, value in metadata(file).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    onnx.save(model, str(target))


def _torchscript(module: GreedyModule, file: PolicyFile, target: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TorchScript's future
        traced: Any = torch.jit.trace(module, _example(file))
        files = {"privrl_bench.json": json.dumps(metadata(file))}
        torch.jit.save(traced, str(target), _extra_files=files)


# name -> suffix of the file, function that writes it
FORMATS: dict[str, tuple[str, Callable[[GreedyModule, PolicyFile, Path], None]]] = {
    "onnx": (".onnx", _onnx),
    "torchscript": (".ts", _torchscript),
}
