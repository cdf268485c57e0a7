"""The interface of algorithms: five functions over a state, and declarations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError
from privrl_bench.functional.averaging import AVERAGE
from privrl_bench.functional.rng import Draw, Streams
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.privacy.mechanisms.mechanism import Mechanism
from privrl_bench.types import EnvSpec, Scaling, State, TextBatch, Transitions, UserBatch

if TYPE_CHECKING:
    from privrl_bench.models.language.adapters import Adapter
    from privrl_bench.models.language.task import TextTask


@dataclass(frozen=True, kw_only=True)
class PrivacyFacts:
    """Public facts about the privacy of a run.

    Attributes:
        clip: L2 bound of one user's actor block, parameter units.
        users: public U, the divisor of sums over users.
        population: public number of all users, where it is known; else 0.
        used_once: each user is in one round only.
        mechanism: class of the mechanism, for what it declares.
        z: noise multiplier of each replica.
        epsilon, delta: target of an output perturbation.
        learns_obs: the scaling of observations is learned under privacy.
        learns_reward: the scaling of rewards is learned under privacy.
    """

    clip: float
    users: int
    population: int = 0
    used_once: bool = False
    mechanism: type[Mechanism] = Gaussian
    z: tuple[float, ...] = ()
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
        task: models and prompts of a text environment.
        ask: (adapter, how many) -> (policy_params [R, size], round) -> answers to public prompts.
    """

    simulate: Callable[[Policy, int], Callable[[Tensor, int], UserBatch]] | None = None
    transitions: Transitions | None = None
    task: TextTask | None = None
    ask: Callable[[Adapter, int], Callable[[Tensor, int], TextBatch]] | None = None


@dataclass(frozen=True, kw_only=True)
class AlgorithmContext:
    """Public facts that an algorithm is built from.

    Attributes:
        spec: of the environment.
        rounds: releases in the whole run.
        privacy: of the run.
        sources: data without private users.
        device: `hardware.device`, where user updates are computed; one of the settings' `torch_devices`.
        env: settings of the environment; None: the algorithm needs none.
        behavior_policy: `data.policy`, of algorithms that evaluate a policy.
        read_policy: reads the policy of a run folder, named by a key (`experiment/policy_file.py`).
    """

    spec: EnvSpec
    rounds: int
    privacy: PrivacyFacts
    sources: PublicSources = PublicSources()
    device: str = "cpu"
    env: EnvConfig | None = None
    behavior_policy: str | None = None
    read_policy: Callable[[str, str], Any] | None = None


def discrete_actions(spec: EnvSpec, name: str) -> EnvSpec:
    """Return `spec`, whose actions must be discrete for the algorithm `name`.

    Raises:
        ConfigError: They are continuous.
    """
    if not spec.discrete:
        kind = "continuous" if spec.choices is None else "several choices at once"
        raise ConfigError(
            "env", f"algo={name} needs discrete actions; those of {spec.name} are {kind}"
        )
    return spec


def bounded_box(spec: EnvSpec, name: str) -> EnvSpec:
    """Return `spec`, whose actions must be in a bounded box for the algorithm `name`.

    Raises:
        ConfigError: They are discrete or unbounded.
    """
    low, high = spec.action_low, spec.action_high
    if low is None or high is None or not (abs(low) + abs(high) < float("inf")).all():
        raise ConfigError(
            "env",
            f"algo={name} needs actions in a bounded box; those of {spec.name} are not: "
            f"{spec.action_words}",
        )
    return spec


