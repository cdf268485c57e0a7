"""What this machine lends to this process."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError


def cores() -> int:
    """Processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def use_threads(count: int) -> None:
    """`hardware.threads`, for torch and for BLAS, with which compiled code multiplies.

    BLAS would take every core in every process of a sweep, and small products then take 4 to 9 times as long.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    # Numba's; a library can be told once it is loaded.
    importlib.import_module("scipy.linalg.cython_blas")
    threadpool_limits(count, user_api="blas")


def most_workers() -> int:
    """Threads or processes that a run may ask for; more only wait for each other, or end the process."""
    return max(64, 4 * cores())


def check_hardware(run: RunConfig) -> None:
    """Raise `ConfigError` when this machine does not have what the run asks for."""
    for key in ("threads", "env_workers", "processes"):
        count, most = getattr(run.hardware, key), most_workers()
        if count is not None and count > most:
            raise ConfigError(
                f"hardware.{key}",
                f"must be at most {most} on this machine of {cores()} cores, got {count}",
            )
    if run.hardware.device == "cuda" and not _cuda_works():
        raise ConfigError("hardware", "gpu needs CUDA, and torch finds none here; use hardware=cpu")


@functools.cache
def _cuda_works() -> bool:
    if sys.platform == "linux":  # answers at once where there is no driver; torch takes seconds
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
    import torch

    return torch.cuda.is_available()
