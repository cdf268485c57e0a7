"""Compiled code: Numba, as this package uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use, once for all processes; NaN and infinities keep their meaning, sums may be
    taken in any order."""
    return _compiled(function, {"reassoc", "contract", "nsz", "arcp"})


def exact_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `jit`; every operation is the one that is written, rounded as NumPy rounds it."""
    return _compiled(function, False)


def _compiled(function: Callable[..., Any], fastmath: set[str] | bool) -> Callable[..., Any]:
    def compiled(*, cache: bool) -> Callable[..., Any]:
        decorate = numba.njit(
            cache=cache,
            nogil=True,
            error_model="numpy",  # a division by zero is infinite, and loops can be vectorised
            fastmath=fastmath,
        )
        result: Callable[..., Any] = decorate(function)
        return result

    try:
        return compiled(cache=True)
    except RuntimeError:  # no folder to keep machine code in
        return compiled(cache=False)
