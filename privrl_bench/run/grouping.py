"""Which jobs of a sweep are trained together.

Jobs that differ in `seed` and `privacy.z` only form groups; each group is trained as one batched program.
The results of a job do not depend on its group, apart from rounding errors of some algorithms, which depend on
the number of replicas: `docs/scaling.md`, "What is equal to the last bit".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from privrl_bench.composition.identity import group_key
from privrl_bench.run.sweep_jobs import Job

Group = list[Job]


def schedule(jobs: Sequence[Job], processes: int = 1) -> list[list[Group]]:
    """Return waves of groups; the groups of one wave may be trained at the same time.

    Every job is in one group. A folder occurs once in a wave: a job with the folder of an earlier job (a
    value that a sweep lists twice, or a folder set by hand) is in a later wave and finds what that job left.

    Args:
        jobs: in the order of the sweep, which is kept within a group.
        processes: groups are split until each process has one, if there are enough jobs.
    """
    waves: list[list[Job]] = []
    seen: dict[str, int] = {}
    for job in jobs:
        wave = seen.get(str(job.folder), 0)
        seen[str(job.folder)] = wave + 1
        if wave == len(waves):
            waves.append([])
        waves[wave].append(job)
    return [_groups(wave, processes) for wave in waves]


def _groups(jobs: Sequence[Job], processes: int) -> list[Group]:
    alike: dict[str, Group] = {}
    for job in jobs:
        together = job.config.algo.traits.replicas
        key = group_key(job.config) if together else f"alone {job.number}"
        alike.setdefault(key, []).append(job)
    share = math.ceil(len(jobs) / processes)
    groups = [
        part
        for members in alike.values()
        for part in _split(members, _parts(members, share, processes if len(alike) == 1 else 1))
    ]
    while len(groups) < min(processes, len(jobs)):  # shares do not always come out even
        largest = max(range(len(groups)), key=lambda i: len(groups[i]))
        whole = groups[largest]
        groups[largest : largest + 1] = _split(whole, 2)
    return groups


def _parts(members: Group, share: int, processes: int) -> int:
    """Return the number of parts in which jobs of one kind are trained.

    A part is at most what one process can hold, and at most `share` jobs. The number is rounded up to a
    multiple of `processes`, so that no process is idle in the end. With several kinds of jobs, `processes`
    is 1: the other kinds fill the gap.
    """
    count = math.ceil(len(members) / min(members[0].config.hardware.max_replicas, share))
    even = math.ceil(count / processes) * processes
    return min(even, len(members)) if count > processes else count


def _split(members: Group, count: int) -> list[Group]:
    """Split a group into `count` parts of nearly equal size, in order."""
    ends = [len(members) * i // count for i in range(count + 1)]
    return [members[a:b] for a, b in itertools.pairwise(ends)]
