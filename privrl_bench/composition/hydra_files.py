"""What Hydra makes of the YAML files: groups, choices, and the config of a choice of files, composed once.

Also the typed sections of such a config, and the errors for keys that are not in them.
Hydra takes 0.1 s to find and merge the files of a run; setting keys of the result takes a tenth of it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema
from privrl_bench.config import overrides
from privrl_bench.config.diagnostics import OPTIONAL_GROUPS, no_such_key, wrong_type
from privrl_bench.config.file_errors import FileError
from privrl_bench.config.overrides import CONFIG_NAME
from privrl_bench.errors import ConfigError

VERSION_BASE = "1.3"


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


def searchpath(parsed: Iterable[Override]) -> tuple[str, ...]:
    """The words that add folders. Raises `ConfigError`: a file in them would be ignored."""
    found = [override for override in parsed if override.key_or_group == "hydra.searchpath"]
    for override in found:
        value = override.value()
        for path in value if isinstance(value, list) else []:
            overrides.check_searchpath(str(path))
    return tuple(override.input_line or "" for override in found)


def options(searchpath: tuple[str, ...], group: str) -> list[str]:
    """The choices of a group, in the folders of the search path, of plugins and of `own_folder` as well."""
    if overrides.own() is not None:  # its files may change while this process runs
        return _options(searchpath, group)
    return _kept_options(searchpath, overrides.added_folders(), group)


@functools.cache  # Hydra takes 50 ms for each
def _kept_options(searchpath: tuple[str, ...], added: tuple[Path, ...], group: str) -> list[str]:
    return _options(searchpath, group)


def _options(searchpath: tuple[str, ...], group: str) -> list[str]:
    given = list(searchpath)
    return sorted(loader().get_group_options(group, config_name=CONFIG_NAME, overrides=given))


def composed(parsed: Sequence[Override]) -> DictConfig:
    """What Hydra composes of these words, each a key=value."""
    words = [override.input_line or "" for override in parsed]
    of_groups = [override for override in parsed if override.key_or_group in groups()]
    of_keys = [override for override in parsed if override.key_or_group not in groups()]
    if overrides.own() is not None:
        cfg = hydra_compose(CONFIG_NAME, words)
        name_own_files(cfg, words)
        return cfg
    # Files of plugins may change while this process runs.
    files_change = bool(overrides.added_folders())
    if files_change or not all(map(_is_choice, of_groups)) or not all(map(_is_plain, of_keys)):
        return hydra_compose(CONFIG_NAME, words)
    chosen = tuple(override.input_line or "" for override in of_groups)
    names = [str(o.value()) for o in of_groups if o.key_or_group == "algo"]
    schemas = tuple(algo_schema(name) for name in names if name in ALGORITHMS)
    with_hydra = any(override.key_or_group.startswith("hydra.") for override in of_keys)
    cfg = copy.deepcopy(_of_files(chosen, schemas, with_hydra))
    try:
        for override in of_keys:  # what Hydra does after merging the files
            key, force = override.key_or_group, override.is_force_add()
            OmegaConf.update(cfg, key, override.value(), merge=True, force_add=force)
    except OmegaConfBaseException:
        return hydra_compose(CONFIG_NAME, words)  # with Hydra's own message
    if with_hydra:
        with open_dict(cfg):
            del cfg["hydra"]
    return cfg


def composed_without(
    group: str, chosen: Mapping[str, str], searchpath: Sequence[str]
) -> DictConfig:
    """A config without the files of `own_folder`, for the types of its keys.

    Args:
        group: whose file is at fault; another one is taken, of an algorithm the package's.
        chosen: group -> the word that chooses its file.
        searchpath: the words that add folders.
    """
    instance = GlobalHydra.instance()
    outer = instance.hydra, overrides.own()
    instance.clear()
    overrides.keep_own(None)
    try:
        words = [
            word
            for name, word in chosen.items()
            if overrides.file_of(name, word.partition("=")[2])
            and name in {*chosen} - {group} | {"algo"}
        ]
        with composing():
            return hydra_compose(CONFIG_NAME, [*searchpath, *words])
    finally:
        GlobalHydra.instance().hydra, own = outer
        overrides.keep_own(own)


@functools.lru_cache(256)
def _of_files(
    chosen: tuple[str, ...], schemas: tuple[type[Any], ...], with_hydra: bool
) -> DictConfig:
    """The config of these choices; `schemas` are those that Hydra finds registered."""
    return hydra_compose(CONFIG_NAME, list(chosen), return_hydra_config=with_hydra)


def _is_choice(override: Override) -> bool:
    """Whether the word chooses one file of a group, or none."""
    return not override.is_sweep_override() and not isinstance(override.value(), dict)


def _is_plain(override: Override) -> bool:
    """Whether the word sets a key of the run or the folder of runs: no group within another one."""
    key, special = override.key_or_group, override.is_add() or override.is_delete()
    other = override.package is not None or "/" in key
    if key.partition(".")[0] == "hydra":
        other |= not key.startswith(("hydra.run.", "hydra.sweep."))
    return not (special or other or override.is_sweep_override())


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
    given = {word.partition("=")[0].lstrip("+~") for word in words}
    files = [(overrides.own_file(*one), one) for one in used]
    for at, (path, (group, name)) in enumerate(files):
        if path is None:
            continue
        plain = _leaves(overrides.conf_dir() / group / f"{name}.yaml", group)
        for key, value in _leaves(path, group).items():
            same = key in plain and plain[key] == value
            if same or key in given or OmegaConf.select(cfg, key) == value:
                continue
            later = [
                one for _, one in files[at + 1 :] if key in _leaves(overrides.file_of(*one), one[0])
            ]
            if later and overrides.own_file(*later[-1]) is None:
                last = "/".join(later[-1])
                raise ConfigError(
                    key,
                    f"{value} of {path} has no effect, since {last}.yaml sets it; give it on the command line, "
                    f"or in your own {last}.yaml",
                )


def _leaves(path: Path | None, group: str) -> dict[str, Any]:
    """Keys of the config that a file of a group sets, and their values; empty: there is no such file."""
    if path is None or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = re.search(r"^# *@package +_global_", text, re.M) is not None
    content = OmegaConf.to_container(OmegaConf.create(text or "{}"))
    found: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), part)
        elif prefix.rpartition(".")[2] != "defaults":
            found[prefix] = value

    add("" if whole else group.partition("/")[0], content)
    found.pop("hyperparameter_source", None)
    return found


# --- typed sections


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


def wrong_in_file(found: FileError, base: DictConfig) -> ConfigError:
    """The error for a key of a YAML file; `base` is composed without the file."""
    parent, _, name = found.key.rpartition(".")
    algo = found.file.removeprefix("algo/")
    if (
        found.unknown
        and algo != found.file
        and (parent == "algo.algo" or name in (*base.algo, "algo"))
    ):
        lines = (
            f"the lines `# @package _global_` and `defaults: [/schema/algo/{algo}@algo, _self_]`"
        )
        return ConfigError("algo", f"{found.file}.yaml must begin with {lines}")
    group = found.group.partition("/")[0]
    if found.unknown and found.key.partition(".")[0] == group and group not in base:
        rule = "must begin with the line `# @package _global_`"
        return ConfigError(group, f"{found.file}.yaml {rule}")
    if found.unknown:
        error = unknown_key(found.key, base)
    else:
        section = OmegaConf.select(base, parent) if parent else base
        wanted = field_types(section).get(name)
        error = ConfigError(found.key, wrong_type(wanted, found.value, found.key))
    return ConfigError(error.key, f"in {found.file}.yaml: {error.problem}")
