"""From overrides to a configuration, by Hydra; `composition/` checks it, `hydra_files` keeps what is loaded.

Schemas are stored in the ConfigStore under `schema/`, so `algo`, `env`, ... list real choices only. When
composing fails, `explain` tries the overrides one at a time on typed defaults (`hydra_files.typed`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import yaml
from hydra import compose as hydra_compose
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.plugin_folders import PluginFolders
from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema
from privrl_bench.composition import hydra_files, plugins
from privrl_bench.composition.hydra_files import (
    VERSION_BASE,
    composing,
    field_types,
    sections,
    unknown_key,
    wrong_in_file,
)
from privrl_bench.config.diagnostics import (
    NOT_GIVEN,
    OPTIONAL_GROUPS,
    check_choice,
    check_choices,
    check_names,
    check_repeated,
    drawn,
    first_line,
    not_one_word,
    unreadable,
    unreadable_value,
    wrong_type,
)
from privrl_bench.config.folder_names import folder_name
from privrl_bench.config.overrides import (
    CONFIG_NAME,
    choices,
    choices_in_help,
    conf_dir,
    default_algo,
    default_choices,
    explicit_keys,
    explicit_length,
    only_packaged,
    plain_groups,
)
from privrl_bench.config.ranges import Section, check_sizes
from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.errors import ConfigError

__all__ = ["VERSION_BASE", "algo_schema", "choices", "conf_dir"]  # also used from here

HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
COMPOSE_ERRORS = (*HYDRA_ERRORS, ValueError)  # Hydra raises plain ones for odd choices
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
_RUN_KEYS = frozenset(field.name for field in dataclasses.fields(RunConfig))
_TEXT, _QUOTES = (str, str | None), "'\""
_Section = TypeVar("_Section", bound=Section)
_KEY = r"[+~]*[\w/@-]+(\.[\w-]+)*"  # of a word key=value


# --- reading words


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
            raise unreadable_value(key, value) from error
    return parsed


def hydra_overrides(words: Iterable[str]) -> list[str]:
    """The words that Hydra gets, of a command line, of a sweep and from Python alike.

    Raises:
        ConfigError: a word cannot be read, a key is given twice with different values, or only files set it.

    >>> hydra_overrides(["env=hopper", "+paper=dppg", "total_steps=10"])
    ['env=hopper', 'paper=dppg', 'total_steps=10', 'rounds=null']
    """
    found = [_quoted(word) for word in plain_groups(words)]
    plugins.load_given(found)
    parsed = parse(found)
    check_repeated(parsed)
    for override in parsed:
        if override.key_or_group in FOLDERS and override.value() == "":
            raise ConfigError(override.key_or_group, "must not be empty; give a folder")
    keys = explicit_keys(found)
    for key in keys & set(NOT_GIVEN):
        raise ConfigError(key, NOT_GIVEN[key])
    return explicit_length(found, keys)


def _quoted(word: str) -> str:
    """A word whose value is the path of a file or folder with `=` or commas, as run folders have, in quotes."""
    key, _, value = word.partition("=")
    quote = ("=" in value or "," in value) and os.path.exists(value)
    return f'{key}="{value}"' if quote else word


def run_folder(chosen: Mapping[str, Any], overrides: Iterable[str], seed: int) -> str:
    """`folder_names.folder_name` of the words of a run.

    >>> run_folder({"algo": "dppg", "env": "hopper"}, ["privacy.z=1e-1", "log=none", "algo=dppg"], 3)
    'dppg/hopper/z=0.1,seed=3'
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    given = [(one.key_or_group, one.get_value_element_as_str()) for one in parsed]
    return folder_name(str(chosen["algo"]), str(chosen["env"]), given, seed)


# --- registration


def register_algo(words: Iterable[str]) -> None:
    """Store the schemas of the algorithms that the words choose, or the environments among them."""
    for word in words:
        group, _, value = word.partition("=")
        for name in re.findall(r"\w+", value) if group in ("algo", "env") else ():
            algo = name if group == "algo" else default_algo(name)
            if algo in ALGORITHMS:
                _store(algo)


def _store(name: str) -> None:
    ConfigStore.instance().store(group="schema/algo", name=name, node=algo_schema(name))


