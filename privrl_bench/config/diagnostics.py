"""What is wrong with the words of a command line, in one line. Owns all contact with Hydra's errors.

When composing fails, `explain` tries the overrides one at a time, which does not depend on the
wording of Hydra's messages, and says which one is wrong and what is allowed.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import shlex
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from hydra import compose as hydra_compose
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privrl_bench.errors import ConfigError, suggest

CONFIG_NAME = "config"
_KEY = r"[+~]*[\w/@-]+(\.[\w-]+)*"  # of a word key=value
OPTIONAL_GROUPS = ("tuned", "paper", "paper/column")
# Keys that say which file a value is from: files set them, a command line must not.
SET_BY_FILES = {
    "env.name": "set by the env group; choose it with env=<name>",
    "algo.name": "set by the algo group; choose it with algo=<name>",
    "hyperparameter_source": "set by the file that holds the values; choose one with tuned=<name> or paper=<name>",
}
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
COMPOSE_ERRORS = (*HYDRA_ERRORS, ValueError)  # Hydra raises plain ones for odd choices


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parse override words. Raises `ConfigError` naming the word that cannot be read."""
    parser = OverridesParser.create()
    parsed = []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not re.fullmatch(_KEY, key) or not (equals or key.startswith("~")):
            raise ConfigError("", f"cannot read {word!r}; write key=value")
        try:
            parsed += parser.parse_overrides([word])
        except HydraException as error:
            raise ConfigError(
                key, f"cannot read the value {value!r}{_quoted(key, value)}"
            ) from error
    return parsed


def _quoted(key: str, value: str) -> str:
    """How to write a value that Hydra reads in quotes only, e.g. one that is not ASCII.

    >>> print(_quoted("env.id", "Wälder-v0"))
    ; quote it for Hydra and for the shell: 'env.id="Wälder-v0"'
    """
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return "; quote it for Hydra and for the shell: " + shlex.quote(f'{key}="{text}"')


def explain(overrides: Iterable[str], error: Exception) -> ConfigError:
    """Find the override that composing failed on. Needs an initialised Hydra.

    Args:
        overrides: the words of one run, without sweeps.
        error: what Hydra raised; its first line is the answer when no single override is guilty.
    """
    parsed: list[Override] = []
    try:
        parsed = parse(overrides)
        searchpath = [o.input_line or "" for o in parsed if o.key_or_group == "hydra.searchpath"]
        groups = set(_loader().list_groups("")) - {"schema", "hydra"}
        chosen: dict[str, str] = {}
        for override in parsed:
            group = override.key_or_group
            if override.is_sweep_override():
                raise ConfigError(group, "several values need -m; for one list write [a,b]")
            known = group in groups or group.startswith("hydra/")
            if known and not isinstance(override.value(), dict):
                _check_choice(override, _options(group, searchpath))
                chosen[group] = override.input_line or ""
        base = hydra_compose(CONFIG_NAME, searchpath + list(chosen.values()), True)
        for override in parsed:
            if override.key_or_group not in chosen:
                _check_key(override, base, groups)
    except ConfigError as found:
        return found
    except COMPOSE_ERRORS as broken:
        error = broken
    if "'paper/" in str(error):  # its keys are those of one algorithm
        return ConfigError("paper", "its values do not fit this algorithm; use it with its own")
    guilty = [o.key_or_group for o in parsed if o.key_or_group in str(error)]
    return ConfigError(guilty[0] if guilty else "", first_line(error))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _loader() -> ConfigLoader:
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    return hydra.config_loader


def _options(group: str, searchpath: list[str]) -> list[str]:
    """The choices of a group. Those of the package are looked up once, as Hydra takes 50 ms for each."""
    return _own_options(group) if not searchpath else _found_options(group, searchpath)


@functools.cache
def _own_options(group: str) -> list[str]:
    return _found_options(group, [])


def _found_options(group: str, searchpath: list[str]) -> list[str]:
    found = _loader().get_group_options(group, config_name=CONFIG_NAME, overrides=searchpath)
    return sorted(found)


def check_choices(words: Iterable[str]) -> None:
    """Raise `ConfigError` for a group without the given choice. Needs an initialised Hydra.

    Hydra leaves out an optional group without a file, which is wanted only where the file's name follows from
    the algorithm and the environment; it takes paths and file names for choices, and lets any group be removed.
    """
    parsed = parse(words)
    searchpath = [o.input_line or "" for o in parsed if o.key_or_group == "hydra.searchpath"]
    groups = set(_loader().list_groups("")) - {"schema", "hydra", "collect"}
    for override in parsed:
        group = override.key_or_group
        if override.is_sweep_override() or (group in OPTIONAL_GROUPS and override.is_delete()):
            continue
        if group in (*groups, *OPTIONAL_GROUPS) and not isinstance(override.value(), dict):
            _check_choice(override, _options(group, searchpath))
    _check_tuned(parsed, _options("algo", searchpath))


