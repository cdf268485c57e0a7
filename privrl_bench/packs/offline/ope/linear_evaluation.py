"""Base of algorithms that evaluate a policy: v(s) = phi(s) . theta from trajectories under data.policy.

The released theta is stored as `actor` in the files of a run: weights of a value function, not a policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.fixed_policies import fixed_policy
from privrl_bench.packs.offline.ope.linear_values import (
    ActingPolicy,
    Cells,
    behavior_probs_of,
    cells,
    features,
)
from privrl_bench.packs.offline.ope.ope_settings import EvaluationConfig, OutputConfig
from privrl_bench.packs.offline.ope.policy_evaluation import (
    SmoothSolution,
    Steps,
    Visits,
    first_visits,
)
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch


class EvaluationAlgorithm(Algorithm):
    """Base class: features, importance ratios and the initial state."""

    policy: ActingPolicy

    def __init__(self, config: EvaluationConfig, context: AlgorithmContext):
        assert context.env is not None
        assert context.behavior_policy is not None
        self.settings, self._context = config, context
        self.features = features(config.features, config.order, context.env, context.spec)
        try:
            self.policy = ActingPolicy(
                fixed_policy(context.behavior_policy, context.env, context.spec)
            )
        except ConfigError as error:
            raise ConfigError("data.policy", error.problem) from None
        self.target = None
        if config.target not in (None, context.behavior_policy):
            try:
                self.target = fixed_policy(str(config.target), context.env, context.spec)
            except ConfigError as error:
                raise ConfigError("algo.target", error.problem) from None

    def terms(self) -> AlgorithmTerms:
        """The unit is one trajectory; what is public, and hyperparameters chosen outside the budget."""
        once = self._context.privacy.used_once
        often = "used once" if self.settings.traits.full_batch or once else "in any of the rounds"
        max_episode_steps = self._context.spec.max_episode_steps
        who = (
            "one user"
            if self._context.sources.transitions is not None
            else self._context.spec.one_user
        )
        what = f"{who}: one trajectory of at most {max_episode_steps} steps, {often}"
        notes = {
            "known policies": "the behaviour policy and its probabilities are public, and n is exact",
            "tuning": "step sizes, clip, ridge and bounds are assumed to be chosen without these users' data",
        }
        return AlgorithmTerms(unit=Unit(what, 1 if once else None), notes=notes)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: zeros."""
        return State(0, {"theta": torch.zeros(len(streams), self.features.size)})

    def actor(self, state: State) -> Tensor:
        """Return theta [R, d]."""
        return state.tensors["theta"]

    def ratios(self, users: UserBatch) -> Tensor:
        """Return importance ratios [R, U, T] of target to behaviour policy.

        Behaviour probabilities are recorded in a dataset, and computed for simulated users.
        """
        if self.target is None:
            return torch.ones_like(users.rewards)
        behaviour = users.behavior_probs
        if behaviour is None:
            behaviour = behavior_probs_of(self.policy.known, users.obs, users.actions)
        return behavior_probs_of(self.target, users.obs, users.actions) / behaviour

    def steps_of(self, users: UserBatch, share: Tensor) -> Steps:
        """Convert users to `functional.policy_evaluation.Steps`.

        Args:
            users: Of a round, padded, `unpadded` or `flat_steps`.
            share: [..., T] weight c_t of every step, see `shares`.
        """
        phi = self.features.phi(users.obs)
        # The next observation is usually that before the next step; compute features only where it is not.
        after = phi.roll(-1, -2)
        differs = (users.next_obs != users.obs.roll(-1, -2)).any(-1)
        after[differs] = self.features.phi(users.next_obs[differs])
        after[users.terminated | ~users.mask] = 0.0
        return Steps(
            torch.where(users.mask[..., None], phi, 0.0),
            after,
            users.rewards,
            torch.where(users.mask, self.ratios(users), 1.0),
            share,
            users.done,
        )


def shares(mask: Tensor, weighting: str, whole: int) -> Tensor:
    """Return the weights c_t [..., T] of all steps, zeros for padding.

    Args:
        mask: [..., T].
        weighting: trajectory: c_t = 1 / the user's number of steps | step: 1 / T.
        whole: The public T, which may exceed the length of `mask`.
    """
    happened = mask.to(torch.get_default_dtype())
    own = happened.sum(-1, keepdim=True).clamp_min(1.0)
    return happened / (own if weighting == "trajectory" else whole)


def flat_steps(users: UserBatch) -> UserBatch:
    """Concatenate all users' steps without padding, [N, ...]; `valid` stays [R, U]."""

    def part(x: Tensor) -> Tensor:
        return x[users.mask]

    return _each(users, part, users.valid)


