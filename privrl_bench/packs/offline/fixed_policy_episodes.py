"""Episodes of a fixed policy, with the probabilities of its actions if they are known.

An episode is a function of seed and number. It does not depend on interruptions, nor, but for the rounding of a
network, on the number of parallel episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.slots import Slots
from privrl_bench.envs.spaces import as_recorded
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.datasets.episode_files import read_shard, write_shard
from privrl_bench.packs.offline.datasets.trajectories import Episode, episode_of
from privrl_bench.rollout import begin, rollout
from privrl_bench.types import EnvSpec


class Player(Protocol):
    """Acts in whole episodes that are played side by side."""

    def draws(self, generator: torch.Generator, steps: int) -> Tensor:
        """Return the random numbers [T, ...] of one episode."""

    def begin(self) -> Callable[[np.ndarray, Tensor], tuple[np.ndarray, np.ndarray | None]]:
        """Return a function that acts in new episodes, one call for each step.

        It takes raw observations [n, D] in single precision and draws [n, ...] of the episodes that go on, and
        returns actions [n] or [n, A] of the environment, and their probabilities [n] if these are known.
        """


def play(
    slots: Slots, spec: EnvSpec, policy: Player, streams: Streams, numbers: range
) -> list[Episode]:
    """The whole episodes of these numbers, at most as many as there are slots.

    The policy acts on observations in single precision, as they are stored. Probabilities, if known, are
    rounded to single precision. Users whom the environment declares are replaced by simulated ones.

    Raises:
        EnvironmentFailure: an environment raised, or returned what is not finite.
    """
    n, max_episode_steps = len(numbers), spec.max_episode_steps
    obs = np.zeros((n, max_episode_steps + 1, spec.obs_dim), np.float32)
    actions = np.zeros((n, max_episode_steps), np.int64)
    if not spec.discrete:
        actions = np.zeros((n, max_episode_steps, spec.actions), np.float32)
    rewards, behavior_probs = (np.zeros((n, max_episode_steps), np.float32) for _ in range(2))
    lengths, terminated = np.zeros(n, np.int64), np.zeros(n, bool)
    sent = as_recorded(spec)
    draws = torch.stack(
        [policy.draws(streams.torch("play_policy", k), max_episode_steps) for k in numbers]
    )
    choose, known = policy.begin(), False
    seeds = [streams.episode_seed("play_env", k) for k in numbers]
    raw = begin(slots, seeds, spec.users is not None)
    obs[:, 0] = raw

    def act(going: np.ndarray, t: int) -> np.ndarray:
        nonlocal known
        rows = np.flatnonzero(going)
        chosen, chances = choose(obs[rows, t], draws[rows, t])
        chosen = sent(chosen)
        actions[rows, t] = chosen
        known = chances is not None
        if chances is not None:
            behavior_probs[rows, t] = chances
        everyone = np.zeros((n, *chosen.shape[1:]), chosen.dtype)
        everyone[rows] = chosen
        return everyone

    for step in rollout(slots, raw, np.ones(n, bool), act, max_episode_steps):
        if step.broken.any():
            raise EnvironmentFailure("an observation or a reward is not finite")
        rewards[:, step.t], obs[:, step.t + 1] = step.rewards, raw
        lengths += step.acted
        terminated |= step.terminated
    return [
        episode_of(
            obs[i, : size + 1],
            actions[i, :size],
            rewards[i, :size],
            bool(terminated[i]),
            behavior_probs[i, :size] if known else None,
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
        policy: Player,
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
