"""Conservative Q-learning with user-level privacy, from recorded trajectories with discrete actions.

With u a public unit of returns (the root mean square of the public users' discounted rewards-to-go), l the
smooth L1 loss, and n = n_steps or fewer where the episode ends, the loss of a recorded step t is

    l(Q(s_t, a_t) - (sum over k < n of gamma^k r_t+k) / u - gamma^n max Q'(s_t+n))
        + conservative (log sum exp Q(s_t, .) - Q(s_t, a_t))

    repeat for every round, their number fixed in advance:
        the gate draws the users of the round: each of n with probability q = U / n, or the next U in order
        each of them: the gradient of the mean loss over their own steps, clipped to norm clip
        g <- (sum of gradients + noise) / U
        Q <- AdamW along g;  target Q' <- Q' + tau (Q - Q')

The second term lowers values of actions that users did not take, which nothing else corrects. A large n needs
fewer rounds, and has the values of who acted for the next n steps. The policy takes the action of largest Q.

Guarantee: (epsilon, delta) for one user with all their episodes, central, zero-out: a row is a function of one
user's steps, of a random choice among them, and of released parameters; u is a function of public users' data.
With Poisson sampling a round is a sampled Gaussian and the rounds are an adaptive composition; in a fixed order
each user is in one round (`privacy/mechanisms/correlated.py` if noise is correlated over rounds).

Source: Kumar et al. 2020 (CQL(H) for discrete actions), Mnih et al. 2015 (the temporal-difference loss), Hessel
et al. 2018 (returns of n steps in it).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms
from privrl_bench.algorithms.value.actor_critic import Batch, Rates
from privrl_bench.algorithms.value.dqn import Dqn
from privrl_bench.algorithms.value.q_learning import QLearner
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.offline.learning.learning_settings import FEW, DpCqlConfig
from privrl_bench.types import Transitions, UserBatch


class ConservativeLearner(QLearner):
    """Q, whose losses have the conservative term.

    Args:
        policy: the policy with the network of Q.
        rates: step sizes.
        conservative: weight of the term.
    """

    def __init__(self, policy: QPolicy, rates: Rates, conservative: float):
        super().__init__(policy, rates)
        self._weight = conservative

    def losses(self, q: Tensor, target: Tensor, batch: Batch) -> Tensor:
        """The loss [N, B] of each transition, differentiable in Q; see the module and `QLearner.losses`."""
        net = self.policy.net
        with torch.no_grad():
            goal = batch.reward + batch.discount * net.forward(target, batch.next_obs).amax(-1)
        values = net.forward(q, batch.obs)
        found = values.gather(-1, batch.action.long().unsqueeze(-1)).squeeze(-1)
        above = values.logsumexp(-1) - found
        return smooth_l1_loss(found, goal, reduction="none") + self._weight * above


def unit_of(public: Transitions, gamma: float) -> float:
    """Root mean square of the discounted rewards-to-go of the public users' episodes; 1 if they are 0."""
    squares = 0.0
    for rewards in public.rewards.double().split(public.lengths.tolist()):
        ahead = 0.0
        for reward in rewards.flip(0).tolist():
            ahead = reward + gamma * ahead
            squares += ahead**2
    return math.sqrt(squares / max(len(public.rewards), 1)) or 1.0


class DpCql(Dqn):
    """DP-CQL; see the module. State tensors: those of `q_learning`, with an epsilon of 0.

    Args:
        config: settings of the algorithm.
        context: of the run.
    """

    config: DpCqlConfig  # type: ignore[assignment]

    def __init__(self, config: DpCqlConfig, context: AlgorithmContext):
        public = context.sources.transitions
        assert public is not None
        super().__init__(config, context)  # type: ignore[arg-type]
        rates = Rates(config.lr, config.tau, config.decay)
        self._learner = ConservativeLearner(self.policy, rates, config.conservative)
        self._unit, self._public = unit_of(public, config.gamma), len(public.lengths)

    def terms(self) -> AlgorithmTerms:
        """The unit is that of the dataset."""
        warning = (
            f"the unit of returns is that of {self._public} public episodes; raise data.public"
        )
        return AlgorithmTerms(warning=warning if self._public < FEW else "")

    def _explore(self, tensors: dict[str, Tensor], round_index: int) -> dict[str, Tensor]:
        """The tensors with an epsilon of 0."""
        actor = tensors["actor"].clone()
        actor[:, -1] = 0.0
        return tensors | {"actor": actor}

    def _transitions(self, users: UserBatch) -> Batch:
        """See `Dqn._transitions`: each over the next `n_steps` steps of its episode, in the unit of returns."""
        gamma, reward, T = self.config.gamma, users.rewards / self._unit, users.rewards.shape[-1]
        ends = users.done.clone()
        ends[..., -1] = True
        ends[..., :-1] |= ~users.mask[..., 1:]
        paid, going, more = reward.clone(), ~ends, torch.ones_like(ends, dtype=torch.long)
        for k in range(1, min(self.config.n_steps, T)):
            paid += gamma**k * torch.where(going, reward.roll(-k, -1), 0.0)
            more += going
            going = going & ~ends.roll(-k, -1)
        last = torch.arange(T) + more - 1
        after = users.next_obs.gather(-2, last[..., None].expand_as(users.next_obs))
        discount = gamma ** more.to(reward.dtype) * ~users.terminated.gather(-1, last)
        return Batch(users.obs, users.actions, paid, after, discount)


ALGORITHM = DpCql
