"""`privrl collect policy=<run folder>`: episodes of a trained policy as a dataset."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from recorded import everything

import privrl_bench as pb
from privrl_bench.cli.main import main
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.offline.datasets.minari_files import local_ids
from privrl_bench.packs.offline.recording import TrainedPlayer
from privrl_bench.training.trained_policy import read_policy

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("name", ["squashed", "states", "table"])
def test_a_dataset_holds_what_the_policy_did(name, trained, capsys):
    folder = trained(name)
    words = ["collect", f"policy={folder}", "episodes=3", "name=own/x-v0", "seed=5"]
    assert main([*words, "together=2"]) == 0
    capsys.readouterr()
    file = read_policy(folder)
    env = gym.make(file.env["id"], max_episode_steps=file.spec.max_episode_steps)
    for k, episode in enumerate(everything("own/x-v0")):
        assert episode.behavior_probs is None
        # The policy's own actions, one by one, from the stored observations.
        player = pb.load_policy(folder)
        draws = TrainedPlayer(file).draws(
            Streams(5).torch("play_policy", k), file.spec.max_episode_steps
        )
        act = TrainedPlayer(file).begin()
        obs = env.reset(seed=Streams(5).episode_seed("play_env", k))[0]
        for t in range(len(episode.rewards)):
            flat = player._flat(obs)[0].astype(np.float32)
            np.testing.assert_allclose(flat[0], episode.observations[t], rtol=1e-6, atol=1e-6)
            chosen, chances = act(episode.observations[t : t + 1], draws[t : t + 1])
            assert chances is None
            np.testing.assert_allclose(chosen[0], episode.actions[t], rtol=1e-4, atol=1e-5)
            obs, reward, *_ = env.step(player._to_space(episode.actions[t : t + 1])[0])
            assert reward == pytest.approx(float(episode.rewards[t]), rel=1e-5, abs=1e-5)
    assert len({e.observations.tobytes() for e in everything("own/x-v0")}) > 1


def test_the_card_names_the_policy_and_its_guarantee(trained, tmp_path, capsys):
    folder = trained("states")
    words = ["collect", f"policy={folder}/policy.pt", "episodes=2"]
    assert main(words) == 0
    assert local_ids() == ["gym/dppg-kl-policy-v0"]
    card = json.loads((tmp_path / "outputs/collect/gym-dppg-kl-policy-v0/card.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    assert card["algorithm_name"] == "dppg_kl"
    assert card["policy_guarantee"]["epsilon"] == summary["guarantee"]["epsilon"]
    assert card["policy_guarantee"]["status"] == "formal"
    assert "smallest_chance" not in card
    assert main(words) == 0
    assert "skipped  gym/dppg-kl-policy-v0 exists" in capsys.readouterr().out


def test_a_policy_that_was_trained_again_is_another_order(trained, tmp_path, capsys):
    copy = tmp_path / "policy.pt"
    content = torch.load(trained("states") / "policy.pt", weights_only=True)
    torch.save(content, copy)
    words = ["collect", f"policy={copy}", "episodes=2", "name=own/x-v0"]
    assert main(words) == 0
    torch.save(content | {"actor": content["actor"] + 0.1}, copy)
    capsys.readouterr()
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error: name: own/x-v0 exists, made with another")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("states", torch.nan, "its parameters are not finite"),
        ("squashed", 3e38, "its actions are not finite"),
    ],
)
def test_a_policy_that_is_not_finite_is_one_line(name, value, line, trained, tmp_path, capsys):
    copy = tmp_path / "policy.pt"
    content = torch.load(trained(name) / "policy.pt", weights_only=True)
    signs = 1.0 - 2.0 * (torch.arange(len(content["actor"])) % 2)
    torch.save(content | {"actor": value * signs}, copy)
    assert main(["collect", f"policy={copy}", "episodes=2", "name=own/x-v0"]) == 2
    assert f"error: policy: {copy}: {line}\n" in capsys.readouterr().err
    assert local_ids() == []


def test_another_environment_must_fit(trained, capsys):
    words = ["collect", f"policy={trained('squashed')}", "episodes=2"]
    assert main([*words, "env=hopper"]) == 2
    assert (
        "error: env: hopper does not fit the policy: observations have" in capsys.readouterr().err
    )
    assert main([*words, "env.max_episode_steps=30", "name=own/short-v0"]) == 0
    assert {len(e.rewards) for e in everything("own/short-v0")} == {30}
    assert main([*words, "+env.kwargs.g=0.0", "name=own/still-v0"]) == 0  # no gravity
    first, other = (everything(name)[0] for name in ("own/short-v0", "own/still-v0"))
    assert not np.array_equal(first.observations[:30], other.observations[:30])
    assert len(other.rewards) == 200


def test_actions_that_no_dataset_holds_are_refused_before_playing(trained, tmp_path, capsys):
    words = ["collect", f"policy={trained('multi')}", "episodes=2", "name=own/x-v0"]
    runs = "collect algo=ppo env=gym env.id=spaces_pkg:Two-v0 runs=1 steps=512 name=own/y-v0"
    for request in (words, runs.split()):
        assert main(request) == 2
        assert "error: env: cannot be recorded: actions must be in a Box" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("nowhere/policy.pt", "there is no nowhere/policy.pt"),
        ("nowhere/run", "nowhere/run is no run folder, policy.pt or .json file of values"),
    ],
)
def test_a_policy_that_does_not_exist_is_one_line(policy, line, capsys):
    assert main(["collect", f"policy={policy}", "episodes=2", "env=pendulum"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: policy: {line}")
    assert shown.count("\n") == 1
