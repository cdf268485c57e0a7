"""What every algorithm can be asked to do, and where each algorithm is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from privrl_bench.config.limits import check_finite
from privrl_bench.errors import require, require_choice


@dataclass
class AlgoConfig:
    """What every algorithm has.

    `private`: users' rows go through the gate; else data are pooled, and privacy=none is needed.
    `mechanisms`: of `privacy.mechanism`, those that it can use.
    `learns_scaling`: env.obs_scaling=private and env.reward_scaling=private mean something.
    `whole_episodes`: a user must be one whole episode (env.user=episode).
    `offline`: learns from a dataset (data.id), and then a user is one of its users.
    `local`: can learn from noised observations (privacy=local), which no gate clips or noises again.
    `keeps`: users keep what they did and may join any later round; then `people` and `arrivals` say who comes.
    `takes_episodes`: pooled, and yet a user may be one whole episode.
    `evaluates`: the value of a policy, from trajectories of data.policy: of a dataset (data.id), or played by
    privacy.population people, who then keep what they did. Released are the weights of the value.
    `full_batch`: takes all people at once, in one round.
    `texts`: trains a language model, whose users bring prompts (env.kind=text).
    """

    private: ClassVar[bool] = True
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    learns_scaling: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = False
    offline: ClassVar[bool] = False
    local: ClassVar[bool] = True
    keeps: ClassVar[bool] = False
    takes_episodes: ClassVar[bool] = False
    evaluates: ClassVar[bool] = False
    full_batch: ClassVar[bool] = False
    texts: ClassVar[bool] = False

    name: str = ""
    gamma: float = 0.99

    def __post_init__(self) -> None:
        check_finite("algo.", self)
        require("algo.gamma", 0 < self.gamma <= 1, "in (0, 1]", self.gamma)

    def round_steps(self, users: int, steps: int) -> int:
        """Environment steps that one round counts, for U users of T steps each: a public number."""
        return users * steps

    def people(self, rounds: int) -> int:
        """How many people come in so many rounds, where users keep what they did."""
        return 0

    def arrivals(self, round_index: int) -> range:
        """Numbers of the people who come in a round, as many in every round that has any; round 0 has."""
        return range(0)


@dataclass
class NetConfig(AlgoConfig):
    """What every policy-gradient algorithm with a network shares."""

    hidden: list[int] = field(default_factory=lambda: [64, 64])  # tanh layers
    gae_lambda: float = 0.95
    lr: float = 3e-4
    anneal_lr: bool = True  # linearly to 0 over the run
    entropy_coef: float = 0.0
    normalize_advantage: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.gae_lambda", 0 <= self.gae_lambda <= 1, "in [0, 1]", self.gae_lambda)
        require("algo.lr", math.isfinite(self.lr) and self.lr > 0, "> 0", self.lr)
        require("algo.entropy_coef", self.entropy_coef >= 0, ">= 0", self.entropy_coef)
        ok = all(h >= 1 for h in self.hidden)
        require("algo.hidden", ok, "a list of layer widths >= 1 (empty: linear)", self.hidden)


@dataclass
class DppgConfig(NetConfig):
    """DPPG, algorithms 2 and 3 of "Differentially Private Policy Gradient"."""

    learns_scaling: ClassVar[bool] = True

    name: str = "dppg"
    epochs: int = 8  # E, local passes over one user's data
    minibatches: int = 2  # local steps in one pass
    advantage_scope: str = "user"  # normalise over one user's data | over each of her minibatches
    ratio_clip: float | None = None  # PPO clipping of the ratio; the paper does without
    local_adam: str = "reset"  # reset for every user | seeded from the last release (the paper's)
    critic: str = "private"  # private (a second block) | shared (the paper's, leaks) | none
    critic_clip: float = 0.5  # L2 bound of one user's critic change, parameter units
    critic_features: int = 64  # private critic: random Fourier features
    critic_frequency: float = 1.0  # private critic: std of the feature frequencies
    critic_ridge: float = 0.01  # private critic: ridge penalty of the local regression
    critic_noise_ratio: float = 3.0  # private critic: its noise multiplier / the actor's
    anneal_lr: bool = False  # linearly to 0 over the run
    anneal_server: bool = True  # step of the released change: linearly from 1 to 0, or 1
    moments_clip: float = 3.0  # private scaling: L2 bound of one user's wish
    moments_noise_ratio: float = 3.0  # private scaling: its noise multiplier / the actor's

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.epochs", self.epochs >= 1, "a whole number >= 1", self.epochs)
        require("algo.minibatches", self.minibatches >= 1, "a whole number >= 1", self.minibatches)
        ok = self.ratio_clip is None or self.ratio_clip > 0
        require("algo.ratio_clip", ok, "null or > 0", self.ratio_clip)
        require_choice("algo.advantage_scope", self.advantage_scope, ("user", "minibatch"))
        require_choice("algo.local_adam", self.local_adam, ("reset", "seeded"))
        require_choice("algo.critic", self.critic, ("shared", "private", "none"))
        for key in (
            *("critic_clip", "critic_frequency", "critic_ridge", "critic_noise_ratio"),
            *("moments_clip", "moments_noise_ratio"),
        ):
            value = getattr(self, key)
            require(f"algo.{key}", math.isfinite(value) and value > 0, "> 0", value)
        features = self.critic_features
        require("algo.critic_features", features >= 1, "a whole number >= 1", features)


@dataclass
class PpoConfig(NetConfig):
    """Pooled PPO (Schulman et al. 2017) with the settings of CleanRL; not private."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)

    name: str = "ppo"
    epochs: int = 10
    minibatches: int = 32
    ratio_clip: float = 0.2
    value_coef: float = 0.5
    clip_value_loss: bool = True
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.epochs", self.epochs >= 1, "a whole number >= 1", self.epochs)
        require("algo.minibatches", self.minibatches >= 1, "a whole number >= 1", self.minibatches)
        for key in ("ratio_clip", "value_coef", "max_grad_norm"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))


@dataclass
class A2cConfig(NetConfig):
    """Pooled synchronous advantage actor-critic (Mnih et al. 2016); not private."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)

    name: str = "a2c"
    value_coef: float = 0.5
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("value_coef", "max_grad_norm"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))


# algo=<name> -> the algorithm that answers prompts under this name, where env.kind=text
TEXT_VERSIONS = {"dppg": "dppg_text", "ppo": "ppo_text"}

# Family (a folder of privrl_bench/algorithms) -> names of its algorithms; the module is <family>/<name>.py.
FAMILIES = {
    "policy_gradient": ("dppg", "ppo", "a2c", "reinforce"),
    "value": ("dqn", "dqn_replay", "ddpg", "sac", "ucbvi"),
    "model_based": ("primorl", "mopo"),
    "loglinear": ("dppg_l2", "dppg_kl"),
    "ope": ("gpope", "dp_lsw", "dp_lsl", "lstd", "wis_lstd"),
    "language": ("dppg_text", "ppo_text"),
}

# algo=<name> from outside the package -> its module, with ALGORITHM and CONFIG as our own have
ALGO_MODULES: dict[str, str] = {}


def algo_module(name: str) -> str:
    """The module behind algo=<name>."""
    if name in ALGO_MODULES:
        return ALGO_MODULES[name]
    for family, names in FAMILIES.items():
        if name in names:
            return f"privrl_bench.algorithms.{family}.{name}"
    return f"privrl_bench.algorithms.{name}"


ALGO_CONFIGS: dict[str, type[AlgoConfig]] = {
    "dppg": DppgConfig,
    "ppo": PpoConfig,
    "a2c": A2cConfig,
}