def register() -> None:
    """Store what conf/ uses: schemas, resolvers, folders. Calling it again changes nothing."""
    run = OmegaConf.structured(RunConfig(env=EnvConfig(id="any")))  # an id, or its check refuses
    run.env.id = None
    ConfigStore.instance().store(group="schema", name="run", node=run, package="_global_")
    _store("dppg")  # the default of config.yaml
    OmegaConf.register_new_resolver("privrl_bench.folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("privrl_bench.choices", choices_in_help, replace=True)
    Plugins.instance().register(PluginFolders)


register()


# --- composing


def compose_raw(overrides: Iterable[str] = ()) -> DictConfig:
    """What Hydra composes of words like `env=hopper` or `privacy.z=0.1`, before any check of values.

    Hydra composes the files that the words choose; words that set one value are applied to a copy of that,
    which takes a tenth of the time. Where this is refused, Hydra composes all words, for its message.

    Raises:
        ConfigError: one line.
    """
    # It loads plugins, whose folders Hydra must know from the start.
    words = hydra_overrides(overrides)
    parsed = parse(words)
    values = [one for one in parsed if _sets_value(one)]
    if only_packaged():
        chosen = (word for word, one in zip(words, parsed, strict=True) if one not in values)
        with contextlib.suppress(ConfigError, OmegaConfBaseException):
            found = copy.deepcopy(_of_files(tuple(chosen)))
            for one in values:
                if one.key_or_group not in FOLDERS:
                    OmegaConf.update(found, one.key_or_group, one.value(), merge=True)
            check_names(choices_of(parsed), lambda group: str(found[group].name))
            return found
    return _by_hydra(words)


def _sets_value(one: Override) -> bool:
    """Whether an override sets a value of `RunConfig`, or the folder of a run, and chooses no file."""
    key, value = one.key_or_group, one.value()
    if one.type is not OverrideType.CHANGE or one.is_sweep_override() or one.package is not None:
        return False
    if key in FOLDERS:
        return isinstance(value, str)
    name = key.partition(".")[0]
    return name in _RUN_KEYS and (name != key or name not in hydra_files.groups())


@functools.lru_cache(maxsize=256)
def _of_files(words: tuple[str, ...]) -> DictConfig:
    return _by_hydra(list(words))


def _by_hydra(words: list[str]) -> DictConfig:
    register_algo(words)
    parsed = parse(words)
    with composing():
        try:
            check_choices(parsed, hydra_files.groups() - {"collect"}, hydra_files.options)
            cfg = hydra_files.composed(words)
        except ConfigError:
            raise
        except yaml.YAMLError as error:
            raise unreadable(error) from error
        except RecursionError as error:
            what = "a YAML file names itself in its defaults, or files name each other"
            raise ConfigError("", f"{what}: copy the package's values") from error
        except COMPOSE_ERRORS as error:
            raise explain(parsed, error) from error
    check_names(choices_of(parsed), lambda group: str(cfg[group].name))
    return cfg


def choices_of(parsed: Iterable[Override]) -> dict[str, str]:
    """Group -> the name of its file, as words of one run and defaults choose it; also key -> value."""
    given = {one.key_or_group: str(one.value()) for one in parsed}
    found = default_choices() | given
    if "algo" not in given:
        found["algo"] = default_algo(found["env"])
    return found


def check_keys(cfg: DictConfig) -> None:
    """Refuse a composed configuration with keys that are unknown or removed. Raises `ConfigError`."""
    for prefix, section in sections(cfg):
        fields = field_types(section)
        for name in map(str, section):
            if name not in fields:
                raise unknown_key(f"{prefix}{name}", cfg)
        for name in fields:
            if name not in section:
                raise ConfigError(f"{prefix}{name}", "a key cannot be removed")


def to_run_config(cfg: DictConfig) -> RunConfig:
    """A composed configuration as dataclasses, whose ranges are checked. Raises `ConfigError`."""
    try:
        run = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(key, first_line(error)) from error
    assert isinstance(run, RunConfig)
    check_sizes(run)
    plugins.check_loaded(run.plugins)
    return run


def section_of(kind: type[_Section], values: Mapping[str, str]) -> _Section:
    """Settings that are no part of a run's configuration. Raises `ConfigError`.

    Args:
        kind: a dataclass whose keys begin with its `prefix`.
        values: key -> value, as on the command line.
    """
    base = OmegaConf.create({kind.prefix[:-1]: OmegaConf.structured(kind)})
    types = hydra_files.field_types(base[kind.prefix[:-1]])
    texts = [kind.prefix + name for name, one in types.items() if one in _TEXT]
    for key, value in values.items():
        free = key in texts and value != "null"  # brackets and commas have no meaning in it
        (override,) = parse([f"{key}={json.dumps(value.strip(_QUOTES)) if free else value}"])
        _check_key(override, base, ())
    found = OmegaConf.to_object(base[kind.prefix[:-1]])
    assert isinstance(found, kind)
    return found


def help_text() -> str:
    """The text of `privrl-bench --help`, written in conf/hydra/help/privrl_bench.yaml."""
    with composing():
        return str(hydra_compose(CONFIG_NAME, return_hydra_config=True).hydra.help.template)


# --- what Hydra refuses


def explain(parsed: Sequence[Override], error: Exception) -> ConfigError:
    """Find the override that composing failed on. Needs an initialised Hydra.

    Args:
        parsed: the words of one run.
        error: what Hydra raised; its first line is the answer when no single override is the cause.
    """
    try:
        groups = hydra_files.groups()
        keys: list[Override] = []
        for override in parsed:
            group = override.key_or_group
            if override.value_type is ValueType.INTERVAL_SWEEP:
                raise drawn(group, override.get_value_string())
            if override.is_sweep_override():
                raise ConfigError(
                    group, "several values need -m; one list is [a,b], one number has no commas"
                )
            if override.is_delete() and group in OPTIONAL_GROUPS:
                continue
            known = group in groups or group.startswith("hydra/")
            if known and not isinstance(override.value(), dict):
                check_choice(override, hydra_files.options(group))
            else:
                keys.append(override)
        if "'schema/algo/" in str(error):  # no key is known
            return not_one_word(error, ())
        base = hydra_files.typed(choices_of(parsed)["algo"])
        in_file = wrong_in_file(error, base)
        if in_file is not None:
            return in_file
        for override in keys:
            _check_key(override, base, groups)
    except ConfigError as found:
        return found
    return not_one_word(error, [override.key_or_group for override in parsed])


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
    if not typed and (not isinstance(section, DictConfig) or name not in section):
        raise unknown_key(key, base, groups)  # a typed one that has no value yet is not in it
    wanted = field_types(section).get(name)
    try:
        OmegaConf.update(base, key, value, merge=True, force_add=override.is_force_add())
    except OmegaConfBaseException as error:
        if dataclasses.is_dataclass(wanted):
            raise ConfigError(key, f"is a group of keys; set one of them, {key}.<name>=") from error
        raise ConfigError(key, wrong_type(wanted, value, key)) from error
