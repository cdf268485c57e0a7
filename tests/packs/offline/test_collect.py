"""`privrl collect`: words, episodes as they were played, the same dataset after any interruption."""

import json
import os
import signal
from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import assert_same_episodes, everything, no_figure

from privrl_bench.envs.slots import StepResult
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline import playing, recording
from privrl_bench.packs.offline.collect import configs_of, main, parse
from privrl_bench.packs.offline.datasets.minari_files import local_ids, open_dataset, write_minari
from privrl_bench.packs.offline.datasets.trajectories import Trajectories
from privrl_bench.packs.offline.playing import RecordingSlots
from privrl_bench.types import EnvSpec

SMALL = ["algo.hidden=[8]", "algo.batch=8", "algo.updates=0.02"]


@pytest.fixture(autouse=True)
def quick(here, monkeypatch, request):
    if "end_to_end" not in request.node.name:
        monkeypatch.setattr(recording, "figure", no_figure)


# --- words


def test_own_words_and_those_of_a_run() -> None:
    order = parse(["env=pendulum", "runs=6", "steps=20_000", "algo.lr=1e-3", "together=3"])
    assert (order.runs, order.steps) == (6, 20_000)
    assert order[:3] == ("pendulum/ddpg-v0", 3, ("algo=ddpg", "env=pendulum", "algo.lr=1e-3"))
    other = parse(["env=cartpole_balance", "algo=sac"])
    assert other.words == ("env=cartpole_balance", "algo=sac")
    assert other.name == "cartpole-balance/sac-v0"


