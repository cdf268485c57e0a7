"""The noised mean return of a policy: by hand, its bound, its leak test, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.training.folder import RunDir
from privrl_bench.training.plan import make_plan
from privrl_bench.training.results import released as files_for_wandb
from privrl_bench.training.runner import run
from privrl_bench.training.trained_policy import read_policy
from privrl_bench.training.trainer import Trainer

USERS = 12


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """The folder of a short run on CartPole."""
    folder = tmp_path_factory.mktemp("policy") / "run"
    words = (
        f"algo=dppg env=cartpole privacy.users_per_round=4 total_steps=1024 log=none "
        f"eval.episodes=1 hydra.run.dir={folder}"
    )
    pb.run(words, quiet=True)
    return folder


def config_of(policy, *words):
    base = "algo=mean_return env=cartpole env.max_episode_steps=40 algo.center=20 privacy.clip=20 log=none"
    own = [*base.split(), f"algo.policy={policy}", f"privacy.users_per_round={USERS}"]
    return compose(later_wins(own, words))


def released(config):
    """What the gate releases in the first round, and the returns of its users."""
    trainer = Trainer(make_plan([config]))
    try:
        users = trainer.collect(trainer.parts.algo.actor(trainer.state), 0)
        own = (users.rewards * users.mask).sum(-1)[0].numpy()
        trainer.step()
        (row,) = trainer.parts.algo.metrics(trainer.state)
    finally:
        trainer.close()
    return row["release/mean_return"], own


def test_without_noise_it_is_the_mean_of_the_users(policy):
    found, own = released(config_of(policy, "privacy.z=0"))
    assert len(own) == USERS
    assert found == pytest.approx(own.mean(), abs=1e-3)


def test_returns_are_clipped(policy):
    found, own = released(config_of(policy, "privacy.z=0", "algo.center=5", "privacy.clip=3"))
    assert own.max() > 8
    assert found == pytest.approx(np.clip(own, 2, 8).mean(), abs=1e-3)


@pytest.mark.slow
def test_noise_has_the_claimed_size(policy):
    exact, _ = released(config_of(policy, "privacy.z=0"))
    config = config_of(policy)
    drawn = []
    for seed in range(100):
        parts = make_plan([config_of(policy, f"seed={seed}")])
        (block,) = parts.gate.blocks
        assert (block.size, block.clip) == (1, 20.0)
        gate, zeros = parts.gate, torch.zeros(1, USERS, 1)
        gate.draw(0, None, True)
        gate.add(Contribution({"return": zeros}, torch.ones(1, USERS, dtype=torch.bool)))
        drawn.append(float(gate.release(0).values["return"]))
    std = config.privacy.noise_multiplier * 20.0 / USERS
    assert np.std(drawn) == pytest.approx(std, rel=0.2)
    assert abs(np.mean(drawn)) < 4 * std / np.sqrt(len(drawn))
    assert exact > 0


def test_the_mean_over_rounds(policy):
    trainer = Trainer(make_plan([config_of(policy, "privacy.z=0", "rounds=3")]))
    found = []
    try:
        for index in range(3):
            users = trainer.collect(trainer.parts.algo.actor(trainer.state), index)
            found.append(float((users.rewards * users.mask).sum(-1).mean()))
            trainer.step()
        (row,) = trainer.parts.algo.metrics(trainer.state)
    finally:
        trainer.close()
    assert row["release/mean_return"] == pytest.approx(np.mean(found), abs=1e-2)


@pytest.mark.slow
def test_no_path_around_the_gate(policy):
    report = find_leaks(config_of(policy, "rounds=6", "privacy.users_per_round=4"))
    assert report.verdict() == "formal: no path around the gate", report.lines()


def test_its_policy_keeps_the_guarantee_that_it_came_with(policy, tmp_path, capsys):
    """Epsilon of the mean says nothing about how the policy was trained."""
    given = dict(read_policy(policy).guarantee, status="none", epsilon=float("inf"))
    content = torch.load(policy / "policy.pt", weights_only=True)
    torch.save(content | {"guarantee": given}, tmp_path / "given.pt")
    config = config_of(tmp_path / "given.pt", "privacy.epsilon=1", "eval.episodes=1")
    (result,) = run([config], [tmp_path / "mean"], [[]])
    assert result.status == "done"
    assert read_policy(tmp_path / "mean").guarantee == given
    summary = json.loads((tmp_path / "mean" / "summary.json").read_text())
    assert summary["guarantee"]["status"] == "formal"
    assert list(summary["released"]) == ["mean_return"]
    assert "done  mean_return " in capsys.readouterr().out
    assert "(status none, epsilon inf)" in str(summary["guarantee"]["notes"])
    trainer = Trainer(make_plan([config]))
    try:
        assert [path.name for path in files_for_wandb(trainer, 0, RunDir(tmp_path))] == [
            "curve.png"
        ]
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algo.policy=null"], "algo.policy: name the folder"),
        (["algo.policy=nowhere"], "^algo.policy: there is no nowhere"),
        (
            ["env=acrobot"],
            "takes 4 numbers of an observation and 2 choices .*; env=acrobot has 6 numbers",
        ),
        (["env.reward_scaling=public"], "env.reward_scaling: must be none"),
        (["env.obs_scaling=none"], "env.obs_scaling: must be that of the policy"),
        (["env.user=fresh"], "env.user"),
    ],
)
def test_bad_input(policy, words, message):
    with pytest.raises(ConfigError, match=message):
        make_plan([config_of(policy, *words)])
