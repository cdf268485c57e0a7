"""Users of a Minari dataset: the metadata key that names them, and errors."""

import importlib.util
import json
import shutil

import minari
import numpy as np
import pytest
from gymnasium import spaces
from recorded import BOX, TORQUE, assert_same, by_minari, episode, fields, some

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.minari_files import (
    datasets_root,
    open_dataset,
    write_minari,
)
from privrl_bench.packs.offline.datasets.user_keys import labels_of, may_name_users, users_of
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan

PATIENTS = ["a", "b", "a", "c", "b", "a"]
FORMATS = ["hdf5", *(["arrow"] if importlib.util.find_spec("pyarrow") else [])]


@pytest.fixture(scope="module", params=FORMATS)
def sets(request, tmp_path_factory):
    """Datasets whose six episodes name three users in several ways, written by Minari."""
    root = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        for name, metadata in {
            "plain-v0": [{} for _ in PATIENTS],
            "ours-v0": [{"user": p} for p in PATIENTS],
            "theirs-v0": [{"patient": p, "run": f"r{k}"} for k, p in enumerate(PATIENTS)],
            "numbers-v0": [{"patient": ord(p)} for p in PATIENTS],
            "both-v0": [{"user": p, "site": k % 2} for k, p in enumerate(PATIENTS)],
            "partly-v0": [{"patient": p} if p != "c" else {"x": 1} for p in PATIENTS],
            "partly_ours-v0": [{"user": p} if p != "c" else {"x": 1} for p in PATIENTS],
            "harmless-v0": [
                {"gain": 0.5, "ok": k > 1, "version": "1", "run": f"r{k}"} for k in range(6)
            ],
        }.items():
            made = [fields(e) for e in some(6)]
            by_minari(root, name, made, data_format=request.param)
            minari.load_dataset(name).storage.update_episode_metadata(metadata)
        yield root


def numbers(name, *key):
    return open_dataset(name, *key).users.tolist()


NAMED, OWN = [0, 1, 0, 2, 1, 0], list(range(6))


def test_the_key_of_ours_names_users_by_itself(sets):
    found = open_dataset("ours-v0")
    assert (found.users.tolist(), found.user_key) == (NAMED, "user")
    both = open_dataset("both-v0")
    assert (both.users.tolist(), both.user_key) == (NAMED, "user")
    for k, made in enumerate(some(6)):
        assert_same(found.episode(k), made)


def test_another_key_that_repeats_is_refused_until_it_is_named(sets):
    for name in ("theirs-v0", "numbers-v0"):
        with pytest.raises(ConfigError) as caught:
            open_dataset(name)
        said = str(caught.value)
        assert said.startswith(f"data.user_key: no episode of {name} has the metadata key 'user'")
        assert "the values of 'patient' repeat and may name users" in said
        assert "data.user_key=patient" in said
        assert "data.user_key=null" in said
        assert "\n" not in said
        assert numbers(name, "patient") == NAMED
        assert numbers(name, None) == OWN


def test_keys_of_one_value_of_all_values_and_real_numbers_are_no_alarm(sets):
    for name in ("plain-v0", "harmless-v0"):
        found = open_dataset(name)
        assert (found.users.tolist(), found.user_key) == (OWN, None)
    assert numbers("ours-v0", None) == OWN


def test_a_key_that_is_missing_is_named(sets):
    with pytest.raises(ConfigError, match=r"^data.user_key: 5 of the 6 episodes of partly-v0 have"):
        open_dataset("partly-v0", "patient")
    with pytest.raises(ConfigError, match=r"^data.user_key: 5 of the 6 .* the metadata key 'user'"):
        open_dataset("partly_ours-v0")
    with pytest.raises(ConfigError, match=r"the values of 'patient' repeat"):
        open_dataset("partly-v0")
    for key in ("patients", "user", "seed"):  # `seed` is Minari's own
        with pytest.raises(ConfigError, match=rf"^data.user_key: 0 of the 6 .* key '{key}'"):
            open_dataset("theirs-v0", key)
    with pytest.raises(ConfigError, match=r"did you mean patient\?"):
        open_dataset("theirs-v0", "patients")
    assert numbers("partly-v0", None) == numbers("partly_ours-v0", None) == OWN