def _check_tuned(parsed: Iterable[Override], algos: Iterable[str]) -> None:
    """Raise `ConfigError` for values that were tuned for another algorithm: <algorithm>_<environment>."""
    chosen = {o.key_or_group: o.value() for o in parsed if not o.is_sweep_override()}
    tuned, algo = str(chosen.get("tuned")), str(chosen.get("algo", "dppg"))
    owners = [name for name in algos if tuned.startswith(f"{name}_")]
    owner = max(owners, key=len, default=algo)
    if owner != algo:
        raise ConfigError("tuned", f"{tuned} is for algo={owner}, got algo={algo}")


def _check_choice(override: Override, options: list[str]) -> None:
    """Raise `ConfigError` when a group gets a name that no YAML file has."""
    group, value = override.key_or_group, override.value()
    if override.is_delete() or isinstance(value, list):
        raise ConfigError(group, f"takes one choice; allowed: {', '.join(options)}")
    if str(value) not in options:
        raise ConfigError(
            group,
            f"no such choice {str(value)!r}{suggest(str(value), options)}; "
            f"allowed: {', '.join(options)}",
        )


def _check_key(override: Override, base: DictConfig, groups: Iterable[str]) -> None:
    """Raise `ConfigError` when a key does not exist or its value has the wrong type."""
    key, value = override.key_or_group, override.value()
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(base, parent) if parent else base
    if override.is_add() and isinstance(section, DictConfig) and name in section:
        raise ConfigError(key, f"exists already; write it without +, {key}=<value>")
    typed = isinstance(section, DictConfig) and name in field_types(section)
    if override.is_delete() and typed:
        raise ConfigError(key, "a key cannot be removed")
    if override.is_add() or (override.is_force_add() and not typed):
        return  # `to_run_config` finds what they break
    if not isinstance(section, DictConfig) or name not in section:
        raise no_such_key(key, base, groups)
    wanted = field_types(section).get(name)
    try:
        OmegaConf.update(base, key, value, merge=True, force_add=override.is_force_add())
    except OmegaConfBaseException as error:
        if dataclasses.is_dataclass(wanted):
            raise ConfigError(key, f"is a group of keys; set one of them, {key}.<name>=") from error
        raise ConfigError(key, _wrong_type(wanted, value)) from error


def no_such_key(key: str, cfg: DictConfig, groups: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown key, with the nearest name and the names beside it."""
    names = [
        f"{prefix}{name}"
        for prefix, section in sections(cfg)
        for name in field_types(section)
        if key.startswith("hydra") or not prefix.startswith("hydra")
        if f"{prefix}{name}" not in SET_BY_FILES
    ]
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(cfg, parent) if parent else None
    if isinstance(section, DictConfig):
        if not field_types(section):
            return ConfigError(key, f"no such key; add it with +{key}=<value>")
        beside = [n for n in names if n.rpartition(".")[0] == parent]
    else:
        beside = [*(n for n in names if "." not in n), "tuned", "paper"]
        names += [*groups, "tuned", "paper"]
    endings = {n.rpartition(".")[2]: n for n in reversed(names)}
    near = f" (did you mean {endings[name]}?)" if name in endings else suggest(key, names)
    return ConfigError(key, f"no such key{near}; allowed: {', '.join(beside)}")


def _wrong_type(wanted: Any, value: Any) -> str:
    """Words for a value of the wrong type.

    >>> _wrong_type(int, 1e6)
    'must be a whole number, got 1000000.0; write 1000000'
    """
    got = "null" if value is None else repr(str(value) if isinstance(value, str) else value)
    text = f"must be {_kind(wanted)}, got {got}"
    if wanted is int and isinstance(value, float) and value.is_integer():
        text += f"; write {int(value)}"
    return text


def _kind(wanted: Any) -> str:
    """A type in words.

    >>> _kind(list[float] | None)
    'null or a list of numbers'
    """
    if isinstance(wanted, types.UnionType) or typing.get_origin(wanted) is typing.Union:
        kinds = [_kind(t) for t in typing.get_args(wanted) if t is not type(None)]
        return f"null or {' or '.join(kinds)}"
    if typing.get_origin(wanted) is list:
        of = {int: "whole numbers", float: "numbers", str: "texts"}
        return f"a list of {of.get(typing.get_args(wanted)[0], 'values')}"
    if typing.get_origin(wanted) is dict:
        return "a mapping {name: value}"
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return f"one of {', '.join(choice.name for choice in wanted)}"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
    }
    return words.get(wanted, "of another type")


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
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}
