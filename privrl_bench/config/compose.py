"""From words on the command line to a checked `RunConfig`.

Schemas are stored in the ConfigStore under `schema/`, so `algo`, `env`, ... list real choices only.
What Hydra refuses is explained by `mistakes`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privrl_bench.config.diagnostics import (
    COMPOSE_ERRORS,
    CONFIG_NAME,
    check_choices,
    explain,
    field_types,
    first_line,
    no_such_key,
    parse,
    sections,
)
from privrl_bench.config.explicit import check_explicit
from privrl_bench.config.limits import check_sizes
from privrl_bench.config.overrides import (
    choices,
    conf_dir,
    explicit_keys,
    has_texts,
    settle,
    text_versions,
)
from privrl_bench.config.schema import (
    ALGO_CONFIGS,
    ALGO_MODULES,
    AlgoConfig,
    EnvConfig,
    RunConfig,
    algo_module,
)
from privrl_bench.errors import ConfigError

__all__ = ["choices", "conf_dir", "has_texts", "text_versions"]  # also used from here

VERSION_BASE = "1.3"
LEAF_LENGTH = 120  # characters
# Not in a folder's last part: named elsewhere in the path, or without influence on the result.
OUTSIDE_FOLDER = ("algo", "env", "seed", "plan_only", "resume")
OUTSIDE_SECTIONS = ("log", "hardware", "hydra")


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
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    by_steps = any(override.key_or_group == "total_steps" for override in parsed)
    for override in parsed:
        key = override.key_or_group
        if by_steps and key == "rounds" and override.value() is None:
            continue  # `words.explicit_length` adds it
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

    Those in `config/schema.py` cost no import of torch, so that a mistyped word is answered at once; a new
    algorithm may have its dataclass in its own module. Raises `ConfigError` if that cannot be imported.
    """
    if name in ALGO_CONFIGS:
        return ALGO_CONFIGS[name]
    try:
        found: type[AlgoConfig] = importlib.import_module(algo_module(name)).CONFIG
    except (ImportError, AttributeError, SyntaxError) as error:
        where = f"{algo_module(name).replace('.', '/')}.py"
        raise ConfigError("algo", f"{where} gives no CONFIG: {first_line(error)}") from error
    return found


def register_algo(words: Iterable[str]) -> None:
    """Store the schemas of the algorithms that the words choose, if they are not stored yet."""
    for word in words:
        for name in (
            re.findall(r"\w+", word.removeprefix("algo=")) if word.startswith("algo=") else ()
        ):
            known = name in choices("algo") or name in ALGO_MODULES
            if known and name not in ALGO_CONFIGS:
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
    words = list(overrides)
    return to_run_config(compose_raw(words, config_dir), explicit_keys(words))


def compose_raw(overrides: Iterable[str] = (), config_dir: str | None = None) -> DictConfig:
    """`compose` without the range checks. Raises `ConfigError`."""
    words = settle(overrides)
    register_algo(words)
    if config_dir is not None:
        folder = Path(config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError("--config-dir", f"no such folder: {config_dir}")
        words.append(f"hydra.searchpath=['file://{folder}']")
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        try:
            check_choices(words)
            return hydra_compose(CONFIG_NAME, words)
        except ConfigError:
            raise
        except COMPOSE_ERRORS as error:
            raise explain(words, error) from error


def to_run_config(cfg: DictConfig, explicit: Iterable[str] = ()) -> RunConfig:
    """Turn a composed config into checked dataclasses. Raises `ConfigError`.

    Args:
        cfg: the composed config.
        explicit: keys that the command line gives (`words.explicit_keys`), which must not be ignored.
    """
    for prefix, section in sections(cfg):
        fields = field_types(section)
        for name in map(str, section):
            if name not in fields:
                raise no_such_key(f"{prefix}{name}", cfg)
        for name in fields:
            if name not in section:
                raise ConfigError(f"{prefix}{name}", "a key cannot be removed")
    try:
        run = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(key, first_line(error)) from error
    assert isinstance(run, RunConfig)
    check_sizes(run)
    check_explicit(run, set(explicit))
    return run


def replace(cfg: DictConfig, word: str, explicit: Iterable[str] = ()) -> RunConfig:
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
    return to_run_config(changed, explicit)


def help_text() -> str:
    """The text of `privrl-bench --help`, written in conf/hydra/help/privrl_bench.yaml."""
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
        return str(hydra_compose(CONFIG_NAME, return_hydra_config=True).hydra.help.template)