def test_the_writer_names_all_users_or_none(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = [e._replace(user="a") if k else e for k, e in enumerate(some(3))]
    with pytest.raises(ConfigError, match=r"2 of 3 episodes name their user: all or none"):
        write_minari("own/test-v0", made, None, BOX, TORQUE, {"users": "simulated"})
    assert not list((tmp_path / "own").iterdir())


def test_labels_are_single_values():
    seen = {
        "id": 3,
        "options": {"a": 1},
        "options/b": 2,
        "name": b"ann",
        "number": np.array([7]),
        "nan": float("nan"),
        "inner": {"seed": np.int32(4), "list": [1]},
    }
    options = {"options/a": 1, "options/b": 2}
    assert labels_of(seen) == {"name": "ann", "number": 7, "inner/seed": 4, **options}
    known = {"a": [1, 1, None], "b": [None, "x", None], "c": [1, 2.5, 1], "d": [True, False, True]}
    assert [key for key, values in known.items() if may_name_users(values)] == ["a"]
    assert may_name_users([1.0, 2.0, 1.0, None])  # as pandas writes them
    assert users_of({"u": [1, "1", 2]}, 3, "u", "x")[0].tolist() == [0, 0, 1]


def test_the_user_of_reset_is_a_user():
    """`reset(options={"user": k})`: Minari keeps the options."""
    played = {"options/user": [4, 2, 4, 2], "options/length": [1.0, 1.0, 2.0, 2.0]}
    numbers, key = users_of(played, 4, "auto", "x")
    assert (numbers.tolist(), key) == ([0, 1, 0, 1], "options/user")
    both = played | {"user": ["a", "b", "c", "d"]}
    assert users_of(both, 4, "auto", "x")[1] == "user"
    with pytest.raises(ConfigError, match="the values of 'options/length' repeat"):
        users_of({"options/length": [1.0, 1.0, 2.0, 2.0]}, 4, "auto", "x")


# --- a run


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """20 users with three episodes each, named by `patient`."""
    root = tmp_path_factory.mktemp("pendulum")
    obs, torque = spaces.Box(-10.0, 10.0, (3,)), spaces.Box(-2.0, 2.0, (1,))
    made = [episode(6, k) for k in range(60)]
    made = [e._replace(actions=e.actions[:, :1]) for e in made]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        by_minari(root, "mine-v0", [fields(e) for e in made], obs, torque)
        whose = [{"patient": f"p{k % 20}"} for k in range(60)]
        storage = minari.load_dataset("mine-v0").storage
        storage.update_episode_metadata(whose)
        storage.update_metadata({"users": "simulated"})
        yield "mine-v0"


WORDS = (
    *("algo=primorl", "env=pendulum", "env.max_episode_steps=6", "data.public=0.1", "log=none"),
    *("rounds=3", "privacy.users_per_round=5", "algo.hidden=[8]", "algo.model_hidden=[6]"),
)


def test_the_plan_says_who_the_users_are(pendulum, tmp_path, capsys):
    from privrl_bench.cli.train import main

    folder = tmp_path / "run"
    words = [*WORDS, f"data.id={pendulum}", f"hydra.run.dir={folder}", "plan_only=true"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr().err
    assert said.startswith("error: data.user_key: no episode of mine-v0 has the metadata key")
    assert said.count("\n") == 1
    assert not folder.exists()
    with pytest.raises(SystemExit, match="0"):
        main([*words, "data.user_key=patient"])
    said = capsys.readouterr().out
    assert "  data    18 private users (54 episodes, user key 'patient'), 2 public\n" in said
    assert "N = 18, " in (folder / "plan.json").read_text()


def test_an_epsilon_is_that_of_the_users(pendulum):
    def parts_of(key):
        return make_plan([compose([*WORDS, f"data.id={pendulum}", f"data.user_key={key}"])])

    named, own = parts_of("patient"), parts_of("null")
    assert (named.users.data.users, own.users.data.users) == (18, 54)
    assert named.gate.guarantee(0).epsilon > own.gate.guarantee(0).epsilon
    assert named.gate.unit.text.startswith("all trajectories of one user, up to 3,")
    assert own.gate.unit.text.startswith("one trajectory")
    assert "'patient' names the users" in named.gate.guarantee(0).notes["dataset"]
    assert "each episode is a user" in own.gate.guarantee(0).notes["dataset"]
    assert describe_plan(named, 0)["data"] == named.users.data.describe()
    assert own.users.data.describe().endswith("each a user), 6 public")


# --- seeded noise, whose seed is published with the run


PENDULUM = ("privacy.z=2", "data.user_key=patient")
UNKNOWN = (
    r"^privacy\.noise: mine-v0 does not say that its users are simulated, and the seed of seeded noise is "
    "published with the run; use secure, or, if they are simulated, say so once: "
)
MARK = r"minari.load_dataset('mine-v0').storage.update_metadata({'users': 'simulated'})"


def metadata_of(name, monkeypatch, tmp_path, **changes):
    """A copy of a dataset whose metadata have these entries; None: not."""
    root = tmp_path / "sets"
    shutil.copytree(datasets_root(), root)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    path = root / name / "data" / "metadata.json"
    known = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in known.items() if v is not None}))


