"""DPPG: differentially private policy gradient, deep version.

    repeat for every round, their number fixed in advance:
        U users act with the released policy, T steps each
        each user: E passes of Adam on their own data, the displacement inside a ball of radius clip
        policy <- policy + (sum of displacements + N(0, (z clip)^2 I)) / U

Deviations from the paper's text, which follow its authors' code or are listed in docs/dppg.md: the
server step is 1, or falls linearly to 0 (`algo.anneal_server`, `algo.anneal_after`, not in the paper);
advantages are normalised within the user; a time limit bootstraps the value where the authors' code treats
it as a termination; Adam's moments start at zero for every user (`algo.user_adam=seeded` is the paper's).

Source: "Differentially Private Policy Gradient" (Rio, Barlier, Colin), algorithms 2 and 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privrl_bench.algorithms.base import (
    Algorithm,
    AlgorithmContext,
    AlgorithmTerms,
    annealed,
    each_replica,
    per_user,
    step_order,
)
from privrl_bench.algorithms.policy_gradient.critics import TrainingBatch, make_critic
from privrl_bench.algorithms.policy_gradient.fisher import METRICS
from privrl_bench.algorithms.policy_gradient.moments import PrivateMoments
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.algorithms.policy_gradient.row_norm import NORMS
from privrl_bench.algorithms.policy_gradient.user_training import (
    LAST,
    USER_UPDATES,
    PolicyObjective,
    UserTrainer,
)
from privrl_bench.functional.averaging import AVERAGE, averaged
from privrl_bench.functional.discounted_returns import gae, normalize
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import NetPolicy, make_policy
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import Scaling, State, UserBatch


class Dppg(Algorithm):
    """DPPG; see the module.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    policy: NetPolicy

    def __init__(self, config: DppgConfig, context: AlgorithmContext):
        self.config = config
        self.policy = make_policy(context.spec, config.hidden, config.network, config.log_std_init)
        self.critic = make_critic(config, context)
        self.moments = PrivateMoments(context, config.moments_clip, config.moments_noise_ratio)
        objective = PolicyObjective(
            self.policy,
            config.ratio_clip,
            config.entropy_coef,
            config.normalize_advantage and config.advantage_scope == "minibatch",
        )
        self._train = UserTrainer(objective, context.device)
        self._geometry = METRICS[config.metric](self.policy, config)
        self._norm = NORMS[config.user_update](config.clipped_share, context.privacy.clip)
        self._context = context

    def blocks(self) -> tuple[Block, ...]:
        """The policy, and what else is learned under privacy: critic and scaling."""
        actor = Block("actor", self.policy.size, self._context.privacy.clip)
        return (actor, *self._norm.blocks(), *self.critic.blocks(), *self.moments.blocks())

    def terms(self) -> AlgorithmTerms:
        """The caveats of the critic."""
        return AlgorithmTerms(caveats=self.critic.caveats)

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        actors = torch.stack([self.policy.init(s.torch("init", 0)) for s in streams])
        tensors = {"actor": actors, **self.critic.init(streams), **self.moments.init(len(streams))}
        tensors |= self._geometry.init(actors) | self._norm.init(len(actors))
        if self.config.user_adam == "seeded":
            tensors[LAST] = torch.zeros_like(actors)
        if self.config.averaging is not None:
            tensors[AVERAGE] = actors.clone()
        return State(0, tensors)

    def scaling(self, state: State) -> Scaling | None:
        """See `Algorithm.scaling`."""
        return self.moments.scaling(state)

    def learning_rate(self, round_index: int) -> float:
        """Local step size of a round."""
        rounds = self._context.schedule.rounds
        return annealed(self.config.lr, self.config.anneal_lr, round_index, rounds)

    def metrics(self, state: State) -> list[dict[str, float]]:
        """See `learning_rate`."""
        return each_replica(state, lr=self.learning_rate(state.round - 1))

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """Algorithm 3 for every user.

        Guarantee: row u depends on user u's data and on released parameters only (with a shared critic: also on
        what that critic learned from earlier users).
        """
        config = self.config
        replicas, count = users.valid.shape
        lr = self.learning_rate(state.round)
        order = step_order(users, streams, state.round, config.epochs, config.minibatches)

        values = self.critic.values(state, users.obs)
        next_values = self.critic.values(state, users.next_obs)
        advantages = gae(
            users.rewards,
            values,
            next_values,
            users.done if config.time_limit == "terminate" else users.terminated,
            users.done,
            config.gamma,
            1.0 if config.critic == "none" else config.gae_lambda,
        )
        targets = advantages + values
        if config.normalize_advantage and config.advantage_scope == "user":
            advantages = normalize(advantages, users.mask)

        start = state.tensors["actor"].repeat_interleave(count, dim=0)
        data = {
            "obs": per_user(users.obs),
            "action": per_user(users.actions),
            "advantage": per_user(advantages),
        }
        with torch.no_grad():
            old, entropy = self.policy.log_prob(start, data["obs"], data["action"])
        data["old"] = old
        update, clip = USER_UPDATES[config.user_update], self._context.privacy.clip
        change = update(self._train, clip, state, start, data, order, lr)
        change = self._geometry.rows(state.tensors, change.reshape(replicas, count, -1))
        batch = TrainingBatch(values, targets, order, lr)
        critic_rows, bypass = self.critic.user_update(state, users, batch)
        rows = self._norm.rows(state.tensors, change) | critic_rows
        rows |= self.moments.user_update(users)
        diagnostics = _diagnostics(users, entropy.reshape(users.mask.shape), values, targets)
        return Contribution(rows, users.valid, bypass, diagnostics)

    def server(self, state: State, released: Released) -> State:
        """Take a step along the noised mean; one that is annealed averages out noise."""
        config, tensors = self.config, dict(state.tensors)
        rounds = self._context.schedule.rounds
        share = annealed(1.0, config.anneal_server, state.round, rounds, config.anneal_after)
        tensors |= self._geometry.server(state.tensors, released.values["actor"], share)
        tensors |= self._norm.server(state.tensors, released)
        tensors = averaged(tensors, config.averaging, state.round)
        tensors |= self.critic.server(state, released) | self.moments.server(state, released)
        if LAST in tensors:
            tensors[LAST] = released.values["actor"]
        return State(state.round + 1, tensors)


def _diagnostics(
    users: UserBatch, entropy: Tensor, values: Tensor, targets: Tensor
) -> list[dict[str, float]]:
    """Private metrics of each replica: policy entropy, and the critic's unexplained variance."""
    found = []
    for r in range(users.mask.shape[0]):
        mask = users.mask[r]
        if mask.sum() < 2:  # an empty Poisson cohort
            found.append({"train/entropy": float("nan"), "train/critic_error": float("nan")})
            continue
        target = targets[r][mask]
        error = (target - values[r][mask]).var() / target.var().clamp_min(1e-12)
        found.append(
            {
                "train/entropy": float(entropy[r][mask].mean()),
                "train/critic_error": float(error),
            }
        )
    return found


ALGORITHM = Dppg
