"""What Hydra makes of the YAML files: groups, choices, and the config of a run.

Also the typed sections of such a config, and the errors for keys that are not in them.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema
from privrl_bench.config import overrides
from privrl_bench.config.diagnostics import OPTIONAL_GROUPS, no_such_key, wrong_type
from privrl_bench.config.overrides import CONFIG_NAME
from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.errors import ConfigError

VERSION_BASE = "1.3"
# What Hydra says of a file that does not fit the schema.
_IN_FILE = re.compile(
    r"In '(?P<file>[^']+)': \w+ raised while composing config:\n(?P<what>.*)\n\s+full_key: (?P<key>\S+)"
)
_VALUE = re.compile(r"Value '(?P<value>.*)' of type '(?P<kind>\w+)'")


@contextmanager
def composing(config_dir: str | None = None, **more: Any) -> Iterator[None]:
    """Hydra, initialised with the package's YAML files and those of `config_dir`, which win.

    Args:
        config_dir: see `compose.compose`.
        **more: arguments of `hydra.initialize_config_dir`.

    Raises:
        ConfigError: see `overrides.own_folder`.
    """
    with (
        overrides.own_folder(config_dir),
        initialize_config_dir(str(overrides.conf_dir()), version_base=VERSION_BASE, **more),
    ):
        yield


def loader() -> ConfigLoader:
    """Of the initialised Hydra."""
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    return hydra.config_loader


def groups() -> set[str]:
    """The groups of YAML files, without those within another one, of schemas and of Hydra."""
    return {group for group in overrides.groups() if "/" not in group}


def options(group: str) -> list[str]:
    """The choices of a group. Hydra takes 50 ms, and is asked for its own groups only."""
    if group in overrides.groups():
        return overrides.choices(group)
    return sorted(loader().get_group_options(group, config_name=CONFIG_NAME))


def composed(words: list[str]) -> DictConfig:
    """What Hydra composes of these words, each a key=value."""
    cfg = hydra_compose(CONFIG_NAME, words)
    name_own_files(cfg, words)
    return cfg


# --- where values are from


def name_own_files(cfg: DictConfig, words: Sequence[str]) -> None:
    """Let `hyperparameter_source` name the files of `own_folder` that a config is composed of.

    Args:
        cfg: the config of `words`; changed.
        words: what Hydra composed.

    Raises:
        ConfigError: a value in one of these files has no effect.
    """
    if overrides.own() is None:
        return
    files = loader().compute_defaults_list(CONFIG_NAME, list(words), RunMode.RUN).defaults
    used = [path.rpartition("/") for path in (str(one.config_path) for one in files)]
    _check_effective(cfg, [(group, name) for group, _, name in used], words)
    last = [part for part in used if part[0] in ("algo", "tuned", *OPTIONAL_GROUPS, "paper")][-1]
    found = {part: overrides.own_file(part[0], part[2]) for part in used}
    main = found.pop(last)
    source = cfg.hyperparameter_source if main is None else overrides.source_of(main)
    others = ", ".join(dict.fromkeys(str(path) for path in found.values() if path is not None))
    with open_dict(cfg):
        cfg.hyperparameter_source = f"{source}{overrides.WITH}{others}" if others else source


def _check_effective(
    cfg: DictConfig, used: Sequence[tuple[str, str]], words: Sequence[str]
) -> None:
    """Refuse a value of an own file that a file of another group overrules: it would be ignored.

    Values that the packaged file of the same name has, too, may be overruled.

    Args:
        cfg: the config.
        used: group and name of its files, in order; later ones win.
        words: what Hydra composed; they may overrule everything.
    """
    given = overrides.explicit_keys(words)
    ours: dict[str, bool] = {}  # key -> whether the last later file that sets it is an own one
    for group, name in reversed(used):
        path, own = overrides.file_of(group, name), overrides.own_file(group, name)
        found = {} if path is None else _values(path, group)
        plain = _values(overrides.conf_dir() / group / f"{name}.yaml", group) if own else {}
        for key, value in found.items():
            fine = ours.get(key, True) or own is None or key in given
            if fine or plain.get(key) == value or OmegaConf.select(cfg, key) == value:
                continue
            how = "since a file of another group sets it; give it on the command line"
            raise ConfigError(key, f"{value} of {path} has no effect, {how}")
        ours = dict.fromkeys(found, own is not None) | ours


def _values(path: Path, group: str) -> dict[str, Any]:
    """Keys of the config that a file of a group sets, and their values; empty: there is no such file."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = re.search(r"^# *@package +_global_", text, re.M) is not None
    content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text or "{}")))
    found = overrides.leaves(content, "" if whole else f"{group.partition('/')[0]}.")
    found.pop("hyperparameter_source", None)
    return found


