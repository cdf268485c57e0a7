"""What an algorithm is: five functions over a state, and what it declares about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.functional.rng import Streams
from privrl_bench.models.adapters import Adapter
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.mechanisms.gaussian import Gaussian
from privrl_bench.privacy.mechanisms.mechanism import Mechanism
from privrl_bench.types import EnvSpec, Scaling, State, TextBatch, Transitions, UserBatch

if TYPE_CHECKING:
    from privrl_bench.models.language.task import TextTask


@dataclass(frozen=True)
class AlgorithmContext:
    """Public facts that an algorithm is built from."""

    spec: EnvSpec
    clip: float  # L2 bound of one user's actor block, parameter units
    rounds: int  # releases in the whole run
    users: int  # public U, the divisor of sums over users
    device: str = "cpu"  # where local updates are computed
    private_obs: bool = False  # learn the scaling of observations under privacy
    private_reward: bool = False  # learn the scaling of rewards under privacy
    z: tuple[float, ...] = ()  # noise multiplier of each replica
    mechanism: type[Mechanism] = Gaussian  # of the run: what it declares
    # (policy, episodes of each replica) -> (actor [R, P], round) -> episodes that are nobody's
    simulate: Callable[[Policy, int], Callable[[Tensor, int], UserBatch]] | None = None
    public: Transitions | None = None  # the public part of an offline run's dataset
    env: EnvConfig | None = None  # of algorithms that evaluate a policy: its public ranges
    behaviour: str | None = None  # and data.policy
    people: int = 0  # exactly, where everybody is known
    epsilon: float | None = None  # and delta: of an output perturbation
    delta: float = 0.0
    task: TextTask | None = None  # of a text environment
    # (adapter, how many) -> (actor [R, size], round) -> answers to public prompts, which are nobody's
    ask: Callable[[Adapter, int], Callable[[Tensor, int], TextBatch]] | None = None


class Algorithm(ABC):
    """One training algorithm. Everything it remembers is in the `State` that it is given.

    Five functions over the state (`init`, `local`, `server`, `after_release`, `scaling`), and what it declares.
    """

    replicas: ClassVar[bool] = True  # trains several seeds and z in one program
    iterations_after: int = 0  # of the loop after the last release, for `after_release` alone
    policy: Policy
    adapter: Adapter  # in place of a policy, of algorithms for texts

    @abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The parts of a user's row."""

    def caveats(self) -> dict[str, str]:
        """What this configuration lets past the gate: name -> reason. Default: nothing."""
        return {}

    def notes(self) -> dict[str, str]:
        """What the guarantee assumes because of this configuration: name -> reason."""
        return {}

    def unit(self) -> Unit | None:
        """What one user is, where that is not what the environment or the dataset says. Default: it is."""
        return None

    @abstractmethod
    def init(self, streams: list[Streams]) -> State:
        """Parameters before any data, one set for each replica; the policy's are `actor` [R, P]."""

    def actor(self, state: State) -> Tensor:
        """[R, P] policy parameters, which are what a run releases."""
        return state.tensors["actor"]

    def scaling(self, state: State) -> Scaling | None:
        """How the next users' observations and rewards are scaled, if that is learned."""
        return None

    def learning_rate(self, round_index: int) -> float | None:
        """Step size of a round, for the log; None: there is none."""
        return None

    @abstractmethod
    def local(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row per user from her own data and released parameters."""

    def local_of_all(
        self, state: State, pieces: Iterable[UserBatch], streams: list[Streams]
    ) -> Contribution:
        """One row for everybody, who come in pieces; of algorithms with `full_batch`, instead of `local`."""
        raise TypeError(f"{type(self).__name__} does not take everybody at once")

    @abstractmethod
    def server(self, state: State, released: Released) -> State:
        """The next state, from the last one and what was released."""

    def releases(self, state: State) -> list[int] | None:
        """Releases that each replica's parameters have seen; None: one in every round so far.

        A replica may ask for fewer than planned (early stopping), never for more: see `needs_release`.
        """
        return None

    def needs_release(self, state: State) -> list[bool] | None:
        """Which replicas go on with releases; None: all. It may depend on releases and public data only."""
        return None

    def finished(self, state: State) -> bool:
        """Whether nothing is left to do, before all turns are over."""
        return False

    def after_release(self, state: State, streams: list[Streams]) -> State:
        """Further work on released things and public simulators only. Default: none."""
        return state

    def metrics(self, state: State) -> list[dict[str, float]]:
        """Declared metrics of each replica's state, from `state` and public data only. Default: none.

        They may leave the machine. What is computed from users' data goes to `Contribution.diagnostics`.
        """
        return []

    def export(self, state: State, r: int, folder: Path) -> list[Path]:
        """Write replica r's released parameters as other tools load them; returns what. Default: nothing."""
        return []


def step_order(
    users: UserBatch, streams: list[Streams], round_index: int, epochs: int, minibatches: int
) -> Tensor:
    """Which of her own steps every user takes in every local minibatch.

    Every pass is a random order of the user's steps; a user with fewer than T steps goes through them
    again, so that all users make the same, public number of local steps. The order depends on the user's
    slot, or on their number where the environment declares users.

    Args:
        users: `mask` [R, U, T] and `numbers` [R, U] are used.
        streams: of each replica.
        round_index: selects the random numbers.

    Returns: [E, R * U, M, B] indices into T, with B = T // M.
    """
    replicas, count, steps = users.mask.shape
    size = max(steps // minibatches, 1)
    if users.numbers is None:
        drawn = [
            torch.rand(epochs, count, steps, generator=s.torch("local", round_index))
            for s in streams
        ]
    else:
        drawn = [
            torch.cat([torch.rand(epochs, 1, steps, generator=g) for g in each], dim=1)
            for each in (
                [s.torch("local", round_index, max(k, 0)) for k in who]
                for s, who in zip(streams, users.numbers.tolist(), strict=True)
            )
        ]
    scores = torch.stack(drawn, dim=1)  # [E, R, U, T]
    order = scores.masked_fill(~users.mask, 2.0).argsort(dim=-1)
    own = users.mask.sum(-1).clamp_min(1)[..., None]  # [R, U, 1]
    position = torch.arange(size * minibatches).expand(replicas, count, -1) % own
    order = order.gather(-1, position.expand(epochs, -1, -1, -1))
    return order.reshape(epochs, replicas * count, minibatches, size)


def per_user(x: Tensor) -> Tensor:
    """[R, U, ...] -> [R * U, ...]."""
    return x.reshape(-1, *x.shape[2:])


def annealed(lr: float, anneal: bool, round_index: int, rounds: int) -> float:
    """Step size of a round: linear from `lr` towards 0 over the run, or constant."""
    return lr * (1.0 - round_index / rounds) if anneal else lr
