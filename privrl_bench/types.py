"""Data types that the packages exchange. Axes: R replicas, U users, T steps, P parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Image(NamedTuple):
    """Observations that are images, flattened.

    Attributes:
        height, width, channels: sizes of the image.
        channels_first: the axes are [C, H, W]; else [H, W, C].
        scale: factor of a pixel in a convolutional network.
    """

    height: int
    width: int
    channels: int
    channels_first: bool
    scale: float


@dataclass(frozen=True)
class EnvSpec:
    """What an algorithm may know about an environment before any data: public facts only.

    Attributes:
        name: registry name.
        obs_dim: D, length of the flat observation.
        discrete: whether actions are one of `actions` choices; else `actions` numbers.
        actions: number of choices, or number of action coordinates A.
        action_low, action_high: [A] bounds that a policy chooses between (Box actions only): those of the
            environment's box; infinite for bounds beyond 1e6; half a unit wider for integers.
        choices: [A] number of choices of every coordinate (MultiDiscrete and MultiBinary actions); None:
            actions are one choice or real numbers.
        stretch: a policy's [-1, 1] is stretched to the box; else its actions are in the box's units.
        one_hot: observations are one-hot: one of `obs_dim` states; all zeros after the last step.
        max_episode_steps: public upper bound on the steps of one episode.
        users: number of real users that the environment declares (docs/environments.md); None if its
            users are simulated.
        image: the image that observations are; None: they are none.
        observations, action_words: what they are and what becomes of them, in words.
        obs_names: [D] of the numbers of an observation (`plan=basic` is 1 if the column plan is basic).
        action_names: of the choices in their order, or of the numbers of an action; () where none are known.
        observation_space, action_space: of Gymnasium, before observations are flattened; None of texts.
    """

    name: str
    obs_dim: int
    discrete: bool
    actions: int
    max_episode_steps: int
    action_low: np.ndarray | None = None
    action_high: np.ndarray | None = None
    stretch: bool = True
    one_hot: bool = False
    users: int | None = None
    choices: tuple[int, ...] | None = None
    image: Image | None = None
    observations: str = ""
    action_words: str = ""
    obs_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    observation_space: Any = field(default=None, compare=False)
    action_space: Any = field(default=None, compare=False)

    @property
    def one_user(self) -> str:
        """The subject of a privacy unit, in words."""
        if self.users is None:
            return "one simulated user"
        return f"one user (of {self.users} declared by the environment)"


@dataclass
class UserBatch:
    """Raw data of the users of one round: private, and deleted after `Algorithm.user_update`.

    Attributes:
        obs, next_obs: [R, U, T, D] scaled observations before and after each step.
        actions: [R, U, T, A], or [R, U, T] choices; from a dataset as the environment takes them.
        rewards: [R, U, T], scaled.
        terminated: [R, U, T] bool, the episode ended by itself.
        done: [R, U, T] bool, the episode ended by itself or by a time limit.
        mask: [R, U, T] bool, the step happened; the steps of a user come first.
        valid: [R, U] bool, the user takes part and their data are finite.
        stats: private metrics of each replica.
        behavior_probs: [R, U, T] probability of each action under the policy that chose it, 1 where no
            step happened; None if it is not known.
        numbers: [R, U] number of the user, -1 for an empty slot, where users are declared by the
            environment, come from a dataset or return; None for users who are simulated and act once.
        first: slot of the first user in the round.
    """

    obs: Tensor
    next_obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    done: Tensor
    mask: Tensor
    valid: Tensor
    stats: list[dict[str, float]] = field(default_factory=list)
    behavior_probs: Tensor | None = None
    numbers: Tensor | None = None
    first: int = 0


@dataclass
class TextBatch:
    """Prompts and answers of the users of one round: private, and deleted after `Algorithm.user_update`.

    All answers begin in column L, the public width of prompts. T is the public length of an answer.

    Attributes:
        tokens: [R, U, L + T] prompt and answer.
        seen: [R, U, L + T] bool, the columns of `tokens` that belong to the user.
        mask: [R, U, T] bool, the columns that belong to the answer.
        scores: [R, U] reward of the answer.
        valid: [R, U] bool, the user takes part and their score is finite.
        stats: private metrics of each replica.
        first: slot of the first user in the round.
    """

    tokens: Tensor
    seen: Tensor
    mask: Tensor
    scores: Tensor
    valid: Tensor
    stats: list[dict[str, float]] = field(default_factory=list)
    first: int = 0


class Transitions(NamedTuple):
    """Public steps.

    Attributes:
        obs, next_obs: [n, D], scaled.
        actions: [n, A], or [n] choices, as the environment takes them.
        rewards: [n], scaled.
        terminated: [n] bool, the task ended with the step.
        lengths: [k] of the episodes, one after the other.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Scaling:
    """Scaling that training learned from releases, on top of the environment's public constants.

    Attributes:
        obs_mean, obs_std: [R, D] in publicly scaled units; None: nothing learned.
        reward_scale: [R, 1] further factor of the rewards; None: nothing learned.
    """

    obs_mean: Tensor | None
    obs_std: Tensor | None
    reward_scale: Tensor | None


@dataclass
class State:
    """All that training carries from round to round: plain tensors with a leading replica axis."""

    round: int
    tensors: dict[str, Tensor]

    def to(self, device: str) -> State:
        """The state on a device; itself if it is there."""
        return State(self.round, {name: x.to(device) for name, x in self.tensors.items()})

    def clone(self) -> State:
        """A copy that shares no memory."""
        return State(self.round, {name: x.clone() for name, x in self.tensors.items()})


def generator(*words: int, device: str = "cpu") -> torch.Generator:
    """A torch generator whose stream is determined by `words`, integers >= 0."""
    seed = np.random.SeedSequence(list(words)).generate_state(2, np.uint32)
    made = torch.Generator(device=device)
    made.manual_seed(int(seed[0]) << 31 | int(seed[1]) >> 1)
    return made
