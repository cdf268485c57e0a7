"""Settings of the algorithms that fine-tune a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from privrl_bench.config.ranges import choice, integer, nonnegative, positive, ranged
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Data, Draws, Rows, Traits


@dataclass
class TextAlgoConfig(AlgoConfig):
    """Settings that both algorithms share."""

    traits: ClassVar[Traits] = Traits(
        devices=("cpu", "cuda"),
        draws=(Draws.NEXT,),
        data=(Data.TEXTS,),
        releases="text_policy",
        microbatch=64,  # a token of few answers takes as long as one of many
        noised_observations=False,
    )

    gamma: float = ranged(1.0, "1: an answer has one score, at its end", lambda x: x == 1)
    adapter: str = choice("lora", ("lora", "all"))  # all: every weight
    rank: int = integer(16)  # of a LoRA
    alpha: float = positive(16.0)  # of a LoRA: its change is scaled by alpha / rank
    # of a LoRA: attention: the fused c_attn | linear: all linear layers
    targets: str = choice("attention", ("attention", "linear"))
    lora_trains: str = choice("b", ("b", "both"))  # b: A keeps its initial values
    # of the penalty to the frozen start; fixed, never adapted to data
    kl_coef: float = nonnegative(0.05)
    lr: float = positive(0.1)
    epochs: int = integer(4, most=10**6)  # E, passes over a round's answers


@dataclass
class DppgTextConfig(TextAlgoConfig):
    """Settings of DPPG on texts."""

    name: str = "dppg_text"
    # of a user's own steps; adam: moments start anew for every user
    optimizer: str = choice("sgd", ("sgd", "adam"))
    # PPO clipping of the probability ratio; null: none, as in the paper
    ratio_clip: float | None = positive(None)
    # public: mean reward on public prompts
    baseline: str = choice("public", ("public", "constant"))
    baseline_prompts: int = integer(64)  # of baseline=public
    baseline_value: float = 0.0  # of baseline=constant
    # average: add the released change | adam: its direction
    server: str = choice("average", ("average", "adam"))
    server_lr: float = positive(0.01)  # step size of server=adam
    anneal_server: bool = True  # step at the server: linearly from 1 to 0 | constant


@dataclass
class PpoTextConfig(TextAlgoConfig):
    """Settings of PPO on texts."""

    traits: ClassVar[Traits] = replace(
        TextAlgoConfig.traits, sends=(Rows.POOLED,), private_version="dppg_text"
    )

    name: str = "ppo_text"
    minibatches: int = integer(1)  # of users, in one pass
    ratio_clip: float = positive(0.2)
    max_grad_norm: float = positive(1.0)