def unpadded(users: UserBatch, r: int) -> UserBatch:
    """Return the users of replica r without common padding, [1, U, L, ...].

    Replicas are separate, so that no sum over steps depends on other replicas, not even in its rounding.
    """
    length = int(users.mask[r].sum(-1).max())

    def part(x: Tensor) -> Tensor:
        return x[r : r + 1, :, :length]

    return _each(users, part, users.valid[r : r + 1])


def _each(users: UserBatch, part: Callable[[Tensor], Tensor], valid: Tensor) -> UserBatch:
    """Apply `part` to all tensors with a time axis."""
    return UserBatch(
        obs=part(users.obs),
        next_obs=part(users.next_obs),
        actions=part(users.actions),
        rewards=part(users.rewards),
        terminated=part(users.terminated),
        done=part(users.done),
        mask=part(users.mask),
        valid=valid,
        behavior_probs=None if users.behavior_probs is None else part(users.behavior_probs),
    )


class PooledSums(EvaluationAlgorithm):
    """Base of non-private algorithms that solve a linear system of sums over all users."""

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: A [d, d] and b [d]."""
        d = self.features.size
        return (Block("sums", d * d + d, self._context.privacy.clip),)

    @abstractmethod
    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """Return A and b [1, U, d d + d] of the users of one replica's shard; `whole` is T."""

    def user_update(
        self, state: State, shards: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """See `Algorithm.user_update`: the sum over users with finite data, divided by n."""
        (block,) = self.blocks()
        total = torch.zeros(len(streams), block.size, dtype=torch.float64)
        for users in shards:
            whole = users.mask.shape[-1]
            each = [self.sums(unpadded(users, r), whole) for r in range(len(streams))]
            found = torch.cat(each).double()
            usable = users.valid & torch.isfinite(found).all(-1)
            total += torch.where(usable[..., None], found, 0.0).sum(1)
        rows = total[:, None] / self._context.privacy.population
        return Contribution({"sums": rows}, torch.ones(len(streams), 1, dtype=torch.bool))

    @abstractmethod
    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """Return theta [R, d]."""

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: solve the linear system."""
        d = self.features.size
        A, b = released.values["sums"].double().split([d * d, d], dim=-1)
        theta = self.solution(A.reshape(-1, d, d), b).float()
        return State(state.round + 1, {"theta": theta})


# --- output perturbation


class OutputPerturbation(EvaluationAlgorithm):
    """Base of output perturbation: an exact solution from first visits, with its smooth bound.

    See `privacy/mechanisms/smooth.py`.
    """

    def __init__(self, config: OutputConfig, context: AlgorithmContext):
        super().__init__(config, context)
        assert context.env is not None
        self.config = config
        self._cells: Cells = cells(config.grid, context.env, context.spec)
        self._phi = self.features.phi(self._cells.centres)
        count = len(self._cells.centres)
        if config.weights is not None and len(config.weights) != count:
            raise ConfigError(
                "algo.weights", f"needs {count} numbers, one per state, got {len(config.weights)}"
            )
        self._weights = torch.tensor(config.weights or [1.0] * count, dtype=torch.float64)

    def visits_of(self, users: UserBatch) -> Visits:
        """Return sums [R, S] over the users of a shard; users with non-finite data are left out."""
        config, count = self.config, len(self._weights)
        finite = torch.isfinite(users.obs).all(-1) & torch.isfinite(users.rewards)
        usable = (users.valid & (finite | ~users.mask).all(-1))[..., None]
        found, seen = first_visits(
            self._cells.of(users.obs), users.rewards, users.done, users.mask, config.gamma, count
        )
        seen = seen & usable
        cut = found.nan_to_num(0.0).clamp(config.return_low, config.return_high)
        return Visits(torch.where(seen, cut, 0.0).sum(1), seen.double().sum(1))

    def total_visits(self, shards: Iterable[UserBatch], replicas: int) -> Visits:
        """Return sums [R, S] over all shards."""
        total = torch.zeros(replicas, len(self._weights), dtype=torch.float64)
        visits = torch.zeros_like(total)
        for users in shards:
            each = [self.visits_of(unpadded(users, r)) for r in range(replicas)]
            total += torch.cat([one.total for one in each])
            visits += torch.cat([one.visits for one in each])
        return Visits(total, visits)

    @abstractmethod
    def answer(self, seen: Visits) -> SmoothSolution:
        """Return theta [..., d] without noise, and its smooth bound."""

    def user_update(
        self, state: State, shards: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """See `Algorithm.user_update`: the exact solution over all users, and its smooth bound."""
        found = self.answer(self.total_visits(shards, len(streams)))
        valid = torch.ones(len(streams), 1, dtype=torch.bool)
        return Contribution({"theta": found.theta[:, None]}, valid, smooth=found.bound)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: the released theta."""
        return State(state.round + 1, {"theta": released.values["theta"]})
