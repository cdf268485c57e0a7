"""Rollouts in the ensemble against loops by hand."""

import pytest
import torch
from helpers import BOX, module_of

from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import SquashedPolicy
from privrl_bench.models.mlp import Mlp
from privrl_bench.packs.offline.model_based.ensemble import (
    Ensemble,
    Simulated,
    Units,
    aleatoric,
    model_rollouts,
    n_step,
    pairwise,
)
from privrl_bench.packs.offline.model_based.inner import never
from privrl_bench.packs.offline.model_based.model_based_settings import PrimorlConfig

UNITS = Units(torch.tensor([0.1, -0.2, 0.3, -1.0]), torch.tensor([0.5, 1.0, 2.0, 3.0]))
POLICY = SquashedPolicy(BOX, (7,))
ENSEMBLE = Ensemble(3, Mlp(5, (6, 5), 8, "swish"), UNITS)
WORLD = Simulated(ENSEMBLE, lambda action: action, never)
STREAMS = [Streams(1), Streams(2)]


def parameters(seed=0):
    g = torch.Generator().manual_seed(seed)
    models = torch.stack([ENSEMBLE.init(g) for _ in STREAMS])
    actor = 0.5 * torch.randn(2, POLICY.size, generator=g)
    return models, actor, torch.randn(2, 4, 3, generator=g)


def draws():
    return [s.torch("after_release", 3) for s in STREAMS]


def test_uncertainties_by_hand() -> None:
    """Two members, one state, two targets."""
    mean = torch.tensor([[1.0, 2.0], [4.0, 6.0]])[None, :, None]
    log_var = 2 * torch.log(torch.tensor([[3.0, 4.0], [1.0, 1.0]]))[None, :, None]
    assert aleatoric(mean, log_var).tolist() == [[pytest.approx(5.0)]]
    assert pairwise(mean, log_var).tolist() == [[pytest.approx(5.0)]]
    three = torch.tensor([[0.0], [1.0], [-2.0]])[None, :, None]
    assert pairwise(three, three).tolist() == [[3.0]]
    assert pairwise(three[:, :1], three[:, :1]).tolist() == [[0.0]]


def rollouts(uncertainty, penalty, length, gamma, n=1, bound=10.0):
    """Rollouts with these settings."""
    config = PrimorlConfig(
        uncertainty=uncertainty, penalty=penalty, rollout_length=length, gamma=gamma, n_step=n
    )
    return lambda models, actor, starts, draws: model_rollouts(
        WORLD, POLICY, config, (models, actor), starts, draws, bound
    )


def by_hand(models, actor, starts, uncertainty, penalty, length, bound):
    """One replica, one rollout after the other; random numbers come from `draws` in order."""
    size = len(starts)
    members = [module_of(v, [5, 6, 5, 8], torch.nn.SiLU) for v in models.chunk(3)]
    policy = module_of(actor, [3, 7, 4], torch.nn.ReLU)
    g, steps = draws()[0], []
    obs = [starts[b].clone() for b in range(size)]
    for _ in range(length):
        noise = torch.randn(size, 2, generator=g)
        chosen = torch.randint(3, (size,), generator=g)
        spread = torch.randn(size, 4, generator=g)
        for b in range(size):
            middle, wide = policy(obs[b]).chunk(2)
            std = (-5 + 3.5 * (torch.tanh(wide) + 1)).exp()
            action = torch.tanh(middle + std * noise[b])
            found = [m(torch.cat([obs[b], action])) for m in members]
            means = [y[:4] for y in found]
            softplus = torch.nn.functional.softplus
            log_vars = [-10 + softplus(10 + 0.5 - softplus(0.5 - y[4:])) for y in found]
            unsure = {
                "ma": max(float(v.exp().sum().sqrt()) for v in log_vars),
                "mpd": max(float((x - y).norm()) for x in means for y in means),
            }[uncertainty]
            k = int(chosen[b])
            drawn = (means[k] + (log_vars[k] / 2).exp() * spread[b]) * UNITS.std + UNITS.mean
            after = (obs[b] + drawn[:3]).clamp(-bound, bound)
            reward = drawn[3] - penalty * unsure * 3.0  # in standard deviations of the rewards
            steps.append((obs[b], action, reward, after))
            obs[b] = after
    return [torch.stack([torch.as_tensor(x) for x in part]) for part in zip(*steps, strict=True)]


@pytest.mark.parametrize("uncertainty", ["ma", "mpd"])
@pytest.mark.parametrize("bound", [1.5, 1e3])
def test_rollouts_are_those_of_the_loop(uncertainty, bound) -> None:
    models, actor, starts = parameters()
    dreams = rollouts(uncertainty, 0.7, 4, 0.9, bound=bound)
    found = dreams(models, actor, starts, draws())
    assert (found.discount == 0.9).all()
    with torch.no_grad():
        expected = by_hand(models[0], actor[0], starts[0], uncertainty, 0.7, 4, bound)
    for name, x in zip(("obs", "action", "reward", "next_obs"), expected, strict=True):
        torch.testing.assert_close(getattr(found, name)[0], x, rtol=1e-4, atol=1e-5, msg=name)
    assert (found.next_obs.abs() == bound).any() == (bound < 2)


def test_the_penalty_lowers_rewards_alone() -> None:
    models, actor, starts = parameters()
    free, bound = (rollouts("mpd", p, 3, 0.9)(models, actor, starts, draws()) for p in (0, 2))
    for name in ("obs", "action", "next_obs"):
        assert torch.equal(getattr(free, name), getattr(bound, name))
    assert (bound.reward < free.reward).all()


def test_a_replica_dreams_alone() -> None:
    models, actor, starts = parameters()
    dreams = rollouts("ma", 1.0, 3, 0.9)
    both = dreams(models, actor, starts, draws())
    lone = dreams(models[1:], actor[1:], starts[1:], draws()[1:])
    for a, b in zip(both, lone, strict=True):
        torch.testing.assert_close(a[1:], b, rtol=1e-5, atol=1e-5)


def test_rewards_of_n_steps() -> None:
    """By hand, and shorter at the end of a rollout."""
    models, actor, starts = parameters()
    one, three = (rollouts("ma", 1.0, 4, 0.5, n)(models, actor, starts, draws()) for n in (1, 3))
    assert torch.equal(three.obs, one.obs)
    assert torch.equal(three.action, one.action)
    reward, after = one.reward.reshape(2, 4, 4), one.next_obs.reshape(2, 4, 4, 3)
    sums = [
        reward[:, 0] + 0.5 * reward[:, 1] + 0.25 * reward[:, 2],
        reward[:, 1] + 0.5 * reward[:, 2] + 0.25 * reward[:, 3],
        reward[:, 2] + 0.5 * reward[:, 3],
        reward[:, 3],
    ]
    torch.testing.assert_close(three.reward, torch.cat(sums, 1))
    assert torch.equal(three.next_obs, after[:, [2, 3, 3, 3]].flatten(1, 2))
    assert three.discount.reshape(2, 4, 4)[0, :, 0].tolist() == [0.125, 0.125, 0.25, 0.5]


def test_an_end_inside_ends_the_sum() -> None:
    """Values after a discount of 0 have no weight."""
    x = torch.zeros(1, 1, 2)
    steps = [
        Batch(x, x, torch.full((1, 1), r), x + r, torch.full((1, 1), d))
        for r, d in ((1.0, 0.5), (2.0, 0.0), (4.0, 0.5))
    ]
    first = n_step(steps, 3)[0]
    assert (first.reward.item(), first.discount.item()) == (2.0, 0.0)