def built(name, *words):
    return make_plan([compose(later_wins([*WORDS, *PENDULUM, f"data.id={name}"], words))])


@pytest.mark.fast_every(6)
@pytest.mark.parametrize("said", [None, "real", "Simulated", "people", ["simulated"], True])
def test_seeded_noise_needs_a_card_that_says_simulated(pendulum, said, monkeypatch, tmp_path):
    """The run was `formal` with a note, whatever the dataset was."""
    assert "seeded noise" in built(pendulum).gate.notes
    metadata_of(pendulum, monkeypatch, tmp_path, users=said)
    refused = "^privacy.noise: the users of mine-v0 are real, and .* use secure$"
    with pytest.raises(ConfigError, match=UNKNOWN if said != "real" else refused) as found:
        built(pendulum)
    assert str(found.value).endswith("secure" if said == "real" else MARK)
    built(pendulum, "privacy.noise=secure")
    built(pendulum, "privacy.z=0")  # no noise, and no promise
    built(pendulum, "algo=mopo", "privacy.z=0", "privacy.noise=seeded")
    eval(MARK, {"minari": minari})  # as the message says
    built(pendulum)


@pytest.mark.parametrize(
    "words", [("algo=dp_lsw", "privacy.epsilon=1"), ("algo=dp_lstd",), ("algo=gpope",)]
)
def test_evaluations_of_unknown_users_are_refused_alike(words, monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = [episode(6, k, discrete=True) for k in range(20)]
    made = [
        e._replace(observations=np.ones((7, 4), np.float32), actions=e.actions % 2) for e in made
    ]
    seen = spaces.Box(-10.0, 10.0, (4,))
    by_minari(tmp_path, "own-v0", [fields(e) for e in made], seen, spaces.Discrete(2))
    words = [
        *words,
        "env=cartpole",
        "data.id=own-v0",
        "data.policy=uniform",
        "env.obs_scaling=none",
    ]
    with pytest.raises(ConfigError, match=r"^privacy.noise: own-v0 does not say"):
        make_plan([compose([*words, "algo.features=linear", "log=none"])])


def test_what_collect_records_says_that_its_users_are_simulated(monkeypatch, tmp_path):
    from privrl_bench.packs.offline.collect import main

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    limit = "env.max_episode_steps=20"
    words = ["env=pendulum", limit, "runs=2", "steps=400", "name=old/ddpg-v0", "algo.hidden=[8]"]
    assert main(words) == 0
    content = json.loads((tmp_path / "sets/old/ddpg-v0/data/metadata.json").read_text())
    assert content["users"] == content["privrl_bench"]["card"]["users"] == "simulated"
    card = json.loads((tmp_path / "outputs/collect/old-ddpg-v0/card.json").read_text())
    assert card["users"] == "simulated"
    given = [*WORDS, "data.id=old/ddpg-v0", "privacy.z=2", limit]
    assert "seeded noise" in make_plan([compose(later_wins(given))]).gate.notes


def test_a_written_card_says_who_the_users_are(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for card in ({}, {"users": "some"}):
        with pytest.raises(ValueError, match="'simulated' or 'real'"):
            write_minari("own/test-v0", [episode(4, 0)], None, BOX, TORQUE, card)
    assert not list(tmp_path.iterdir())
