"""Plugins: what other packages, and the packs of this one, add.

A plugin is a module with an object `PLUGIN`:

    PLUGIN = Plugin(
        algorithms={"mine": "my_pkg.mine"},
        mechanisms={"my_noise": "my_pkg.my_noise"},
        users={"my_users": "my_pkg.my_users"},
        conf=Path(__file__).parent / "conf",
    )

An installed package names the module as an entry point of `GROUP`; every command loads those. Other modules are
named on the command line: `plugins=[my_pkg]`. A plugin is checked as a whole before anything of it is
registered. What it declares are names, so that it can be imported without torch, and sent to new processes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from privrl_bench import envs, evaluation, users
from privrl_bench.algorithms.registry import (
    ALGORITHMS,
    Location,
    location,
    register_algorithm,
    registered,
)
from privrl_bench.config.overrides import (
    add_folder,
    added_folders,
    conf_dir,
    keep_own,
    own,
)
from privrl_bench.config.registry import Command
from privrl_bench.errors import ConfigError, first_line, suggest
from privrl_bench.privacy import mechanisms, sampling

GROUP = "privrl_bench.plugins"
# Groups of YAML files.
GROUPS = ("algo", "env", "privacy", "tuned", "collect", "paper", "paper/column", "hardware", "log")
_PACKAGE = __name__.partition(".")[0]
# By the fields of `Plugin`.
_REGISTRIES = {
    "mechanisms": mechanisms.REGISTRY,
    "samplers": sampling.REGISTRY,
    "users": users.REGISTRY,
    "evaluators": evaluation.REGISTRY,
    "environments": envs.REGISTRY,
}
_NAME = r"[a-z][a-z0-9_]*"  # of algorithms, mechanisms and YAML files: a word of the command line


@dataclass(frozen=True)
class Plugin:
    """What a package adds.

    Attributes:
        algorithms: name -> module that has `ALGORITHM` and `CONFIG`, or a pair of modules, the first with
            `ALGORITHM` and the second with `CONFIG`; of a pair each may be `module:Class`. Each algorithm has a
            file `algo/<name>.yaml` in `conf`.
        mechanisms: name -> module that has `MECHANISM`.
        samplers: name -> module that has `SAMPLER`.
        users: name -> module that has `USERS`; they are asked before the package's own whether a run is theirs.
            With what they give (a value of `traits.Data`) beside it, the module is imported for such runs only.
        evaluators: what an algorithm releases (`Traits.releases`) -> module that has `EVALUATOR`.
        environments: `env.kind` -> module that has `env_spec`, for environments without a simulator.
        commands: name -> subcommand of `privrl`.
        functions: name -> "module:function", which is then `privrl_bench.<name>`.
        conf: folder of YAML files, in folders named as their groups (`GROUPS`). Environments are files
            `env/<name>.yaml`, whose `id` is `my_pkg.envs:MyEnv-v0`; Gymnasium imports the module.
    """

    algorithms: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
    mechanisms: Mapping[str, str] = field(default_factory=dict)
    samplers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str | tuple[str, str]] = field(default_factory=dict)
    evaluators: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    conf: str | Path | None = None


class Additions(NamedTuple):
    """What plugins have added to this process, as plain data for new processes.

    Attributes:
        algorithms: see `algorithm_registry.registered`.
        outside: what `_REGISTRIES` have from plugins: name -> module.
        versions: plugin -> version, empty if it is not known.
        own: the folder of `--config-dir`, None if there is none.
    """

    algorithms: dict[str, Location]
    outside: dict[str, dict[str, Any]]
    versions: dict[str, str]
    own: Path | None = None


_loaded: dict[str, Plugin] = {}
_versions: dict[str, str] = {}


# --- loading


def load_given(words: Iterable[str]) -> None:
    """Load the installed plugins and those that `plugins=[...]` names.

    Raises:
        ConfigError: the word is no list of modules, or a plugin is refused (see `register`).
    """
    load_installed()
    for word in words:
        if word.startswith("plugins="):
            text = word.removeprefix("plugins=")
            found = re.fullmatch(r"\[([\w.:, '\"]*)\]", text)
            if found is None:
                problem = f"must be one list of modules, e.g. plugins=[my_pkg], got {text}"
                raise ConfigError("plugins", problem)
            load(name.strip(" '\"") for name in found[1].split(",") if name.strip())


def load(modules: Iterable[str]) -> None:
    """Load plugins by module, `my_pkg` or `my_pkg:NAME`. Raises `ConfigError`, one line."""
    for module in modules:
        if module not in _loaded:
            plugin, version = _imported(module, module)
            register(plugin, module, version)


@cache
def load_installed() -> None:
    """Load the plugins of installed packages, once in a process. Raises `ConfigError`, one line."""
    for value in _packs():
        _load_pack(value)
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.value):
        if point.value in _loaded:
            continue
        package = point.dist.name if point.dist else point.name
        who = f"{point.value} (installed package {package})"
        plugin, version = _imported(point.value, who)
        _register(plugin, point.value, point.dist.version if point.dist else version, who)


def _packs() -> list[str]:
    """The modules of the plugins that this package has: its packs, and the papers."""
    folder = Path(__file__).resolve().parents[1] / "packs"
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return [*(f"{_PACKAGE}.packs.{name}" for name in names), f"{_PACKAGE}.papers"]


def _load_pack(module: str) -> None:
    """Know a pack of this package. Tests check it, so that a command need not read its files."""
    plugin, _ = _imported(module, module)
    if module not in _loaded:
        _add(plugin)
        _loaded[module] = plugin


def _add(plugin: Plugin) -> None:
    for key, registry in _REGISTRIES.items():
        registry.outside.update(getattr(plugin, key))
    for algo, where in plugin.algorithms.items():
        register_algorithm(algo, *_modules(where))
    if plugin.conf is not None:
        add_folder(Path(plugin.conf))


def _imported(reference: str, who: str) -> tuple[Plugin, str]:
    """The plugin of a module, and the module's `__version__`."""
    module, _, name = reference.partition(":")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise _refused(who, f"{module} cannot be imported: {first_line(error)}") from error
    plugin = getattr(found, name or "PLUGIN", None)
    if not isinstance(plugin, Plugin):
        got = "" if plugin is None else f", got {type(plugin).__name__}"
        raise _refused(who, f"{module} needs {name or 'PLUGIN'} = privrl_bench.Plugin(...){got}")
    return plugin, str(getattr(found, "__version__", ""))


