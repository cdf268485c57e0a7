"""Runs without output on stdout."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Nothing on stdout, also from the processes of a sweep. `quiet=False` changes nothing."""
    if not quiet:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(io.StringIO()):
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
