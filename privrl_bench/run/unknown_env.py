"""An environment that is none of the package's own: a short check before training, and lines of the plan."""

from __future__ import annotations

from privrl_bench.config.overrides import choices, own_file
from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.schema.env import wrappers_in_words
from privrl_bench.envs.check import ERROR, FINE, EnvFinding, brief
from privrl_bench.errors import ConfigError
from privrl_bench.run.plan import Plan
from privrl_bench.users import kind_of

_ANY = ("gym", "dmc")  # environments that stand for any of their kind
_CHECKED: dict[str, list[EnvFinding]] = {}


def unknown(config: EnvConfig) -> bool:
    """Whether the environment is none that the package or a plugin names, or has wrappers."""
    named = config.name in choices("env") and own_file("env", config.name) is None
    named = named and config.name not in _ANY and not config.wrappers
    return config.kind in _ANY and not named


def check_before_training(config: RunConfig) -> list[EnvFinding]:
    """Findings of `envs.check.brief` for an unknown Gymnasium environment that is simulated; else none.

    Raises:
        ConfigError: One is an error, with which training cannot work.
    """
    if not (config.env.check and kind_of(config).in_environments):
        return []
    if config.env.kind != "gym" and not config.env.wrappers:
        return []
    if not unknown(config.env):
        return []
    key = repr(config.env)
    if key not in _CHECKED:
        _CHECKED[key] = brief(config.env)
    for one in _CHECKED[key]:
        if one.severity == ERROR:
            raise ConfigError(
                "env.wrappers" if config.env.wrappers else "env.id",
                f"{config.env.label}: {one.text}; privrl check-env shows more, env.check=false trains on it",
            )
    return _CHECKED[key]


def lines(parts: Plan) -> list[str]:
    """Lines of the plan about an unknown environment: spaces, scaling, and the check before training."""
    config, spec = parts.config, parts.spec
    if not unknown(config.env):
        return []
    cnn = getattr(config.algo, "network", "mlp") == "cnn"
    seen = spec.observations
    if spec.image is not None and cnn:
        seen = f"{seen.split(', flattened')[0]}, as an image to a small CNN"
    elif spec.image is not None:
        seen += " (an image: algo.network=cnn uses its shape)"
    found = [f"observations: {seen}; actions: {spec.action_words}"]
    modes = f"observations {config.env.obs_scaling}, rewards {config.env.reward_scaling}"
    found = [f"  spaces  {found[0]}", f"  scaling {modes}"]
    if config.env.wrappers:
        found.insert(0, f"  wrapped {wrappers_in_words(config.env)}")
    for one in check_before_training(config):
        mark = "" if one.severity == FINE else f"{one.severity}: {one.check}: "
        found.append(f"  check   {mark}{one.text}")
    return found


def values(config: RunConfig) -> str:
    """Where the hyperparameters are from; those of other environments are named so."""
    source = config.hyperparameter_source
    if unknown(config.env) and source.startswith("algo/"):
        return f"{source}; they were not tuned for {config.env.label}"
    return source
