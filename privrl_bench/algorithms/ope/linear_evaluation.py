"""What algorithms that evaluate a policy share: v(s) = phi(s) . theta from what people did under data.policy.

The released thing is theta, `actor` in the files of a run: weights of a value, no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.errors import ConfigError, require, require_choice
from privrl_bench.functional.policy_evaluation import Smooth, Steps, Visits, first_visits
from privrl_bench.functional.rng import Streams
from privrl_bench.models.fixed_policies import fixed_policy
from privrl_bench.models.linear_values import (
    KINDS,
    ActingPolicy,
    Cells,
    behavior_probs_of,
    cells,
    features,
)
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch

WEIGHTINGS = ("trajectory", "step")


@dataclass
class EvaluationConfig(AlgoConfig):
    """Settings of everything that evaluates a policy."""

    local: ClassVar[bool] = False
    evaluates: ClassVar[bool] = True

    target: str | None = None  # the policy that is evaluated (nets/known.py); unset: data.policy
    features: str = "tabular"  # tabular: one-hot states | linear | fourier
    order: int = 5  # of the Fourier basis
    reference: int = (
        2000  # public trajectories that errors are measured with, where no table is known
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("algo.features", self.features, KINDS)
        require("algo.order", self.order >= 1, "a whole number >= 1", self.order)
        require("algo.reference", self.reference >= 1, "a whole number >= 1", self.reference)

    def round_steps(self, users: int, steps: int) -> int:
        """See `AlgoConfig.round_steps`: of one trajectory."""
        return steps


class EvaluationAlgorithm(Algorithm):
    """Features, ratios and the first state; see the module's text."""

    policy: ActingPolicy

    def __init__(self, config: EvaluationConfig, setup: AlgorithmContext):
        assert setup.env is not None
        assert setup.behaviour is not None
        self.settings, self._setup = config, setup
        self.features = features(config.features, config.order, setup.env, setup.spec)
        try:
            self.policy = ActingPolicy(fixed_policy(setup.behaviour, setup.env, setup.spec))
        except ConfigError as error:
            raise ConfigError("data.policy", error.problem) from None
        self.target = None
        if config.target not in (None, setup.behaviour):
            try:
                self.target = fixed_policy(str(config.target), setup.env, setup.spec)
            except ConfigError as error:
                raise ConfigError("algo.target", error.problem) from None

    def unit(self) -> Unit:
        """A user with what they did: of a dataset, or simulated."""
        often = "used once" if self.settings.full_batch else "in any of the rounds"
        max_episode_steps = self._setup.spec.max_episode_steps
        who = "one user" if self._setup.public is not None else self._setup.spec.one_user
        return Unit(f"{who}: one trajectory of at most {max_episode_steps} steps, {often}", None)

    def notes(self) -> dict[str, str]:
        """What is public, and that no choice of values was paid for."""
        return {
            "known policies": "who acted, and with which chances, is public, and n is exact",
            "tuning": "step sizes, clip, ridge and bounds are taken as chosen without these people's data",
        }

    def init(self, streams: list[Streams]) -> State:
        """Zeros."""
        return State(0, {"theta": torch.zeros(len(streams), self.features.size)})

    def actor(self, state: State) -> Tensor:
        """[R, d] theta."""
        return state.tensors["theta"]

    def ratios(self, users: UserBatch) -> Tensor:
        """[R, U, T] chances of what was done, under the target over under the behaviour.

        The latter are recorded; of people who are just being played they are computed.
        """
        if self.target is None:
            return torch.ones_like(users.rewards)
        behaviour = users.behavior_probs
        if behaviour is None:
            behaviour = behavior_probs_of(self.policy.known, users.obs, users.actions)
        return behavior_probs_of(self.target, users.obs, users.actions) / behaviour

    def steps_of(self, users: UserBatch, share: Tensor) -> Steps:
        """What everybody did as `maths.evaluation` takes it.

        Args:
            users: of a round, as they are, `unpadded` or `taken`.
            share: [..., T] weight c_t of every step (`shares`).
        """
        phi = self.features.phi(users.obs)
        # What comes after a step mostly comes before the next one; where it does not, it has its own features.
        after = phi.roll(-1, -2)
        apart = (users.next_obs != users.obs.roll(-1, -2)).any(-1)
        after[apart] = self.features.phi(users.next_obs[apart])
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
    """[..., T] weights of everybody's steps, zeros where none happened.

    Args:
        mask: [..., T].
        weighting: trajectory: c_t = 1 / her number of steps | step: 1 / T.
        whole: T, public, which padding may have left out.
    """
    happened = mask.to(torch.get_default_dtype())
    own = happened.sum(-1, keepdim=True).clamp_min(1.0)
    return happened / (own if weighting == "trajectory" else whole)


def taken(users: UserBatch) -> UserBatch:
    """[N, ...]: the steps that happened, one user's after the other's; `valid` stays [R, U]."""

    def part(x: Tensor) -> Tensor:
        return x[users.mask]

    return _each(users, part, users.valid)


def unpadded(users: UserBatch, r: int) -> UserBatch:
    """[1, U, L, ...]: the users of replica r, without the steps that none of them took.

    For each replica by itself: no sum over steps depends on other replicas, not even in its rounding.
    """
    length = int(users.mask[r].sum(-1).max())

    def part(x: Tensor) -> Tensor:
        return x[r : r + 1, :, :length]

    return _each(users, part, users.valid[r : r + 1])


