"""DP-LSTD: LSTD from noised sums (sufficient-statistics perturbation) with an adaptive ridge.

    user i:  (A_i, b_i) as one vector, clipped to norm C
    release: (A, b) <- 1 / n (sum over i of clip(A_i, b_i) + N(0, (z C)^2 I))
    theta <- (A + ridge I)^-1 b
    ridge <- k s - smallest eigenvalue of (A + A^T) / 2, between 0 and 3 k s;  s = z C sqrt(d) / n

with A_i and b_i as in `functional/policy_evaluation.py`. s is half the expected norm of the noise in A. The
ridge is a function of the release and of public numbers, so it costs nothing. WIS-LSTD(0) is LSTD with
importance ratios, so this is the private form of both.

Guarantee:
    Formal, for one trajectory of a user: one Gaussian release about all users.

Source:
    Wang 2018, "Revisiting differentially private linear regression" (AdaSSP: noised sums and a ridge that
    depends on the smallest eigenvalue), here for the linear system of LSTD (Bradtke and Barto 1996).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.ope.linear_evaluation import EvaluationAlgorithm, shares
from privrl_bench.packs.offline.ope.ope_settings import DpLstdConfig
from privrl_bench.packs.offline.ope.policy_evaluation import moments, solve
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


def ridge_solve(A: Tensor, b: Tensor, level: Tensor) -> Tensor:
    """Return (A + ridge I)^-1 b [..., d] in double precision, with a ridge between 0 and 3 `level`.

    ridge = level - the smallest eigenvalue of (A + A^T) / 2, in that range. A has that eigenvalue at 0 or above
    for on-policy data without end; noise of norm 2 `level` in A lowers it by about 1.4 `level`.

    Args:
        A: [..., d, d].
        b: [..., d].
        level: [...], not negative; 0 gives the solution of A theta = b.
    """
    wide, high = A.double(), level.double()
    least = torch.linalg.eigvalsh((wide + wide.mT) / 2)[..., 0]
    ridge = torch.minimum((high - least).clamp_min(0.0), 3.0 * high)[..., None, None]
    return solve(wide + ridge * torch.eye(wide.shape[-1], dtype=wide.dtype), b)


class DpLstd(EvaluationAlgorithm):
    """DP-LSTD. State tensor: `theta` [R, d]."""

    def __init__(self, config: DpLstdConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self.config = config

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: A [d, d] and b [d] of a user, clipped as one vector."""
        d = self.features.size
        return (Block("sums", d * d + d, self._context.privacy.clip),)

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: A and b of every user's trajectory.

        Guarantee:
            Row u is a function of user u's trajectory and public policies.
        """
        share = shares(users.mask, self.config.weighting, users.mask.shape[-1])
        found = moments(self.steps_of(users, share), self.config.gamma)
        return Contribution({"sums": torch.cat([found.A.flatten(-2), found.b], -1)}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: solve the noised system."""
        d = self.features.size
        A, b = released.values["sums"].double().split([d * d, d], dim=-1)
        theta = ridge_solve(A.reshape(-1, d, d), b, self.config.ridge * self._noise)
        return State(state.round + 1, {"theta": theta.float()})

    @property
    def _noise(self) -> Tensor:
        """[R] half the expected spectral norm of the noise in A; public."""
        std = torch.tensor(
            [one["sums"] for one in self._context.schedule.stds], dtype=torch.float64
        )
        return std / self._context.privacy.users * math.sqrt(self.features.size)


ALGORITHM = DpLstd
