"""REINFORCE with a log-linear policy and a linear critic, both learned under differential privacy.

    repeat for every round:
        U users play T steps each with the released policy
        each user, with their own steps and released values only:
            g <- mean of (G_t - v(s_t)) grad log pi(a_t | s_t)         row block `actor`
            h <- mean of (G_t - v(s_t)) (1, s_t)                       row block `critic`
        the gate clips g and h, adds them over the users, adds noise, divides by U
        theta <- theta + lr * g;  w <- w + critic_lr * h               v(s) = w . (1, s)

G_t is the discounted return from step t to the end of the episode. For the log-linear policy
grad log pi(a | s) = (onehot(a) - pi(. | s)) outer s, with s clipped to norm 1.

Source: Sutton and Barto, Reinforcement Learning, second edition, section 13.4; here gradients are clipped and
noised.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext
from privrl_bench.config.ranges import positive
from privrl_bench.config.schema import AlgoConfig
from privrl_bench.config.traits import Actions, Traits
from privrl_bench.functional.discounted_returns import gae
from privrl_bench.functional.rng import Streams
from privrl_bench.models.loglinear import LogLinearPolicy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import State, UserBatch


@dataclass
class CriticReinforceConfig(AlgoConfig):
    """Settings: `algo.<name>` on the command line. Values are in conf/algo/critic_reinforce.yaml."""

    traits: ClassVar[Traits] = Traits(actions=Actions.DISCRETE)

    name: str = "critic_reinforce"
    lr: float = positive(1.0)
    critic_lr: float = positive(0.5)
    critic_clip: float = positive(1.0)


class CriticReinforce(Algorithm):
    """See the module's text. State tensors: `actor` [R, P] and `critic` [R, D + 1]."""

    def __init__(self, config: CriticReinforceConfig, context: AlgorithmContext):
        spec = context.spec
        self.config, self.clip = config, context.privacy.clip
        self.policy = LogLinearPolicy(spec, "pairs")
        self.features = spec.obs_dim + 1

    def blocks(self) -> tuple[Block, ...]:
        """The separately clipped parts of a row; the noise multiplier is split over them."""
        critic = Block("critic", self.features, self.config.critic_clip)
        return Block("actor", self.policy.size, self.clip), critic

    def init(self, streams: list[Streams]) -> State:
        """Parameters before any data."""
        actor = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        return State(0, {"actor": actor, "critic": torch.zeros(len(actor), self.features)})

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """One row for each user, of their own steps and released values only."""
        _, count, steps = users.mask.shape
        norm = torch.linalg.vector_norm(users.obs, dim=-1, keepdim=True)
        obs = users.obs / norm.clamp_min(1.0)  # [R, U, T, D], as in the policy
        inputs = torch.cat([torch.ones_like(norm), obs], dim=-1)
        values = torch.einsum("rutd,rd->rut", inputs, state.tensors["critic"])
        zeros = torch.zeros_like(values)
        to_go = gae(users.rewards, zeros, zeros, users.done, users.done, self.config.gamma, 1.0)
        errors = (to_go - values) * users.mask / steps
        logits = self.policy.logits(state.tensors["actor"], obs.flatten(1, 2))
        chosen = torch.nn.functional.one_hot(users.actions.long(), logits.shape[-1])
        score = chosen - logits.exp().unflatten(1, (count, steps))  # [R, U, T, A]
        actor = torch.einsum("rut,ruta,rutd->ruad", errors, score, obs).flatten(2)
        critic = torch.einsum("rut,rutd->rud", errors, inputs)
        return Contribution({"actor": actor, "critic": critic}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """The next parameters, of what was released."""
        actor = state.tensors["actor"] + self.config.lr * released.values["actor"]
        critic = state.tensors["critic"] + self.config.critic_lr * released.values["critic"]
        return State(state.round + 1, {"actor": actor, "critic": critic})


ALGORITHM, CONFIG = CriticReinforce, CriticReinforceConfig
