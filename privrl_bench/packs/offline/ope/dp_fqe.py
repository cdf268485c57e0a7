"""Fitted Q evaluation: the value of a policy from one noised release of sums over recorded trajectories.

With the linear model M and c of each action (`learning/linear_model.py`), pi the evaluated policy and T the
most steps of an episode,

    repeat T times from v = 0:
        q_a = phi . (c_a + gamma M_a v + gamma v)
        v <- least squares of sum over a of pi(a | s) q_a(s), clipped to possible values, on public states
    value = v . f, clipped, f the mean of phi over the users' first states

f is a second block of the release: a user's mean of phi over the first states of their episodes, in units of
the public users' largest length (a clipped start would be another start), clipped to privacy.clip. T is that of
the environment, also where the logs were cut before. The range of possible values is from the public users'
rewards.

The error that is printed is the standard deviation of the value when noise as large as that of a released
number, by noise and by chance, is added to the release 50 times. It does not contain what the features cannot
represent, nor what the logs do not show of the policy: no coverage is claimed.

Guarantee: formal, for one user with all their episodes: one Gaussian release about all users, n public. A row
is a function of one user's steps and of public users' data; pi and everything after the release are public.

Source: Le, Voloshin and Yue 2019 (fitted Q evaluation), Duan, Jia and Wang 2020 (with linear features it is a
function of the sums).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.fixed_policies import is_given
from privrl_bench.packs.offline.learning.learning_settings import DpFqeConfig
from privrl_bench.packs.offline.learning.linear_model import LinearModel, SufficientSums
from privrl_bench.packs.offline.ope.linear_evaluation import known_policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch

_AGAIN = 50  # releases with more noise
_EVERY = 6  # of the public states is one on which values are projected
_RATIO = 3.0  # noise multiplier of the start to that of the sums, which are many numbers


def first_steps(done: Tensor, mask: Tensor) -> Tensor:
    """[..., T] bool: whether an episode begins with the step."""
    before = torch.ones_like(done)
    before[..., 1:] = done[..., :-1]
    return before & mask


class DpFqe(LinearModel):
    """DP-FQE; see the module. State tensor: `released` [R, P + d].

    Args:
        config: settings of the algorithm.
        context: of the run.

    Raises:
        ConfigError: the evaluated policy is not given, not known, or has no probabilities.
    """

    config: DpFqeConfig

    def __init__(self, config: DpFqeConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._observed, self._states = self._observed[::_EVERY], self._states[::_EVERY]
        env, public = context.env, context.sources.transitions
        assert env is not None
        assert public is not None
        if config.target is None:
            raise ConfigError("algo.target", "name the policy that is evaluated, e.g. a run folder")
        target = known_policy("algo.target", config.target, context)
        mean, std = torch.zeros(1), torch.ones(1)
        if env.obs_scaling == "public":
            mean, std = torch.tensor(env.obs_mean or 0.0), torch.tensor(env.obs_std or 1.0)
        seen = self._observed * std + mean
        self._acts = target.probabilities(seen).double()  # [n, A]
        starts = public.lengths.cumsum(0) - public.lengths
        self._short = float(self._phi(public.obs[starts]).norm(dim=-1).max()) or 1.0

    def terms(self) -> AlgorithmTerms:
        """See `LinearModel.terms`; how a trained target was made is not covered."""
        terms = super().terms()
        notes = {"error": "of noise and chance alone: no coverage is claimed"}
        if is_given(str(self.config.target)):
            notes["given"] = "algo.target: this epsilon does not cover how it was made; add its"
        return AlgorithmTerms(
            unit=terms.unit, notes=dict(terms.notes) | notes, warning=terms.warning
        )

    def blocks(self) -> tuple[Block, ...]:
        """The sums, and the start with more noise."""
        return (*super().blocks(), Block("start", self._d, self._context.privacy.clip, _RATIO))

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: zeros."""
        return State(0, {"released": torch.zeros(len(streams), self._row + self._d)})

    def actor(self, state: State) -> Tensor:
        """What was released, [R, P + d]."""
        return state.tensors["released"]

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """The sums and the start of every user.

        Guarantee: row u is a function of user u's steps and of public users' data.
        """
        first = first_steps(users.done, users.mask)
        share = first / first.sum(-1, keepdim=True).clamp_min(1)
        start = (self._phi(users.obs) * share[..., None]).sum(-2) / self._short
        return Contribution({"sums": self.own_sums(users), "start": start}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: what was released."""
        both = [released.values[name] for name in ("sums", "start")]
        return State(state.round + 1, {"released": torch.cat(both, dim=-1)})

    def numbers(self, released: Tensor, r: int) -> tuple[dict[str, float], str]:
        """Metrics of replica r from what was released [P + d], and why there is no value."""
        n, stds = self._context.privacy.users, self._context.schedule.stds[r]
        std = stds["sums"] / n
        spread = released.new_full((len(released),), self.deviation(std), dtype=torch.float64)
        chance = self._context.privacy.clip / math.sqrt(self._d * n)
        spread[self._row :] = math.hypot(stds["start"] / n, chance)
        # NumPy guarantees the raw numbers of PCG64 across versions.
        raw = np.random.PCG64(0).random_raw(_AGAIN * len(spread)).reshape(_AGAIN, -1)
        uniform = torch.from_numpy(((raw >> np.uint64(11)) + 0.5) / 2.0**53)
        again = released.double() + spread * torch.special.ndtri(uniform)
        unit = self._context.env.reward_unit  # type: ignore[union-attr]
        values = self.value(torch.cat([released.double()[None], again]), std)
        found = {
            "eval/value": unit * float(values[0].clamp(*self._possible)),
            "eval/value_error": unit * float(values[1:].std()),
        }
        return found, "it is not finite"

    def value(self, released: Tensor, std: float) -> Tensor:
        """[B] values of releases [B, P + d], in units of learning."""
        gamma, x, project = self.config.gamma, self._states, self.projection()
        sums, start = released.split([self._row, self._d], dim=-1)
        _, M, c = self.model(SufficientSums(*self._sums(sums)), std)
        v = torch.zeros(len(released), 1, self._d, dtype=torch.float64)
        for _ in range(self._context.spec.max_episode_steps):
            theta = c + gamma * (M @ v[..., None])[..., 0] + gamma * v  # [B, A, d]
            q = (self._acts * (x @ theta.mT)).sum(-1).clamp(*self._possible)  # [B, n]
            v = (q @ project.mT)[:, None]
        return (v[:, 0] * start * self._short).sum(-1)


ALGORITHM = DpFqe