def check_loaded(modules: Iterable[str]) -> None:
    """Refuse a configuration with plugins that were not loaded before it was composed. Raises `ConfigError`."""
    for module in modules:
        if module not in _loaded:
            problem = f"give it on the command line, plugins=[{module}]: a file comes too late"
            raise ConfigError("plugins", problem)


# --- registering


def register(plugin: Plugin, name: str = "", version: str = "") -> None:
    """Make what a plugin declares known to this process and to the workers that it starts.

        plugin = pb.Plugin(algorithms={"mine": "my_pkg.mine"}, conf="my_pkg/conf")
        pb.register(plugin, "my_pkg", "1.0")
        pb.run("algo=mine env=cartpole")

    A second call with an equal plugin has no effect.

    Args:
        plugin: what is added.
        name: of the plugin, for messages and for the provenance of runs.
        version: for the provenance.

    Raises:
        ConfigError: a name is taken, a module or file is missing, a file cannot be read. Nothing is
            registered then.
    """
    if name or plugin not in _loaded.values():
        name = name or f"registered_{len(_loaded) + 1}"
        _register(plugin, name, version, name)


def _register(plugin: Plugin, name: str, version: str, who: str) -> None:
    """`register`; `who` names the plugin in messages."""
    if plugin not in _loaded.values():
        try:
            _check(plugin)
        except ConfigError as error:
            raise _refused(who, str(error)) from error
        _add(plugin)
    _loaded[name], _versions[name] = plugin, version


