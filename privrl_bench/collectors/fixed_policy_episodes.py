"""Episodes of a fixed policy, with the probabilities of its actions: data that policies are evaluated on.

An episode is a function of seed and number. It does not depend on the number of parallel episodes or on
interruptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privrl_bench.config.schema import EnvConfig
from privrl_bench.datasets.episode_files import read_shard, write_shard
from privrl_bench.datasets.trajectories import Episode, episode_of
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.slots import Slots
from privrl_bench.functional.rng import Streams
from privrl_bench.models.fixed_policies import FixedPolicy
from privrl_bench.types import EnvSpec


def choose(behavior_probs: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """[n] actions with the probabilities [n, A], from uniforms [n] in [0, 1); never one of probability 0."""
    reached = np.cumsum(behavior_probs, axis=-1)
    first = (uniforms[:, None] >= reached).sum(-1)
    # Rounded sums may end below 1; then the last action with a positive probability is taken.
    last = behavior_probs.shape[-1] - 1 - (behavior_probs[:, ::-1] > 0).argmax(-1)
    return np.asarray(np.minimum(first, last))


def play(
    slots: Slots, spec: EnvSpec, policy: FixedPolicy, streams: Streams, numbers: range
) -> list[Episode]:
    """The whole episodes of these numbers, at most as many as there are slots.

    The policy acts on observations in single precision, as they are stored. Probabilities are rounded to single
    precision. Users whom the environment declares are replaced by simulated ones.
    """
    n, max_episode_steps = len(numbers), spec.max_episode_steps
    obs = np.zeros((n, max_episode_steps + 1, spec.obs_dim), np.float32)
    actions = np.zeros((n, max_episode_steps), np.int64)
    rewards, behavior_probs = (np.zeros((n, max_episode_steps), np.float32) for _ in range(2))
    lengths, terminated = np.zeros(n, np.int64), np.zeros(n, bool)
    uniforms = np.stack(
        [
            torch.rand(
                max_episode_steps, generator=streams.torch("play_policy", k), dtype=torch.float64
            )
            for k in numbers
        ]
    )
    going = np.arange(n)
    seeds = [streams.episode_seed("play_env", k) for k in numbers]
    obs[:, 0] = slots.reset(going, seeds, None if spec.users is None else [None] * n)
    for t in range(max_episode_steps):
        seen = torch.from_numpy(obs[going, t]).double()
        offered = policy.probabilities(seen).numpy()
        chosen = choose(offered, uniforms[going, t])
        found = slots.step(going, chosen)
        actions[going, t] = chosen
        behavior_probs[going, t] = np.take_along_axis(offered, chosen[:, None], -1)[:, 0]
        rewards[going, t] = found.rewards
        obs[going, t + 1] = found.obs
        lengths[going] += 1
        terminated[going] = found.terminated
        going = going[~(found.terminated | found.truncated)]
        if not len(going):
            break
    return [
        episode_of(
            obs[i, : size + 1],
            actions[i, :size],
            rewards[i, :size],
            bool(terminated[i]),
            behavior_probs[i, :size],
        )
        for i, size in enumerate(lengths)
    ]


class Playing:
    """A collection that continues from the files of its folder, one for every `together` episodes.

    Args:
        folder: of the files.
        config, spec: the environment.
        policy: who plays.
        seed: of all random numbers.
        episodes, together: how many in all, and side by side.
    """

    def __init__(
        self,
        folder: Path,
        config: EnvConfig,
        spec: EnvSpec,
        policy: FixedPolicy,
        seed: int,
        episodes: int,
        together: int,
    ):
        self.folder = folder
        self._made = (config, spec, policy, Streams(seed))
        cuts = [*range(0, episodes, together), episodes]
        self._pieces = [range(a, b) for a, b in pairwise(cuts)]

    def _path(self, numbers: range) -> Path:
        return self.folder / f"{numbers.start:09d}.npz"

    def run(self, progress: Any, stop: Any) -> bool:
        """Play the missing episodes; returns whether all are there, False after a signal."""
        config, spec, policy, streams = self._made
        missing = [numbers for numbers in self._pieces if not self._path(numbers).exists()]
        if not missing:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        slots = make_slots(config, max(len(numbers) for numbers in missing))
        try:
            for numbers in missing:
                if stop.signal is not None:
                    return False
                episodes = play(slots, spec, policy, streams, numbers)
                write_shard(self._path(numbers), episodes)
                mean = float(np.mean([e.rewards.sum(dtype=np.float64) for e in episodes]))
                progress.update(numbers.stop, return_mean=mean)
        finally:
            slots.close()
        return True

    def episodes(self) -> Iterator[Episode]:
        """Everything that was played, in order."""
        for numbers in self._pieces:
            yield from read_shard(self._path(numbers))
