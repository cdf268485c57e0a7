"""Values for an environment that none were tuned for, by the kind of its actions and episodes.

They are applied to `env=gym`, `env=dmc` and every environment of a file that is not the package's own, where
neither `tuned` nor `paper` is given and no tuned file has changed a value of the algorithm. They are below what
the command line gives and below what the environment's file changes, and name themselves as generic in
`hyperparameter_source`.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from privrl_bench.config.overrides import (
    GENERIC,
    WITH,
    conf_dir,
    file_of,
    is_packaged,
    leaves,
    own_file,
    source_of,
)
from privrl_bench.errors import ConfigError

LONG = 200  # steps of an episode above which it is long


def with_generic_values(cfg: DictConfig, explicit: Collection[str]) -> DictConfig:
    """Return a composed configuration with values for the kind of its environment.

    Args:
        cfg: of a run; not changed.
        explicit: keys and groups that the command line gives, which win.

    Returns:
        `cfg` itself where it has values of its own, or where the environment cannot be made, which the
        checks of a run report.
    """
    algo, env = str(cfg.algo.name), str(cfg.env.name)
    ours = env not in GENERIC and is_packaged("env", env)
    untuned = str(cfg.hyperparameter_source).startswith(f"algo/{algo}") and not own_file(
        "algo", algo
    )
    if ours or not untuned or {"tuned", "paper"} & {*explicit}:
        return cfg
    plain = conf_dir() / "algo" / f"{algo}.yaml"
    usual = _values(plain) if is_packaged("algo", algo) and plain.is_file() else {}
    changed = {key for key, value in usual.items() if OmegaConf.select(cfg, key) != value}
    # A tuned file of the user's own, which need not name itself, has changed a value.
    if any(key.startswith("algo.") and key not in explicit for key in changed):
        return cfg
    if not any(file_of("tuned", f"{algo}_{kind}_short") for kind in ("discrete", "continuous")):
        return cfg  # the environment need not be made
    kind = _kind(cfg)
    path = None if kind is None else file_of("tuned", f"{algo}_{kind}")
    if path is None:
        return cfg
    made = copy.deepcopy(cfg)
    for key, value in _values(path).items():
        theirs = key.startswith("env.") and OmegaConf.select(cfg, key) != usual.get(key)
        if key not in explicit and not theirs:
            OmegaConf.update(made, key, value)
    if path == own_file("tuned", path.stem):
        made.hyperparameter_source = source_of(path)
    made.hyperparameter_source += "".join(str(cfg.hyperparameter_source).partition(WITH)[1:])
    return made


def _values(path: Path) -> dict[str, Any]:
    """The values of a YAML file by key, read as Hydra does, over those of the files that it is based on."""
    values = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path)))
    names = [name for name in values.get("defaults", ()) if isinstance(name, str)]
    bases = [_values(base) for name in names if (base := file_of(path.parent.name, name))]
    return dict(ChainMap(leaves(values), *reversed(bases)))


def _kind(cfg: DictConfig) -> str | None:
    """`discrete_short`, `discrete_long`, `continuous_short` or `continuous_long`.

    The environment is made, but neither reset nor stepped. None: it cannot be made, or has no time limit.
    """
    from privrl_bench.envs.construction import make_env, max_episode_steps  # imports simulators

    try:
        config: Any = OmegaConf.to_object(cfg.env)
        with closing(make_env(config)) as env:
            length = "long" if max_episode_steps(config, env) > LONG else "short"
            actions = "continuous" if hasattr(env.action_space, "low") else "discrete"
    except ConfigError:
        return None
    return f"{actions}_{length}"
