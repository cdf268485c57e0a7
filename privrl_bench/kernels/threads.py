"""Compiled work on users, spread over torch's threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def over_threads(users: int, work: Callable[[slice], None]) -> None:
    """Call `work` with consecutive parts of range(users), one for each of torch's threads."""
    threads = max(min(torch.get_num_threads(), users), 1)
    ends = [users * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    if threads == 1:
        work(parts[0])
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, parts))