def _each(users: UserBatch, part: Callable[[Tensor], Tensor], valid: Tensor) -> UserBatch:
    """`part` of everything that has a time axis."""
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
    """Everybody's sums, without privacy; `sums` is what a subclass adds. Its row is released as it is."""

    def blocks(self) -> tuple[Block, ...]:
        """A [d, d] and b [d]."""
        d = self.features.size
        return (Block("sums", d * d + d, self._setup.clip),)

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """[1, U, d d + d] of everybody in a piece of one replica; `whole` is T."""
        raise TypeError("PooledSums is a frame; use Lstd or WisLstd")

    def local_of_all(
        self, state: State, pieces: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """The sum over everybody whose data are finite, divided by their number n."""
        (block,) = self.blocks()
        total = torch.zeros(len(streams), block.size, dtype=torch.float64)
        for users in pieces:
            whole = users.mask.shape[-1]
            each = [self.sums(unpadded(users, r), whole) for r in range(len(streams))]
            found = torch.cat(each).double()
            usable = users.valid & torch.isfinite(found).all(-1)
            total += torch.where(usable[..., None], found, 0.0).sum(1)
        rows = total[:, None] / self._setup.people
        return Contribution({"sums": rows}, torch.ones(len(streams), 1, dtype=torch.bool))

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Of one piece that is everybody."""
        return self.local_of_all(state, [users], streams)

    def solved(self, A: Tensor, b: Tensor) -> Tensor:
        """[R, d] theta."""
        raise TypeError("PooledSums is a frame; use Lstd or WisLstd")

    def server(self, state: State, released: Released) -> State:
        """Solve."""
        d = self.features.size
        A, b = released.values["sums"].double().split([d * d, d], dim=-1)
        theta = self.solved(A.reshape(-1, d, d), b).float()
        return State(state.round + 1, {"theta": theta})


# --- output perturbation


@dataclass
class OutputConfig(EvaluationConfig):
    """Settings of DP-LSW and DP-LSL."""

    mechanisms: ClassVar[tuple[str, ...]] = ("smooth",)
    full_batch: ClassVar[bool] = True

    return_low: float = 0.0  # public bounds of a discounted return, which is cut at them
    return_high: float = 100.0
    weights: list[float] | None = None  # public weight of every state; unset: 1 each
    grid: int = 20  # cells a side that make states of real observations

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.return_low <= 0.0 <= self.return_high and self.return_low < self.return_high
        bounds = [self.return_low, self.return_high]
        require("algo.return_low", ok, "<= 0 <= algo.return_high, not both 0", bounds)
        ok = self.weights is None or (min(self.weights) >= 0 and max(self.weights) > 0)
        require("algo.weights", ok, "null or a list of numbers >= 0, not all 0", self.weights)
        require("algo.grid", self.grid >= 1, "a whole number >= 1", self.grid)
        if self.target is not None:
            raise ConfigError(
                "algo.target", f"algo={self.name} evaluates the policy that acted, and no other"
            )


class OutputPerturbation(EvaluationAlgorithm):
    """First visits of everybody, and an exact answer with its smooth bound; see `privacy/mechanisms/smooth.py`."""

    def __init__(self, config: OutputConfig, setup: AlgorithmContext):
        super().__init__(config, setup)
        assert setup.env is not None
        self.config = config
        self._cells: Cells = cells(config.grid, setup.env, setup.spec)
        self._phi = self.features.phi(self._cells.centres)
        count = len(self._cells.centres)
        if config.weights is not None and len(config.weights) != count:
            raise ConfigError(
                "algo.weights", f"needs {count} numbers, one per state, got {len(config.weights)}"
            )
        self._weights = torch.tensor(config.weights or [1.0] * count, dtype=torch.float64)

    def visits_of(self, users: UserBatch) -> Visits:
        """[R, S] sums over the people of a piece; one whose data are not finite visits nothing."""
        config, count = self.config, len(self._weights)
        finite = torch.isfinite(users.obs).all(-1) & torch.isfinite(users.rewards)
        usable = (users.valid & (finite | ~users.mask).all(-1))[..., None]
        found, seen = first_visits(
            self._cells.of(users.obs), users.rewards, users.done, users.mask, config.gamma, count
        )
        seen = seen & usable
        cut = found.nan_to_num(0.0).clamp(config.return_low, config.return_high)
        return Visits(torch.where(seen, cut, 0.0).sum(1), seen.double().sum(1))

    def everybodys(self, pieces: Iterable[UserBatch], replicas: int) -> Visits:
        """[R, S] over all pieces."""
        total = torch.zeros(replicas, len(self._weights), dtype=torch.float64)
        visits = torch.zeros_like(total)
        for users in pieces:
            each = [self.visits_of(unpadded(users, r)) for r in range(replicas)]
            total += torch.cat([one.total for one in each])
            visits += torch.cat([one.visits for one in each])
        return Visits(total, visits)

    def answer(self, seen: Visits) -> Smooth:
        """theta [..., d] without noise, and its smooth bound."""
        raise TypeError("OutputPerturbation is a frame; use DpLsw or DpLsl")

    def local_of_all(
        self, state: State, pieces: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """One exact answer about everybody, and its smooth bound."""
        found = self.answer(self.everybodys(pieces, len(streams)))
        valid = torch.ones(len(streams), 1, dtype=torch.bool)
        return Contribution({"theta": found.theta[:, None]}, valid, smooth=found.bound)

    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Of one piece that is everybody."""
        return self.local_of_all(state, [users], streams)

    def server(self, state: State, released: Released) -> State:
        """What was released."""
        return State(state.round + 1, {"theta": released.values["theta"]})
