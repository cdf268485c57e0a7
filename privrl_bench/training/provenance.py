"""Where a run comes from: commit, versions of packages, digests of sources without a version, hardware.

A record of an audit is valid for one digest, and a finished run is not repeated while its digests are the same.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privrl_bench.algorithms.registry import algorithm
from privrl_bench.composition import plugins
from privrl_bench.config.schema import RunConfig
from privrl_bench.config.schema.env import wrapper_parts
from privrl_bench.kernels.machine import workers_of
from privrl_bench.privacy.rules import rules
from privrl_bench.users import kind_of

_PACKAGES = (
    "torch",
    "numpy",
    "numba",
    "gymnasium",
    "mujoco",
    "dm-control",
    "dp-accounting",
    "wandb",
    "hydra-core",
    "privrl-bench",
)


def provenance(config: RunConfig, together: int = 1) -> dict[str, Any]:
    """Return the commit, the versions, the plugins, digests of sources and the hardware of this process.

    Args:
        config: of the run.
        together: number of runs that are trained as one group, which can change the last bits of a result.
    """
    device = "cpu"
    if config.hardware.device == "cuda":
        device = torch.cuda.get_device_name()
    return {
        **_commit(),
        "versions": dict(_versions()),
        "plugins": {name: version or None for name, version in plugins.versions().items()},
        "sources": sources(config),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "device": device,
        "workers": workers_of(config),
        "trained_together": together,
    }


@cache
def _versions() -> dict[str, str | None]:
    """Return the versions of installed packages, which do not change during a run."""
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _commit() -> dict[str, Any]:
    """Return the commit of the source tree of this package, if there is one."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str:
        call = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False
        )
        return call.stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD") or None,
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
    }


def processor() -> str:
    """Name, family and model: on virtual machines several models have one name and other last bits."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []  # Linux
    facts = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    name = facts.get("model name") or platform.processor()
    known = "cpu family" in facts and "model" in facts
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if known else name


# --- digests of sources without a version


PACKAGE = "privrl_bench"
_STANDARD = {PACKAGE, "builtins", *sys.stdlib_module_names}
_FOLDERS = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
_INSTALLED = (*_FOLDERS, *(folder.resolve() for folder in _FOLDERS))  # also behind links
_ENTRY_POINT = re.compile(r"^([A-Za-z_][\w.]*):[A-Za-z_]\w*$")  # of an environment: module:Class


def outside(config: RunConfig) -> set[str]:
    """Return which of algorithm, mechanism, sampler and users are from outside, also by one method only."""
    return {name for name, kinds in _parts(config).items() if _defined_outside(*kinds)}


def _parts(config: RunConfig) -> dict[str, tuple[type, ...]]:
    mechanism, sampler = rules(config.privacy)
    return {
        "algorithm": (algorithm(config.algo.name), type(config.algo)),
        "mechanism": (mechanism,),
        "sampler": (sampler,),
        "users": (kind_of(config),),
    }


def _defined_outside(kind: type, *more: type) -> bool:
    made = [value for base in kind.__mro__ for value in vars(base).values() if callable(value)]
    homes = {getattr(value, "__module__", None) for value in (kind, *more, *made)}
    return any(home is not None and home.partition(".")[0] not in _STANDARD for home in homes)


def sources(config: RunConfig) -> dict[str, str | None]:
    """Return the SHA-256 of the sources of a run that are not of this package, for provenance and reviews.

    Top-level package of algorithm, mechanism, sampler and users, also an installed one -> digest of its files
    and of what the classes' modules import; module of `env.id=module:Name-v0` and of each of `env.wrappers`
    that is not installed -> digest of it and of what it imports. None: a file cannot be read.
    """
    kinds = [kind for kinds in _parts(config).values() for kind in kinds]
    packages = {kind.__module__.partition(".")[0] for kind in kinds} - _STANDARD
    used = _with_imports({base.__module__ for kind in kinds for base in kind.__mro__})
    found = {name: _digest(used | _files_of(name)) for name in sorted(packages)}
    made = [config.env.id] if config.env.kind == "gym" and ":" in str(config.env.id) else []
    for entry in [*made, *(wrapper_parts(one)[0] for one in config.env.wrappers)]:
        module = str(entry).partition(":")[0]
        if module in found or not _local_file(module):
            continue
        parts = module.split(".")
        found[module] = _digest(_with_imports(".".join(parts[: k + 1]) for k in range(len(parts))))
    return found


def changed(config: RunConfig, provenance: Mapping[str, Any]) -> list[str]:
    """Return the names of sources that have changed since a run; none where it did not record them."""
    before = provenance.get("sources")
    if not isinstance(before, dict):
        return []
    now = sources(config)
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _files_of(name: str) -> dict[str, Path]:
    """The source files of an imported top-level package or module, by name."""
    top = sys.modules.get(name)
    files: dict[str, Path] = {}
    for folder in map(Path, getattr(top, "__path__", ())):
        files |= {f"{name}/{p.relative_to(folder)}": p for p in folder.rglob("*.py")}
    if top is not None and not hasattr(top, "__path__") and top.__file__:
        files[name] = Path(top.__file__)
    return files


def _digest(files: Mapping[str, Path]) -> str | None:
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
        except OSError:
            return None
    return total.hexdigest()


def _with_imports(names: Iterable[str]) -> dict[str, Path]:
    """Return the source files, by name, of modules and of all that they import anywhere in their code.

    Installed packages and this one are left out. A text `module:Class` counts as an import: Gymnasium registers
    environments so. Imports by a computed name and data files are not found.
    """
    files: dict[str, Path] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        file = None if name in files else _local_file(name)
        if file is None:
            continue
        files[name] = file
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(_parsed(file)):
            if isinstance(node, ast.Import):
                waiting += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                home = "." * node.level + (node.module or "")
                home = importlib.util.resolve_name(home, package) if node.level else home
                waiting += [home, *(f"{home}.{one.name}" for one in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                waiting += _ENTRY_POINT.findall(node.value)
    return files


def _parsed(file: Path) -> ast.AST:
    """The syntax tree of a file; an empty one where it cannot be read."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _local_file(name: str) -> Path | None:
    """Return the source of a module that is neither installed nor of this package, or None."""
    if name.partition(".")[0] in _STANDARD:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # not a module, one made by hand, or a package whose own code raises
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return None if _is_installed(path) else path.resolve()


def _is_installed(path: Path) -> bool:
    """Whether a file is in a folder of installed modules: by its own path, or by that without links."""
    return any(p.is_relative_to(folder) for p in (path, path.resolve()) for folder in _INSTALLED)
