"""What this machine lends to this process."""

from __future__ import annotations

import importlib
import os

import torch
from threadpoolctl import threadpool_limits


def cores() -> int:
    """Processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def use_threads(count: int) -> None:
    """`hardware.threads`, for torch and for BLAS, with which compiled code multiplies.

    BLAS would take every core in every process of a sweep, and small products then take 4 to 9 times as long.
    """
    torch.set_num_threads(count)
    # Numba's; a library can be told once it is loaded.
    importlib.import_module("scipy.linalg.cython_blas")
    threadpool_limits(count, user_api="blas")