class Algorithm(ABC):
    """One training algorithm. It keeps nothing outside the `State` that it is given.

    Five functions over the state (`init`, `user_update`, `server`, `after_release`, `scaling`), and its
    declarations.
    """

    replicas: ClassVar[bool] = True  # trains several seeds and z in one program
    portable: ClassVar[bool] = True  # other processes can make it again from the configuration
    microbatch: ClassVar[int] = 16  # most users whose rows are computed by the same operations
    iterations_after: int = 0  # of the loop after the last release, for `after_release` alone
    policy_guarantee: dict[str, Any] | None = (
        None  # of a policy that the run is given and does not train
    )
    policy: Policy
    adapter: Adapter  # in place of a policy, of algorithms for texts

    @staticmethod
    def acts_in(spec: EnvSpec, name: str) -> EnvSpec:
        """Return `spec`, in which the algorithm `name` can act. Called before sizes are checked.

        Raises:
            ConfigError: It cannot.
        """
        return spec

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The parts of a user's row."""

    def caveats(self) -> dict[str, str]:
        """Private data that pass the gate in this configuration: name -> reason. Default: none."""
        return {}

    def notes(self) -> dict[str, str]:
        """Assumptions of the guarantee in this configuration: name -> reason."""
        return {}

    def results(self, state: State) -> list[dict[str, float]]:
        """Released numbers of each replica that the run is made for, beside its evaluation: name -> value."""
        return [{} for _ in next(iter(state.tensors.values()))]

    def unit(self) -> Unit | None:
        """The privacy unit; None: that of the environment or the dataset."""
        return None

    @abstractmethod
    def init(self, streams: list[Streams]) -> State:
        """Parameters before any data, of each replica; the policy's are `actor` [R, P]."""

    def actor(self, state: State) -> Tensor:
        """[R, P] policy parameters that the next users act with."""
        return state.tensors["actor"]

    def deployed(self, state: State) -> Tensor:
        """[R, P] policy parameters that are evaluated and saved: the average if the state has one, or `actor`.

        They are a function of released values only.
        """
        return state.tensors[AVERAGE] if AVERAGE in state.tensors else self.actor(state)

    def scaling(self, state: State) -> Scaling | None:
        """Scaling of the next users' observations and rewards; None: it is not learned."""
        return None

    def learning_rate(self, round_index: int) -> float | None:
        """Step size of a round, for the log; None: it has none."""
        return None

    def server_steps(self, rounds: int) -> list[float]:
        """Step size of the server in each round, relative to a public unit, for the plan. Default: 1."""
        return [1.0] * rounds

    @abstractmethod
    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row per user, from the user's own data and released parameters."""

    def update_of_all(
        self, state: State, shards: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """One row of all users, who come in shards; replaces `user_update` where `AlgoConfig.full_batch`."""
        raise TypeError(f"{type(self).__name__} does not take all users in one round")

    @abstractmethod
    def server(self, state: State, released: Released) -> State:
        """The next state, from the last one and what was released."""

    def releases(self, state: State) -> list[int] | None:
        """Releases that each replica's parameters have seen; None: one in every round so far.

        A replica may ask for fewer than planned (early stopping), never for more: see
        `needs_release`.
        """
        return None

    def needs_release(self, state: State) -> list[bool] | None:
        """Which replicas continue with releases; None: all. Depends on releases and public data only."""
        return None

    def finished(self, state: State) -> bool:
        """Whether training is complete before the last iteration."""
        return False

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """Further work on released values and public data only. Default: none."""
        return state

    def metrics(self, state: State) -> list[dict[str, float]]:
        """Declared metrics of each replica, from `state` and public data only. Default: none.

        They may leave the machine. Metrics of users' data go to `Contribution.diagnostics`.
        """
        return []

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """Write replica r's released parameters for other tools; returns the files. Default: none."""
        return []


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
        lambda g, n: torch.rand(epochs, n, steps, generator=g),
    )
    scores = torch.stack(drawn, dim=1)  # [E, R, U, T]
    order = scores.masked_fill(~users.mask, 2.0).argsort(dim=-1)
    own = users.mask.sum(-1).clamp_min(1)[..., None]  # [R, U, 1]
    position = torch.arange(size * minibatches).expand(replicas, count, -1) % own
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
