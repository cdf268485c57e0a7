"""Settings of the model-based algorithms."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from privrl_bench.config.traits import Actions, Data, Draws, Rows, Traits


@dataclass
class ModelBasedConfig(AlgoConfig):
    """Settings of the ensemble, of its pessimism and of SAC in it."""

    traits: ClassVar[Traits] = Traits(
        data=(Data.RECORDED,),
        actions=Actions.BOX,
        noised_observations=False,
        public_data="the units of the model, early stopping and policy training",
    )

    members: int = integer(3)  # M
    model_hidden: list[int] = widths([64, 64])  # swish layers
    model_lr: float = positive(1e-3)
    model_batch: int = integer(16)  # steps in one minibatch of a user
    model_decay: float = nonnegative(2.5e-5)  # L2 penalty
    check_every: int = integer(50)  # rounds between evaluations of the public loss
    patience: int = integer(10, least=0)  # those without progress that end model training; 0: never
    improve_every: int = integer(100)  # rounds between pieces of policy training
    policy_steps: int = integer(1000)  # gradient steps of one piece
    policy_turns: int = integer(10, least=0)  # pieces after the last release
    rollout_length: int = integer(20)  # H
    rollouts: int = integer(1000)  # simulated side by side
    rollout_every: int = integer(250)  # gradient steps between rollouts
    n_step: int = integer(1)  # rewards of a rollout that are summed before the value is used
    penalty: float = nonnegative(2.0)  # lambda
    # mpd: largest distance of two members' means | ma: largest predicted standard deviation
    uncertainty: str = choice("mpd", ("ma", "mpd"))
    hidden: list[int] = widths([64, 64])  # ReLU layers of actor and critics
    lr: float = positive(3e-4)  # of actor, critics and temperature
    tau: float = within(0.005, "(0, 1]")
    batch: int = integer(256)
    temperature: float = positive(1.0)  # of SAC at the start
    target_entropy: float | None = None  # nats; null: minus the number of action coordinates
    # the saved policy is an average over SAC's gradient steps: weight of the newest (averaging + 1) /
    # (averaging + step); null: the last one
    averaging: float | None = nonnegative(None)


@dataclass
class PrimorlConfig(ModelBasedConfig):
    """Settings of PriMORL."""

    traits: ClassVar[Traits] = replace(
        ModelBasedConfig.traits,
        actions=Actions.ANY,  # in a box or discrete (`inner.py`)
        devices=("cpu", "cuda"),
        draws=(Draws.SAMPLED,),
    )

    name: str = "primorl"
    model_epochs: int = integer(1)  # E, passes over a trajectory
    model_optimizer: str = choice("sgd", ("sgd", "adam"))  # adam: moments start anew for every user
    clipping: str = choice("flat", ("flat", "layer"))  # flat: by member | layer: by layer of each
    # public: the public part of the dataset | private: leaks
    rollout_start: str = choice("public", ("public", "private"))
    public_ratio: float = within(0.0, "[0, 1]")  # share of public steps in the policy's minibatches


@dataclass
class MopoConfig(ModelBasedConfig):
    """Settings of MOPO."""

    traits: ClassVar[Traits] = replace(
        ModelBasedConfig.traits,
        sends=(Rows.POOLED,),
        private_version="primorl",
        units=("fresh", "segment"),
    )

    name: str = "mopo"
    model_batch: int = integer(256)
    real_ratio: float = within(0.05, "[0, 1]")  # share of real steps in the policy's minibatches
    nll_beta: float = within(0.0, "[0, 1]")  # beta of the models' beta-NLL loss; 0: the likelihood
