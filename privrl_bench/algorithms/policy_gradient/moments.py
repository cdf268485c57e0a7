"""Private scaling of observations and rewards, released as a further block of the row.

For environments whose public ranges are unknown (`env.obs_scaling=private`, `env.reward_scaling=private`).
Each user measures their own steps under the current scaling and contributes the distance from mean 0 and
standard deviation 1. The noised mean of these moment updates changes the scaling of later rounds, with step
1/(round + 1), so that all rounds have the same weight, as in the running statistics of Gymnasium's wrappers.
The scaling is a function of the gate's output only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import Scaling, State, UserBatch

_LARGEST_STEP = 1.0  # bound of each coordinate: one standard deviation, or a factor e
_RANGE = math.log(1e6)  # scales stay within a factor of a million of the initial ones


class PrivateMoments:
    """The scaling as a block; without private scaling in `env`, no block and no tensors.

    State tensors: `obs_mean`, `obs_log_std` [R, D] in units of the initial scaling (`env.obs_mean`,
    `env.obs_std`), `reward_log_scale` [R, 1].

    Args:
        context: Context of the run; it says which scaling is learned.
        clip: L2 bound of one user's moment update.
        noise_ratio: noise multiplier of the block, relative to the run's.
    """

    def __init__(self, context: AlgorithmContext, clip: float, noise_ratio: float):
        self._clip, self._noise_ratio = clip, noise_ratio
        self._dim = context.spec.obs_dim if context.privacy.learns_obs else 0
        self._reward = context.privacy.learns_reward

    def blocks(self) -> tuple[Block, ...]:
        """One coordinate per mean and log standard deviation, and one for the rewards."""
        size = 2 * self._dim + int(self._reward)
        if size == 0:
            return ()
        return (Block("moments", size, self._clip, self._noise_ratio),)

    def init(self, replicas: int) -> dict[str, Tensor]:
        """State tensors of the initial scaling."""
        tensors = {}
        if self._dim:
            tensors["obs_mean"] = torch.zeros(replicas, self._dim)
            tensors["obs_log_std"] = torch.zeros(replicas, self._dim)
        if self._reward:
            tensors["reward_log_scale"] = torch.zeros(replicas, 1)
        return tensors

    def scaling(self, state: State) -> Scaling | None:
        """The current scaling, or None when none is learned."""
        if not self.blocks():
            return None
        found = state.tensors
        log_std = found.get("obs_log_std")
        log_scale = found.get("reward_log_scale")
        return Scaling(
            found.get("obs_mean"),
            None if log_std is None else log_std.exp(),
            None if log_scale is None else log_scale.exp(),
        )

    def user_update(self, users: UserBatch) -> dict[str, Tensor]:
        """Compute every user's moment update from their own steps.

        Args:
            users: steps of the users.

        Returns:
            The block [R, U, 2 D (+ 1)], or nothing when no scaling is learned.
        """
        if not self.blocks():
            return {}
        weight = users.mask.to(users.obs.dtype)
        count = weight.sum(-1).clamp_min(1.0)[..., None]
        moment_updates = []
        if self._dim:
            mean = (users.obs * weight[..., None]).sum(2) / count
            # About the common mean, not the user's own, to include the spread between users.
            spread = ((users.obs**2 * weight[..., None]).sum(2) / count).sqrt()
            moment_updates += [mean, spread.clamp_min(1e-6).log()]
        if self._reward:
            size = (users.rewards.abs() * weight).sum(-1, keepdim=True) / count
            # A user without rewards contributes no update.
            moment_updates.append(torch.where(size > 0, size.clamp_min(1e-6).log(), 0.0))
        return {"moments": torch.cat(moment_updates, dim=-1).clamp(-_LARGEST_STEP, _LARGEST_STEP)}

    def server(self, state: State, released: Released) -> dict[str, Tensor]:
        """Add the noised mean moment update with step 1/(round + 1)."""
        if not self.blocks():
            return {}
        move = released.values["moments"] / (state.round + 1)
        tensors = {}
        if self._dim:
            log_std = state.tensors["obs_log_std"]
            tensors["obs_mean"] = state.tensors["obs_mean"] + log_std.exp() * move[:, : self._dim]
            grown = log_std + move[:, self._dim : 2 * self._dim]
            tensors["obs_log_std"] = grown.clamp(-_RANGE, _RANGE)
        if self._reward:
            shrunk = state.tensors["reward_log_scale"] - move[:, -1:]
            tensors["reward_log_scale"] = shrunk.clamp(-_RANGE, _RANGE)
        return tensors
