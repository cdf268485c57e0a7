import importlib.util
import json
import os
import weakref

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import BOX, CHOICE, TORQUE, assert_same, by_minari, episode, fields, some, with_probs

from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets import minari_files
from privrl_bench.packs.offline.datasets.minari_files import (
    flatten_steps,
    local_ids,
    open_dataset,
    write_minari,
)

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "sets"


def caches(folder):
    return sorted(path.name for path in folder.glob("flat-*"))


# --- round trip


@pytest.mark.parametrize("discrete", [False, True])
def test_what_is_written_comes_back(root, discrete):
    users = ["ann", "eve", "bob", "ann", "joe"]
    made = [e._replace(user=u) for e, u in zip(some(5, discrete), users, strict=True)]
    card = {"users": "real", "algorithm_name": "sac", "q": [1.5, 2.0], "env_kwargs": {"g": 9}}
    env_id = "Pendulum-v1"
    folder = write_minari(
        "own/test-v0", iter(made), env_id, BOX, CHOICE if discrete else TORQUE, card
    )
    assert folder == root / "own" / "test-v0"
    assert local_ids() == ["own/test-v0"]
    back = open_dataset("own/test-v0")
    for k, one in enumerate(made):
        assert_same(back.episode(k), one)
    assert back.users.tolist() == [0, 1, 2, 0, 3]
    about = back.card.pop("minari")
    assert back.card == card
    assert (about["dataset_id"], about["total_steps"]) == ("own/test-v0", 20)
    assert (back.actions.ndim, back.actions.dtype) == ((1, int) if discrete else (2, np.float32))


def test_minari_reads_what_is_written():
    write_minari(
        "test-v3",
        some(),
        "Pendulum-v1",
        BOX,
        TORQUE,
        {"algorithm_name": "sac", "users": "simulated"},
    )
    assert list(minari.list_local_datasets()) == ["test-v3"]
    dataset = minari.load_dataset("test-v3")
    assert dataset.spec.total_episodes == 5
    assert dataset.env_spec.id == "Pendulum-v1"
    assert dataset.storage.metadata["algorithm_name"] == "sac"
    for k, one in enumerate(dataset.iterate_episodes()):
        made = episode(2 + k, k)
        np.testing.assert_array_equal(one.observations, made.observations)
        np.testing.assert_array_equal(one.actions, made.actions)
        np.testing.assert_array_equal(one.terminations, made.terminated)
        assert dataset.observation_space.contains(one.observations[0])
        assert f"total_steps={2 + k}" in repr(one)


def test_probabilities_are_in_the_infos_of_minari(root):
    made = [with_probs(e) for e in some(5, discrete=True)]
    write_minari("known-v0", iter(made), None, BOX, CHOICE, {"users": "simulated"})
    back = open_dataset("known-v0")
    for k, one in enumerate(made):
        assert_same(back.episode(k), one)
    for k, one in enumerate(minari.load_dataset("known-v0").iterate_episodes()):
        kept = one.infos["behaviour_probabilities"]  # of the reset, then of every step
        assert np.isnan(kept[0])
        np.testing.assert_array_equal(kept[1:], made[k].behavior_probs)


def test_invalid_probabilities_are_named(root):
    infos = {"behaviour_probabilities": np.ones(4, F4)}  # without the reset's
    by_minari(root, "test-v0", [fields(GOOD, infos=infos)])
    with pytest.raises(
        ConfigError, match=r"episode 0: behavior_probs are \[3\], but there are 4 rewards"
    ):
        open_dataset("test-v0")
    bad = GOOD._replace(behavior_probs=np.zeros(4, F4))
    with pytest.raises(ConfigError, match=r"episode 0: behavior_probs must be in \(0, 1\]"):
        write_minari("zero-v0", [bad], None, BOX, TORQUE, {"users": "simulated"})


def test_an_environment_that_gymnasium_does_not_know():
    write_minari("test-v0", some(), "dosing-1", BOX, TORQUE, {"users": "simulated"})
    assert minari.load_dataset("test-v0").env_spec is None
    assert open_dataset("test-v0").episodes == 5


