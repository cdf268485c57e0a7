"""UCB-VI on running counts: optimistic planning after every episode, without noise or under joint DP.

    repeat for every round:
        one user plays an episode, greedy in Q
        counts <- counts + theirs (visits, visits of next states, rewards), under the noise of a running sum
        plan backwards: Q_h = R + b_R + P V_{h+1} + (steps left) b_P, V = max Q

The noised counts are public; a user's own states decide only their own actions (joint DP). With E the
standard deviation of a count's noise and n = max(1, noisy count + E), b = sqrt(log_term / n) + S E / n for S
states (E = 0 without noise). A prior of one visit with reward 1, and one visit of each next state, makes it
optimistic. Rewards must be in [0, 1] and states observed one-hot.

Source: Azar et al. 2017; for joint DP Chowdhury and Zhou 2022 and their public code, whose noise is
`privacy=fresh_noise_per_round` (E as in that code).
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, pooled_rows
from privrl_bench.algorithms.value.value_settings import UcbViConfig
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_table import TablePolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


class UcbVi(Algorithm):
    """UCB-VI; see the module.

    State tensors: `counts` [R, S A (S + 2)], `actor` [R, H S A], the values Q.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    policy: TablePolicy

    def __init__(self, config: UcbViConfig, context: AlgorithmContext):
        self.config = config
        self.policy = TablePolicy(context.spec)
        self._context = context
        _, self._states, self._actions = self.policy.shape
        self._size = self._states * self._actions * (self._states + 2)

    def blocks(self) -> tuple[Block, ...]:
        """One block, all counts of an episode."""
        return (Block("counts", self._size, self._context.privacy.clip),)

    def init(self, streams: list[Streams]) -> State:
        """Counts of zero, and their optimistic values."""
        counts = torch.zeros(len(streams), self._size)
        return State(0, {"counts": counts, "actor": self._plan(counts, 0)})

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Counts of one episode: visits [S, A], visits of next states [S, A, S], rewards [S, A].

        Guarantee: row u is a function of user u's episode, which depends on the released table and the user's
        states.
        """
        cells = self._states * self._actions
        mask = users.mask.to(users.rewards.dtype)
        cell = users.obs.argmax(-1) * self._actions + users.actions.long()
        visits = torch.zeros(*users.valid.shape, cells).scatter_add_(-1, cell, mask)
        rewards = torch.zeros_like(visits).scatter_add_(-1, cell, mask * users.rewards)
        # As in the published code, the last step of an episode is not counted as a transition.
        onward = mask * (~users.done).to(mask.dtype)
        move = cell * self._states + users.next_obs.argmax(-1)
        moves = torch.zeros(*users.valid.shape, cells * self._states)
        rows = torch.cat([visits, moves.scatter_add_(-1, move, onward), rewards], dim=-1)
        valid = users.valid
        if self._context.privacy.mechanism.pooled:  # all users in one row
            rows, valid = pooled_rows(rows, valid)
        return Contribution({"counts": rows}, valid)

    def server(self, state: State, released: Released) -> State:
        """Add the released counts, and plan."""
        divisor = 1 if self._context.privacy.mechanism.pooled else self._context.privacy.users
        counts = state.tensors["counts"] + divisor * released.values["counts"]
        index = state.round + 1
        return State(index, {"counts": counts, "actor": self._plan(counts, index)})

    def _noise(self, rounds: int) -> Tensor:
        """[R] standard deviation E of a count after so many rounds."""
        z = torch.tensor(self._context.schedule.z)
        if rounds == 0:
            return torch.zeros_like(z)
        noise: Tensor = self._context.privacy.mechanism.sum_noise(
            z, self._context.privacy.clip, rounds
        )
        return noise

    def _plan(self, counts: Tensor, rounds: int) -> Tensor:
        """[R, H S A] optimistic values from noisy counts [R, S A (S + 2)]."""
        horizon, states, actions = self.policy.shape
        cells = states * actions
        visits, moves, rewards = counts.split([cells, cells * states, cells], dim=-1)
        visits = visits.reshape(-1, states, actions)
        rewards = rewards.reshape(-1, states, actions)
        moves = moves.reshape(-1, states, actions, states)
        error = self._noise(rounds)[:, None, None]
        tried = (1.0 + visits + error).clamp_min(1.0)
        moved = (states + moves.sum(-1) + error).clamp_min(1.0)
        reward = (1.0 + rewards) / tried
        transition_probs = (1.0 + moves) / moved.unsqueeze(-1)
        if (
            self._context.privacy.mechanism.running_sums
            and not self._context.privacy.mechanism.imitation
        ):  # noise may have made it no distribution at all
            transition_probs = transition_probs.clamp_min(0.0)
            transition_probs = transition_probs / transition_probs.sum(-1, keepdim=True).clamp_min(
                1e-6
            )
        term = self.config.log_term
        reward = reward + (term / tried).sqrt() + states * error / tried
        unsure = (term / moved).sqrt() + states * error / moved
        table = torch.zeros(len(counts), horizon, states, actions)
        after = torch.zeros(len(counts), states)
        for h in range(horizon - 1, -1, -1):
            left = horizon - 1 - h
            table[:, h] = (
                reward + torch.einsum("rsan,rn->rsa", transition_probs, after) + left * unsure
            )
            after = table[:, h].amax(-1)
        return table.flatten(1)


ALGORITHM = UcbVi
