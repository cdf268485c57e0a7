"""`privacy.noise_cohort`: the noise of larger cohorts than those that are simulated, without a guarantee."""

import json
import math

import pytest
import torch
from test_gate import make_account

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity
from privrl_bench.errors import ConfigError
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

WORDS = ["algo=dppg", "env=cartpole", "log=none"]


def gate_of(*words):
    return make_plan([compose([*WORDS, *words])]).gate


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("mechanism", ["fixed", "correlated"])
def test_noise_in_the_mean_is_that_of_the_larger_cohort(mechanism):
    words = [f"privacy={mechanism}", "privacy.z=3", "rounds=20"]
    preview = gate_of(*words, "privacy.users_per_round=16", "privacy.noise_cohort=160")
    real = gate_of(*words, "privacy.users_per_round=160")
    for name, std in real.mechanism.release_noise(0).items():
        assert preview.mechanism.release_noise(0)[name] / 16 == pytest.approx(std / 160)


def test_it_promises_nothing_and_says_what_the_real_run_would_cost():
    preview = gate_of("privacy.z=3", "privacy.users_per_round=16", "privacy.noise_cohort=160")
    real = gate_of("privacy.z=3", "privacy.users_per_round=160")
    guarantee = preview.guarantee(0)
    assert (guarantee.epsilon, guarantee.status) == (math.inf, "none")
    assert "160 users a round" in guarantee.notes["preview"]
    assert preview.real_epsilon(0) == real.planned_epsilon(0)
    assert preview.event(0).z == pytest.approx(0.3)  # what the ledger says was released


def test_noise_is_calibrated_for_the_real_run():
    config = make_plan(
        [
            compose(
                [
                    *WORDS,
                    "privacy.epsilon=2",
                    "privacy.users_per_round=16",
                    "privacy.noise_cohort=160",
                ]
            )
        ]
    ).config
    real = make_plan([compose([*WORDS, "privacy.epsilon=2", "privacy.users_per_round=160"])])
    assert config.privacy.z == pytest.approx(real.config.privacy.z, rel=1e-3)
    assert config.privacy.noise_multiplier == pytest.approx(config.privacy.z / 10)


def test_a_cohort_of_the_real_size_has_the_noise_of_the_run_without():
    plain, preview = gate_of("rounds=3"), gate_of("rounds=3", "privacy.noise_cohort=64")
    assert plain.mechanism.release_noise(0) == preview.mechanism.release_noise(0)
    assert preview.guarantee(0).status == "none"


def test_it_is_part_of_the_identity():
    assert identity(compose(WORDS))["privacy.noise_cohort"] is None
    assert identity(compose([*WORDS, "privacy.noise_cohort=64"]))["privacy.noise_cohort"] == 64


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["privacy.noise_cohort=3"], "at least privacy.users_per_round=64, got 3"),
        (["privacy=poisson", "privacy.population=900", "privacy.noise_cohort=99"], "with poisson"),
        (["privacy=local", "algo.critic=none", "privacy.noise_cohort=99"], "got local"),
        (["privacy=none", "privacy.noise_cohort=99"], "got none"),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(words, says):
    with pytest.raises(ConfigError, match=r"privacy\.noise_cohort") as error:
        compose([*WORDS, *words])
    assert says in str(error.value)


def test_a_run_writes_what_it_is_a_preview_of(tmp_path):
    words = ["rounds=2", "eval.episodes=2", "privacy.users_per_round=8", "privacy.noise_cohort=80"]
    run([compose([*WORDS, *words])], [tmp_path], [words])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["preview"] == {
        "users_per_round": 80, "users": 160, "epsilon": pytest.approx(4.378, abs=1e-3),
    }  # fmt: skip
    assert (summary["z"], summary["epsilon"], summary["guarantee"]["status"]) == (
        1.0,
        math.inf,
        "none",
    )
    lines = [json.loads(x) for x in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert {line["z"] for line in lines if "z" in line} == {0.1}


def test_the_released_mean_differs_from_the_sum_by_the_smaller_noise():
    from dataclasses import replace

    plan = make_account(seeds=(0,))
    small = replace(plan.config, noise_cohort=plan.config.users_per_round * 100)
    assert small.noise_multiplier == pytest.approx(plan.config.noise_multiplier / 100)
    assert torch.isfinite(torch.tensor(small.noise_multiplier))
