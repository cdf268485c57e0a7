"""Trained policies: load, evaluate, export."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.experiment.policy_file import (
    PolicyFile,
    changed_env,
    check_fits,
    env_config,
    env_words,
    read_policy,
)
from privrl_bench.experiment.trained_policy import TrainedPolicy, load_policy
from privrl_bench.experiment.writable import check_file
from privrl_bench.functional.rng import Streams
from privrl_bench.functional.statistics import bootstrap_ci

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
    from privrl_bench.api.exporting import FORMATS, GreedyModule
    from privrl_bench.errors import require_choice

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
    }
