"""Values for an environment that none were tuned for, by the kind of its actions and episodes.

They are applied to `env=gym`, `env=dmc` and every environment of a file that is not the package's own, where
neither `tuned` nor `paper` is given and no tuned file has changed a value of the algorithm. They are below what
the command line gives and below what the environment's file changes, and name themselves as generic in
`hyperparameter_source`.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from privrl_bench.config.overrides import (
    GENERIC,
    WITH,
    conf_dir,
    file_of,
    is_packaged,
    own_file,
    source_of,
)


def with_generic_values(cfg: Any, explicit: Collection[str]) -> Any:
    """Return a composed configuration with values for the kind of its environment.

    Args:
        cfg: OmegaConf's mapping of a run; not changed.
        explicit: keys and groups that the command line gives, which win.

    Returns:
        `cfg` itself where it has values of its own, or where the environment cannot be made, which the
        checks of a run report.
    """
    if not applies(cfg, explicit):
        return cfg
    usual = _usual(cfg)
    if _tuned(cfg, explicit, usual):
        return cfg
    names = (f"{cfg.algo.name}_{actions}_short" for actions in ("discrete", "continuous"))
    if not any(file_of("tuned", name) for name in names):
        return cfg  # the environment need not be made
    from privrl_bench.envs.construction import kind_of  # not at the top: it imports simulators

    kind = kind_of(_plain(cfg.env))
    path = None if kind is None else file_of("tuned", f"{cfg.algo.name}_{kind}")
    if path is None:
        return cfg
    made = copy.deepcopy(cfg)
    for key, value in _leaves(yaml.safe_load(path.read_text())):
        theirs = key.startswith("env.") and not _same(_value(cfg, key), usual.get(key))
        if key not in explicit and not theirs:
            *sections, name = key.split(".")
            _section(made, sections)[name] = value
    if path == own_file("tuned", path.stem):
        made.hyperparameter_source = source_of(path)
    made.hyperparameter_source += "".join(str(cfg.hyperparameter_source).partition(WITH)[1:])
    return made


def applies(cfg: Any, explicit: Collection[str]) -> bool:
    """Whether the environment is not the package's own, and no file of values was chosen for it.

    Args:
        cfg: see `with_generic_values`.
        explicit: see `with_generic_values`.
    """
    algo, env = str(cfg.algo.name), str(cfg.env.name)
    source = str(cfg.get("hyperparameter_source"))
    untuned = source.startswith(f"algo/{algo}") and own_file("algo", algo) is None
    ours = env not in GENERIC and is_packaged("env", env)
    return not ours and untuned and not {"tuned", "paper"} & {*explicit}


def _usual(cfg: Any) -> dict[str, Any]:
    """The values of the algorithm's own YAML file by key; none for an algorithm of a plugin."""
    if not is_packaged("algo", cfg.algo.name):
        return {}
    values = yaml.safe_load((conf_dir() / "algo" / f"{cfg.algo.name}.yaml").read_text())
    return dict(_leaves({key: value for key, value in values.items() if key != "defaults"}))


def _tuned(cfg: Any, explicit: Collection[str], usual: Mapping[str, Any]) -> bool:
    """Whether a tuned file of the user's own, which need not name itself, has changed a value."""
    keys = [key for key in usual if key.startswith("algo.") and key not in explicit]
    return any(not _same(_value(cfg, key), usual[key]) for key in keys)


def _value(cfg: Any, key: str) -> Any:
    *sections, name = key.split(".")
    return _plain(_section(cfg, sections).get(name))


def _section(cfg: Any, names: Sequence[str]) -> Any:
    for name in names:
        cfg = cfg[name]
    return cfg


def _same(one: Any, other: Any) -> bool:
    """Equal, also where YAML's plain reader takes a number like 6e-3 for a text."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return bool(one == other)


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> Any:
    """A configuration's mappings and lists as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value
