"""Episodes as they are played: of a policy that does not change, or of training runs.

An episode of a fixed policy is a function of seed and number. It does not depend, but for the rounding of a
network, on the number of parallel episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.slots import Slots, StepResult, UserNumbers
from privrl_bench.envs.spaces import as_recorded
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.signals import Stop
from privrl_bench.packs.offline.datasets.trajectories import Episode, episode_of
from privrl_bench.rollout import begin, rollout
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import EnvSpec


class RecordingSlots:
    """`Slots` that record every episode; `taken()` returns those that ended.

    An episode that is reset before its end is recorded as truncated. Actions of a Box are recorded as the
    environment gets them.

    Args:
        slots: The recorded slots.
        spec: Public facts of the environment.
    """

    def __init__(self, slots: Slots, spec: EnvSpec):
        self.count = slots.count
        self._slots = slots
        self._sent = as_recorded(spec)
        self._obs = np.zeros((slots.count, spec.max_episode_steps + 1, spec.obs_dim), np.float32)
        shape = (slots.count, spec.max_episode_steps)
        self._actions = np.zeros(shape, np.int64)
        if not spec.discrete:
            self._actions = np.zeros((*shape, spec.actions), np.float32)
        self._rewards = np.zeros(shape, np.float32)
        self._length = np.zeros(slots.count, np.int64)
        self._over: list[tuple[int, Episode]] = []

    def reset(self, indices: np.ndarray, seeds: list[int], users: UserNumbers = None) -> np.ndarray:
        """See `Slots.reset`."""
        for slot in indices[self._length[indices] > 0]:
            self._end(int(slot), terminated=False)
        obs = self._slots.reset(indices, seeds, users)
        self._obs[indices, 0] = obs
        return obs

    def step(self, indices: np.ndarray, actions: np.ndarray) -> StepResult:
        """See `Slots.step`."""
        actions = self._sent(actions)
        result = self._slots.step(indices, actions)
        t = self._length[indices]
        self._actions[indices, t] = actions
        self._rewards[indices, t] = result.rewards
        with np.errstate(over="ignore"):  # what is not finite is refused later
            self._obs[indices, t + 1] = result.obs
        self._length[indices] += 1
        for row in np.flatnonzero(result.terminated | result.truncated):
            self._end(int(indices[row]), terminated=bool(result.terminated[row]))
        return result

    def _end(self, slot: int, *, terminated: bool) -> None:
        n = int(self._length[slot])
        steps = self._actions[slot, :n], self._rewards[slot, :n]
        self._over.append((slot, episode_of(self._obs[slot, : n + 1], *steps, terminated)))
        self._length[slot] = 0

    def taken(self) -> list[tuple[int, Episode]]:
        """Return the episodes that ended since the last call, in this order, each with its slot."""
        over, self._over = self._over, []
        return over

    def close(self) -> None:
        """See `Slots.close`."""
        self._slots.close()


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
    n, steps = len(numbers), spec.max_episode_steps
    tape, behavior_probs = RecordingSlots(slots, spec), np.zeros((n, steps), np.float32)
    draws = torch.stack([policy.draws(streams.torch("play_policy", k), steps) for k in numbers])
    choose, known = policy.begin(), False
    seeds = [streams.episode_seed("play_env", k) for k in numbers]
    obs = begin(tape, seeds, spec.users is not None)

    def act(going: np.ndarray, t: int) -> np.ndarray:
        nonlocal known
        rows = np.flatnonzero(going)
        chosen, chances = choose(obs[rows].astype(np.float32), draws[rows, t])
        known = chances is not None
        if chances is not None:
            behavior_probs[rows, t] = chances
        everyone = np.zeros((n, *chosen.shape[1:]), chosen.dtype)
        everyone[rows] = chosen
        return everyone

    for step in rollout(tape, obs, np.ones(n, bool), act, steps):
        if step.broken.any():
            raise EnvironmentFailure("an observation or a reward is not finite")
    episodes = [episode for _, episode in sorted(tape.taken(), key=lambda one: one[0])]
    if not known:
        return episodes
    return [
        one._replace(behavior_probs=row[: len(one.rewards)].copy())
        for one, row in zip(episodes, behavior_probs, strict=True)
    ]


def play_runs(
    configs: list[RunConfig], show: Callable[[int, float | None], Any], stop: Stop
) -> list[Episode] | None:
    """The whole episodes of training runs, in the order of their ends.

    Args:
        configs: of the runs, which are trained together; they differ in the seed.
        show: is told the steps so far and the mean return of the last round, if one is known.
        stop: set by a signal.

    Returns:
        None if a signal ended the runs before their end.
    """
    trainer = Trainer(make_plan(configs))
    try:
        tape = RecordingSlots(trainer.collector.slots, trainer.parts.spec)  # type: ignore[attr-defined]
        trainer.collector.slots = tape  # type: ignore[attr-defined]
        while not trainer.over:
            if stop.signal is not None:
                return None
            trainer.step()
            returns = [d.get("train/return_mean", np.nan) for d in trainer.diagnostics]
            mean = None if np.isnan(returns).all() else float(np.nanmean(returns))
            show(trainer.round * len(configs) * trainer.parts.round_steps, mean)
        return [episode for _, episode in tape.taken()]
    finally:
        trainer.close()
