"""A light object for worker processes."""

import os
import sys
import time
from pathlib import Path

from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels import pipe_worker


class Echo:
    """Does what its task says, and writes into a file when it is closed."""

    def __init__(self, path=None, fails=""):
        if fails:
            raise EnvironmentFailure(fails)
        self._path = path

    def run(self, task):
        do, *more = task
        if do == "raise":
            raise more[0]
        if do == "tell":
            for value in more[:-1]:
                pipe_worker.tell(value)
            return more[-1]
        return {
            "echo": lambda: tuple(more),
            "die": lambda: os._exit(7),
            "sleep": lambda: time.sleep(600),
            "loaded": lambda: [name for name in more if name in sys.modules],
            "signal": lambda: os.kill(os.getpid(), more[0]),
            "group": lambda: os.getpgrp() == os.getpid(),
            "pid": os.getpid,
        }[do]()

    def close(self):
        if self._path:
            Path(self._path).write_text("closed")
            raise OSError("nobody reads this")
