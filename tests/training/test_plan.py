"""What a configuration promises: unit, caveats, status, budget."""

from dataclasses import replace

import pytest
from test_runner import cartpole

from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import group_key
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import EnvConfig
from privrl_bench.errors import ConfigError
from privrl_bench.training.plan import make_plan
from privrl_bench.users.users import unit_in_words


@pytest.mark.parametrize(
    ("max_episode_steps", "steps", "segments"),
    [(500, 64, 9), (1000, 2048, 2), (143, 64, 4), (64, 64, 2)],
)
def test_an_episode_meets_this_many_segments(max_episode_steps, steps, segments):
    env = EnvConfig(id="x", user="segment")
    assert unit_in_words(env, max_episode_steps, steps, sampled=False).participation == segments
    worst = max((start + max_episode_steps - 1) // steps + 1 for start in range(steps))
    assert worst == segments


def expected_caveats(critic, user, scaling):
    caveats = set()
    if critic == "shared":
        caveats.add("shared critic")
    if user == "segment":
        caveats.add("carried-over environment")
    if scaling == "running":
        caveats |= {"running observation statistics", "running reward statistics"}
    return caveats


# The three causes of caveats are independent; tests/audit/test_leaks.py has every combination of them.
@pytest.mark.parametrize(
    ("critic", "user", "scaling", "z"),
    [
        *(
            (critic, user, "public", 1.0)
            for critic in ("shared", "private", "none")
            for user in ("segment", "fresh", "episode")
        ),
        *(("private", "fresh", scaling, 1.0) for scaling in ("private", "running", "none")),
        ("private", "fresh", "public", 0.0),
        ("shared", "segment", "running", 0.0),
    ],
)
def test_every_leak_is_a_named_caveat_and_formal_means_none(critic, user, scaling, z):
    base = cartpole()
    config = replace(
        base,
        algo=DppgConfig(critic=critic),
        env=replace(base.env, user=user, obs_scaling=scaling, reward_scaling=scaling),
        privacy=replace(base.privacy, z=z),
        total_steps=100_000,
    )
    guarantee = make_plan([config]).gate.guarantee(0)
    caveats = expected_caveats(critic, user, scaling)
    assert set(guarantee.caveats) == caveats
    assert guarantee.status == ("none" if z == 0 else "heuristic" if caveats else "formal")


def test_poisson_users_may_come_in_every_round():
    config = compose(["privacy=poisson", "privacy.population=1000", "total_steps=100_000"])
    plan = make_plan([config]).gate
    assert plan.participation is None
    assert plan.unit.text.startswith("one simulated user with all their rounds")
    assert plan.guarantee(0).adjacency == "add-or-remove"


def test_pooled_algorithms_say_that_nothing_is_private():
    guarantee = make_plan([compose(["algo=ppo"])]).gate.guarantee(0)
    assert guarantee.status == "none"
    assert set(guarantee.caveats) == {"pooled training", "not private"}
    assert not guarantee.notes


def test_only_seed_and_z_may_differ_in_a_group():
    one = cartpole()
    other = cartpole(seed=1, privacy=replace(one.privacy, z=2.0))
    assert len(make_plan([one, other]).configs) == 2
    with pytest.raises(ConfigError, match="seed and"):
        make_plan([one, cartpole(total_steps=1024)])


def test_a_budget_ends_the_rounds_in_advance_or_says_which_z_would_do():
    poisson = ["privacy=poisson", "privacy.population=200", "privacy.users_per_round=4"]
    words = ["env=cartpole", "env.user_steps=16", "privacy.z=1.5", *poisson, "total_steps=6400"]
    whole = make_plan([compose(words)])
    assert whole.rounds == 100
    spent = whole.gate.planned_epsilon(0)
    half = make_plan([compose(later_wins([*words, f"privacy.epsilon={spent / 2}"]))])
    assert 1 < half.rounds < 100
    assert half.gate.planned_epsilon(0) <= spent / 2
    assert make_plan([compose(later_wins([*words, f"privacy.epsilon={spent * 2}"]))]).rounds == 100
    small = ["privacy.accountant=rdp", "privacy.epsilon=1e-4", "privacy.z=1"]
    with pytest.raises(ConfigError, match=r"no privacy\.z is enough"):  # rdp's orders end
        make_plan([compose(["env=cartpole", *small])])
    with pytest.raises(ConfigError, match=r"privacy\.z=3\.73\d* would last"):
        make_plan([compose(["env=cartpole", "privacy.epsilon=1", "privacy.z=1"])])
    assert make_plan([compose(["env=cartpole", "privacy.epsilon=1", "privacy.z=3.731"])])


def test_runs_with_a_budget_are_trained_together_only_with_equal_z():
    runs = [compose(["privacy.epsilon=9", f"privacy.z={z}"]) for z in (1, 2)]
    with pytest.raises(ConfigError, match="seed and privacy"):
        make_plan(runs)
    assert group_key(runs[0]) != group_key(runs[1])
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        compose(["privacy.epsilon=-1"])
    with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
        compose(["algo=ppo", "privacy.epsilon=1"])
