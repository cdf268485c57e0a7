"""From words on the command line to a checked `RunConfig`. Owns all contact with Hydra's errors.

Schemas are stored in the ConfigStore under `schema/`, so `algo`, `env`, ... list real choices only.
When composing fails, `explain` tries the overrides one at a time, which does not depend on the
wording of Hydra's messages, and says in one line which one is wrong and what is allowed.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.schema import ALGO_CONFIGS, AlgoConfig, EnvConfig, RunConfig

CONFIG_NAME = "config"
VERSION_BASE = "1.3"
LEAF_LENGTH = 120  # characters
# Not in a folder's last part: named elsewhere in the path, or without influence on the result.
OUTSIDE_FOLDER = ("algo", "env", "seed", "plan_only", "resume")
OUTSIDE_SECTIONS = ("log", "hardware", "hydra")
HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
COMPOSE_ERRORS = (*HYDRA_ERRORS, ValueError)  # Hydra raises plain ones for odd choices


@cache
def conf_dir() -> Path:
    """The folder of YAML files: inside the package in a wheel, beside it in a source tree."""
    here = Path(__file__).resolve().parent
    for folder in (here / "conf", here.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"privrl_bench was installed without its YAML files (near {here})")


def choices(group: str) -> list[str]:
    """The names of a group's own YAML files.

    >>> choices("log")
    ['none', 'offline', 'online']
    """
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def _choices_in_help(group: str) -> str:
    return ("\n" + " " * 12).join(textwrap.wrap(", ".join(choices(group)), 86))


# --- the name of a run folder


def leaf(overrides: Iterable[str], seed: int) -> str:
    """The last part of a run folder: overrides that change the result, sorted, then the seed.

    Equal for equal settings in any order; what a file name cannot hold is replaced, and then a hash
    keeps different settings apart.

    >>> leaf(["privacy.z=1e-1", "log=none", "algo=dppg"], 3)
    'privacy.z=0.1,seed=3'
    """
    values: dict[str, str] = {}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if key not in OUTSIDE_FOLDER and re.split(r"[./]", key)[0] not in OUTSIDE_SECTIONS:
            values[key] = override.get_value_element_as_str()
    pairs = sorted(values.items())
    safe = [(_safe(key), _safe(value)) for key, value in pairs]
    name = ",".join(f"{key}={value}" for key, value in safe)
    tail = f"seed={seed}"
    if safe != pairs or len(name) + len(tail) + 1 > LEAF_LENGTH:
        digest = hashlib.sha256(repr(pairs).encode()).hexdigest()[:8]
        tail = f"sha_{digest},{tail}"
        name = name[: LEAF_LENGTH - len(tail) - 1].rstrip(",")
    return f"{name},{tail}" if name else tail


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", text)


def run_folder(chosen: Mapping[str, Any], overrides: Iterable[str], seed: int) -> str:
    """`<algo>/<env>/<leaf>`, the same for a job of a sweep and for the command run alone."""
    return f"{chosen['algo']}/{chosen['env']}/{leaf(overrides, seed)}"


# --- registration


def algo_schema(name: str) -> type[AlgoConfig]:
    """The settings' dataclass of an algorithm.

    Those in `schema.py` cost no import of torch, so that a mistyped word is answered at once; a new
    algorithm may have its dataclass in its own module. Raises `ConfigError` if that cannot be imported.
    """
    if name in ALGO_CONFIGS:
        return ALGO_CONFIGS[name]
    try:
        found: type[AlgoConfig] = importlib.import_module(f"privrl_bench.algos.{name}").CONFIG
    except (ImportError, AttributeError, SyntaxError) as error:
        where = f"privrl_bench/algos/{name}.py"
        raise ConfigError("algo", f"{where} gives no CONFIG: {first_line(error)}") from error
    return found


def register_algo(words: Iterable[str]) -> None:
    """Store the schemas of the algorithms that the words choose, if they are not stored yet."""
    for word in words:
        for name in (
            re.findall(r"\w+", word.removeprefix("algo=")) if word.startswith("algo=") else ()
        ):
            if name in choices("algo") and name not in ALGO_CONFIGS:
                store = ConfigStore.instance()
                store.store(group="schema/algo", name=name, node=algo_schema(name))


def register() -> None:
    """Store the schemas and the resolvers that conf/ uses. Calling it again changes nothing."""
    store = ConfigStore.instance()
    run = OmegaConf.structured(RunConfig(env=EnvConfig(id="any")))  # an id, or its check refuses
    run.env.id = None
    store.store(group="schema", name="run", node=run, package="_global_")
    for name, schema in ALGO_CONFIGS.items():
        store.store(group="schema/algo", name=name, node=schema)
    OmegaConf.register_new_resolver("privrl_bench.folder", run_folder, replace=True)
    OmegaConf.register_new_resolver("privrl_bench.choices", _choices_in_help, replace=True)


register()


# --- composing


def compose(overrides: Iterable[str] = (), config_dir: str | None = None) -> RunConfig:
    """Compose one run as the command line would. Raises `ConfigError`, one line.

    Args:
        overrides: words like `env=hopper` or `privacy.z=0.1`, without sweeps.
        config_dir: a folder with more YAML files in the same groups.

    >>> compose(["env=hopper"]).privacy.clip
    1.8
    """
    return to_run_config(compose_raw(overrides, config_dir))


def compose_raw(overrides: Iterable[str] = (), config_dir: str | None = None) -> DictConfig:
    """`compose` without the range checks. Raises `ConfigError`."""
    words = plain_groups(overrides)
    register_algo(words)
    if config_dir is not None:
        folder = Path(config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError("--config-dir", f"no such folder: {config_dir}")
        words.append(f"hydra.searchpath=['file://{folder}']")
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        try:
            return hydra_compose(CONFIG_NAME, words)
        except ConfigError:
            raise
        except COMPOSE_ERRORS as error:
            raise explain(words, error) from error


def plain_groups(words: Iterable[str]) -> list[str]:
    """`+paper=x` as `paper=x`.

    The group is in config.yaml's defaults (as null), because the column that it takes depends on the
    environment; people add it with a plus, as any group that is off by default.

    >>> plain_groups(["env=hopper", "+paper=dppg"])
    ['env=hopper', 'paper=dppg']
    """
    return [re.sub(r"^\+{1,2}paper=", "paper=", word) for word in words]


def to_run_config(cfg: DictConfig) -> RunConfig:
    """Turn a composed config into checked dataclasses. Raises `ConfigError`."""
    for prefix, section in _sections(cfg):
        fields = _field_types(section)
        for name in map(str, section):
            if name not in fields:
                raise _no_such_key(f"{prefix}{name}", cfg)
        for name in fields:
            if name not in section:
                raise ConfigError(f"{prefix}{name}", "a key cannot be removed")
    try:
        run = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(key, first_line(error)) from error
    assert isinstance(run, RunConfig)
    return run


def replace(cfg: DictConfig, word: str) -> RunConfig:
    """`cfg` with one key changed, composed without Hydra, hence fast. Raises `ConfigError`.

    Only plain keys can be changed so; a group's choice is refused.
    """
    changed = copy.deepcopy(cfg)
    (override,) = parse([word])
    try:
        if override.is_add() or override.is_force_add() or override.is_delete():
            raise ConfigError(override.key_or_group, "cannot be replaced")
        OmegaConf.update(changed, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException as error:
        raise ConfigError(override.key_or_group, first_line(error)) from error
    return to_run_config(changed)


def help_text() -> str:
    """The text of `privrl-bench --help`, written in conf/hydra/help/privrl_bench.yaml."""
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return str(hydra_compose(CONFIG_NAME, return_hydra_config=True).hydra.help.template)


def parse(overrides: Iterable[str]) -> list[Override]:
    """Parse override words. Raises `ConfigError` naming the word that cannot be read."""
    parser = OverridesParser.create()
    parsed = []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not re.fullmatch(r"[+~]*[\w./@-]+", key) or not (equals or key.startswith("~")):
            raise ConfigError("", f"cannot read {word!r}; write key=value")
        try:
            parsed += parser.parse_overrides([word])
        except HydraException as error:
            raise ConfigError(key, f"cannot read the value {value!r}; quote it") from error
    return parsed


# --- finding the mistake


def explain(overrides: Iterable[str], error: Exception) -> ConfigError:
    """Find the override that composing failed on. Needs an initialised Hydra.

    Args:
        overrides: the words of one run, without sweeps.
        error: what Hydra raised; its first line is the answer when no single override is guilty.
    """
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
                options = _loader().get_group_options(
                    group, config_name=CONFIG_NAME, overrides=searchpath
                )
                _check_choice(override, sorted(options))
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
    return ConfigError("", first_line(error))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _loader() -> ConfigLoader:
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    return hydra.config_loader


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
    if override.is_add() or override.is_force_add() or override.is_delete():
        return  # `to_run_config` finds what they break
    if not isinstance(section, DictConfig) or name not in section:
        raise _no_such_key(key, base, groups)
    wanted = _field_types(section).get(name)
    try:
        OmegaConf.update(base, key, value, merge=True)
    except OmegaConfBaseException as error:
        if dataclasses.is_dataclass(wanted):
            raise ConfigError(key, f"is a group of keys; set one of them, {key}.<name>=") from error
        raise ConfigError(key, _wrong_type(wanted, value)) from error


def _no_such_key(key: str, cfg: DictConfig, groups: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown key, with the nearest name and the names beside it."""
    names = [
        f"{prefix}{name}"
        for prefix, section in _sections(cfg)
        for name in _field_types(section)
        if key.startswith("hydra") or not prefix.startswith("hydra")
    ]
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(cfg, parent) if parent else None
    if isinstance(section, DictConfig):
        if not _field_types(section):
            return ConfigError(key, f"no such key; add it with +{key}=<value>")
        beside = [f"{parent}.{n}" for n in _field_types(section)]
    else:
        beside = [n for n in names if "." not in n]
        names += groups
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
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
    }
    return words.get(wanted, "of another type")


def _sections(cfg: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig]]:
    """The config and every typed section below it, with key prefix (`""`, `algo.`, ...)."""
    yield prefix, cfg
    for name in map(str, cfg):
        if OmegaConf.is_missing(cfg, name) or OmegaConf.is_interpolation(cfg, name):
            continue
        node = cfg[name]
        if isinstance(node, DictConfig) and _field_types(node):
            yield from _sections(node, f"{prefix}{name}.")


def _field_types(section: DictConfig) -> dict[str, Any]:
    """Names and types of a typed section's keys, in order; empty for a free mapping."""
    schema = OmegaConf.get_type(section)
    if schema is None or not dataclasses.is_dataclass(schema):
        return {}
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}
