"""An ensemble of Gaussian one-step models, and short rollouts in it with a penalty for their uncertainty.

A model maps (observation, action) to (change of observation, reward). Observations are scaled, actions in
[-1, 1]; `Units` standardises the targets. A member's network outputs means and log variances, the latter softly
bounded by constants. (MOPO's code learns the bounds; here all trained parameters are part of a member's vector,
which is clipped.) Differences are measured in the ensemble's public units: the penalty of a reward is `penalty`
* u standard deviations of the public rewards.

Source:
    Yu et al. 2020 (MOPO), Chua et al. 2018; "Differentially Private Deep Model-Based RL", section 4.3,
    algorithm 4 and table 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.offline.model_based.ensemble_training import LEAST, MOST
from privrl_bench.packs.offline.model_based.model_based_settings import ModelBasedConfig


class Units(NamedTuple):
    """Public constants [D + 1]: a target is (change or reward - mean) / std."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Ensemble:
    """`members` networks of the same shape with parameters [..., members * size].

    Attributes:
        members: M.
        net: From (observation, action) to (means, log variances) of D + 1 targets.
        units: Of the targets.
    """

    members: int
    net: Mlp
    units: Units

    @property
    def targets(self) -> int:
        """Number of targets, D + 1: the changes of the observation, then the reward."""
        return self.net.outputs // 2

    def init(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters [M * size]; members differ."""
        return torch.cat([self.net.init(generator, 1.0) for _ in range(self.members)])

    def target(self, obs: Tensor, next_obs: Tensor, reward: Tensor) -> Tensor:
        """Return standardised targets [..., D + 1]."""
        raw = torch.cat([next_obs - obs, reward.unsqueeze(-1)], dim=-1)
        return (raw - self.units.mean.to(raw.dtype)) / self.units.std.to(raw.dtype)

    def predict(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Predict with all members.

        Args:
            params: [R, M * size].
            x: [R, B, D + A] observations and actions.

        Returns:
            Means and log variances, [R, M, B, D + 1].
        """
        count = len(params)
        each = x.unsqueeze(1).expand(-1, self.members, -1, -1).flatten(0, 1)
        outputs = self.net.forward(params.reshape(count * self.members, -1), each)
        mean, log_var = self.heads(outputs)
        shape = (count, self.members, *mean.shape[1:])
        return mean.reshape(shape), log_var.reshape(shape)

    def heads(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split a network's outputs into means and softly bounded log variances."""
        mean, free = outputs.chunk(2, dim=-1)
        below = MOST - softplus(MOST - free)
        return mean, LEAST + softplus(below - LEAST)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Compute the mean [...] over steps and targets of twice the Gaussian NLL, up to a constant."""
        mean, log_var = self.heads(outputs)
        return likelihood(mean, log_var, target).mean((-1, -2))


def likelihood(mean: Tensor, log_var: Tensor, target: Tensor) -> Tensor:
    """Twice the Gaussian negative log-likelihood of `target`, elementwise, up to a constant."""
    return (mean - target).square() * (-log_var).exp() + log_var


# --- rollouts


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


class Simulated(NamedTuple):
    """The models as an environment.

    Attributes:
        ensemble: the models.
        encoded: their inputs [..., A] of actions as the policy chooses them.
        ends: [...] bool, whether an episode ends in scaled observations [..., D].
    """

    ensemble: Ensemble
    encoded: Callable[[Tensor], Tensor]
    ends: Callable[[Tensor], Tensor]


def model_rollouts(
    simulated: Simulated,
    policy: SquashedPolicy | QPolicy,
    config: ModelBasedConfig,
    params: tuple[Tensor, Tensor],
    starts: Tensor,
    draws: list[torch.Generator],
    bound: float = 10.0,
) -> Batch:
    """Simulate B rollouts of H steps of a policy in the pessimistic model, for each replica.

    A rollout goes on from its start where it ends.

    Args:
        simulated: the models.
        policy: the policy.
        config: length, penalty and discount of the rollouts.
        params: [R, M * P] of the ensembles, and [R, P] of the policies.
        starts: [R, B, D] initial observations.
        draws: random stream of each replica.
        bound: scaled observations are clamped to [-bound, bound], a public constant.

    Returns:
        Transitions [R, H * B, ...].
    """
    ensemble, encoded, ends = simulated
    units, unsure = ensemble.units, UNCERTAINTY[config.uncertainty]
    models, actor = params
    size, width = starts.shape[1], ensemble.targets
    steps = []
    with torch.inference_mode():
        act, obs = policy.sampler(actor), starts
        for _ in range(config.rollout_length):
            noise = torch.stack([policy.draw(g, size) for g in draws])
            action = act(obs, noise)
            mean, log_var = ensemble.predict(models, torch.cat([obs, encoded(action)], dim=-1))
            member = torch.stack(
                [torch.randint(ensemble.members, (size,), generator=g) for g in draws]
            )
            spread = torch.stack([torch.randn(size, width, generator=g) for g in draws])
            chosen = member[:, None, :, None].expand(-1, 1, -1, width)
            std = (0.5 * log_var.gather(1, chosen)).exp()
            drawn = mean.gather(1, chosen) + std * spread[:, None]
            change = drawn.squeeze(1) * units.std + units.mean
            after = (obs + change[..., :-1]).clamp(-bound, bound)
            worst = config.penalty * units.std[-1] * unsure(mean, log_var)
            over = ends(after)
            later = torch.where(over, 0.0, config.gamma)
            steps.append(Batch(obs, action, change[..., -1] - worst, after, later))
            obs = torch.where(over[..., None], starts, after)
    steps = n_step(steps, config.n_step)
    return Batch(*(torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)))
