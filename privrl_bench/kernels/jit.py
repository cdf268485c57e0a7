"""Compilation with Numba, and the cache of machine code.

A *kernel* (`jit`, `exact_jit`) is called from Python; its machine code is cached on disk. A *part* (`part`,
`exact_part`) is called by kernels and is always inlined, so that a kernel is one piece of machine code,
generated from the same input each time. Without inlining a kernel would hold copies of its parts as weak
symbols, and the linker would take the first definition that the process has loaded: the part compiled by
itself, if this process compiled it, or the kernel's own copy, if the kernel was loaded from the cache. Where
sums may be reordered, the two differ in the last bits.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import stat
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    NullCache,
    UserWideCacheLocator,
)
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from privrl_bench.kernels.signals import preparing

# NaN and infinities keep their meaning; sums may be reordered.
_FAST = frozenset({"reassoc", "contract", "nsz", "arcp"})
_DIGEST = 32  # bytes
_NAMES = 8  # of temporary folders: other users may have taken some
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
    try:
        cache: Any = KernelCache(function, compiled)
    except RuntimeError:  # there is no writable folder, not even a temporary one
        cache = _NoCache()
    compiled._cache = cache  # type: ignore[attr-defined]
    return compiled


@functools.cache
def _temporary_folder() -> Path | None:
    """Return a folder that only this user can write to, in the system's temporary folder; None: no such.

    Loading machine code executes what is in a file, and other users can make files in the temporary folder.
    So the folder must belong to this user, be no link and be closed to others. All processes try the same
    names, and so share one folder.
    """
    if not hasattr(os, "geteuid"):
        return None
    user = os.geteuid()
    with suppress(OSError):
        root = Path(tempfile.gettempdir())
        above = root.stat()
        shared = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if above.st_uid not in (0, user) or shared:
            return None  # another user could exchange the folder after the check
        for number in range(_NAMES):
            path = root / f"privrl_bench-{user}-{number}"
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            found = path.lstat()
            if found.st_uid == user and found.st_mode == stat.S_IFDIR | 0o700:
                return path
    return None


class _TemporaryLocator(UserWideCacheLocator):
    """Numba's locator of a temporary folder, where neither the package's nor the user's is writable."""

    def __init__(self, py_func: Any, py_file: str):
        super().__init__(py_func, py_file)
        folder = _temporary_folder()
        assert folder is not None
        self._cache_path = str(folder / self.get_suitable_cache_subpath(py_file))

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator; None: there is no such folder. Called by Numba."""
        return None if _temporary_folder() is None else super().from_function(py_func, py_file)


class _Impl(CompileResultCacheImpl):
    _locator_classes = [*CompileResultCacheImpl._locator_classes, _TemporaryLocator]  # noqa: RUF012


class _NoCache(NullCache):
    """Says that every run compiles."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        """There is no machine code."""
        _begin(", in every run: no folder for them is writable; NUMBA_CACHE_DIR names one")

    def save_overload(self, sig: Any, data: Any) -> None:
        """There is no place for machine code."""
        preparing(False)


class KernelCache(FunctionCache):
    """Machine code of kernels: one file per kernel, signature and processor, in Numba's cache folder.

    A file begins with a digest of its content and of everything the kernel was made from, including parts
    in other modules; Numba's own cache checks the kernel's file only. There is no index: with Numba's, two
    processes that compile a kernel for different signatures at the same time can exchange their code.

    Args:
        function: the kernel's Python function.
        dispatcher: the kernel.
    """

    _impl_class = _Impl

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
        found = b""
        with suppress(OSError):
            found = self._path(sig, target_context.codegen()).read_bytes()
        content = found[_DIGEST:]
        if not found or found[:_DIGEST] != self._digest(content):
            self._begin()
            return None
        # A file of an older version may name a type whose module has moved.
        with suppress(ImportError, AttributeError):
            return self._impl.rebuild(target_context, pickle.loads(content))
        self._begin()
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

    def _begin(self) -> None:
        where = ""
        if isinstance(self._impl.locator, _TemporaryLocator):
            where = f" from {_temporary_folder()}, as no other folder for them is writable"
            where += " (NUMBA_CACHE_DIR names one)"
        _begin(f"; later runs load them{where}")

    def _path(self, sig: Any, codegen: Any) -> Path:
        key = hashlib.sha256(repr((sig, codegen.magic_tuple())).encode()).hexdigest()
        return Path(self.cache_path) / f"{self._impl.filename_base}.{key[:16]}.nbc"

    def _digest(self, content: bytes) -> bytes:
        made_from = (numba.__version__, llvmlite.__version__, _made_from(self._dispatcher))
        return hashlib.sha256(repr(made_from).encode() + content).digest()


def _made_from(dispatcher: Any) -> list[Any]:
    """Code and options of a kernel and its parts, and the constants that they use.

    Raises:
        TypeError: the kernel calls compiled code that is not a part.
    """
    function = dispatcher.py_func
    code = function.__code__
    options = {
        name: sorted(x) if isinstance(x, set) else x for name, x in dispatcher.targetoptions.items()
    }
    found: list[Any] = [
        code.co_code.hex(),
        code.co_consts,
        code.co_names,
        code.co_varnames,
        sorted(options.items()),
    ]
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, CPUDispatcher):
            if not value.targetoptions.get("forceinline"):
                raise TypeError(
                    f"{name}: what a kernel calls must be a part, see privrl_bench/kernels/jit.py"
                )
            found.append(_made_from(value))
        elif isinstance(value, np.ndarray):
            found.append((name, value.dtype.str, value.tolist()))
        elif isinstance(value, bool | int | float | np.generic):
            found.append((name, value))
    return found


def _begin(later: str) -> None:
    """A kernel is going to be compiled; `later`: what later runs do."""
    preparing(True)
    _tell("compiling", f"  note    compiling kernels, which takes seconds{later}")


def _tell(kind: str, line: str) -> None:
    """Report the first line of a kind."""
    if _say is not None and kind not in _said:
        _said.add(kind)
        _say(line)
