"""Compilation with Numba, and the cache of machine code.

A *kernel* (`jit`, `exact_jit`) is called from Python; its machine code is cached on disk. A *part* (`part`,
`exact_part`) is called by kernels and is always inlined, so that a kernel is one piece of machine code,
generated from the same input each time. Without inlining a kernel would hold copies of its parts as weak
symbols, and the linker would take the first definition that the process has loaded: the part compiled by
itself, if this process compiled it, or the kernel's own copy, if the kernel was loaded from the cache. Where
sums may be reordered, the two differ in the last bits.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import FunctionCache
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from privrl_bench.kernels.signals import preparing

# NaN and infinities keep their meaning; sums may be reordered.
_FAST = frozenset({"reassoc", "contract", "nsz", "arcp"})
_DIGEST = 32  # bytes
_say: Callable[[str], None] | None = None
_said: set[str] = set()  # kinds of lines


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use, once for all processes.

    NaN and infinities keep their meaning; sums may be reordered.
    """
    return _kernel(function, set(_FAST))


def exact_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel as `jit`, but with every operation as written and rounded as NumPy rounds it."""
    return _kernel(function, False)


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a part of kernels, with the arithmetic of `jit`."""
    return _compiled(function, set(_FAST), forceinline=True)


def exact_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a part of kernels, with the arithmetic of `exact_jit`."""
    return _compiled(function, False, forceinline=True)


def tell_of_compiling(say: Callable[[str], None] | None) -> None:
    """Set the function that reports compilation.

    Args:
        say: is called with one line the first time this process has to compile, and with one the first
            time it cannot keep machine code; None for no report.
    """
    global _say
    _say = say
    _said.clear()


def _compiled(
    function: Callable[..., Any], fastmath: set[str] | bool, **options: Any
) -> Callable[..., Any]:
    decorate = numba.njit(
        nogil=True,
        error_model="numpy",  # division by zero gives infinity, so that loops can be vectorised
        fastmath=fastmath,
        **options,
    )
    result: Callable[..., Any] = decorate(function)
    return result


def _kernel(function: Callable[..., Any], fastmath: set[str] | bool) -> Callable[..., Any]:
    compiled = _compiled(function, fastmath)
    with suppress(RuntimeError):  # no folder is writable: every run compiles
        compiled._cache = KernelCache(function, compiled)  # type: ignore[attr-defined]
    return compiled


class KernelCache(FunctionCache):
    """Machine code of kernels: one file per kernel, signature and processor, in Numba's cache folder.

    A file begins with a digest of its content and of the source files of the kernel and of all parts that its
    module uses; Numba's own cache checks the kernel's file only. There is no index: with Numba's, two
    processes that compile a kernel for different signatures at the same time can exchange their code.

    Args:
        function: the kernel's Python function.
        dispatcher: the kernel.
    """

    def __init__(self, function: Callable[..., Any], dispatcher: Any):
        super().__init__(function)
        self._dispatcher = dispatcher

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a compiled kernel.

        Args:
            sig: signature.
            target_context: Numba's context of the processor.

        Returns:
            The kernel, or None if there is no file for it, or an outdated or damaged one.
        """
        target_context.refresh()
        # A file of an older version may name a type whose module has moved.
        with suppress(OSError, ImportError, AttributeError):
            found = self._path(sig, target_context.codegen()).read_bytes()
            content = found[_DIGEST:]
            if found[:_DIGEST] == self._digest(content):
                return self._impl.rebuild(target_context, pickle.loads(content))
        preparing(True)
        _tell("compiling", "  note    compiling kernels, which takes seconds; later runs load them")
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled kernel for later processes; if writing fails, they compile it again.

        Args:
            sig: signature.
            data: Numba's compile result.
        """
        preparing(False)
        if not self._impl.check_cachable(data):
            return
        content = dumps(self._impl.reduce(data))
        path = self._path(sig, data.codegen)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(self._digest(content) + content)
            os.replace(unfinished, path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            problem = f"cannot be kept in {path.parent}: {error.strerror or error}"
            _tell("keeping", f"  note    compiled kernels {problem}; every run compiles them")

    def _path(self, sig: Any, codegen: Any) -> Path:
        key = hashlib.sha256(repr((sig, codegen.magic_tuple())).encode()).hexdigest()
        return Path(self.cache_path) / f"{self._impl.filename_base}.{key[:16]}.nbc"

    def _digest(self, content: bytes) -> bytes:
        return hashlib.sha256(self._made_from + content).digest()

    @cached_property
    def _made_from(self) -> bytes:
        """Digest of the compiler, of the options and of the source files."""
        files: set[str] = set()
        left = [self._dispatcher]
        while left:
            function = left.pop().py_func
            if function.__code__.co_filename not in files:
                files.add(function.__code__.co_filename)
                left += [x for x in function.__globals__.values() if isinstance(x, CPUDispatcher)]
        made = hashlib.sha256(repr((numba.__version__, llvmlite.__version__)).encode())
        for file in sorted(files):
            made.update(Path(file).read_bytes())
        return made.digest()


def _tell(kind: str, line: str) -> None:
    """Report the first line of a kind."""
    if _say is not None and kind not in _said:
        _said.add(kind)
        _say(line)
