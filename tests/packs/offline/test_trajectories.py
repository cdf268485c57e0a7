import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import assert_same, episode, some, with_probs

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.trajectories import Episode, Trajectories, check_episode

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@settings(max_examples=40)
@given(LENGTHS, st.booleans(), st.booleans())
def test_what_is_saved_comes_back(lengths, discrete, known):
    made = [episode(n, seed, discrete=discrete) for seed, n in enumerate(lengths)]
    made = [with_probs(e) for e in made] if known else made
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "new" / "flat"
        Trajectories.of(iter(made), card={"a": [1]}).save(folder)
        back = Trajectories.load(folder)
        assert back.card == {"a": [1]}
        assert back.episodes == len(made)
        assert (back.behavior_probs is not None) == known
        assert back.steps == sum(len(e.rewards) for e in made)
        np.testing.assert_array_equal(back.lengths, lengths)
        for k, one in enumerate(made):
            assert_same(back.episode(k), one)
        assert back.users.tolist() == list(range(len(made)))
        assert back.user_count == len(made)
        sums = [e.rewards.astype(float).sum() for e in made]
        np.testing.assert_allclose(back.returns(), sums, rtol=1e-12)


def test_large_arrays_stay_on_disk_and_episodes_are_copies(tmp_path):
    Trajectories.of(some()).save(tmp_path / "flat")
    back = Trajectories.load(tmp_path / "flat")
    for name in ("observations", "actions", "rewards", "terminated"):
        assert isinstance(getattr(back, name), np.memmap)
        assert getattr(back, name).mode == "r"
    back.episode(0).rewards[:] = 7
    assert not (back.rewards == 7).any()
    with pytest.raises(IndexError):
        back.episode(5)


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "save", MagicMock(side_effect=RuntimeError("power cut")))
    with pytest.raises(RuntimeError, match="power cut"):
        Trajectories.of(some(3)).save(tmp_path / "flat")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_overwritten(tmp_path):
    Trajectories.of(some()).save(tmp_path / "flat")
    with pytest.raises(FileExistsError):
        Trajectories.of(some()).save(tmp_path / "flat")


def test_two_that_save_at_once_leave_the_first(tmp_path, monkeypatch):
    save = np.save

    def meanwhile(*given):
        monkeypatch.setattr(np, "save", save)
        Trajectories.of(some(2)).save(tmp_path / "flat")
        save(*given)

    monkeypatch.setattr(np, "save", meanwhile)
    with pytest.raises(FileExistsError):
        Trajectories.of(some(4)).save(tmp_path / "flat")
    assert Trajectories.load(tmp_path / "flat").episodes == 2


GOOD = episode(4, 0)
F4 = np.float32
BAD = {
    "has no steps": Episode(
        np.zeros((1, 3), F4), np.zeros((0, 2), F4), np.zeros(0, F4), np.zeros(0, bool), np.zeros(0)
    ),
    r"observations are \[4, 3\], must be \[5, D\]": GOOD._replace(observations=np.zeros((4, 3))),
    r"observations are \[5\], must be \[5, D\]": GOOD._replace(observations=np.zeros(5)),
    "observations have 7 numbers, must have 3": GOOD._replace(observations=np.zeros((5, 7))),
    r"actions are \[3, 2\], but there are 4 rewards": GOOD._replace(actions=np.zeros((3, 2), F4)),
    r"terminated are \[5\], but there are 4 rewards": GOOD._replace(terminated=np.zeros(5, bool)),
    r"truncated are \[3\], but": GOOD._replace(truncated=np.zeros(3, bool)),
    r"rewards are \[4, 1\], but": GOOD._replace(rewards=np.zeros((4, 1), F4)),
    r"actions are \[4, 3\], must be \[T, 2\]": GOOD._replace(actions=np.zeros((4, 3), F4)),
    r"actions are \[4\], must be \[T, 2\]": GOOD._replace(actions=np.zeros(4, np.int64)),
    "observations have non-finite values": GOOD._replace(observations=np.full((5, 3), np.nan, F4)),
    "actions have non-finite values": GOOD._replace(actions=np.full((4, 2), np.inf, F4)),
    "rewards have non-finite values": GOOD._replace(rewards=np.array([0, 0, -np.inf, 0], F4)),
    r"behavior_probs are \[3\], but there are 4 rewards": GOOD._replace(
        behavior_probs=np.ones(3, F4)
    ),
    r"behavior_probs must be in \(0, 1\], .* got 0$": GOOD._replace(
        behavior_probs=np.array([1, 0, 1, 1], F4)
    ),
    r"behavior_probs must be in \(0, 1\], .* got 1.5": GOOD._replace(
        behavior_probs=np.full(4, 1.5, F4)
    ),
    r"behavior_probs must be in \(0, 1\], .* got nan": GOOD._replace(
        behavior_probs=np.full(4, np.nan, F4)
    ),
    "has behavior_probs, unlike earlier ones": with_probs(GOOD),
    "is terminated before its last step": GOOD._replace(terminated=np.ones(4, bool)),
    "is truncated before its last step": GOOD._replace(truncated=np.ones(4, bool)),
    "is neither terminated nor truncated at its last step": GOOD._replace(
        terminated=np.zeros(4, bool), truncated=np.zeros(4, bool)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_episodes_are_named(message, tmp_path):
    with pytest.raises(ConfigError, match=f"^data.id: episode 2: {message}"):
        Trajectories.of([GOOD, GOOD, BAD[message], GOOD]).save(tmp_path / "flat")
    assert list(tmp_path.iterdir()) == []


def test_probabilities_of_some_episodes_only(tmp_path):
    with pytest.raises(ConfigError, match="episode 1: has no behavior_probs, unlike earlier ones"):
        Trajectories.of([with_probs(GOOD), GOOD]).save(tmp_path / "flat")


@pytest.mark.parametrize(
    "actions", [np.zeros(4, F4), np.zeros((4, 2), np.int64), np.zeros((4, 2, 2), F4)]
)
def test_actions_are_real_rows_or_whole_choices(actions):
    with pytest.raises(ConfigError, match=r"episode 9: .* floats or \[T\] integers"):
        check_episode(GOOD._replace(actions=actions), 9)


def test_choices_where_rows_came_first(tmp_path):
    with pytest.raises(ConfigError, match=r"episode 1: actions are \[4, 2\], must be \[T\]$"):
        Trajectories.of([episode(4, 0, discrete=True), GOOD]).save(tmp_path / "flat")


def test_no_episodes(tmp_path):
    with pytest.raises(ConfigError, match="there are no episodes"):
        Trajectories.of([]).save(tmp_path / "flat")
