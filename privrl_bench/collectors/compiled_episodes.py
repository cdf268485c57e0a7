"""Episodes in compiled code: CartPole with one ReLU network (`kernels/episodes.py`).

These are the episodes that `collectors/simulated.py` and `evaluation/returns.py` step with tensors,
from the same random numbers, up to the rounding of sines and sums. With local noise the policy and
the buffer get what the users' devices show, value by value as in `privacy/devices.py`.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from privrl_bench.collectors.batches import blank
from privrl_bench.envs.classic import CartPoleSlots
from privrl_bench.envs.slots import Slots
from privrl_bench.kernels.episodes import EpisodeState, TrajectoryBuffer, play_cartpole
from privrl_bench.models.policy import ArrayPolicy, Policy
from privrl_bench.privacy.devices import DeviceArrays, LocalNoise


class Player:
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
        device: LocalNoise | None = None,
        kept: dict[str, Tensor] | None = None,
    ) -> None:
        """Up to `steps` further steps of the users who are `going`.

        Args:
            policy_params: [R, P].
            noise: [steps, R, U, ...] of the policy's `draw`; None: greedy.
            shown: [R, U, D] double precision: the observations that the policy acts on first; the
                last ones afterwards.
            played: is continued.
            steps: at most so many.
            device: clip and noise of observations, from the first step of the round on.
            kept: tensors [R, U, T, ...] of `batches.blank`, filled from the first step on.

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
        play_cartpole(self._slots.inside(), choices, shows, rewards, shown, played, buffer, steps)


def player(slots: Slots, policy: Policy) -> Player | None:
    """The compiled player of these slots and this policy; None: the episodes are stepped."""
    if type(slots) is CartPoleSlots and isinstance(policy, ArrayPolicy):
        return Player(slots, policy)
    return None
