"""Where a run comes from: commit, versions of packages, digests of other sources, hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privrl_bench.composition import plugins
from privrl_bench.config.schema import RunConfig
from privrl_bench.kernels.machine import workers_of
from privrl_bench.run.source_digests import sources

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
        "processor": _processor(),
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


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor()
