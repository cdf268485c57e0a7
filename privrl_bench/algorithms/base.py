"""The interface of algorithms: functions over a state. What they declare is in `config/traits.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.config.traits import Actions
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Draw, Streams, uniform
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.privacy.mechanisms.mechanism import Mechanism
from privrl_bench.types import EnvSpec, Scaling, State, Transitions, UserBatch


@dataclass(frozen=True, kw_only=True)
class PrivacyFacts:
    """Public facts about the privacy of a run.

    Attributes:
        clip: L2 bound of one user's actor block, parameter units.
        users: public U, the divisor of sums over users.
        population: public number of all users, where it is known; else 0.
        used_once: each user is in one round only.
        mechanism: class of the mechanism, for what it declares.
        epsilon, delta: target of an output perturbation.
        learns_obs: the scaling of observations is learned under privacy.
        learns_reward: the scaling of rewards is learned under privacy.
    """

    clip: float
    users: int
    population: int = 0
    used_once: bool = False
    mechanism: type[Mechanism] = Gaussian
    epsilon: float | None = None
    delta: float = 0.0
    learns_obs: bool = False
    learns_reward: bool = False


@dataclass(frozen=True, kw_only=True)
class PublicSources:
    """Data that no private user is involved in; None: the run has none.

    Attributes:
        simulate: (policy, episodes of each replica) -> (policy_params [R, P], round) -> simulated
            episodes.
        transitions: the public part of an offline run's dataset.
        given: what the kind of users has beside them (`Users.public_sources`), for algorithms of its pack.
    """

    simulate: Callable[[Policy, int], Callable[[Tensor, int], UserBatch]] | None = None
    transitions: Transitions | None = None
    given: Any = None


class Schedule:
    """How long a run is and how much noise it adds.

    Both follow from what its algorithm declares, so that they are set after its constructor, and before `init`.

    Attributes:
        rounds: releases in the whole run.
        z: noise multiplier of each replica.
        stds: of each replica, block name -> noise standard deviation in the sum of a round, parameter units
            (`Noise.stds`).
    """

    rounds: int
    z: tuple[float, ...]
    stds: list[dict[str, float]]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an algorithm may read {name} from `init` on, not before")


@dataclass(frozen=True, kw_only=True)
class AlgorithmContext:
    """Public facts that an algorithm is built from.

    Attributes:
        spec: of the environment.
        privacy: of the run.
        schedule: rounds and z, known from `init` on.
        sources: data without private users.
        device: `hardware.device`, where user updates are computed; one of the settings' `torch_devices`.
        env: settings of the environment; None: the algorithm needs none.
        behavior_policy: `data.policy`, of algorithms that evaluate a policy.
        read_policy: reads the policy of a run folder, named by a key (`training/trained_policy.py`).
    """

    spec: EnvSpec
    privacy: PrivacyFacts
    schedule: Schedule = field(default_factory=Schedule)
    sources: PublicSources = PublicSources()
    device: str = "cpu"
    env: EnvConfig | None = None
    behavior_policy: str | None = None
    read_policy: Callable[[str, str], Any] | None = None


def check_actions(actions: Actions, spec: EnvSpec, name: str) -> None:
    """Check that the algorithm `name` can act in an environment.

    Raises:
        ConfigError: its actions or states are others than `Traits.actions` needs.
    """
    low, high = spec.action_low, spec.action_high
    bounded = low is not None and high is not None and bool((abs(low) + abs(high) < np.inf).all())
    finite = spec.discrete and spec.one_hot and spec.actions > 1
    why = ""
    if actions is Actions.DISCRETE and not spec.discrete:
        kind = "continuous" if spec.choices is None else "several choices at once"
        why = f"; those of {spec.name} are {kind}"
    elif actions is Actions.BOX and not bounded:
        why = f"; those of {spec.name} are not: {spec.action_words}"
    elif actions is Actions.FINITE and not finite:
        why = " (a Discrete observation space, env.obs_scaling=none)"
    if why:
        raise ConfigError("env", f"algo={name} needs {actions.value}{why}")


@dataclass(frozen=True, kw_only=True)
class AlgorithmTerms:
    """What the guarantee and the plan of a run say of its algorithm, from the configuration alone.

    Attributes:
        unit: the privacy unit; None: that of the environment or the dataset.
        caveats: private data that pass the gate: name -> reason.
        notes: assumptions of the guarantee: name -> reason.
        iterations_after: of the loop after the last release, for `after_release` alone.
        policy_guarantee: of a policy that the run is given and does not train.
        result_scale: units of the result in one number of a release; 0: that depends on the data.
        warning: why the run may find nothing, said before it begins.
    """

    unit: Unit | None = None
    caveats: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    iterations_after: int = 0
    policy_guarantee: dict[str, Any] | None = None
    result_scale: float = 0.0
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """How far each replica is, from releases and public data only.

    A replica may ask for fewer releases than planned (early stopping), never for more.

    Attributes:
        releases: that its parameters have seen; None: one in every round so far.
        needs_release: whether it continues with releases; None: all do.
        finished: training is complete before the last iteration.
    """

    releases: tuple[int, ...] | None = None
    needs_release: tuple[bool, ...] | None = None
    finished: bool = False


class Algorithm(ABC):
    """One training algorithm. It keeps nothing outside the `State` that it is given.

    Its constructor gets the settings and an `AlgorithmContext`. Algorithms for texts have an `adapter` in
    place of a policy.
    """

    policy: Policy
    adapter: Any

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The parts of a user's row."""

    def terms(self) -> AlgorithmTerms:
        """What the guarantee and the plan say of it in this configuration."""
        return AlgorithmTerms()

    @abstractmethod
    def init(self, streams: list[Streams]) -> State:
        """Parameters before any data, of each replica; the policy's are `actor` [R, P]."""

    def actor(self, state: State) -> Tensor:
        """[R, P] policy parameters that the next users act with."""
        return state.tensors["actor"]

    def scaling(self, state: State) -> Scaling | None:
        """Scaling of the next users' observations and rewards; None: it is not learned."""
        return None

    @abstractmethod
    def user_update(self, state: State, users: Any, streams: list[Streams]) -> Contribution:
        """One row per user, from the user's own data and released parameters.

        Args:
            state: of the round.
            users: a `UserBatch`, or a `TextBatch`; with `Traits.full_batch` the shards of all users, as an
                iterable of `UserBatch`, which make one row.
            streams: of each replica.
        """

    @abstractmethod
    def server(self, state: State, released: Released) -> State:
        """The next state, from the last one and what was released."""

    def progress(self, state: State) -> TrainingProgress:
        """How far each replica is. Default: a release in every round, to the last one."""
        return TrainingProgress()

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """Further work on released values and public data only. Default: none."""
        return state

    def metrics(self, state: State) -> list[dict[str, float]]:
        """Declared metrics of each replica after a round, from `state` and public data only. Default: none.

        They may leave the machine; metrics of users' data go to `Contribution.diagnostics`. `lr` is the step
        size of the round. Numbers that the run is made for, beside its evaluation, are `release/<name>`.
        """
        return each_replica(state)

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """Write replica r's released parameters for other tools; returns the files. Default: none."""
        return []


