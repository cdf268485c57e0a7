"""What the command line means by privacy.epsilon, privacy.z=auto and privacy.population."""

import pytest

from privrl_bench.api.launch import columns
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_compose import hydra_overrides, run_folder
from privrl_bench.composition.identity import group_key
from privrl_bench.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "z"),
    [
        ("privacy.epsilon=2", None),
        ("env=hopper privacy.epsilon=2", None),  # tuned/ has a z
        ("+paper=dppg privacy.epsilon=2", None),
        ("privacy.epsilon=2 privacy.z=auto", None),
        ("privacy.epsilon=2 ++privacy.z=auto", None),
        ("privacy.epsilon=2 privacy.z=null", None),
        ("privacy.epsilon=2 privacy.z=0.5", 0.5),
        ("privacy.epsilon=null", 1.0),
        ("privacy.z=3", 3.0),
        ("algo=dp_lsw env=chain data.policy=uniform privacy.population=9 privacy.epsilon=2", 1.0),
    ],
)
def test_an_epsilon_without_a_z_of_the_user_is_a_target(line, z):
    assert compose(line.split()).privacy.z == z


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("privacy.z=auto", "privacy.z: auto needs the epsilon of the whole run"),
        ("privacy.z=auot privacy.epsilon=2", "privacy.z: must be auto or a number, got 'auot'"),
        ("algo=ppo privacy.epsilon=2", "privacy.epsilon: algo=ppo is not private"),
        (
            "algo=dp_lsw env=chain data.policy=uniform privacy.epsilon=2 privacy.z=auto",
            "privacy.z: privacy=smooth takes privacy.epsilon, so it stays 1, got auto",
        ),
        ("privacy=poisson privacy.population=900 fit_population=true", "fit_population: limits"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line(line, message):
    with pytest.raises(ConfigError) as error:
        compose(line.split())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_auto_in_a_sweep_and_in_the_name_of_a_folder():
    words = hydra_overrides(["privacy.z=auto,1", "privacy.epsilon=1,2"])
    assert columns(words) == {
        "privacy.z": ["privacy.z=null", "privacy.z=1"],
        "privacy.epsilon": ["privacy.epsilon=1", "privacy.epsilon=2"],
    }
    for given in (["privacy.epsilon=2", "privacy.z=auto"], ["privacy.epsilon=2"]):
        folder = run_folder({"algo": "dppg", "env": "hopper"}, hydra_overrides(given), 3)
        assert folder == "dppg/hopper/epsilon=2,seed=3"


def test_only_seeds_of_one_target_are_trained_together():
    one, seed, other = (
        compose([f"privacy.epsilon={epsilon}", f"seed={seed}"])
        for epsilon, seed in ((1, 0), (1, 1), (2, 0))
    )
    assert group_key(one) == group_key(seed) != group_key(other)


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("privacy.population=900", True),
        ("privacy.population=900 rounds=3", False),
        ("privacy.population=900 total_steps=8192", False),
        ("privacy.population=900 total_steps=600_000 fit_population=true", True),
        ("privacy=poisson privacy.population=900", False),
        ("privacy.population=null", False),
    ],
)
def test_a_population_limits_a_length_that_is_not_the_users_own(line, fits):
    assert compose(line.split()).fit_population is fits
