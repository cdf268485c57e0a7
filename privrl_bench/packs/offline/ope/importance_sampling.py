"""DP-IS: the value of a policy by importance sampling of recorded trajectories, from one noised release.

With the ratios rho_t = pi(a_t | s_t) / pi_b(a_t | s_t), w_t = rho_0 ... rho_t of an episode (w_-1 = 1), and a
model v of the values of pi, 0 without `algo.model`, the estimates of one episode are

    x = sum over t of gamma^t (w_t r_t - (w_t - w_t-1) v(s_t))   doubly robust, the model's q(s, a) being v(s)
    y = sum over t of gamma^t r_t   of the policy that acted

Both are clipped to center - c and center + c, c = privacy.clip; x' and y' are they in units of c around center.
W is the last w of an episode, cut to `cap`, in units of it. x', y', A = W y' and B = W of a user are means over
the user's episodes.

per_decision: a user's row is (x', y', B, K, x'^2), K the share of episodes whose x was clipped. Its norm is at
most sqrt(5).
    value = center + c mean(x'),  variance of the mean = (mean(x'^2) - mean(x')^2) / n + noise
    The mean of W is 1 if the data cover the policy. Where cap mean(B) is below 0.8, rare large ratios are
    missing and x is biased; above 1.25, behaviour probabilities are wrong: then there is no value.
weighted (weighted importance sampling): the row is (A, y', B, B^2, A B, A^2). Its norm is at most sqrt(6).
    value = center + c V,  V = mean(A) / mean(B),  variance by the delta method; no value above 1.25

The 90 % interval is normal, for the mean of the clipped estimates over the distribution that the users are
from. The second moments have noise, so that their upper ends (one standard deviation) are used.

Guarantee: formal, for one user with all their episodes: one Gaussian release about all users, n public. Row u
is a function of user u's trajectories and of public policies, and its norm is at most the block's clip.

Source: Precup, Sutton and Singh 2000 (per-decision and weighted importance sampling), Jiang and Li 2016 (doubly
robust).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.evaluator import BackgroundEvaluator, Evaluator, NumbersEvaluation
from privrl_bench.evaluation.objective import VALUE
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import is_greedy
from privrl_bench.packs.offline.fixed_policies import FixedPolicy, is_given, is_trained
from privrl_bench.packs.offline.ope.linear_evaluation import (
    ActingPolicy,
    behavior_probs_of,
    known_policy,
    released_values,
)
from privrl_bench.packs.offline.ope.ope_settings import DpIsConfig
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State, UserBatch

_QUANTILE = 1.6449  # of a standard normal: 90 % lie within
_FEW, _MANY = 0.8, 1.25  # mean ratios that are not 1
_BLUR = 0.3  # most noise in a mean ratio
_ROUNDING = 1e-6  # of a return at an end of its range
_NORMS = {"per_decision": math.sqrt(5.0), "weighted": math.sqrt(6.0)}
_SIZES = {"per_decision": 5, "weighted": 6}


class Estimate(NamedTuple):
    """A value with the ends of its interval, that of the policy that acted, the means of W and of K."""

    value: float
    low: float
    high: float
    behavior: float
    ratio: float
    clipped: float = 0.0


def per_decision(released: Sequence[float], std: float, n: int, cap: float) -> Estimate:
    """In units of c around the center, from means over n users of (x', y', B, K, x'^2), each with noise `std`.

    B is in units of `cap`. NaN where the means give no value.
    """
    x, y, ratio, clipped, square = released
    if not cap * (ratio + std) > _FEW or not cap * (ratio - std) < _MANY:
        return Estimate(math.nan, -1.0, 1.0, y, cap * ratio, clipped)
    spread = min(max(square + std - x * x, 0.0), max(1.0 - x * x, 0.0))
    half = _QUANTILE * math.sqrt(spread / n + std**2)
    return Estimate(x, x - half, x + half, y, cap * ratio, clipped)


def weighted(released: Sequence[float], std: float, n: int, cap: float) -> Estimate:
    """From the means of (A, y', B, B^2, A B, A^2), as above; no value where B is lost in the noise."""
    top, y, weight, one, first, second = released
    if weight <= 3.0 * std or cap * (weight - std) > _MANY:
        return Estimate(math.nan, -1.0, 1.0, y, cap * weight)
    v = min(max(top / weight, -1.0), 1.0)
    spread = second - 2.0 * v * first + v * v * one + std * math.sqrt(1.0 + 4.0 * v**2 + v**4)
    variance = (max(spread, 0.0) / n + (1.0 + v * v) * std**2) / weight**2
    half = _QUANTILE * math.sqrt(variance)
    return Estimate(v, v - half, v + half, y, cap * weight)


_ESTIMATES = {"per_decision": per_decision, "weighted": weighted}


class DpIs(Algorithm):
    """DP-IS; see the module. State tensor: `released` [R, k], the noised means.

    Args:
        config: settings of the algorithm.
        context: of the run.

    Raises:
        ConfigError: a policy is not known, has no probabilities or does not fit, or a setting has no effect.
    """

    def __init__(self, config: DpIsConfig, context: AlgorithmContext):
        assert context.env is not None
        self.config, self._context = config, context
        acted, target = context.behavior_policy, config.target
        self._acted = None if acted is None else known_policy("data.policy", acted, context)
        self._target: FixedPolicy | None = None
        if target not in (None, acted):
            self._target = known_policy("algo.target", str(target), context)
        if self._acted is not None:
            self.policy = ActingPolicy(self._acted)
        if config.estimator == "weighted" and config.model is not None:
            raise ConfigError("algo.model", "is for algo.estimator=per_decision")
        self._values = None
        if config.model is not None:
            self._values = released_values("algo.model", config.model, context.env, context.spec)

    def terms(self) -> AlgorithmTerms:
        """The unit is a user with all trajectories; how given policies and values were made is not covered."""
        config, context = self.config, self._context
        notes = {
            "interval": "for the mean of weighted returns, clipped to algo.center +- privacy.clip; it is one "
            "for the value if none is clipped"
        }
        given = {"algo.target": config.target, "algo.model": config.model}
        given["data.policy"] = context.behavior_policy
        made = [key for key, name in given.items() if name is not None and is_given(name)]
        if made:
            what = " and ".join(made)
            notes["given"] = f"{what}: this epsilon does not cover how they were made; add theirs"
        if context.behavior_policy is not None and is_trained(context.behavior_policy):
            notes["probabilities"] = "behaviour probabilities are estimates: no coverage is claimed"
        steps = context.spec.max_episode_steps
        recorded = context.sources.transitions is not None
        who = "one user" if recorded else context.spec.one_user
        unit = Unit(f"{who}: all trajectories, each of at most {steps} steps, used once", 1)
        plain = config.estimator == "per_decision"  # the other divides by the mean ratio
        warning = ""
        target, size = self._target, context.spec.obs_dim
        if target is not None and steps > 1 and is_greedy(target.probabilities, size):
            warning = (
                f"algo.target is greedy: only episodes with all of its actions, of up to {steps}, have "
                "weight, and epsilon is spent even if there is no value"
            )
        scale = plain * context.privacy.clip
        return AlgorithmTerms(unit=unit, notes=notes, result_scale=scale, warning=warning)

    def blocks(self) -> tuple[Block, ...]:
        """One block, the row in units of c."""
        kind = self.config.estimator
        return (Block("estimates", _SIZES[kind], _NORMS[kind]),)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`: zeros.

        Raises:
            ConfigError: the noise in the mean ratio is so large that it says nothing.
        """
        n, cap = self._context.privacy.users, self.config.cap
        most = max(one["estimates"] for one in self._context.schedule.stds)
        if self._target is not None and cap * most / n > _BLUR:
            what = f"{cap:g} gives the mean ratio, which has to be near 1, noise of {cap * most / n:.2g}"
            raise ConfigError(
                "algo.cap", f"{what}; lower it, or take more users or a larger epsilon"
            )
        return State(0, {"released": torch.zeros(len(streams), _SIZES[self.config.estimator])})

    def actor(self, state: State) -> Tensor:
        """What was released, [R, k]."""
        return state.tensors["released"]

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """[R, U, k] rows.

        Guarantee: row u is a function of user u's trajectories and public policies; its norm is at most
        the block's clip.
        """
        x, y, a, b, k = self._estimates(users)
        parts = {"per_decision": (x, y, b, k, x * x), "weighted": (a, y, b, b * b, a * b, a * a)}
        rows = torch.stack(parts[self.config.estimator], dim=-1)
        return Contribution({"estimates": rows.float()}, users.valid & torch.isfinite(rows).all(-1))

    def _estimates(self, users: UserBatch) -> tuple[Tensor, ...]:
        """Means [R, U] over a user's episodes of x', y', W y', W and whether x was clipped; float64."""
        rho, gamma, values = self.ratios(users), self.config.gamma, self._model(users.obs)
        zero = torch.zeros_like(rho[..., 0])
        w, discount, x, y, episodes = zero + 1.0, zero + 1.0, zero, zero, zero
        total = [zero] * 5
        for t in range(rho.shape[-1]):
            there, ends = users.mask[..., t], users.mask[..., t] & users.done[..., t]
            reward, was = users.rewards[..., t].double(), w
            w = w * rho[..., t]
            gain = w * reward - (w - was) * values[..., t]
            x = torch.where(there, x + discount * gain, x)
            y = torch.where(there, y + discount * reward, y)
            discount = discount * gamma
            if not ends.any():
                continue
            one, acted = self._scaled(x), self._scaled(y).clamp(-1.0, 1.0)
            ratio = (w / self.config.cap).clamp(0.0, 1.0)
            cut = (one.abs() > 1.0 + _ROUNDING).double()
            found = (one.clamp(-1.0, 1.0), acted, ratio * acted, ratio, cut)
            total = [old + torch.where(ends, z, 0.0) for old, z in zip(total, found, strict=True)]
            episodes = episodes + ends
            w, discount = torch.where(ends, 1.0, w), torch.where(ends, 1.0, discount)
            x, y = torch.where(ends, 0.0, x), torch.where(ends, 0.0, y)
        return tuple(z / episodes.clamp_min(1.0) for z in total)

    def _scaled(self, x: Tensor) -> Tensor:
        """Returns in units of c around the center."""
        return (x - self.config.center) / self._context.privacy.clip

    def ratios(self, users: UserBatch) -> Tensor:
        """[R, U, T] ratios of the target to the policy that acted; 1 where no step happened."""
        if self._target is None:
            return torch.ones_like(users.rewards, dtype=torch.float64)
        behavior = users.behavior_probs
        if behavior is None:
            assert self._acted is not None
            behavior = behavior_probs_of(self._acted, users.obs, users.actions)
        theirs = behavior_probs_of(self._target, users.obs, users.actions)
        return torch.where(users.mask, theirs.double() / behavior.double(), 1.0)

    def _model(self, obs: Tensor) -> Tensor:
        """[R, U, T] values of the model, float64."""
        if self._values is None:
            return torch.zeros(obs.shape[:-1], dtype=torch.float64)
        return self._values(obs).double()

    def server(self, state: State, released: Released) -> State:
        """See `Algorithm.server`: the released means."""
        return State(state.round + 1, {"released": released.values["estimates"]})

    def estimate(self, released: Tensor, r: int) -> Estimate:
        """The estimate of replica r in units of the return, from what was released [k] and public numbers."""
        n = self._context.privacy.users
        std = self._context.schedule.stds[r]["estimates"] / n
        estimate = _ESTIMATES[self.config.estimator]
        means = released.double().tolist()
        if self._target is None:
            means[2] = 1.0 / self.config.cap  # all ratios are 1
        found = estimate(means, std, n, self.config.cap)
        center, c = self.config.center, self._context.privacy.clip
        inside = (x if math.isnan(x) else min(max(x, -1.0), 1.0) for x in found[:4])
        value, low, high, acted = (center + c * x for x in inside)
        return Estimate(value, low, high, acted, *found[4:])

    def numbers(self, released: Tensor, r: int) -> tuple[dict[str, float], str]:
        """Metrics of replica r from what was released [k], and why there is no value."""
        found = self.estimate(released, r)
        names = (
            VALUE.metric,
            *(VALUE.interval or ()),
            "eval/behavior",
            "eval/ratio",
            "eval/clipped",
        )
        metrics = dict(zip(names, found, strict=True))
        if self._target is None:  # the value is that of who acted, and all ratios are 1
            del metrics["eval/behavior"], metrics["eval/ratio"]
        return metrics, _why(found)


# --- its evaluation


def _why(found: Estimate) -> str:
    """Why there is no value."""
    why = "the logs do not cover the policy"
    if found.ratio > _MANY:
        why = "the probabilities of the actions are not those of who acted"
    return (
        f"the mean ratio is {found.ratio:.3g} and has to be near 1: {why}; behaviour {found.behavior:.4g}; "
        "epsilon is spent; see docs/guides/logs.md"
    )


class ValueEvaluator(Evaluator):
    """What a release says of the value: post-processing; see `Evaluator`."""

    judges = "estimate"
    objective = VALUE
    note = "the value and its interval are functions of the release"

    @classmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """See `Evaluator.of`."""
        return BackgroundEvaluator(cls, parts.algo, aside=False)

    @classmethod
    def start(cls, rows: Sequence[Any]) -> dict[str, dict[str, float]]:
        """See `Evaluator.start`: the value of the policy that acted."""
        found = [row["eval/behavior"] for row in rows if "eval/behavior" in row]
        return {"behaviour": {"mean": found[-1]}} if found else {}

    def __init__(self, algo: Any):
        self._algo = algo

    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> list[NumbersEvaluation]:
        """See `Evaluator.evaluate`."""
        found = [self._algo.numbers(x, r) for r, x in enumerate(policy_params)]
        return [NumbersEvaluation(*one) for one in found]


EVALUATOR = ValueEvaluator