def each_replica(state: State, **metrics: float) -> list[dict[str, float]]:
    """The same metrics for every replica."""
    return [dict(metrics) for _ in next(iter(state.tensors.values()))]


def user_draws(
    users: UserBatch,
    streams: list[Streams],
    name: str,
    round_index: int,
    draw: Draw,
) -> list[Tensor]:
    """Random numbers of the users of a batch, of each replica; see `Streams.per_user`."""
    slots = range(users.first, users.first + users.valid.shape[1])
    numbers = [None] * len(streams) if users.numbers is None else users.numbers.tolist()
    return [
        s.per_user(name, round_index, slots, who, draw)
        for s, who in zip(streams, numbers, strict=True)
    ]


def step_order(
    users: UserBatch, streams: list[Streams], round_index: int, epochs: int, minibatches: int
) -> Tensor:
    """The steps that each user takes in each minibatch of a user.

    Each pass is a random order of the user's steps. A user with fewer than T steps repeats them, so
    that all users make the same, public number of steps. The order depends on the user's
    number, or on their slot where users are simulated and act once.

    Args:
        users: `mask` [R, U, T], `numbers` [R, U] and `first` are used.
        streams: of each replica.
        round_index: selects the random numbers.
        epochs: E, passes over a user's steps.
        minibatches: M of one pass.

    Returns:
        [E, R * U, M, B] indices into T, with B = T // M.
    """
    replicas, count, steps = users.mask.shape
    size = max(steps // minibatches, 1)
    drawn = user_draws(
        users,
        streams,
        "user_update",
        round_index,
        lambda g, n: uniform(g, epochs, n, steps),
    )
    scores = torch.stack(drawn, dim=1)  # [E, R, U, T]
    order = scores.masked_fill(~users.mask, 2.0).argsort(dim=-1, stable=True)
    own = users.mask.sum(-1).clamp_min(1)[..., None]  # [R, U, 1]
    place = torch.arange(size * minibatches, device=own.device)
    position = place.expand(replicas, count, -1) % own
    order = order.gather(-1, position.expand(epochs, -1, -1, -1))
    return order.reshape(epochs, replicas * count, minibatches, size)


def take_steps(x: Tensor, index: Tensor) -> Tensor:
    """Return the steps [N, B, ...] of x [N, T, ...] at the indices [N, B]."""
    return x.take_along_dim(index.view(*index.shape, *[1] * (x.dim() - 2)), 1)


def per_user(x: Tensor) -> Tensor:
    """[R, U, ...] -> [R * U, ...]."""
    return x.reshape(-1, *x.shape[2:])


def pooled_rows(rows: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum [R, 1, P] of the valid users' rows [R, U, P], and whether there is one [R, 1]."""
    return torch.where(valid[..., None], rows, 0.0).sum(1, keepdim=True), valid.any(1, keepdim=True)


def annealed(lr: float, anneal: bool, round_index: int, rounds: int, after: float = 0.0) -> float:
    """Step size of a round: constant, or falling linearly towards 0 after a share `after` of the rounds.

    >>> [annealed(1.0, True, index, 4) for index in range(4)], annealed(1.0, True, 3, 4, after=0.5)
    ([1.0, 0.75, 0.5, 0.25], 0.5)
    """
    return lr * min(1.0, (1.0 - round_index / rounds) / (1.0 - after)) if anneal else lr
