"""Cores, threads and devices that this process may use."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def cores() -> int:
    """Number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def use_threads(count: int) -> None:
    """Set the number of threads of torch, and of BLAS, which compiled code calls for products.

    By default BLAS uses every core in every process of a sweep, and small products take 4 to 9 times as long.

    Args:
        count: `hardware.threads`.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    # Numba's BLAS; the limit applies to libraries that are loaded.
    importlib.import_module("scipy.linalg.cython_blas")
    threadpool_limits(count, user_api="blas")


def uses_kernels(params: Tensor, device: str = "cpu") -> bool:
    """Whether parameters are trained by compiled code: in single precision on the CPU.

    Otherwise they are trained by tensor operations, equal up to rounding.

    Args:
        params: the parameters, of which the type counts.
        device: torch device of the training.
    """
    import torch

    return device == "cpu" and params.dtype == torch.float32


def over_threads(users: int, work: Callable[[slice], None]) -> None:
    """Distribute work on users over torch's threads.

    Args:
        users: number of users.
        work: is called with consecutive slices of range(users), one per thread. It should release the
            interpreter lock, as compiled code does.
    """
    import torch

    threads = max(min(torch.get_num_threads(), users), 1)
    ends = [users * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    if threads == 1:
        work(parts[0])
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, parts))


def most_workers() -> int:
    """Largest number of threads or processes that a run may request."""
    return max(64, 4 * cores())


def check_hardware(run: RunConfig) -> None:
    """Check that this machine has what a run requests.

    Raises:
        ConfigError: too many threads or processes, or no CUDA device.
    """
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
    if sys.platform == "linux":  # immediate without a driver, where importing torch takes seconds
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
    import torch

    return torch.cuda.is_available()
