"""Values for an environment that none were tuned for."""

from dataclasses import replace

import pytest

from privrl_bench.composition.compose import compose

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
    run = compose([*GYM, *words])
    assert run.env.user_steps == steps
    assert run.hyperparameter_source.startswith("generic values for ")
    assert f"tuned/{name}" in run.hyperparameter_source
    assert run == compose([*GYM, *words, f"tuned={name}"])  # files that it is based on included


def test_what_is_given_wins() -> None:
    words = [*GYM, "env.id=Pendulum-v1", "env.max_episode_steps=300"]
    run = compose([*words, "algo.lr=0.5", "total_steps=700_000"])
    assert (run.algo.lr, run.total_steps, run.algo.minibatches) == (0.5, 700_000, 1)
    assert compose([*words, "rounds=5"]).rounds == 5
    for chosen, source in (
        ("tuned=dppg_mujoco", "tuned/dppg_mujoco"),
        ("~tuned", "algo/dppg, which is for CartPole"),
        ("+paper=dppg", "paper"),
    ):
        assert compose([*words, chosen]).hyperparameter_source.startswith(source)


def test_none_for_other_algorithms_and_environments_that_cannot_be_made() -> None:
    for words in (
        ["algo=reinforce", "env.id=my_pkg:MyEnv-v0"],
        ["env.id=my_pkg:NoLimit-v0"],
        ["env.id=no_such_pkg:X-v0"],
    ):
        run = compose([*GYM, *words])
        assert run.hyperparameter_source.startswith("algo/")
    assert compose(["env=riverswim"]).hyperparameter_source.startswith("algo/")


@pytest.fixture
def folder(tmp_path):
    """A folder for `--config-dir` with an environment of the user's own."""
    for group in ("env", "tuned"):
        (tmp_path / group).mkdir()
    text = "name: kettle\nid: my_pkg:MyEnv-v0\nobs_scaling: none\nreward_scaling: none\n"
    (tmp_path / "env" / "kettle.yaml").write_text(text)
    return tmp_path


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("algo", ["dppg", "ppo", "reinforce"])
def test_a_file_of_ones_own_has_the_values_of_env_gym(folder, algo) -> None:
    words = [f"algo={algo}", "privacy.users_per_round=5"]
    own = compose([*words, "env=kettle"], str(folder))
    gym = compose([*words, *GYM, "env.id=my_pkg:MyEnv-v0"])
    source = f"{gym.hyperparameter_source}, with {folder}/env/kettle.yaml"
    assert own.hyperparameter_source == source
    assert replace(own, env=replace(own.env, name="gym"), hyperparameter_source="") == replace(
        gym, hyperparameter_source=""
    )
    assert ("tuned/" in own.hyperparameter_source) == (algo != "reinforce")


def test_what_a_file_of_ones_own_changes_wins(folder) -> None:
    path = folder / "env" / "kettle.yaml"
    path.write_text(f"{path.read_text()}user_steps: 12\n")
    run = compose(["env=kettle"], str(folder))
    assert run.env.user_steps == 12
    assert "tuned/dppg_discrete_short" in run.hyperparameter_source


@pytest.mark.parametrize("source", ["", "hyperparameter_source: mine\n"])
def test_none_beside_a_tuned_file_of_ones_own(folder, source) -> None:
    text = f"# @package _global_\nalgo:\n  lr: 1e-3\n{source}"
    (folder / "tuned" / "dppg_kettle.yaml").write_text(text)
    run = compose(["env=kettle"], str(folder))
    assert (run.algo.lr, run.env.user_steps) == (1e-3, 64)
    assert "tuned/dppg_discrete" not in run.hyperparameter_source
