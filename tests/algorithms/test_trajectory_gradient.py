"""Log-linear DPPG against loops by hand, its radius, its Fisher matrices, and learning."""

import pytest
import torch
from helpers import BOX, CHOICE, context, random_users

from privrl_bench.algorithms.base import check_actions
from privrl_bench.algorithms.loglinear.dppg_l2 import DppgL2
from privrl_bench.algorithms.loglinear.loglinear_settings import DppgL2Config
from privrl_bench.algorithms.loglinear.trajectory_gradient import SHARED_BASELINE
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.loglinear import LogLinearPolicy
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State

STREAMS = [Streams(0), Streams(1)]
SETUP = context(CHOICE, 1.0, 100, 3, z=(0.5, 2.0))
LENGTHS = [[9, 4, 1], [2, 9, 7]]


def features_by_hand(policy, obs, action):
    """phi(s, a) of one step."""
    obs = obs / max(1.0, float(obs.norm()))
    one = torch.zeros(4, dtype=obs.dtype)
    one[action] = 1.0
    return torch.cat([obs, one]) if policy.size == 7 else torch.outer(one, obs).flatten()


@pytest.mark.parametrize("features", ["joined", "pairs"])
def test_the_policy_is_the_softmax_of_its_features(features) -> None:
    policy = LogLinearPolicy(CHOICE, features)
    g = torch.Generator().manual_seed(0)
    params, obs = torch.randn(2, policy.size, generator=g), 2 * torch.randn(2, 5, 3, generator=g)
    behavior_probs = policy.probabilities(params, obs, 6)
    assert behavior_probs.shape == (2, 6, 5, 4)
    for n in range(2):
        for b in range(5):
            scores = torch.stack(
                [features_by_hand(policy, obs[n, b], a) @ params[n] for a in range(4)]
            )
            torch.testing.assert_close(behavior_probs[n, 3, b], scores.softmax(0))
    assert float((policy.features(obs) ** 2).sum(-1).max()) <= policy.bound + 1e-6
    if features == "joined":  # the observation cancels
        assert torch.allclose(behavior_probs[0, 0, 0], behavior_probs[0, 0, 1])
    noise = policy.draw(g, 2, 20_000)
    drawn = policy.sampler(params)(obs[:, :1].expand(2, 20_000, 3), noise)
    shares = torch.bincount(drawn[0], minlength=4) / 20_000
    torch.testing.assert_close(shares, behavior_probs[0, 0, 0], atol=0.015, rtol=0)


@pytest.mark.parametrize("score", [False, True])
@pytest.mark.parametrize("features", ["joined", "pairs"])
@pytest.mark.parametrize("baseline", ["none", "shared"])
def test_a_row_is_the_gradient_in_units_of_the_radius(score, features, baseline) -> None:
    config = DppgL2Config(score=score, features=features, baseline=baseline, gamma=0.9)
    algo = DppgL2(config, SETUP)
    state = algo.init(STREAMS)
    state = State(
        7, {n: torch.randn(x.shape, dtype=torch.float64) for n, x in state.tensors.items()}
    )
    users = random_users(CHOICE, 2, 3, 9, seed=1, lengths=LENGTHS)
    rows, _, bypass = algo.user_update(state, users, STREAMS).take()
    radius = algo.radius(state)
    for r in range(2):
        learned = torch.zeros(algo.policy.size, dtype=torch.float64)
        for u in range(3):
            expected = torch.zeros_like(learned)
            steps, to_go = LENGTHS[r][u], 0.0
            for t in reversed(range(steps)):
                obs, action = users.obs[r, u, t], int(users.actions[r, u, t])
                to_go = float(users.rewards[r, u, t]) + 0.9 * to_go
                phi = features_by_hand(algo.policy, obs, action)
                advantage = to_go
                if baseline == "shared":
                    advantage = to_go - float(phi @ state.tensors["baseline"][r])
                    learned += advantage * phi / steps / 3
                if score:
                    every = [features_by_hand(algo.policy, obs, a) for a in range(4)]
                    scores = torch.stack([p @ state.tensors["actor"][r] for p in every])
                    phi = phi - (scores.softmax(0)[:, None] * torch.stack(every)).sum(0)
                expected += advantage * phi / steps
            torch.testing.assert_close(rows["actor"][r, u], expected / radius[r])
        if baseline == "shared":
            torch.testing.assert_close(bypass[SHARED_BASELINE]["step"][r], learned)
    assert (bypass == {}) == (baseline == "none")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dppg_l2", "dppg_kl"])
def test_with_little_noise_somebody_finds_the_right_bank(name) -> None:
    words = [f"algo={name}", "env=riverswim", "privacy.z=0.3", "total_steps=8000"]
    configs = [compose(later_wins([*words, f"seed={s}"])) for s in range(6)]
    session = Trainer(make_plan(configs))
    for _ in range(300):
        session.step()
    values = [one["exact/return"] for one in session.diagnostics]
    assert max(values) > 3.0  # always right: 3.40, uniform: 0.04, always left: 0.1
    session.close()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="discrete actions"):
        check_actions(DppgL2Config.traits.actions, BOX, "dppg_l2")
    with pytest.raises(ConfigError, match=r"env\.user"):
        compose(["algo=dppg_l2", "env=riverswim", "env.user=fresh"])
    with pytest.raises(ConfigError, match=r"algo\.confidence"):
        compose(["algo=dppg_kl", "env=riverswim", "algo.confidence=1"])
    with pytest.raises(ConfigError, match=r"algo\.fisher"):
        compose(["algo=dppg_kl", "env=riverswim", "algo.fisher=secret"])
