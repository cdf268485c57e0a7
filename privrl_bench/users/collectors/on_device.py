"""Simulated users who act in worlds on one device (`env.backend=torch`, `warp`); their data stay there.

As `live.py`, with random numbers from counters: a user's are a function of the seed, the round, the slot and
the step. Every user has a fixed place in the arrays, so that their bits do not depend on how many users a shard
has.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import make_worlds
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.envs.worlds import LANES, Worlds
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.rollout import LARGEST
from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users.collectors.collector import BatchShape, Collector
from privrl_bench.users.collectors.shards import blank_of
from privrl_bench.users.collectors.substitutes import CRAFTED, NULL, ZERO, Substitution

_STEPS = 16  # for which a policy's random numbers are drawn at a time
_GROUP = {"cpu": LANES, "cuda": 4096}  # users whose actions are computed by one call


class WorldsCollector(Collector):
    """Users in worlds; see the module.

    Args:
        config: the environment and its unit, `fresh` or `episode`.
        spec: its public facts.
        policy: the policy class.
        streams: random streams of each replica (R of them).
        users: U, most users of one replica in a shard.
        steps: T, steps of one user.
        gamma: discount, not used: nothing is scaled by running statistics.
        device: torch device.
    """

    population = None

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: Policy,
        streams: list[Streams],
        users: int,
        steps: int,
        gamma: float,
        device: str,
    ):
        self.shape = BatchShape(len(streams), users, steps)
        self.scaler = SignalScaler(config, len(streams), 1, spec.obs_dim, gamma)
        self._config, self._spec, self._policy, self._streams = config, spec, policy, streams
        self._device = device
        self._width = users if users % LANES == 0 else (users + 2 * (LANES - 1)) // LANES * LANES
        self.worlds = make_worlds(config, len(streams) * self._width, device)

    # -- a shard ----------------------------------------------------------------------------

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """See `Collector.collect`. Raises EnvironmentFailure: worlds share a buffer that is full."""
        first = 0 if cohort.slots is None else cohort.slots.start
        before, shape, width = first % LANES, self.shape, self._width
        if before + shape.users > width:  # whole groups of users begin with one
            raise AssertionError(f"a shard of {shape.users} users begins at slot {first}")
        slots = range(first - before, first - before + width)
        place = torch.arange(width, device=self._device) - before
        sizes = torch.tensor(cohort.sizes, device=self._device)[:, None]
        active = (place >= 0) & (place < sizes)
        with torch.no_grad():
            batch, valid, stats = self._act(policy_params, round_index, slots, active)
        self.worlds.check()
        kept = slice(before, before + shape.users)
        return UserBatch(
            **cast(Any, {name: x[:, kept] for name, x in batch.items()}),
            valid=valid[:, kept],
            stats=stats,
        )

    def _act(
        self, params: Tensor, round_index: int, slots: range, active: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, list[dict[str, float]]]:
        """Steps [R, W, T, ...] of the users `active` [R, W], who is valid [R, W], and metrics."""
        steps, whole_episode = self.shape.steps, self._config.user == "episode"
        batch = blank_of(self._spec, (*active.shape, steps), self._device)
        scaling = _Scaling(self.scaler, self._device)
        sample = _Sampler(self._policy, params.to(self._device), slots)
        noise = _Noise(self._streams, self._policy, round_index, slots)
        invalid, going = torch.zeros_like(active), active
        elapsed = torch.zeros(active.shape, dtype=torch.int64, device=self._device)
        total = torch.zeros(active.shape, dtype=torch.float64, device=self._device)
        episodes = returns = torch.zeros(len(active), dtype=torch.float64, device=self._device)
        self._reset(active, round_index, 0, slots)
        raw = self._observed(active, invalid)
        now = scaling.obs(raw)
        for t in range(steps):
            if whole_episode and not bool(going.any()):
                break
            batch["obs"][:, :, t] = now
            actions = sample(now, noise.at(t))
            acted = going & _finite(actions)
            batch["actions"][:, :, t] = actions
            batch["mask"][:, :, t] = going
            rewards, terminated = self.worlds.step(self._to_env(actions).flatten(0, 1))
            raw = self.worlds.observe().view(*active.shape, -1)
            rewards, terminated = rewards.double().view(active.shape), terminated.view(active.shape)
            elapsed += 1
            fine = acted & _finite(raw) & _finite(rewards)
            rewards = torch.where(fine, rewards, 0.0)
            raw = torch.where(fine[..., None], raw, 0.0)
            invalid = invalid | (going & ~fine)
            terminated = terminated & acted
            cut = elapsed >= self._spec.max_episode_steps
            done = going & (terminated | cut | ~fine)
            now = scaling.obs(raw)
            batch["next_obs"][:, :, t] = now
            batch["rewards"][:, :, t] = scaling.reward(rewards)
            batch["terminated"][:, :, t], batch["done"][:, :, t] = terminated, done
            total += rewards
            ends = done & fine
            episodes = episodes + ends.sum(-1)
            returns = returns + torch.where(ends, total, 0.0).sum(-1)
            if whole_episode:
                going = going & ~done
            elif t + 1 < steps and bool(done.any()):
                self._reset(done, round_index, t + 1, slots)
                elapsed, total = elapsed.masked_fill(done, 0), total.masked_fill(done, 0.0)
                begun = self._observed(done, invalid)
                now = torch.where(done[..., None], scaling.obs(begun), now)
        idle = ~batch["mask"]
        for name in ("obs", "next_obs", "actions"):
            batch[name][idle] = 0
        return batch, active & ~invalid, _stats(episodes, returns, invalid)

    def _reset(self, where: Tensor, round_index: int, t: int, slots: range) -> None:
        """New episodes before step t in the worlds `where` [R, W]."""
        drawn = [
            s.counters("env", slots, round_index, t).uniform(self.worlds.draws, len(slots))
            for s in self._streams
        ]
        self.worlds.reset(where.flatten(), torch.cat(drawn, dim=1))

    def _observed(self, where: Tensor, invalid: Tensor) -> Tensor:
        """First observations [R, W, D]; users `where` whose are not finite become invalid, in place."""
        raw = self.worlds.observe().view(*where.shape, -1)
        fine = _finite(raw)
        invalid |= where & ~fine
        return torch.where(fine[..., None], raw, 0.0)

    def _to_env(self, actions: Tensor) -> Tensor:
        """`Policy.to_env` on the device."""
        bounds = self._policy.bounds()
        if bounds is None:
            return actions
        least, most, centre, half = (torch.as_tensor(x, device=self._device) for x in bounds)
        return centre + half * actions.maximum(least).minimum(most)

    # -- the leak test ----------------------------------------------------------------------

    def substituted(self, visit: Any, kind: str) -> Substitution:
        """See `Collector.substituted`: in the worlds."""
        return WorldsSubstitution(self, visit, kind)

    def substitute(self, kind: str) -> SubstituteWorld:
        """Worlds that may replace a user, from now on."""
        self.worlds = one = SubstituteWorld(self.worlds, kind)
        return one


class WorldsSubstitution(Substitution):
    """Replaces the user in the worlds, so that the policy acts on other observations."""

    def _install(self, collector: WorldsCollector, kind: str) -> list[Any]:
        one, user = collector.substitute(kind), self._visit.user
        real, users = collector.collect, collector.shape.users

        def collect(policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
            first = 0 if cohort.slots is None else cohort.slots.start
            here = first <= user < first + users
            one.place = user - first // LANES * LANES if here else None
            return real(policy_params, round_index, cohort)

        collector.collect = collect  # type: ignore[method-assign]
        return [one]


class SubstituteWorld(Worlds):
    """Worlds, of which one has a substitute while `present`; see `substitutes.SubstituteUser`.

    Args:
        worlds: the real ones; they are stepped as without a substitute.
        kind: see `substitutes.py`.

    Attributes:
        place: the user's world; None: the user is in another shard.
    """

    def __init__(self, worlds: Worlds, kind: str):
        self.count, self.draws = worlds.count, worlds.draws
        self.present, self.place = False, None
        self._worlds, self._kind, self._taken = worlds, kind, 0

    def reset(self, where: Tensor, uniforms: Tensor) -> None:
        """See `Worlds.reset`."""
        self._worlds.reset(where, uniforms)

    def observe(self) -> Tensor:
        """See `Worlds.observe`."""
        obs = self._worlds.observe().clone()
        if self.present and self.place is not None:
            own = obs[self.place]
            crafted = 1.0 + 0.1 * (self._taken % 7) - 3.0 * own
            obs[self.place] = {CRAFTED: crafted, NULL: own * torch.nan}.get(self._kind, own)
        return obs

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """See `Worlds.step`."""
        rewards, terminated = (x.clone() for x in self._worlds.step(actions))
        if self.present and self.place is not None:
            self._taken += 1
            own = rewards[self.place]
            crafted = 50.0 + 7.0 * (self._taken % 4) - own
            others = {NULL: own * torch.nan, CRAFTED: crafted, ZERO: 0.0 * own}
            rewards[self.place] = others.get(self._kind, own)
            if self._kind == CRAFTED:
                terminated[self.place] = self._taken % 3 == 0
        return rewards, terminated

    def check(self) -> None:
        """See `Worlds.check`."""
        self._worlds.check()


# --- parts of a step


class _Scaling:
    """`SignalScaler` with constants, on the device.

    Args:
        scaler: whose constants.
        device: torch device.
    """

    def __init__(self, scaler: SignalScaler, device: str):
        self._there = [
            [torch.as_tensor(x, device=device) for x in (shift, factor, -bound, bound)]
            for shift, factor, bound in scaler.constants()
        ]

    def obs(self, raw: Tensor) -> Tensor:
        """Scaled observations [R, W, D] in single precision."""
        return _scaled(raw.double(), *self._there[0]).float()

    def reward(self, rewards: Tensor) -> Tensor:
        """Scaled rewards [R, W]."""
        return _scaled(rewards, *self._there[1])


class _Noise:
    """The policy's random numbers, some steps at a time.

    Args:
        streams: of each replica.
        policy: the policy.
        round_index: selects the numbers.
        slots: of the worlds.
    """

    def __init__(self, streams: list[Streams], policy: Policy, round_index: int, slots: range):
        self._counters = [s.counters("policy", slots, round_index) for s in streams]
        self._policy, self._users = policy, len(slots)
        self._drawn = torch.empty(0)

    def at(self, t: int) -> Tensor:
        """[R, W, ...] of step t, called in order."""
        if t % _STEPS == 0:
            draws = [self._policy.draw(cast(Any, c), _STEPS, self._users) for c in self._counters]
            self._drawn = torch.stack(draws, dim=1)
        return self._drawn[t % _STEPS]


class _Sampler:
    """`Policy.sampler` in calls of always the same shape, where a slot always has the same row.

    Args:
        policy: the policy.
        params: [R, P].
        slots: of the worlds.
    """

    def __init__(self, policy: Policy, params: Tensor, slots: range):
        self._size = _GROUP[params.device.type]
        self._before = slots.start % self._size
        self._after, self._width = -slots.stop % self._size, len(slots)
        self._samples = [policy.sampler(one[None]) for one in params]

    def __call__(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Actions [R, W, ...] for observations [R, W, D] and random numbers [R, W, ...]."""
        edges = (0, 0, self._before, self._after)
        obs, noise = (torch.nn.functional.pad(x, edges) for x in (obs, noise))
        found = [
            torch.cat(
                [
                    sample(x[None], n[None])[0]
                    for x, n in zip(xs.split(self._size), ns.split(self._size), strict=True)
                ]
            )
            for sample, xs, ns in zip(self._samples, obs, noise, strict=True)
        ]
        return torch.stack(found)[:, self._before : self._before + self._width]


def _scaled(x: Tensor, shift: Tensor, factor: Tensor, least: Tensor, most: Tensor) -> Tensor:
    return ((x - shift) * factor).clip(least, most)


def _finite(x: Tensor) -> Tensor:
    """Which users' numbers x [R, W, ...] are finite in single precision."""
    return (x.abs() <= LARGEST).flatten(2).all(-1) if x.dim() > 2 else x.abs() <= LARGEST


def _stats(episodes: Tensor, returns: Tensor, invalid: Tensor) -> list[dict[str, float]]:
    """Private metrics of each replica, see `shards.train_stats`."""
    columns = (episodes.tolist(), returns.tolist(), invalid.sum(-1).tolist())
    return [
        {
            "train/return_mean": total / count if count else math.nan,
            "train/episodes": count,
            "train/invalid_users": float(bad),
        }
        for count, total, bad in zip(*columns, strict=True)
    ]
