"""Values for an environment that none were tuned for, by the kind of its actions and episodes.

They are applied to `env=gym` and `env=dmc` where neither `tuned` nor `paper` is given, below what the command
line gives, and they name themselves as generic in `hyperparameter_source`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

GENERIC = ("gym", "dmc")  # environments that stand for any of their kind
_KINDS = "privrl_bench.envs.kinds"  # a higher layer, which makes the environment


def with_generic_values(cfg: Any, explicit: Collection[str], folder: Path) -> Any:
    """Return a composed configuration with values for the kind of its environment.

    Args:
        cfg: OmegaConf's mapping of a run; not changed.
        explicit: keys and groups that the command line gives, which win.
        folder: of the YAML files of `tuned`.

    Returns:
        `cfg` itself where it has values of its own, or where the environment cannot be made, which the
        checks of a run report.
    """
    if not applies(cfg, explicit):
        return cfg
    kind = importlib.import_module(_KINDS).kind_of(_plain(cfg.env))
    path = folder / f"{cfg.algo.name}_{kind}.yaml"
    if kind is None or not path.is_file():
        return cfg
    made = copy.deepcopy(cfg)
    for key, value in _leaves(yaml.safe_load(path.read_text())):
        if key not in explicit:
            *sections, name = key.split(".")
            section = made
            for one in sections:
                section = section[one]
            section[name] = value
    return made


def applies(cfg: Any, explicit: Collection[str]) -> bool:
    """Whether the environment is any one, and no file of values was chosen for it."""
    source = str(cfg.get("hyperparameter_source"))
    chosen = {"tuned", "paper"} & {*explicit}
    return cfg.env.name in GENERIC and source.startswith("algo/") and not chosen


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
