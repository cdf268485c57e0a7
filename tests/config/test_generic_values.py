"""Values for an environment that none were tuned for."""

import pytest

from privrl_bench.config import compose as config

GYM = ["env=gym"]


@pytest.mark.parametrize(
    ("words", "steps", "name"),
    [
        (["env.id=my_pkg:MyEnv-v0"], None, "dppg_discrete_short"),
        (["env.id=my_pkg:MyEnv-v0", "env.max_episode_steps=300"], 128, "dppg_discrete_long"),
        (["env.id=spaces_pkg:Two-v0"], None, "dppg_discrete_short"),
        (["env.id=my_pkg:Point-v0"], None, "dppg_continuous_short"),
        (["env.id=my_pkg:Point-v0", "algo=ppo"], 2048, "ppo_continuous_short"),
        (["env.id=Pendulum-v1", "env.max_episode_steps=201"], 512, "dppg_continuous_long"),
        (["env.id=spaces_pkg:Bits-v0", "algo=ppo"], 128, "ppo_discrete_short"),
    ],
)
def test_values_by_kind_name_themselves(words, steps, name) -> None:
    run = config.compose([*GYM, *words])
    assert run.env.user_steps == steps
    assert run.hyperparameter_source.startswith("generic values for ")
    assert f"tuned/{name}" in run.hyperparameter_source


def test_what_is_given_wins() -> None:
    words = [*GYM, "env.id=Pendulum-v1", "env.max_episode_steps=300"]
    run = config.compose([*words, "algo.lr=0.5", "total_steps=700_000"])
    assert (run.algo.lr, run.total_steps, run.algo.minibatches) == (0.5, 700_000, 1)
    assert config.compose([*words, "rounds=5"]).rounds == 5
    for chosen, source in (
        ("tuned=dppg_mujoco", "tuned/dppg_mujoco"),
        ("~tuned", "algo/dppg, which is for CartPole"),
        ("+paper=dppg", "paper"),
    ):
        assert config.compose([*words, chosen]).hyperparameter_source.startswith(source)


def test_none_for_other_algorithms_and_environments_that_cannot_be_made() -> None:
    for words in (
        ["algo=reinforce", "env.id=my_pkg:MyEnv-v0"],
        ["env.id=my_pkg:NoLimit-v0"],
        ["env.id=no_such_pkg:X-v0"],
    ):
        run = config.compose([*GYM, *words])
        assert run.hyperparameter_source.startswith("algo/")
    assert config.compose(["env=riverswim"]).hyperparameter_source.startswith("algo/")
