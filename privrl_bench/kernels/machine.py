"""Cores and devices that this process may use."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.signals import blocked_signals

if TYPE_CHECKING:
    from torch import Tensor


_share = 0  # cores of this process, where others of the same command have theirs; 0: all


def use_cores(count: int) -> None:
    """Tell this process that it may use so many cores."""
    global _share
    _share = count


def cores() -> int:
    """Number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return _share or (len(affinity(0)) if affinity else os.cpu_count() or 1)


def workers_of(run: RunConfig) -> int:
    """Processes that work on the rounds of a run: `hardware.workers`, by default one for each core."""
    if run.hardware.engine != "processes":
        return run.hardware.workers or cores() + 1  # more than one, wherever they are
    wanted = run.hardware.workers or cores()
    return min(wanted, _share) if _share else wanted


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Start processes that do not import the program that runs, with signals blocked.

    `multiprocessing` would run a script again in each of them unless it has `if __name__ == "__main__"`.
    What they get must not be defined in the program. They decide about signals when they have started, see
    `privrl_bench/kernels/signals.py`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with blocked_signals():
            yield
    finally:
        sys.modules["__main__"] = main


def one_thread() -> None:
    """Let torch and BLAS, which compiled code calls for products, use one thread.

    A round is shared by processes, not by threads. By default BLAS uses every core in every process of a
    sweep, and small products take 4 to 9 times as long.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    # Numba's BLAS; the limit applies to libraries that are loaded.
    importlib.import_module("scipy.linalg.cython_blas")
    threadpool_limits(1, user_api="blas")


def uses_kernels(params: Tensor, device: str = "cpu") -> bool:
    """Whether parameters are trained by compiled code: in single precision on the CPU.

    Otherwise they are trained by tensor operations, equal up to rounding.

    Args:
        params: the parameters, of which the type counts.
        device: torch device of the training.
    """
    import torch

    return device == "cpu" and params.dtype == torch.float32


def check_hardware(run: RunConfig) -> None:
    """Check that this machine has what a run requests.

    Raises:
        ConfigError: too many processes, no CUDA device, or no Ray.
    """
    count, most = run.hardware.workers, max(64, 4 * cores())
    if run.hardware.engine == "ray":
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("hardware", "ray is not installed: pip install 'privrl-bench[ray]'")
    elif count is not None and count > most:
        raise ConfigError(
            "hardware.workers",
            f"must be at most {most} on this machine of {cores()} cores, got {count}",
        )
    if run.hardware.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                "hardware", "gpu needs CUDA, and torch finds none here; use hardware=cpu"
            )
