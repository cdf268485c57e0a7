"""UCB-VI against loops by hand; its three kinds of noise; learning."""

import math

import numpy as np
import pytest
import torch
from helpers import context, shipped, sized

from privrl_bench.algorithms.value.ucbvi import UcbVi
from privrl_bench.algorithms.value.value_settings import UcbViConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_table import TablePolicy
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

STREAMS = [Streams(0), Streams(1)]
SPEC = env_spec(shipped("riverswim"))


def session(*words, seeds=(0,)):
    base = ["algo=ucbvi", "env=riverswim", "log=none", *words]
    return Trainer(make_plan([compose(later_wins([*base, f"seed={s}"])) for s in seeds]))


def plan_by_hand(counts, states=6, actions=2, horizon=20, error=0.0):
    """The published recursion, in loops."""
    cells = states * actions
    visits, moves, rewards = np.split(counts, [cells, cells + cells * states])
    q = np.zeros((horizon, states, actions))
    after = np.zeros(states)
    for h in reversed(range(horizon)):
        for s in range(states):
            for a in range(actions):
                cell = s * actions + a
                tried = max(1.0, 1 + visits[cell] + error)
                row = 1.0 + moves[cell * states : (cell + 1) * states]
                moved = max(1.0, row.sum() + error)
                q[h, s, a] = (1 + rewards[cell]) / tried + row @ after / moved
                term = 2 * math.log(3)
                q[h, s, a] += math.sqrt(term / tried) + states * error / tried
                left = horizon - 1 - h
                q[h, s, a] += left * (math.sqrt(term / moved) + states * error / moved)
        after = q[h].max(-1)
    return q


@pytest.mark.parametrize(("mechanism", "z"), [("none", 0.0), ("fresh_noise_per_round", 0.4)])
def test_planning_is_the_published_recursion(mechanism, z) -> None:
    algo = UcbVi(UcbViConfig(), context(SPEC, 34.65, 50, 1, z=(z, z), mechanism=mechanism))
    counts = torch.from_numpy(np.random.default_rng(0).uniform(0, 40, (2, 96))).float()
    found = algo._plan(counts, 25).reshape(2, 20, 6, 2)
    error = z * math.sqrt(math.floor(math.log(25)) + 1) if z else 0.0
    for r in range(2):
        expected = plan_by_hand(counts[r].double().numpy(), error=error)
        np.testing.assert_allclose(found[r], expected, rtol=1e-4)


def test_counts_are_those_of_the_episodes() -> None:
    one = session("privacy=none", "privacy.users_per_round=3", "total_steps=300")
    total = np.zeros(96)
    for index in range(3):
        actor = one.parts.algo.actor(one.state)
        users = one.collector.collect(actor, index, sized(3))
        for u in range(3):
            for t in range(20):
                s, n = int(users.obs[0, u, t].argmax()), int(users.next_obs[0, u, t].argmax())
                cell = 2 * s + int(users.actions[0, u, t])
                total[cell] += 1
                total[84 + cell] += float(users.rewards[0, u, t])
                if t < 19:
                    total[12 + 6 * cell + n] += 1
        one.step()
        np.testing.assert_allclose(one.state.tensors["counts"][0], total, atol=1e-4)
    one.close()


def test_the_table_policy_counts_steps() -> None:
    policy = TablePolicy(SPEC)
    table = torch.zeros(1, 20, 6, 2)
    table[0, 5, :, 1] = 1.0
    table[0, 7, 2, 1] = 1.0
    params, obs = table.flatten(1), torch.eye(6)[None]
    act = policy.sampler(params)
    taken = torch.stack([act(obs, torch.zeros(1, 6))[0] for _ in range(20)])
    expected = table[0, :, :, 1].long()
    assert torch.equal(taken, expected)
    behavior_probs = policy.probabilities(params, obs, 20)
    assert torch.equal(behavior_probs[0, :, :, 1], expected.float())


def test_no_episode_is_cut_by_the_clip() -> None:
    one = session("privacy.z=1", "total_steps=400")
    for _ in range(20):
        one.step()
        assert one.parts.gate.diagnostics[0]["clipped_fraction"] == 0.0
    one.close()


@pytest.mark.slow
def test_it_learns_without_noise_and_regret_is_exact() -> None:
    one = session("privacy=none", "total_steps=12_000", seeds=(0, 1))
    for _ in range(600):
        one.step()
    for found in one.diagnostics:
        assert found["exact/return"] > 2.5  # best 3.397, left 0.1
        assert found["exact/regret"] < 900  # never learning: about 2,000
    one.close()


def test_the_tree_is_formal_and_joint_and_the_imitation_is_not() -> None:
    tree = session("privacy.z=3", "total_steps=20_000").parts.gate.guarantee(0)
    assert (tree.status, tree.notion) == ("formal", "joint")
    fake = session("privacy=fresh_noise_per_round", "privacy.z=0.2").parts.gate.guarantee(0)
    assert (fake.status, fake.epsilon) == ("heuristic", pytest.approx(5.0))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.mechanism"):
        compose(["algo=ucbvi", "env=riverswim", "privacy=fixed"])
    with pytest.raises(ConfigError, match=r"privacy\.mechanism"):
        compose(["algo=dppg", "env=riverswim", "privacy=tree"])
    with pytest.raises(ConfigError, match=r"env\.user"):
        compose(["algo=ucbvi", "env=riverswim", "env.user=segment"])
    for words in (["env=cartpole"], ["env=riverswim", "env.obs_scaling=running"]):
        with pytest.raises(ConfigError, match="finitely many states"):
            make_plan([compose(later_wins(["algo=ucbvi", *words]))])


def test_any_discrete_environment_will_do() -> None:
    words = ["env=gym", "env.id=FrozenLake-v1", "privacy.users_per_round=2", "total_steps=1000"]
    one = Trainer(make_plan([compose(later_wins(["algo=ucbvi", *words]))]))
    one.step()
    assert float(one.state.tensors["counts"].abs().sum()) > 0
    assert "exact/return" not in one.diagnostics[0]
    one.close()
