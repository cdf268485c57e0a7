"""What several tests share: configurations, users, torch modules, a loop without gate, commands, screens."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from privrl_bench.algorithms.base import AlgorithmContext, PrivacyFacts
from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import make_policy
from privrl_bench.privacy.contribution import Contribution, Released
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.mechanisms import mechanism_class
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import EnvSpec, State, UserBatch
from privrl_bench.users.collectors.live import SimulatedCollector

CHOICE = EnvSpec("choice", obs_dim=3, discrete=True, actions=4, max_episode_steps=100)
BOX = EnvSpec("box", 3, False, 2, 100, np.array([-1.0, -2.0]), np.array([1.0, 4.0]))


@cache
def shipped(name: str) -> EnvConfig:
    """The environment that `env=name` composes."""
    return compose(["algo=ppo", f"env={name}"]).env


def own(name: str, **changes: object) -> EnvConfig:
    """An environment of `my_pkg` without any scaling."""
    plain = {"name": name, "obs_scaling": "none", "reward_scaling": "none"}
    return EnvConfig(**{**plain, "id": f"my_pkg:{name}-v0", **changes})


def sized(*sizes: int) -> Cohort:
    """So many simulated users of each replica."""
    return Cohort(list(sizes), None)


def members_of(*members) -> Cohort:
    """Numbered users of each replica."""
    return Cohort([len(who) for who in members], [np.array(who, np.int64) for who in members])


def release(gate: Gate, contribution: Contribution, round_index: int) -> Released:
    """One round of a gate whose users come in one contribution."""
    gate.add(contribution)
    return gate.release(round_index)


def context(
    spec: EnvSpec,
    clip: float,
    rounds: int,
    users: int,
    mechanism: str = "gaussian",
    z: tuple[float, ...] = (),
    **privacy,
) -> AlgorithmContext:
    """What an algorithm is built from."""
    kind = mechanism_class(mechanism)
    facts = PrivacyFacts(clip=clip, users=users, mechanism=kind, **privacy)
    made = AlgorithmContext(spec=spec, privacy=facts)
    made.schedule.rounds, made.schedule.z = rounds, z
    return made


def rollout_of(
    config: EnvConfig,
    seeds: list[int],
    users: int,
    steps: int,
    hidden: tuple[int, ...] = (8,),
    **more: object,
):
    """(collector, [R, P] actor): one random policy per seed, far enough from uniform to matter."""
    spec = env_spec(config)
    policy = make_policy(spec, list(hidden))
    streams = [Streams(s) for s in seeds]
    actor = torch.stack([policy.init(s.torch("init", 0)) for s in streams])
    return SimulatedCollector(
        config, spec, policy, streams, users, steps, 0.99, **more
    ), 3.0 * actor


def tensors(users: UserBatch) -> dict[str, torch.Tensor]:
    """The tensors of a batch by name."""
    every = {
        f.name: getattr(users, f.name) for f in fields(users) if f.name not in ("stats", "first")
    }
    return {name: x for name, x in every.items() if x is not None}


def assert_same_users(a: UserBatch, b: UserBatch) -> None:
    """Bit for bit."""
    for name, x in tensors(a).items():
        torch.testing.assert_close(x, tensors(b)[name], rtol=0, atol=0, msg=lambda m, n=name: n + m)


def random_users(
    spec: EnvSpec, replicas: int, users: int, steps: int, seed: int, lengths=None
) -> UserBatch:
    """Float64 users that no simulator made; `lengths` [R, U] gives episodes of different length."""
    g = torch.Generator().manual_seed(seed)
    shape = (replicas, users, steps)

    def normal(*more: int) -> torch.Tensor:
        return torch.randn(*shape, *more, generator=g, dtype=torch.float64)

    done = torch.rand(shape, generator=g) < 0.15
    terminated = done & (torch.rand(shape, generator=g) < 0.5)
    mask = torch.ones(shape, dtype=torch.bool)
    if lengths is not None:
        last = torch.as_tensor(lengths)[..., None] - 1
        place = torch.arange(steps).expand(shape)
        mask = place <= last
        done = place == last
        terminated = done & (torch.as_tensor(lengths)[..., None] % 2 == 0)
    actions = torch.randint(spec.actions, shape, generator=g) if spec.discrete else None
    return UserBatch(
        obs=normal(spec.obs_dim),
        next_obs=normal(spec.obs_dim),
        actions=normal(spec.actions) if actions is None else actions,
        rewards=normal(),
        terminated=terminated,
        done=done,
        mask=mask,
        valid=torch.ones(replicas, users, dtype=torch.bool),
    )


def in_double(state: State) -> State:
    """The state in float64, where two ways to the same number agree closely."""
    return State(state.round, {n: x.double() for n, x in state.tensors.items()})


def module_of(
    vector: torch.Tensor, widths: list[int], bend: type[torch.nn.Module] = torch.nn.Tanh
) -> torch.nn.Sequential:
    """A torch network with the weights of a flat vector: per layer weight [in, out], then bias."""
    layers: list[torch.nn.Module] = []
    at = 0
    for i, (a, b) in enumerate(pairwise(widths)):
        layer = torch.nn.Linear(a, b, dtype=vector.dtype)
        layer.weight.data = vector[at : at + a * b].reshape(a, b).T.clone()
        layer.bias.data = vector[at + a * b : at + a * b + b].clone()
        at += a * b + b
        layers += [layer] if i == len(widths) - 2 else [layer, bend()]
    assert at == len(vector)
    return torch.nn.Sequential(*layers)


def vector_of(module: torch.nn.Sequential) -> torch.Tensor:
    """The inverse of `module_of`."""
    linear = [x for x in module if isinstance(x, torch.nn.Linear)]
    pieces = [p for x in linear for p in (x.weight.detach().T.reshape(-1), x.bias.detach())]
    return torch.cat(pieces)


class TorchPolicy(torch.nn.Module):
    """A policy made of torch's own modules and distributions, from a flat vector."""

    def __init__(self, spec: EnvSpec, vector: torch.Tensor, hidden: list[int]):
        super().__init__()
        self.discrete = spec.discrete
        inner = vector if spec.discrete else vector[: -spec.actions]
        self.net = module_of(inner, [spec.obs_dim, *hidden, spec.actions])
        if not spec.discrete:
            self.log_std = torch.nn.Parameter(vector[-spec.actions :].clone())

    def distribution(self, obs: torch.Tensor) -> torch.distributions.Distribution:
        """The distribution over actions."""
        if self.discrete:
            return torch.distributions.Categorical(logits=self.net(obs))
        normal = torch.distributions.Normal(self.net(obs), self.log_std.exp())
        return torch.distributions.Independent(normal, 1)

    def vector(self) -> torch.Tensor:
        """The parameters as one vector."""
        own = vector_of(self.net)
        return own if self.discrete else torch.cat([own, self.log_std.detach()])


def policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    ratio_clip: float | None,
) -> torch.Tensor:
    """Negative surrogate objective, mean over the last axis.

    Args:
        log_probs, old_log_probs, advantages: [..., B].
        ratio_clip: PPO's clip of the probability ratio; None leaves the ratio alone, as DPPG does.

    Source: Schulman et al. 2017, equations 6 and 7.
    """
    ratio = (log_probs - old_log_probs).exp()
    gain = ratio * advantages
    if ratio_clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - ratio_clip, 1 + ratio_clip) * advantages)
    return -gain.mean(-1)


def slow_gae(rewards, values, next_values, terminated, done, gamma, lam) -> torch.Tensor:
    """Advantages of one trajectory [T] by the definition: a sum over all later steps."""
    steps = len(rewards)
    found = torch.zeros(steps, dtype=rewards.dtype)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            after = 0.0 if terminated[k] else gamma * float(next_values[k])
            found[t] += weight * (float(rewards[k]) + after - float(values[k]))
            weight *= gamma * lam
            if done[k]:
                break
    return found


def open_gate(contribution: Contribution) -> tuple[dict[str, torch.Tensor], dict]:
    """Mean rows and bypass of the users that are valid, without clip, noise or ledger."""
    rows, valid, bypass = contribution.take()
    kept = {n: torch.where(valid[..., None], x, 0.0).mean(1) for n, x in rows.items()}
    return kept, bypass


def learn(algo, rollout: SimulatedCollector, rounds: int) -> tuple[State, list[float]]:
    """Train without a gate; returns the state and the mean training return of every round."""
    from types import SimpleNamespace

    streams = rollout._streams
    state, curve = algo.init(streams), []
    everyone = sized(*[rollout.shape.users] * len(streams))
    for index in range(rounds):
        users = rollout.collect(algo.actor(state), index, everyone)
        curve.append(float(np.nanmean([s["train/return_mean"] for s in users.stats])))
        values, bypass = open_gate(algo.user_update(state, users, streams))
        state = algo.server(state, SimpleNamespace(values=values, bypass=bypass))
    return state, curve


def changed(config: EnvConfig, **changes: object) -> EnvConfig:
    """A copy with other settings."""
    return replace(config, **changes)


def exit_code(command: Callable[[list[str]], object], words: Sequence[str]) -> int:
    """Exit code of a command that runs in this process."""
    try:
        code = command(list(words))
    except SystemExit as leave:
        code = leave.code
    assert isinstance(code, int)
    return code


def load_script(name: str) -> ModuleType:
    """The module of a file in `scripts`."""
    path = Path(__file__).parent.parent / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


# Words of short runs by the kind of policy that they train; the fixture `trained` runs them.
SMALL = "eval.episodes=2 eval.every=0 log=none log.plot=false rounds=2"
LEARNERS = {
    "categorical": "algo=dppg env=acrobot algo.hidden=[8] env.max_episode_steps=60",
    "gaussian": "algo=dppg env=pendulum algo.hidden=[8] privacy.users_per_round=4",
    "multi": "algo=dppg env=gym env.id=spaces_pkg:Two-v0 algo.hidden=[8] privacy.users_per_round=4",
    "dropout": "algo=reinforce env=cartpole algo.hidden=[8] privacy.users_per_round=4",
    "q": "algo=dqn env=cartpole algo.hidden=[8] privacy.users_per_round=4",
    "loglinear": "algo=dppg_kl env=riverswim privacy.users_per_round=4",
    "states": "algo=dppg_kl env=gym env.id=FrozenLake-v1 privacy.users_per_round=4 env.obs_scaling=none",
    "table": "algo=ucbvi env=riverswim",
    "squashed": "algo=sac env=pendulum algo.hidden=[8] total_steps=400 rounds=null",
    "deterministic": "algo=ddpg env=pendulum algo.hidden=[8] total_steps=400 rounds=null",
}