# --- typed sections


def typed(algo: str) -> DictConfig:
    """The types of all keys, Hydra's included, with default values.

    Args:
        algo: the algorithm whose settings `algo` has; one without a schema has the keys of all.
    """
    cfg = OmegaConf.structured(RunConfig(env=EnvConfig(id="any")))  # an id, or its check refuses
    with open_dict(cfg):
        if algo in ALGORITHMS:
            cfg.algo = OmegaConf.structured(algo_schema(algo))
        cfg.hydra = OmegaConf.structured(HydraConf)
    return cfg


def unknown_key(key: str, cfg: DictConfig, groups: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown key of a config."""
    names = [
        f"{prefix}{name}"
        for prefix, section in sections(cfg)
        for name in field_types(section)
        if key.startswith("hydra") or not prefix.startswith("hydra")
    ]
    parent = key.rpartition(".")[0]
    section = OmegaConf.select(cfg, parent) if parent else None
    free = isinstance(section, DictConfig) and not field_types(section)
    return no_such_key(key, names, free, groups)


def sections(cfg: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig]]:
    """The config and every typed section below it, with key prefix (`""`, `algo.`, ...)."""
    yield prefix, cfg
    for name in map(str, cfg):
        if OmegaConf.is_missing(cfg, name) or OmegaConf.is_interpolation(cfg, name):
            continue
        node = cfg[name]
        if isinstance(node, DictConfig) and field_types(node):
            yield from sections(node, f"{prefix}{name}.")


def field_types(section: DictConfig) -> dict[str, Any]:
    """Names and types of a typed section's keys, in order; empty for a free mapping."""
    schema = OmegaConf.get_type(section)
    if schema is None or not dataclasses.is_dataclass(schema):
        return {}
    return _types_of(schema)


@functools.cache
def _types_of(schema: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def wrong_in_file(error: Exception, base: DictConfig) -> ConfigError | None:
    """The error for a key of a YAML file that does not fit the schema; None: Hydra refused something else.

    Args:
        error: what Hydra raised.
        base: see `typed`.
    """
    found = _IN_FILE.match(str(error))
    if found is None or found["file"].startswith("paper/"):  # its keys are those of one algorithm
        return None
    file, key = found["file"], re.sub(r"\[\d+\]$", "", found["key"])  # of an element of a list
    group, _, choice = file.partition("/")
    parent, _, name = key.rpartition(".")
    wrong = _VALUE.match(found["what"])
    if wrong is not None:
        value = wrong["value"] if wrong["kind"] == "str" else yaml.safe_load(wrong["value"])
        section = OmegaConf.select(base, parent) if parent else base
        wanted = wrong_type(field_types(section).get(name), value, key)
        return ConfigError(key, f"in {file}.yaml: {wanted}")
    if "not in" not in found["what"]:
        return None
    if group == "algo" and (parent == "algo.algo" or name in (*base.algo, "algo")):
        more = f"s `# @package _global_` and `defaults: [/schema/algo/{choice}@algo, _self_]`"
    elif key.partition(".")[0] == group and group not in base:
        more = " `# @package _global_`"
    else:
        unknown = unknown_key(key, base)
        return ConfigError(unknown.key, f"in {file}.yaml: {unknown.problem}")
    return ConfigError(group, f"{file}.yaml must begin with the line{more}")
