"""Episodes in compiled code: CartPole with one network (`kernels/episodes.py`).

These are the episodes that `users/collectors/live.py` and `evaluation/returns.py` step with tensors,
from the same random numbers, up to the rounding of sines and sums. With noise on devices the policy and
the buffer get what the users' devices show, value by value as in `privacy/devices.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from privrl_bench.envs.classic import CartPoleSlots
from privrl_bench.envs.slots import Slots
from privrl_bench.kernels.episodes import (
    EpisodeState,
    SignalArrays,
    TrajectoryBuffer,
    play_cartpole,
)
from privrl_bench.models.choices import ArrayPolicy
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.devices import DeviceArrays, DeviceNoise
from privrl_bench.rollout import finite
from privrl_bench.users.collectors.batches import blank


class CompiledPlayer:
    """Plays the slots' current episodes; see `player`."""

    def __init__(self, slots: CartPoleSlots, policy: ArrayPolicy):
        self._slots, self._policy = slots, policy

    def play(
        self,
        policy_params: Tensor,
        noise: Tensor | None,
        shown: np.ndarray,
        played: EpisodeState,
        steps: int,
        device: DeviceNoise | None = None,
        kept: dict[str, Tensor] | None = None,
        signals: SignalArrays | None = None,
    ) -> None:
        """The episodes of the users who are `going`, to their ends or to step `steps`.

        Args:
            policy_params: [R, P].
            noise: [steps, R, U, ...] of the policy's `draw`; None: greedy.
            shown: [R, U, D] double precision: the observations that the policy acts on first; the
                last ones afterwards.
            played: is continued, at each user's `step`.
            steps: of the noise.
            device: clip and noise of observations, from the first step of the round on.
            kept: tensors [R, U, T, ...] of `batches.blank`, filled from the first step on.
            signals: scaling of observations and rewards; None: none.

        Raises:
            PrivacyError: no noise was drawn for this round.
        """
        replicas, users, dim = shown.shape
        choices = self._policy.choices(policy_params, users, noise)
        rewards = np.ones((1, replicas, users))
        if device is None:
            bounds, grid = np.zeros(dim), np.zeros((replicas, dim))
            there = np.ones(replicas, np.bool_)
            shows = DeviceArrays(bounds, bounds, grid, there, np.zeros((0, *shown.shape)))
        else:
            shows = device.arrays()
            if device.ranges.reward is not None:
                rewards = device.reward(np.ones((steps, replicas, users)), slice(0, steps))
        kept = blank((replicas, users, 0), dim) if kept is None else kept
        buffer = TrajectoryBuffer(**{name: x.numpy() for name, x in kept.items()})
        if signals is None:
            zero, one = np.zeros((replicas, dim)), np.ones((replicas, dim))
            signals = SignalArrays(zero, one, math.inf, np.ones(replicas), math.inf)
        inside = self._slots.inside()
        play_cartpole(inside, choices, shows, signals, rewards, shown, played, buffer, steps)

    def play_round(
        self,
        policy_params: Tensor,
        noise: Tensor,
        shown: np.ndarray,
        played: EpisodeState,
        kept: dict[str, Tensor],
        device: DeviceNoise | None,
        signals: SignalArrays | None,
        restart: Callable[[np.ndarray], None] | None,
    ) -> list[list[float]]:
        """A round of T steps of each user.

        Args:
            policy_params: as in `play`.
            noise: as in `play`, of T steps.
            shown: as in `play`.
            played: as in `play`.
            kept: as in `play`.
            device: as in `play`.
            signals: as in `play`.
            restart: begins new episodes of the users [R, U] bool, whose observations are in `shown`
                afterwards; None: a user has one episode.

        Returns:
            Returns of the episodes that ended, of each replica.
        """
        steps = len(noise)
        finished: list[list[float]] = [[] for _ in shown]
        while played.going.any():
            self.play(policy_params, noise, shown, played, steps, device, kept, signals)
            for r, returns in enumerate(finished):
                returns += played.returns[r][played.over[r]].tolist()
            again = played.over & (played.step < steps)
            if restart is None or not again.any():
                break
            restart(again)
            played.broken[again & ~finite(shown).all(axis=-1)] = True
            played.going[:] = again & ~played.broken
            played.returns[again] = 0.0
            played.over[:] = False
        return finished


def player(slots: Slots, policy: Policy) -> CompiledPlayer | None:
    """The compiled player of these slots and this policy; None: the episodes are stepped."""
    if type(slots) is CartPoleSlots and isinstance(policy, ArrayPolicy):
        return CompiledPlayer(slots, policy)
    return None