def test_spaces_are_written_flat():
    nested = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float64), "b": spaces.Box(0, 1, (1, 1))})
    write_minari("test-v0", some(), None, nested, spaces.Box(-1, 1, (1, 2)), {"users": "simulated"})
    dataset = minari.load_dataset("test-v0")
    assert (dataset.observation_space.shape, dataset.action_space.shape) == ((3,), (2,))


def test_numbers_are_cast():
    made = episode(3, 0)
    wide = made._replace(
        observations=made.observations.astype(float),
        rewards=np.arange(3),
        terminated=made.terminated.astype(int),
    )
    write_minari("test-v0", [wide], None, BOX, TORQUE, {"users": "simulated"})
    assert_same(open_dataset("test-v0").episode(0), made._replace(rewards=np.arange(3, dtype="f4")))
    wide.observations[0] = 1e300
    with pytest.raises(ConfigError, match="episode 0: observations have non-finite values"):
        write_minari("test-v1", [wide], None, BOX, TORQUE, {"users": "simulated"})


def test_the_writer_holds_few_episodes():
    alive = most = 0

    def gone():
        nonlocal alive
        alive -= 1

    def made():
        nonlocal alive, most
        for k in range(300):
            one = episode(2, k)
            weakref.finalize(one.observations, gone)
            alive += 1
            most = max(most, alive)
            yield one

    write_minari("test-v0", made(), None, BOX, TORQUE, {"users": "simulated"})
    assert most <= 3
    assert open_dataset("test-v0").episodes == 300


# --- what the writer refuses


def test_an_id_is_taken_once(root):
    write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
    with pytest.raises(ConfigError, match=r"^data.id: test-v0 exists already at .*; choose"):
        write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})


@pytest.mark.parametrize("bad", ["test", "a b-v0", "", "/test-v0"])
def test_malformed_ids(bad):
    with pytest.raises(ConfigError, match=r"^data.id: must have the form name-v0"):
        write_minari(bad, some(), None, BOX, TORQUE, {"users": "simulated"})


@pytest.mark.parametrize(
    ("made", "observation_space", "action_space", "message"),
    [
        ([], BOX, TORQUE, "there are no episodes"),
        ([episode(0, 0)], BOX, TORQUE, "episode 0: has no steps"),
        (some(), spaces.Box(0, 1, (4,)), TORQUE, "observations have 3 numbers, must have 4"),
        (some(), BOX, spaces.Box(0, 1, (3,)), r"actions are \[2, 2\], must be \[T, 3\]"),
        (some(), BOX, CHOICE, r"actions are \[2, 2\], must be \[T\]"),
        (some(discrete=True), BOX, spaces.Discrete(3), "episode 0: actions outside 0 to 2"),
        (some(), BOX, spaces.MultiDiscrete([2, 2]), "must be in a Box or Discrete space, not"),
        (some(), spaces.Sequence(BOX), TORQUE, "elements of no fixed size"),
    ],
)
def test_what_cannot_be_written(root, made, observation_space, action_space, message):
    with pytest.raises(ConfigError, match=f"^data.id: .*{message}"):
        write_minari(
            "own/test-v0", made, None, observation_space, action_space, {"users": "simulated"}
        )
    assert local_ids() == []
    assert list((root / "own").iterdir()) == []


# --- what the reader refuses


