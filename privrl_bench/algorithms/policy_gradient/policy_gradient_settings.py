"""Settings of the policy-gradient algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privrl_bench.config.ranges import (
    choice,
    integer,
    nonnegative,
    positive,
    widths,
    within,
)
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Actions, Rows, Traits


@dataclass
class NetConfig(AlgoConfig):
    """Settings of the algorithms with a network and generalised advantage estimation."""

    network: str = choice("mlp", ("mlp", "cnn"))  # cnn: two convolutions before the tanh layers
    hidden: list[int] = widths([64, 64], empty=True)  # tanh layers
    gae_lambda: float = within(0.95, "[0, 1]")
    lr: float = positive(3e-4)
    anneal_lr: bool = True  # linearly to 0 over the run
    entropy_coef: float = nonnegative(0.0)
    normalize_advantage: bool = True
    # log standard deviation of continuous actions before training
    log_std_init: float = within(0.0, "[-10, 10]")


@dataclass
class DppgConfig(NetConfig):
    """DPPG, algorithms 2 and 3 of "Differentially Private Policy Gradient"."""

    traits: ClassVar[Traits] = Traits(
        devices=("cpu", "cuda"),
        device_rounds=True,
        learns_scaling=True,
        only_with={
            "anneal_after": ("anneal_server", True),
            **dict.fromkeys(("step_kl", "damping", "momentum"), ("metric", "fisher")),
        },
    )

    name: str = "dppg"
    epochs: int = integer(8, most=10**6)  # E, passes over one user's data
    minibatches: int = integer(2)  # steps of a user in one pass
    # advantages are normalised over one user's data | over each of their minibatches
    advantage_scope: str = choice("user", ("user", "minibatch"))
    # value after a time limit: the critic's | 0, as after a termination (the paper's code);
    # without effect if there is no critic
    time_limit: str = choice("bootstrap", ("bootstrap", "terminate"))
    # PPO clipping of the probability ratio; null: none, as in the paper
    ratio_clip: float | None = positive(None)
    # adam: E passes over the user's data, as in the paper | gradient: of one pass, scaled to norm
    # `clip`; lr and ratio_clip have no effect
    user_update: str = choice("adam", ("adam", "gradient"))
    # user_update=gradient: share of users whose gradient is scaled to `clip`; those of the others keep
    # their relative length
    clipped_share: float = within(1.0, "(0, 1]")
    # what rows and steps are measured in: parameters | the policy's Fisher information at public
    # states, where a server's step has a fixed divergence (user_update=gradient only)
    metric: str = choice("euclidean", ("euclidean", "fisher"))
    # metric=fisher: KL divergence of the first step; it falls with the square of the server's step
    step_kl: float = positive(0.02)
    damping: float = positive(0.1)  # metric=fisher: added to every eigenvalue of the information
    # metric=fisher: of the average of releases that a step follows
    momentum: float = within(0.9, "[0, 1)")
    # Adam's moments: reset for every user | seeded from the last release (the paper's)
    user_adam: str = choice("reset", ("reset", "seeded"))
    # private: a second block | shared: the paper's, leaks | none
    critic: str = choice("private", ("shared", "private", "none"))
    critic_clip: float = positive(0.5)  # L2 bound of one user's critic change, parameter units
    # private critic: number of random Fourier features
    critic_features: int = integer(64, most=10**6)
    critic_frequency: float = positive(1.0)  # private critic: std of the feature frequencies
    critic_ridge: float = positive(0.01)  # private critic: ridge penalty of the user's regression
    critic_noise_ratio: float = positive(3.0)  # private critic: its noise multiplier / the actor's
    anneal_lr: bool = False
    anneal_server: bool = True  # step of the released change: linearly from 1 to 0 | constant 1
    # anneal_server: share of the rounds before the step begins to fall
    anneal_after: float = within(0.0, "[0, 1)")
    # the saved policy is an average of the released ones: weight of the newest (averaging + 1) /
    # (averaging + round); null: the last one
    averaging: float | None = nonnegative(None)
    moments_clip: float = positive(3.0)  # private scaling: L2 bound of one user's moment update
    # private scaling: its noise multiplier / the actor's
    moments_noise_ratio: float = positive(3.0)


@dataclass
class PpoConfig(NetConfig):
    """Pooled PPO (Schulman et al. 2017) with the settings of CleanRL; not private."""

    traits: ClassVar[Traits] = Traits(
        devices=("cpu", "cuda"), sends=(Rows.POOLED,), units=("fresh", "segment")
    )

    name: str = "ppo"
    epochs: int = integer(10, most=10**6)
    minibatches: int = integer(32)
    ratio_clip: float = positive(0.2)
    value_coef: float = positive(0.5)
    clip_value_loss: bool = True
    max_grad_norm: float = positive(0.5)


@dataclass
class A2cConfig(NetConfig):
    """Pooled synchronous advantage actor-critic (Mnih et al. 2016); not private."""

    traits: ClassVar[Traits] = Traits(sends=(Rows.POOLED,), units=("fresh", "segment"))

    name: str = "a2c"
    value_coef: float = positive(0.5)
    max_grad_norm: float = positive(0.5)


@dataclass
class ReinforceConfig(AlgoConfig):
    """Settings of REINFORCE."""

    traits: ClassVar[Traits] = Traits(
        actions=Actions.DISCRETE, sends=(Rows.CLIPPED, Rows.POOLED), units=("episode",)
    )

    name: str = "reinforce"
    hidden: list[int] = widths([128], empty=True)  # ReLU layers
    dropout: float = within(0.5, "[0, 1)")  # probability that a hidden unit is dropped while acting
    lr: float = positive(0.01)  # Adam, at the server
    # to_go: return from this step on, normalised | total: the return of the episode
    signal: str = choice("to_go", ("to_go", "total"))
    # joint: the whole row | tensor: every weight and bias separately
    clipping: str = choice("joint", ("joint", "tensor"))
    # the saved policy is an average of the released ones, as of dppg; null: the last one
    averaging: float | None = nonnegative(None)
