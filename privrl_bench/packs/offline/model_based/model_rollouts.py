"""Short rollouts in an ensemble, with a penalty for the members' uncertainty.

Differences are measured in the ensemble's public units: the penalty of a reward is `penalty` * u standard
deviations of the public rewards.

Source: "Differentially Private Deep Model-Based RL", section 4.3 and algorithm 4; MOPO (Yu et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.packs.offline.model_based.ensemble import Ensemble


def aleatoric(mean: Tensor, log_var: Tensor) -> Tensor:
    """Uncertainty u_MA: the largest norm, over members, of the predicted standard deviations.

    Args:
        mean: [R, M, B, K] means predicted by the members.
        log_var: [R, M, B, K] log variances predicted by the members.

    Returns:
        [R, B].
    """
    return (0.5 * log_var).exp().norm(dim=-1).amax(1)


def pairwise(mean: Tensor, log_var: Tensor) -> Tensor:
    """Uncertainty u_MPD: the largest distance between the means of two members.

    Args:
        mean: [R, M, B, K] means predicted by the members.
        log_var: [R, M, B, K] log variances predicted by the members.

    Returns:
        [R, B].
    """
    between = mean.unsqueeze(1) - mean.unsqueeze(2)
    return between.norm(dim=-1).amax((1, 2))


def n_step(steps: list[Batch], n: int) -> list[Batch]:
    """Sum the discounted rewards of up to n consecutive steps of a rollout.

    Each bootstrapped value then refers to a state n steps later. The rewards in between have no entropy bonus.

    Args:
        steps: the rollout in order, one batch [R, B, ...] per step.
        n: number of rewards; fewer at the end of the rollout.

    Returns:
        One batch per step, with the summed reward, the last next observation and the discount of its value.
    """
    summed = []
    for t, first in enumerate(steps):
        reward, discount, last = first.reward, first.discount, first
        for last in steps[t + 1 : t + n]:
            reward = reward + discount * last.reward
            discount = discount * last.discount
        summed.append(first._replace(reward=reward, next_obs=last.next_obs, discount=discount))
    return summed


UNCERTAINTY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ma": aleatoric, "mpd": pairwise}


@dataclass(frozen=True)
class ModelRollouts:
    """Rollouts of a policy in the pessimistic model.

    Attributes:
        ensemble: the models.
        policy: the policy.
        uncertainty: a key of `UNCERTAINTY`.
        penalty: lambda, weight of the uncertainty.
        length: H, steps of a rollout.
        gamma: discount factor.
        n_step: rewards that are summed before bootstrapping, fewer at the end of a rollout.
        bound: scaled observations are clamped to [-bound, bound], a public constant.
    """

    ensemble: Ensemble
    policy: SquashedPolicy
    uncertainty: str
    penalty: float
    length: int
    gamma: float
    n_step: int = 1
    bound: float = 10.0

    def __call__(
        self, models: Tensor, actor: Tensor, starts: Tensor, draws: list[torch.Generator]
    ) -> Batch:
        """Simulate B rollouts of H steps for each replica.

        Args:
            models: [R, M * P] parameters of the ensembles.
            actor: [R, P] parameters of the policies.
            starts: [R, B, D] initial observations.
            draws: random stream of each replica.

        Returns:
            Transitions [R, H * B, ...].
        """
        units, members = self.ensemble.units, self.ensemble.members
        unsure = UNCERTAINTY[self.uncertainty]
        size, width = starts.shape[1], self.ensemble.targets
        steps = []
        with torch.inference_mode():
            act, obs = self.policy.sampler(actor), starts
            for _ in range(self.length):
                noise = torch.stack([self.policy.draw(g, size) for g in draws])
                action = act(obs, noise)
                mean, log_var = self.ensemble.predict(models, torch.cat([obs, action], dim=-1))
                member = torch.stack([torch.randint(members, (size,), generator=g) for g in draws])
                spread = torch.stack([self.ensemble.draw(g, size) for g in draws])
                chosen = member[:, None, :, None].expand(-1, 1, -1, width)
                drawn = (
                    mean.gather(1, chosen)
                    + (0.5 * log_var.gather(1, chosen)).exp() * spread[:, None]
                )
                change = drawn.squeeze(1) * units.std + units.mean
                after = (obs + change[..., :-1]).clamp(-self.bound, self.bound)
                worst = self.penalty * units.std[-1] * unsure(mean, log_var)
                later = torch.full(obs.shape[:2], self.gamma)
                steps.append(Batch(obs, action, change[..., -1] - worst, after, later))
                obs = after
        steps = n_step(steps, self.n_step)
        return Batch(*(torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)))
