"""Algorithms that evaluate a policy: v(s) = phi(s) . theta from users' trajectories under data.policy.

The released theta is stored as `actor` in the files of a run: weights of a value function, not a policy.
With A_i and b_i of user i's trajectory, as in `ope/policy_evaluation.py`:

GPOPE (off-policy evaluation by gradient perturbation, GTD2 as a saddle point problem with noise)
    theta, w <- 0
    for every round k, their number fixed in advance:
        draw one of n users (or, with privacy.sampling=fixed, take the next U of the list; g is then their mean)
        g <- (-A^T w, A theta - b + C w) of the user's trajectory, clipped to norm clip
        (theta, w) <- (theta, w) - beta_k (g + N(0, (z clip)^2 I)),  beta_k = lr for theta, dual_lr for w

    Guarantee: (epsilon, delta) for one user's trajectory, central, replace-one, with n exact and public: every
    round draws one of n uniformly and adds Gaussian noise; rows differ by up to 2 clips
    (`privacy/accounting/single_user.py`). The paper's proof assumes a distance of one clip, but clipped
    gradients can differ by two. With privacy.sampling=fixed every user is in one round: epsilon is that of one
    Gaussian mechanism, without amplification.

DP-LSTD (LSTD from noised sums, sufficient-statistics perturbation, with an adaptive ridge)
    user i:  (A_i, b_i) as one vector, clipped to norm C
    release: (A, b) <- 1 / n (sum over i of clip(A_i, b_i) + N(0, (z C)^2 I))
    theta <- (A + ridge I)^-1 b
    ridge <- k s - smallest eigenvalue of (A + A^T) / 2, between 0 and 3 k s;  s = z C sqrt(d) / n

    s is half the expected norm of the noise in A. The ridge is a function of the release and of public numbers,
    so it costs nothing. WIS-LSTD(0) is LSTD with importance ratios, so this is the private form of both.

    Guarantee: formal, for one trajectory of a user: one Gaussian release about all users.

LSTD: theta = A^+ b from all users' steps, with importance ratios. Not private.
WIS-LSTD(lambda): off-policy LSTD with weighted importance sampling. Not private.

Source:
    GPOPE: Xie, Thomas and Miklau 2019, algorithm 1.
    DP-LSTD: Wang 2018, "Revisiting differentially private linear regression" (AdaSSP: noised sums and a ridge
    that depends on the smallest eigenvalue), here for the linear system of LSTD (Bradtke and Barto 1996).
    WIS-LSTD: Mahmood, van Hasselt and Sutton 2014.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms, each_replica
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs import simulated
from privrl_bench.errors import ConfigError, no_run
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import ParameterFree, Sampler
from privrl_bench.packs.offline.fixed_policies import (
    FixedPolicy,
    fixed_policy,
    fourier_features,
    fourier_waves,
)
from privrl_bench.packs.offline.ope.ope_settings import (
    DpLstdConfig,
    EvaluationConfig,
    GpopeConfig,
    LstdConfig,
    WisLstdConfig,
)
from privrl_bench.packs.offline.ope.policy_evaluation import (
    Steps,
    moments,
    primal_dual_terms,
    solve,
    wis_lstd,
)
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.training.trained_policy import FILE
from privrl_bench.types import EnvSpec, State, UserBatch
from privrl_bench.users.refusals import NO_POLICY

MOST_CELLS = 100_000  # of a grid


# --- features and policies, independent of any data


class Features(NamedTuple):
    """A feature map phi from raw observations [..., D] to [..., size]."""

    size: int
    phi: Callable[[Tensor], Tensor]


def box(config: EnvConfig, spec: EnvSpec) -> tuple[Tensor, Tensor]:
    """Return the public ranges [D] of raw observations: as configured, or of a bounded space.

    Raises:
        ConfigError: There are none.
    """
    low, high = config.obs_low, config.obs_high
    space = spec.observation_space
    if low is None and high is None and getattr(space, "is_bounded", bool)():
        low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
    if low is None or high is None or not len(low) == len(high) == spec.obs_dim:
        raise ConfigError(
            "env.obs_low",
            "features of real observations need public ranges: env.obs_low and env.obs_high of "
            f"{spec.obs_dim} numbers",
        )
    return torch.tensor(low, dtype=torch.float32), torch.tensor(high, dtype=torch.float32)


def features(kind: str, order: int, config: EnvConfig, spec: EnvSpec) -> Features:
    """Return the feature map of a kind.

    Args:
        kind: tabular (one-hot observations unchanged) | linear (1 and the scaled observation) | fourier.
        order: Of the Fourier basis.
        config: The environment.
        spec: Its public facts.

    Raises:
        ConfigError: The kind does not fit the environment, or public ranges are missing.
    """
    if kind == "tabular":
        if not spec.one_hot:
            raise ConfigError(
                "algo.features",
                "tabular needs finitely many states observed one-hot; use fourier or linear",
            )
        return Features(spec.obs_dim, lambda obs: obs)
    low, high = box(config, spec)
    if kind == "linear":

        def line(obs: Tensor) -> Tensor:
            scaled = ((obs - low) / (high - low)).clamp(0.0, 1.0)
            return torch.cat([torch.ones_like(scaled[..., :1]), scaled], dim=-1)

        return Features(spec.obs_dim + 1, line)
    try:
        waves = fourier_waves(spec.obs_dim, order)
    except ValueError as error:
        raise ConfigError("algo.order", f"{error}; use a smaller one") from None
    return Features(len(waves), lambda obs: fourier_features(obs, low, high, waves))


class Cells(NamedTuple):
    """Finitely many states: `of` maps raw observations [..., D] to their indices, `centres` is [S, D]."""

    of: Callable[[Tensor], Tensor]
    centres: Tensor


def cells(grid: int, config: EnvConfig, spec: EnvSpec) -> Cells:
    """Return the states of one-hot observations, otherwise the cells of a grid over the public ranges.

    Args:
        grid: Cells per dimension.
        config: The environment.
        spec: Its public facts.

    Raises:
        ConfigError: Public ranges are missing, or there are too many cells.
    """
    if spec.one_hot:
        return Cells(lambda obs: obs.argmax(-1), torch.eye(spec.obs_dim))
    low, high = box(config, spec)
    if grid**spec.obs_dim > MOST_CELLS:
        largest = max(n for n in range(grid) if n**spec.obs_dim <= MOST_CELLS)
        problem = f"results in {grid}^{spec.obs_dim} cells, of at most {MOST_CELLS:,}"
        raise ConfigError("algo.grid", f"{problem}; use {largest} or less")
    sides = [torch.arange(grid)] * spec.obs_dim
    corners = torch.cartesian_prod(*sides).reshape(-1, spec.obs_dim)
    centres = low + (corners + 0.5) / grid * (high - low)
    powers = grid ** torch.arange(spec.obs_dim - 1, -1, -1)

    def number(obs: Tensor) -> Tensor:
        scaled = ((obs - low) / (high - low)).nan_to_num(0.0)
        return ((scaled * grid).long().clamp(0, grid - 1) * powers).sum(-1)

    return Cells(number, centres)


class ActingPolicy(ParameterFree):
    """A fixed policy as a `Policy` without parameters, for raw observations."""

    def __init__(self, known: FixedPolicy):
        self.known = known

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw uniform numbers [*shape]."""
        return torch.rand(*shape, generator=generator)

    def sampler(self, params: Tensor) -> Sampler:
        """See `Policy.sampler`."""

        def choose(obs: Tensor, noise: Tensor) -> Tensor:
            reach = self.known.probabilities(obs).cumsum(-1)
            return (
                (noise.unsqueeze(-1) * reach[..., -1:] >= reach)
                .sum(-1)
                .clamp_max(reach.shape[-1] - 1)
            )

        return choose

    def greedy(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.known.probabilities(obs).argmax(-1)


def behavior_probs_of(known: FixedPolicy, obs: Tensor, actions: Tensor) -> Tensor:
    """Return the probabilities [...] of `actions` [...] at raw observations [..., D]."""
    return known.probabilities(obs).gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


# --- the base


def known_policy(key: str, name: str, context: AlgorithmContext) -> FixedPolicy:
    """The known policy of a name. Raises `ConfigError` on `key`."""
    assert context.env is not None
    try:
        return fixed_policy(name, context.env, context.spec)
    except ConfigError as error:
        raise ConfigError(key, error.problem) from None


def released_values(
    key: str, run: str, config: EnvConfig, spec: EnvSpec
) -> Callable[[Tensor], Tensor]:
    """Values v(s) [...] of raw observations [..., D] that a run released, in the environment's rewards.

    Raises:
        ConfigError: on `key`: there are none, or of another environment.
    """
    path = Path(run) / FILE if Path(run).is_dir() else Path(run)
    if not path.is_file():
        raise no_run(key, Path(run))
    content = torch.load(path, weights_only=True, map_location="cpu")
    settings = content["algo"]
    if content["policy"] is not None or "features" not in settings:
        raise ConfigError(key, f"{run} has a policy, and no values: name a run of gpope or dp_lstd")
    made = features(settings["features"], settings["order"], config, spec)
    if content["actor"].shape != (made.size,):
        raise ConfigError(
            key, f"{run} has values of {len(content['actor'])} features, not {made.size}"
        )
    theta = content["actor"] * EnvConfig(**content["env"]).reward_unit
    return lambda obs: made.phi(obs) @ theta


class EvaluationAlgorithm(Algorithm):
    """Base class: features, importance ratios and the initial state."""

    config: EvaluationConfig
    policy: ActingPolicy

    def __init__(self, config: EvaluationConfig, context: AlgorithmContext):
        assert context.env is not None
        self.config, self._context = config, context
        self.features = features(config.features, config.order, context.env, context.spec)
        acted, self.target = context.behavior_policy, None
        if acted is not None:
            self.policy = ActingPolicy(known_policy("data.policy", acted, context))
        elif simulated(context.env.kind):
            raise ConfigError("data.policy", f"algo={config.name} {NO_POLICY}")
        if config.target not in (None, acted):
            self.target = known_policy("algo.target", str(config.target), context)

    def terms(self) -> AlgorithmTerms:
        """The unit is one trajectory; what is public, and hyperparameters chosen outside the budget."""
        once = self._context.privacy.used_once
        often = "used once" if self.config.traits.full_batch or once else "in any of the rounds"
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
        """Convert users to `policy_evaluation.Steps`.

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
    return _each(users, lambda x: x[users.mask], users.valid)


def unpadded(users: UserBatch, r: int) -> UserBatch:
    """Return the users of replica r without common padding, [1, U, L, ...].

    Replicas are separate, so that no sum over steps depends on other replicas, not even in its rounding.
    """
    length = int(users.mask[r].sum(-1).max())
    return _each(users, lambda x: x[r : r + 1, :, :length], users.valid[r : r + 1])


def _each(users: UserBatch, part: Callable[[Tensor], Tensor], valid: Tensor) -> UserBatch:
    """Apply `part` to all tensors with a time axis."""
    names = ("obs", "next_obs", "actions", "rewards", "terminated", "done", "mask")
    probs = None if users.behavior_probs is None else part(users.behavior_probs)
    parts: dict[str, Any] = {name: part(getattr(users, name)) for name in names}
    return replace(users, valid=valid, behavior_probs=probs, **parts)


class Gpope(EvaluationAlgorithm):
    """GPOPE. State tensors: `theta` and `w`, [R, d]."""

    config: GpopeConfig

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: the gradient in (theta, w), clipped as one vector."""
        return (Block("gradient", 2 * self.features.size, self._context.privacy.clip),)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: zeros."""
        state = super().init(streams)
        state.tensors["w"] = torch.zeros_like(state.tensors["theta"])
        return state

    def learning_rate(self, round_index: int) -> float:
        """Return beta_k of theta."""
        gone = round_index / self.config.halving if self.config.step == "diminishing" else 0.0
        return self.config.lr / (1.0 + gone)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """See `learning_rate`."""
        return each_replica(state, lr=self.learning_rate(state.round - 1))

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: the gradient of every user's trajectory.

        Guarantee:
            Row u is a function of user u's trajectory, theta, w and public policies.
        """
        replicas, count, whole = users.mask.shape
        share = shares(users.mask, self.config.weighting, whole)[users.mask]
        lengths = users.mask.sum(-1).flatten()
        # Users' steps are concatenated: padding to T would dominate the cost.
        # The replica of each user.
        place = torch.arange(replicas * count).repeat_interleave(lengths) // count
        theta, w = (state.tensors[name][place] for name in ("theta", "w"))
        steps = self.steps_of(flat_steps(users), share)
        parts = primal_dual_terms(steps, self.config.gamma, theta, w).split(lengths.tolist())
        rows = torch.stack([part.sum(0) for part in parts]).reshape(replicas, count, -1)
        return Contribution({"gradient": rows}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: descent in theta, ascent in w."""
        primal, dual = released.values["gradient"].chunk(2, dim=-1)
        beta = self.learning_rate(state.round)
        ratio = 1.0 if self.config.dual_lr is None else self.config.dual_lr / self.config.lr
        theta = state.tensors["theta"] - beta * primal
        w = state.tensors["w"] - beta * ratio * dual
        return State(state.round + 1, {"theta": theta, "w": w})


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


class LinearSystem(EvaluationAlgorithm):
    """Base of algorithms that release sums A and b over users, and solve A theta = b."""

    def blocks(self) -> tuple[Block, ...]:
        """See `Algorithm.blocks`: A [d, d] and b [d] of a user, clipped as one vector."""
        d = self.features.size
        return (Block("sums", d * d + d, self._context.privacy.clip),)

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """Return A and b [..., U, d d + d] of every user's trajectory; `whole` is T."""
        share = shares(users.mask, self.config.weighting, whole)  # type: ignore[attr-defined]
        found = moments(self.steps_of(users, share), self.config.gamma)
        return torch.cat([found.A.flatten(-2), found.b], dim=-1)

    @abstractmethod
    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """Return theta [R, d]."""

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: solve the released system."""
        d = self.features.size
        A, b = released.values["sums"].double().split([d * d, d], dim=-1)
        return State(state.round + 1, {"theta": self.solution(A.reshape(-1, d, d), b).float()})


class DpLstd(LinearSystem):
    """DP-LSTD. State tensor: `theta` [R, d].

    With a dataset b is in units of |b| / |A| of its public users, so that the clip cuts both alike.
    """

    config: DpLstdConfig

    def __init__(self, config: DpLstdConfig, context: AlgorithmContext):
        super().__init__(config, context)
        self._unit, public = 1.0, context.sources.transitions
        if public is not None:
            phi, after = self.features.phi(public.obs), self.features.phi(public.next_obs)
            after = torch.where(public.terminated[:, None], 0.0, after)
            size = (phi.mT @ (phi - config.gamma * after)).norm()
            self._unit = float((phi.mT @ public.rewards).norm() / size) or 1.0

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """See `Algorithm.user_update`: A and b of every user's trajectory.

        Guarantee:
            Row u is a function of user u's trajectory and public policies.
        """
        sums = self.sums(users, users.mask.shape[-1])
        sums[..., -self.features.size :] /= self._unit
        return Contribution({"sums": sums}, users.valid)

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `LinearSystem.solution`: with a ridge, for the noised system."""
        return self._unit * ridge_solve(A, b, self.config.ridge * self._noise)

    @property
    def _noise(self) -> Tensor:
        """[R] half the expected spectral norm of the noise in A; public."""
        std = torch.tensor(
            [one["sums"] for one in self._context.schedule.stds], dtype=torch.float64
        )
        return std / self._context.privacy.users * math.sqrt(self.features.size)


class PooledSums(LinearSystem):
    """Base of non-private algorithms that solve a linear system of sums over all users."""

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


class Lstd(PooledSums):
    """LSTD."""

    config: LstdConfig

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `LinearSystem.solution`: the minimum-norm least-squares solution."""
        return solve(A, b)


class WisLstd(PooledSums):
    """WIS-LSTD."""

    config: WisLstdConfig

    def sums(self, users: UserBatch, whole: int) -> Tensor:
        """See `LinearSystem.sums`, of WIS-LSTD(lambda)."""
        steps = self.steps_of(users, shares(users.mask, "step", whole))
        a, b = wis_lstd(steps, self.config.gamma, self.config.trace)
        return torch.cat([a.flatten(-2), b], dim=-1)

    def solution(self, A: Tensor, b: Tensor) -> Tensor:
        """See `LinearSystem.solution`; A includes its initial value."""
        start = self.config.start / self._context.privacy.population
        return solve(A + start * torch.eye(A.shape[-1], dtype=A.dtype), b)