def _modules(where: str | tuple[str, str]) -> tuple[str, ...]:
    return (where,) if isinstance(where, str) else tuple(where)


def _refused(who: str, problem: str) -> ConfigError:
    return ConfigError(f"plugin {who}", problem)


def _check(plugin: Plugin) -> None:
    """Refuse a plugin whose parts are missing or whose names are taken. Raises `ConfigError`."""
    files = list(_yaml_files(plugin))
    for name, where in plugin.algorithms.items():
        _check_name("algo", name)
        modules = _modules(where)
        if ALGORITHMS.get(name) not in (None, location(*modules)):
            raise ConfigError("algo", f"the name {name} is taken")
        for module in modules:
            if not _exists(module.partition(":")[0]):
                raise ConfigError("algo", f"no module {module}, which algorithm {name} names")
        if ("algo", name) not in files:
            raise ConfigError("algo", f"algorithm {name} needs a file algo/{name}.yaml in its conf")
    for key in ("mechanisms", "samplers", "users"):
        for name in getattr(plugin, key):
            _check_name(key, name)
    for group, name in files:
        if group == "algo" and name not in plugin.algorithms:
            near = suggest(name, plugin.algorithms)
            raise ConfigError("algo", f"algo/{name}.yaml has no algorithm of this name{near}")
    for key, registry in _REGISTRIES.items():
        for name, module in getattr(plugin, key).items():
            registry.refuse(name, module)


def _check_name(key: str, name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise ConfigError(key, f"a name has lower-case letters, digits and _, got {name!r}")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _yaml_files(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """(group, name) of every YAML file. Raises `ConfigError`: a file is refused."""
    if plugin.conf is None:
        return
    folder = Path(plugin.conf)
    if not (folder.is_absolute() and folder.is_dir()):
        raise ConfigError("conf", f"needs the absolute path of a folder, got {plugin.conf}")
    for path in sorted(folder.rglob("*.y*ml")):
        relative = path.relative_to(folder).as_posix()
        group = path.parent.relative_to(folder).as_posix()
        if group not in GROUPS or path.suffix != ".yaml":
            near = suggest(group, GROUPS)
            rule = f"belongs in <group>/<name>.yaml; groups: {', '.join(GROUPS)}"
            raise ConfigError("conf", f"{relative} {rule}{near}")
        _check_name(f"conf: {relative}", path.stem)
        taken = (other / group / path.name for other in (conf_dir(), *added_folders()))
        if any(file.exists() for file in taken):
            raise ConfigError("conf", f"{group}={path.stem} is taken")
        yield group, path.stem


# --- other processes


def additions() -> Additions:
    """What a new process has to be told; see `restore`."""
    outside = {key: dict(registry.outside) for key, registry in _REGISTRIES.items()}
    return Additions(registered(), outside, dict(_versions), own())


def restore(found: Additions) -> None:
    """Know what another process had from plugins, without checking it again.

    YAML files are not needed: the process gets composed configurations.
    """
    ALGORITHMS.update(found.algorithms)
    for key, registry in _REGISTRIES.items():
        registry.outside.update(found.outside[key])
    _versions.update(found.versions)
    keep_own(found.own)


def commands() -> dict[str, Command]:
    """The subcommands of `privrl` that plugins add."""
    return {name: one for plugin in _loaded.values() for name, one in plugin.commands.items()}


def functions() -> dict[str, str]:
    """The functions of the package that plugins add: name -> "module:function"."""
    return {name: one for plugin in _loaded.values() for name, one in plugin.functions.items()}


def versions() -> dict[str, str]:
    """The loaded plugins and their versions, for the provenance of a run."""
    return dict(_versions)
