"""A2C against plain torch, and learning that can fail."""

import pytest
import torch
from helpers import BOX, CHOICE, context, learn, own, random_users, rollout_of
from pooled_reference import HIDDEN, ROUNDS, STEPS, USERS, Twin, made, one_round

from privrl_bench.algorithms.policy_gradient.a2c import A2c
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import A2cConfig
from privrl_bench.envs.registry import env_spec


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize("normalize", [True, False])
def test_three_rounds_of_a2c_equal_plain_torch(spec, normalize) -> None:
    config = A2cConfig(
        hidden=HIDDEN, lr=1e-2, entropy_coef=0.05, normalize_advantage=normalize, max_grad_norm=0.3
    )
    algo, state = made(A2c, config, spec)
    twins = [
        Twin(spec, config, state, r, lambda p: torch.optim.RMSprop(p, alpha=0.99, eps=1e-5))
        for r in range(2)
    ]
    for index in range(3):
        users = random_users(spec, 2, USERS, STEPS, seed=index)
        state, _ = one_round(algo, state, users)
        for r, twin in enumerate(twins):
            obs, actions, _, _, advantages, targets = twin.pool(users, r)
            if normalize:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            found = twin.policy.distribution(obs)
            error = (twin.critic(obs)[:, 0] - targets) ** 2
            loss = -(found.log_prob(actions) * advantages).mean()
            loss = loss + 0.5 * error.mean() - 0.05 * found.entropy().mean()
            twin.descend(loss, config.lr * (1 - index / ROUNDS))
            twin.same_as(state, r)


def test_it_learns_the_chain_that_random_play_cannot() -> None:
    config = own("MyEnv", user="segment")
    rollout, _ = rollout_of(config, [0, 1], 8, 40)
    chosen = A2cConfig(hidden=[16], lr=0.02, entropy_coef=0.01)
    algo = A2c(chosen, context(env_spec(config), 1.0, 80, 1))
    rollout._policy = algo.policy
    _, curve = learn(algo, rollout, 80)
    assert curve[0] < 3.0  # uniform play: 17 / 16
    assert curve[-1] > 15.0
