"""Pictures of played episodes in files."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image

from privrl_bench.api.training import run
from privrl_bench.api.video import play, write_video
from privrl_bench.cli import main as privrl


class Drawn(gym.Env):
    """Ten steps; the picture changes at every third."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,)), Discrete(2)
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def render(self):
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[:, : 10 * (self.steps // 3) + 5] = 200
        return picture


gym.register("Drawn-v0", entry_point=Drawn, max_episode_steps=10)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "env=gym env.id=Drawn-v0 rounds=1 privacy.users_per_round=2 algo.hidden=[2] log=none"
    return run(f"{words} eval.episodes=1 eval.every=0", quiet=True).folder


def test_equal_pictures_are_one_frame_of_a_gif(folder, tmp_path, capsys):
    target = tmp_path / "play.gif"
    assert privrl.main(["play", str(folder), "--video", str(target)]) == 0
    with Image.open(target) as image:
        assert image.n_frames == 4
        assert image.size == (60, 40)
    said = capsys.readouterr().out
    assert "11 pictures, returns 10.0\n" in said
    found = play(folder, video=target, episodes=2)
    assert (found.pictures, found.returns) == (22, [10.0, 10.0])


class Blind(Drawn):
    metadata = {"render_modes": []}  # noqa: RUF012


gym.register("Blind-v0", entry_point=Blind, max_episode_steps=10)


@pytest.mark.parametrize("more", [[], ["--video", "a.gif"]])
def test_an_environment_without_render_modes_is_said_to_have_none(folder, more, capsys):
    words = ["--env", "env=gym", "env.id=Blind-v0", "env.obs_scaling=none"]
    assert privrl.main(["play", str(folder), *more, *words]) == 2
    said = capsys.readouterr().err
    assert said == (
        'error: env: Blind-v0 has no render modes (metadata["render_modes"]), so privrl play cannot show it\n'
    )


def test_pictures_that_differ_are_frames(tmp_path):
    pictures = [np.full((8, 8, 3), 20 * k, np.uint8) for k in range(5)]
    assert write_video(tmp_path / "a.gif", pictures, 25.0) == 5
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 5