def test_a_dataset_that_is_not_there():
    with pytest.raises(ConfigError, match=r"^data.id: no dataset 'mine/x-v0' in .*; `minari list"):
        open_dataset("mine/x-v0")
    with pytest.raises(
        ConfigError, match=r"; `minari download D4RL/x-v0` fetches it, if it is pub"
    ):
        open_dataset("D4RL/x-v0")
    write_minari("own/pendulum-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
    with pytest.raises(ConfigError, match=r"did you mean own/pendulum-v0\?") as caught:
        open_dataset("pendulum-v0")
    assert "\n" not in str(caught.value)


GOOD = episode(4, 0)
F4 = np.float32
BAD = {
    "episode 1: observations have non-finite values": {"observations": np.full((5, 3), np.nan, F4)},
    "episode 1: observations have 5 numbers": {"observations": np.zeros((5, 5), F4)},
    "episode 1: missing: observations": {"observations": None},
    "episode 1: rewards.*: could not convert": {"rewards": ["a", "b", "c", "d"]},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_episodes_are_named(root, message):
    bad = fields(GOOD, **BAD[message])
    folder = by_minari(root, "test-v0", [fields(GOOD), bad, fields(GOOD)])
    with pytest.raises(ConfigError, match=f"^data.id: {message}"):
        open_dataset("test-v0")
    assert caches(folder) == []


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminations"])
def test_missing_fields(root, name):
    folder = by_minari(root, "test-v0", [fields(GOOD), fields(GOOD)])
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_1/{name}"]
    with pytest.raises(ConfigError, match=f"^data.id: episode 1: missing: {name}$"):
        open_dataset("test-v0")


def test_datasets_that_make_no_sense(root):
    by_minari(root, "empty-v0", [])
    with pytest.raises(ConfigError, match="there are no episodes"):
        open_dataset("empty-v0")
    by_minari(root, "multi-v0", [], action_space=spaces.MultiDiscrete([2, 2]))
    with pytest.raises(ConfigError, match="must be in a Box or Discrete space"):
        open_dataset("multi-v0")
    by_minari(
        root, "high-v0", [fields(episode(9, 0, discrete=True))], action_space=spaces.Discrete(2)
    )
    with pytest.raises(ConfigError, match="episode 0: actions outside 0 to 1"):
        open_dataset("high-v0")
    states = fields(GOOD, observations=np.array([0, 1, 2, 9, 0]))
    by_minari(root, "state-v0", [states], observation_space=spaces.Discrete(3))
    with pytest.raises(ConfigError, match="episode 0: observations: a choice outside its space"):
        open_dataset("state-v0")


def test_damaged_files(root):
    folder = write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"}) / "data"
    whole = (folder / "main_data.hdf5").read_bytes()
    (folder / "main_data.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"^data.id: test-v0 cannot be read: .*truncated"):
        open_dataset("test-v0")
    (folder / "metadata.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^data.id: test-v0 cannot be read: Expecting") as found:
        open_dataset("test-v0")
    assert "\n" not in str(found.value)


def test_a_version_or_format_that_is_not_supported(root):
    path = (
        write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
        / "data"
        / "metadata.json"
    )
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "minari_version": "9.0.0"}))
    with pytest.raises(ConfigError, match=r"cannot be read: The installed Minari version"):
        open_dataset("test-v0")
    path.write_text(json.dumps({**about, "data_format": "stone"}))
    with pytest.raises(ConfigError, match="cannot be read: 'stone'"):
        open_dataset("test-v0")


# --- spaces and formats

PARTS = {
    "pos": spaces.Box(-1, 1, (2, 2)),
    "goal": spaces.Discrete(3, start=1),
    "inner": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
}