@pytest.mark.parametrize("name", ["primorl", "primorl_tenth"])
@pytest.mark.parametrize("env", ["pendulum", "cartpole_balance", "cartpole_swingup"])
def test_presets_are_by_environment_and_later_words_win(name, env) -> None:
    order = parse([f"+collect={name}", f"env={env}"])
    episodes = order.runs * order.steps // (200 if env == "pendulum" else 1000)
    assert episodes == (30_000 if name == "primorl" else 3_000)
    changed = parse([f"+collect={name}", f"env={env}", "runs=2", "name=x-v1"])
    assert (changed.runs, changed.name, changed.steps) == (2, "x-v1", order.steps)
    configs = configs_of(order._replace(runs=2))
    assert [c.seed for c in configs] == [0, 1]
    assert configs[0].total_steps == order.steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs=2"], r"^env: is missing; for example env=pendulum "),
        (["env=pendulum", "runs=0"], r"^runs: must be an integer >= 1, got 0"),
        (["env=pendulum", "steps=1e5"], r"^steps: must be an integer >= 1, got 1e5"),
        (["env=pendulum", "together="], r"^together: must be an integer >= 1"),
        (["env=pendulum", "run"], r"cannot read 'run'; write key=value"),
        (
            ["+collect=nothing", "env=pendulum"],
            r"^collect: no such preset nothing; allowed: primorl",
        ),
        (["+collect=primorl", "env=hopper"], r"^env: collect=primorl is for pendulum"),
        (["+collect=primorl"], r"^env: collect=primorl is for pendulum"),
    ],
)
def test_wrong_words(words, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(words)


@pytest.mark.parametrize(
    "words",
    [
        *(["algo=dppg"], ["algo.lrr=1"], ["envv=x"], ["algo=nothing"], ["privacy=fixed"]),
        *(["algo=primorl", "data.id=x-v0"], ["env=riverswim"], ["steps=10"]),
        *(["name=no-version"], ["name="], ["name=bad name-v0"], ["name=../x-v0"]),
    ],
    ids=str,
)
def test_what_cannot_be_collected_is_one_line_before_anything_is_played(words, capsys, monkeypatch):
    monkeypatch.setattr(playing.Trainer, "step", lambda session: pytest.fail("played"))
    assert main(["env=pendulum", "runs=1", "steps=400", *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert local_ids() == []


@pytest.mark.parametrize(
    ("base", "counts"),
    [
        (["env=pendulum"], ["runs", "steps", "together"]),
        (["env=chain", "policy=uniform"], ["episodes", "together"]),
    ],
)
@given(words=st.lists(st.text(st.characters(codec="ascii"), max_size=12), max_size=4))
def test_any_words_give_an_order_or_a_config_error(base, counts, words) -> None:
    with suppress(ConfigError):
        order = parse([*base, *words])
        assert min(getattr(order, name) for name in counts) >= 1


# --- the tape


class Counter:
    """Slots whose observation counts steps; they end as told."""

    count = 2

    def __init__(self):
        self.at, self.ends = np.zeros(2), {3: "terminated"}

    def reset(self, indices, seeds, users=None):
        self.at[indices] = 0
        return self.at[indices, None] * np.ones(3)

    def step(self, indices, actions):
        self.at[indices] += 1
        end = [self.ends.get(int(x), "") for x in self.at[indices]]
        return StepResult(
            self.at[indices, None] * np.ones(3),
            10.0 * self.at[indices],
            np.array([e == "terminated" for e in end]),
            np.array([e == "truncated" for e in end]),
        )

    def close(self):
        pass


@pytest.mark.parametrize("discrete", [False, True])
def test_the_tape_keeps_whole_and_cut_episodes(discrete) -> None:
    tape = RecordingSlots(Counter(), EnvSpec("counter", 3, discrete, 2, 5))
    both = np.arange(2)

    def act(k, slots):
        actions = np.array([k + s for s in slots])
        tape.step(np.array(slots), actions if discrete else np.stack([actions, actions], 1))

    tape.reset(both, [0, 0])
    for k in range(2):
        act(k, [0, 1])
    assert tape.taken() == []
    tape.reset(np.array([1]), [0])  # slot 1 is cut after two steps
    act(2, [0, 1])  # slot 0 ends
    (one, cut), (other, whole) = tape.taken()
    assert (one, other) == (1, 0)
    assert tape.taken() == []
    assert cut.observations[:, 0].tolist() == [0, 1, 2]
    assert (cut.terminated.tolist(), cut.truncated.tolist()) == ([False] * 2, [False, True])
    assert cut.rewards.tolist() == [10, 20]
    assert cut.actions.reshape(2, -1)[:, 0].tolist() == [1, 2]
    assert whole.observations[:, 0].tolist() == [0, 1, 2, 3]
    assert whole.terminated.tolist() == [False, False, True]
    assert not whole.truncated.any()
    assert whole.actions.dtype == (np.int64 if discrete else np.float32)
    tape.reset(both, [0, 0])
    # Of slot 1, whose third step was its first.
    assert [len(e.rewards) for _, e in tape.taken()] == [1]
    tape.reset(both, [0, 0])
    assert tape.taken() == []  # an episode without a step is none


# --- collections


def test_pendulum_end_to_end(tmp_path, capsys) -> None:
    words = ["env=pendulum", "runs=3", "steps=400", "name=own/small-v0", *SMALL]
    assert main([*words, "together=2"]) == 0
    episodes = everything("own/small-v0")
    assert len(episodes) == 3 * 2
    env = gym.make("Pendulum-v1").unwrapped
    for e in episodes:
        assert len(e.rewards) == 200
        assert e.truncated[-1]
        assert not e.terminated.any()
        assert np.abs(e.actions).max() <= 2
        # The recorded steps are those of the simulator.
        env.reset(seed=0)
        env.state = np.array(
            [np.arctan2(e.observations[0, 1], e.observations[0, 0]), e.observations[0, 2]]
        )
        for t in range(5):
            obs, reward, *_ = env.step(e.actions[t])
            np.testing.assert_allclose(obs, e.observations[t + 1], atol=1e-4)
            assert reward == pytest.approx(e.rewards[t], abs=1e-3)
    assert not np.array_equal(episodes[0].observations, episodes[2].observations)  # other seeds
    folder = tmp_path / "outputs/collect/own-small-v0"
    card = json.loads((folder / "card.json").read_text())
    returns = open_dataset("own/small-v0").returns()
    assert card["returns"]["episodes"] == 6
    assert card["returns"]["mean"] == pytest.approx(returns.mean())
    assert card["returns"]["quantiles"] == pytest.approx(
        np.quantile(returns, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1]), abs=0.006
    )
    assert (card["runs"], card["steps"], card["algorithm_name"]) == (3, 400, "ddpg")
    assert open_dataset("own/small-v0").card["returns"] == card["returns"]
    assert (folder / "returns.png").exists()
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("skipped  own/small-v0 exists: 6 episodes")
    for other in (["steps=600"], ["seed=5"]):
        assert main([word for word in words if word[:5] != other[0][:5]] + other) == 2
        assert capsys.readouterr().err.startswith(
            "error: name: own/small-v0 exists, made with another"
        )
    spaces = env.observation_space, env.action_space
    write_minari("my/users-v0", iter(episodes), "Pendulum-v1", *spaces, {"users": "simulated"})
    assert main(["env=pendulum", "runs=3", "steps=400", "name=my/users-v0"]) == 2
    problem = "made with another request (not by privrl collect)"
    assert problem in capsys.readouterr().err
    assert len(everything("my/users-v0")) == 6


def test_dm_control_end_to_end() -> None:
    words = ["env=cartpole_balance", "env.max_episode_steps=60", "runs=2", "steps=180"]
    assert main([*words, *SMALL]) == 0
    episodes = everything("cartpole-balance/ddpg-v0")
    assert [len(e.rewards) for e in episodes] == [60] * 6
    assert episodes[0].observations.shape == (61, 5)


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    "words",
    [
        ["env=pendulum", "steps=1_000", *SMALL],
        ["env=pendulum", "steps=910", "env.user_steps=130", *SMALL],
        [
            "env=cartpole",
            "algo=ppo",
            "algo.epochs=1",
            "steps=1_024",
            "env.user=segment",
            "algo.minibatches=4",
        ],
        [
            "env=cartpole",
            "algo=ppo",
            "algo.epochs=1",
            "steps=1_024",
            "env.user=fresh",
            "algo.minibatches=4",
        ],
    ],
    ids=["whole", "cut", "segments", "fresh"],
)
def test_an_interrupted_collection_equals_a_whole_one(words, monkeypatch) -> None:
    words, numbers = [*words, "runs=2", "together=1"], {2: signal.SIGINT, 3: signal.SIGUSR1}
    assert main([*words, "name=whole-v0"]) == 0
    step, seen = playing.Trainer.step, []

    def interrupted(session):
        seen.append(0)
        if len(seen) in numbers:
            os.kill(os.getpid(), numbers[len(seen)])
        step(session)

    monkeypatch.setattr(playing.Trainer, "step", interrupted)
    codes = [main([*words, "name=cut-v0"]) for _ in range(3)]
    assert codes == [130, 128 + signal.SIGUSR1, 0]
    assert_same_episodes(everything("whole-v0"), everything("cut-v0"))


def test_the_card_has_the_code_that_played_not_that_of_the_end(monkeypatch) -> None:
    words = ["env=pendulum", "steps=1_000", "runs=1", "name=a-v0", *SMALL]
    commits = iter(["first", "second"])
    monkeypatch.setattr(recording, "provenance", lambda config: {"commit": next(commits)})
    step, seen = playing.Trainer.step, []

    def interrupted(session):
        seen.append(0)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        step(session)

    monkeypatch.setattr(playing.Trainer, "step", interrupted)
    assert [main(words) for _ in range(2)] == [130, 0]
    assert open_dataset("a-v0").card["provenance"] == {"commit": "first"}


@pytest.mark.slow
def test_a_killed_collection_plays_again_what_was_not_saved(monkeypatch) -> None:
    words = ["env=pendulum", "steps=1_000", "runs=3", "together=1", *SMALL]
    assert main([*words, "name=whole-v0"]) == 0
    save, count = Trajectories.save, []

    def killed(self, folder):
        count.append(0)
        if len(count) == 2:
            raise KeyboardInterrupt
        save(self, folder)

    monkeypatch.setattr(Trajectories, "save", killed)
    assert main([*words, "name=cut-v0"]) == 130
    assert main([*words, "name=cut-v0"]) == 0
    monkeypatch.setattr(Trajectories, "save", save)
    assert_same_episodes(everything("whole-v0"), everything("cut-v0"))


def test_other_words_need_another_name(monkeypatch, capsys) -> None:
    step = playing.Trainer.step
    monkeypatch.setattr(
        playing.Trainer, "step", lambda s: os.kill(os.getpid(), signal.SIGINT) or step(s)
    )
    words = ["env=pendulum", "steps=1_000", "runs=1", *SMALL]
    assert main(words) == 130
    monkeypatch.setattr(playing.Trainer, "step", step)
    assert main([*words, "seed=3"]) == 2
    assert "was begun with other words; give another name=" in capsys.readouterr().err
    assert main([*reversed(words)]) == 0