def stacked(space, elements):
    """Elements of a space as Minari keeps them."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, [e[key] for e in elements]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [e[i] for e in elements]) for i, part in enumerate(space))
    return list(elements) if isinstance(space, spaces.Text) else np.stack(elements)


SPACES = st.recursive(
    st.sampled_from([*PARTS.values(), BOX, spaces.Box(0, 255, (), np.uint8), spaces.Text(4)]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
    ),
    max_leaves=4,
)


@settings(max_examples=50)
@given(SPACES, st.integers(1, 4), st.integers(0, 99))
def test_steps_are_flattened_as_gymnasium_does(space, count, seed):
    space.seed(seed)
    elements = [space.sample() for _ in range(count)]
    expected = np.stack([spaces.flatten(space, e) for e in elements]).astype(np.float32)
    np.testing.assert_array_equal(flatten_steps(space, stacked(space, elements)), expected)


PLAIN = spaces.Dict(PARTS)
WITH_TEXT = spaces.Dict({"text": spaces.Text(3, min_length=3), **PARTS})
WITH_IMAGE = spaces.Dict({"image": spaces.Box(0, 255, (32, 32, 3), np.uint8), "x": BOX})


@pytest.mark.parametrize("space", [PLAIN, WITH_TEXT, WITH_IMAGE, spaces.Discrete(5)])
def test_observations_of_any_space(root, space):
    space.seed(0)
    made = [episode(4, 0), episode(2, 1)]
    seen = [[space.sample() for _ in range(len(e.rewards) + 1)] for e in made]
    raw = [
        fields(e, observations=stacked(space, s), infos={"x": np.zeros(len(e.rewards))})
        for e, s in zip(made, seen, strict=True)
    ]
    by_minari(root, "test-v0", raw, observation_space=space)
    minari.load_dataset("test-v0").storage.update_episode_metadata([{"user": 7}] * 2)
    back = open_dataset("test-v0")
    assert back.user_count == 1
    for k, elements in enumerate(seen):
        assert_same(back.episode(k)._replace(observations=made[k].observations), made[k])
        if space is WITH_IMAGE:  # Minari's JPEG loses details
            assert back.episode(k).observations.shape == (len(elements), 3 * 32 * 32 + 3)
            continue
        expected = np.stack([spaces.flatten(space, e) for e in elements])
        np.testing.assert_array_equal(back.episode(k).observations, expected.astype(F4))


def test_missing_fields_where_minari_reads(root):
    raw = fields(GOOD, observations=stacked(WITH_TEXT, [WITH_TEXT.sample() for _ in range(5)]))
    folder = by_minari(root, "test-v0", [raw, raw], observation_space=WITH_TEXT)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/truncations"]
    with pytest.raises(ConfigError, match=r"episode 1: missing: .*truncations"):
        open_dataset("test-v0")


@pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="needs pyarrow")
@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_other_formats(root, data_format):
    made = list(some())
    by_minari(root, "test-v0", [fields(e) for e in made], data_format=data_format)
    back = open_dataset("test-v0")
    for k, one in enumerate(made):
        assert_same(back.episode(k), one)
    infos = {"behaviour_probabilities": np.ones(len(made[0].rewards) + 1)}
    by_minari(root, "scalars-v0", [fields(made[0], infos=infos)], data_format=data_format)
    with pytest.raises(ConfigError, match="scalars-v0 cannot be read"):
        open_dataset("scalars-v0")


@pytest.mark.skipif(
    bool(importlib.util.find_spec("pyarrow")), reason="needs an installation without pyarrow"
)
def test_a_package_that_is_not_installed(root):
    path = (
        write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
        / "data"
        / "metadata.json"
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_format": "arrow"}))
    with pytest.raises(ConfigError, match="cannot be read: pyarrow is not installed"):
        open_dataset("test-v0")


# --- the cache


def must_not_run(*_):
    raise AssertionError("read again")


def test_a_dataset_is_read_once(monkeypatch):
    folder = write_minari("test-v0", some(), None, BOX, TORQUE, {"a": 1, "users": "simulated"})
    first = open_dataset("test-v0")
    monkeypatch.setattr(minari_files, "_imported", must_not_run)
    monkeypatch.setattr(h5py, "File", must_not_run)
    second = open_dataset("test-v0")
    np.testing.assert_array_equal(first.observations, second.observations)
    assert second.card["a"] == 1
    assert len(caches(folder)) == 1


def test_changed_data_are_read_again():
    folder = write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
    assert open_dataset("test-v0").episodes == 5
    before = caches(folder)
    minari.load_dataset("test-v0").storage.update_episodes(
        [minari.data_collector.EpisodeBuffer(**fields(GOOD))]
    )
    assert open_dataset("test-v0").episodes == 6
    assert len(caches(folder)) == 1
    assert caches(folder) != before
    # The same size and metadata, another time.
    before = caches(folder)
    data = folder / "data" / "main_data.hdf5"
    os.utime(data, ns=(0, data.stat().st_mtime_ns + 1))
    open_dataset("test-v0")
    assert len(caches(folder)) == 1
    assert caches(folder) != before


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    folder = write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert open_dataset("test-v0").episodes == 5
    assert caches(folder) == []
    assert len(caches(tmp_path / "cache" / "privrl_bench")) == 1
    monkeypatch.setattr(minari_files, "_imported", must_not_run)
    assert open_dataset("test-v0").episodes == 5


def test_two_that_open_at_once(monkeypatch):
    write_minari("test-v0", some(), None, BOX, TORQUE, {"users": "simulated"})
    read = minari_files._imported

    def slow(dataset_id, data):
        monkeypatch.setattr(minari_files, "_imported", read)
        open_dataset(dataset_id)
        return read(dataset_id, data)

    monkeypatch.setattr(minari_files, "_imported", slow)
    assert open_dataset("test-v0").episodes == 5
