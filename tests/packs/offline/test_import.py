"""Logs in a table as a dataset: against a slow reading of the same rows, and logs that are broken."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privrl_bench as pb
from privrl_bench.cli.main import main
from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import DataConfig, EnvConfig
from privrl_bench.envs.registry import env_spec
from privrl_bench.packs.offline.datasets.minari_files import datasets_root, local_ids, open_dataset
from privrl_bench.packs.offline.stored_users import open_data
from privrl_bench.training.plan import make_plan

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("datasets")
COLUMNS = {"user": "id", "order": "t", "obs": "a,b", "act": "act", "reward": "r", "done": "end"}
ANSWERS = {"users": "simulated", "steps": 6, "last_observation": "repeat"}
RANGES = {"a": {"low": 0, "high": 9}, "b": ["x", "y"], "act": ["lo", "hi"]}


def rows_of(users: int = 4, episodes: int = 2, steps: int = 3) -> list[dict]:
    """Of each user `episodes` episodes of `steps` steps, counted on."""
    rng = np.random.default_rng(0)
    return [
        {
            "id": f"u{user}",
            "t": t,
            "a": round(float(rng.uniform(0, 9)), 3),
            "b": str(rng.choice(["x", "y"])),
            "act": str(rng.choice(["lo", "hi"])),
            "r": round(float(rng.normal()), 3),
            "end": t % steps == steps - 1,
            "e": t // steps,
            "p": 0.5,
        }
        for user in range(users)
        for t in range(episodes * steps)
    ]


def write(path: Path, rows: list[dict]) -> Path:
    """In the format of the suffix."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(source, name: str = "clinic/logs-v1", **more):
    found = pb.import_logs(source, **{"name": name, "ranges": RANGES, **COLUMNS, **ANSWERS, **more})
    return found, open_dataset(found.name, "auto")


def slowly(rows: list[dict], drop: bool = False) -> list[tuple]:
    """Episodes (user, observations, actions, rewards, terminated), a user after the other."""
    found = []
    for user in dict.fromkeys(row["id"] for row in rows):
        steps = sorted((row for row in rows if row["id"] == user), key=lambda row: row["t"])
        episode: list[dict] = []
        for row in steps:
            episode.append(row)
            if row["end"] or row.get("cut"):
                seen = [[one["a"], one["b"] == "x", one["b"] == "y"] for one in episode]
                acting = episode[:-1] if drop and not row["end"] else episode
                seen += [seen[-1]] if acting is episode else []
                acted = [("lo", "hi").index(one["act"]) for one in acting]
                found.append((user, seen, acted, [one["r"] for one in acting], row["end"]))
                episode = []
    return found


def check(data, expected: list[tuple]) -> None:
    assert data.episodes == len(expected)
    names = list(dict.fromkeys(user for user, *_ in expected))
    assert data.users.tolist() == [names.index(user) for user, *_ in expected]
    for k, (_, seen, acted, rewards, terminated) in enumerate(expected):
        one = data.episode(k)
        np.testing.assert_array_equal(one.observations, np.array(seen, np.float32))
        assert one.actions.tolist() == acted
        np.testing.assert_array_equal(one.rewards, np.array(rewards, np.float32))
        assert bool(one.terminated[-1]) == terminated


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_every_format_gives_the_episodes_of_its_rows(suffix: str, tmp_path: Path) -> None:
    rows = rows_of()
    found, data = made(write(tmp_path / f"logs{suffix}", rows))
    check(data, slowly(rows))
    assert (found.users, found.episodes, found.steps) == (4, 8, 24)
    assert local_ids() == ["clinic/logs-v1"]
    assert data.card["minari"]["users"] == "simulated"


def test_frames_are_tables(tmp_path: Path) -> None:
    rows = rows_of()
    frame = pytest.importorskip("pandas").DataFrame(rows)
    for k, table in enumerate((frame, pa.Table.from_pylist(rows))):
        _, data = made(table, f"clinic/t{k}-v1")
        check(data, slowly(rows))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), drop=st.booleans(), parts=st.integers(1, 3))
def test_rows_in_any_order_in_any_number_of_files(seed, drop, parts, tmp_path_factory) -> None:
    rng, rows = np.random.default_rng(seed), rows_of(3, 2, 4)
    for row in rows:
        row["cut"] = bool(row["end"] and rng.random() < 0.5)
        row["end"] = row["end"] and not row["cut"]
    mixed = [rows[k] for k in rng.permutation(len(rows))]
    folder = tmp_path_factory.mktemp("logs")
    files = [
        write(folder / f"{k}.csv", part.tolist())
        for k, part in enumerate(np.array_split(np.array(mixed, object), parts))
    ]
    answers = {"truncated": "cut", "last_observation": "drop" if drop else "repeat"}
    _, data = made(files, f"clinic/s{seed}d{int(drop)}p{parts}n{folder.name[-1]}-v1", **answers)
    check(data, slowly(mixed, drop))


def test_tables_larger_than_what_is_in_memory_at_once(tmp_path: Path, monkeypatch) -> None:
    from privrl_bench.packs.offline.logs import steps, tables

    monkeypatch.setattr(tables, "_ROWS", 5)
    monkeypatch.setattr(steps, "_PART", 7)
    rows = rows_of(users=9)
    _, data = made(write(tmp_path / "logs.parquet", rows))
    check(data, slowly(rows))


def test_episodes_that_a_column_names_and_steps_that_begin_anew(tmp_path: Path) -> None:
    rows = rows_of()
    expected = slowly(rows)
    for row in rows:
        row["t"] %= 3
    _, data = made(write(tmp_path / "logs.csv", rows), episode="e")
    check(data, expected)
    _, data = made(
        write(tmp_path / "logs.csv", rows),
        "clinic/b-v1",
        episode="e",
        done="",
        open_end="truncated",
    )
    assert not data.terminated.any()


def test_times_are_an_order(tmp_path: Path) -> None:
    rows = rows_of()
    for row in rows:
        row["t"] = f"2026-01-01 00:00:{row['t']:02d}"
    _, data = made(write(tmp_path / "logs.csv", rows))
    check(data, slowly(rows))


def test_an_order_with_a_decimal_point_and_a_gap_that_is_allowed(tmp_path: Path) -> None:
    rows = rows_of()
    rows[2]["t"] = 2.0
    _, data = made(write(tmp_path / "logs.csv", rows))
    check(data, slowly(rows))
    rows.pop(1)
    _, data = made(write(tmp_path / "logs.csv", rows), "clinic/b-v1", gaps="allow")
    check(data, slowly(rows))


def test_ranges_are_those_of_the_public_users_alone(tmp_path: Path) -> None:
    rows = rows_of(users=10)
    found, data = made(write(tmp_path / "a.csv", rows), "clinic/a-v1", ranges=None, public=0.3)
    from privrl_bench.packs.offline.datasets.trajectories import split_users

    public = split_users(data, 0.3).public
    mine = np.concatenate([data.episode(int(k)).observations[:, 0] for k in public])
    assert found.proposed
    assert found.ranges["a"]["low"] == pytest.approx(mine.min())
    assert found.ranges["a"]["high"] == pytest.approx(mine.max())
    private = next(row for row in rows if float(np.float32(row["a"])) not in mine)
    private["a"] = 1e6  # changes nothing that is public
    again, _ = made(write(tmp_path / "b.csv", rows), "clinic/b-v1", ranges=None, public=0.3)
    assert again.ranges == found.ranges


def test_rows_outside_the_ranges_are_counted(tmp_path: Path) -> None:
    found, _ = made(
        write(tmp_path / "logs.csv", rows_of()), ranges={**RANGES, "a": {"low": 2, "high": 5}}
    )
    count = sum(not 2 <= row["a"] <= 5 for row in rows_of())
    assert found.outside == {"a": count}
    assert f"outside  a: {count:,} rows outside its range" in found.lines()


def test_probabilities_of_the_actions_are_kept(tmp_path: Path) -> None:
    _, data = made(write(tmp_path / "logs.csv", rows_of()), behavior_prob="p")
    assert data.behavior_probs is not None
    assert set(data.behavior_probs.tolist()) == {0.5}


def test_numbers_are_actions_of_a_box(tmp_path: Path) -> None:
    rows = rows_of()
    numbers = {"a": RANGES["a"], "b": RANGES["b"], "r2": {"low": -9, "high": 9}}
    for row in rows:
        row["r2"] = row["r"]
    _, data = made(write(tmp_path / "logs.csv", rows), act="r2", ranges=numbers)
    assert data.actions.shape == (24, 1)
    assert data.actions.dtype == np.float32


def at(k: int, **values):
    """Changes row k, counted from 1."""

    def change(rows: list[dict]) -> None:
        rows[k - 1].update(values)

    return change


def without(name: str):
    def change(rows: list[dict]) -> None:
        for row in rows:
            del row[name]

    return change


BROKEN = {
    "user missing": (at(2, id=""), {}, "row 2: id is missing"),
    "user blank": (at(2, id=" "), {}, "row 2: id is empty"),
    "order missing": (at(3, t=""), {}, "row 3: t is missing"),
    "order a word": (at(3, t="soon"), {}, "row 3: t must be"),
    "order infinite": (at(1, t="inf"), {}, "row 1: t must be"),
    "order twice": (at(3, t=1), {}, "row 3: t is that of row 2, too"),
    "a step is missing": (lambda rows: rows.pop(1), {}, "row 2: t is 2 after 0: a step is missing"),
    "nan": (at(5, a="nan"), {}, "row 5: a must be a finite number, got nan"),
    "infinite reward": (at(5, r="-inf"), {}, "row 5: r must be a finite number, got -inf"),
    "too large": (at(5, r=1e39), {}, "row 5: r must be a finite number, got 1e+39"),
    "a word for a number": (at(4, a="high"), {}, "row 4: a must be a number, got 'high'"),
    "a comma": (at(4, a="1,5"), {}, "row 4: a must be a number, got '1,5'"),
    "no number": (at(4, a=""), {}, "row 4: a is missing"),
    "reward missing": (at(24, r=""), {}, "row 24: r is missing"),
    "end is a number": (at(6, end=2), {}, "row 6: end must be true or false, 1 or 0, got '2'"),
    "end missing": (at(6, end=""), {}, "row 6: end is missing"),
    "no end": (
        at(6, end=False),
        {},
        "row 6: is the last one of its user and does not end an episode",
    ),
    "an early end": (at(2, end=True), {"episode": "e"}, "row 2: end is true before the last step"),
    "an unknown word": (at(7, b="z"), {}, "row 7: b is 'z', not one of x, y"),
    "an unknown action": (at(7, act="no"), {}, "row 7: act is 'no', not one of lo, hi"),
    "action missing": (at(7, act=""), {}, "row 7: act is missing"),
    "probability 0": (at(8, p=0), {"behavior_prob": "p"}, "row 8: p must be in (0, 1], got 0"),
    "probability 2": (at(8, p=2), {"behavior_prob": "p"}, "row 8: p must be in (0, 1], got 2"),
    "no such column": (without("r"), {}, "has no column 'r'; it has id, t, a, b, act, end, e, p"),
    "a typo": (lambda rows: None, {"reward": "act1"}, "has no column 'act1' (did you mean act?)"),
    "a column twice": (
        lambda rows: None,
        {"reward": "a"},
        "the column 'a' is named for two things",
    ),
    "no end at all": (lambda rows: None, {"done": ""}, "--done: say what ends an episode"),
    "whose users": (
        lambda rows: None,
        {"users": "both"},
        "--users: must be one of real, simulated",
    ),
    "a name": (lambda rows: None, {"name": "logs"}, "--name: "),
    "a share": (lambda rows: None, {"public": 1.0}, "--public: must be above 0 and below 1"),
    "a long episode": (
        lambda rows: None,
        {"steps": 2},
        "row 3: is step 3 of an episode of 3; --steps is 2",
    ),
    "no steps": (lambda rows: None, {"steps": 0}, "--steps: must be an integer >= 1, got 0"),
    "no option": (
        lambda rows: None,
        {"gap": "allow"},
        "gap: is no option of import (did you mean gaps?)",
    ),
    "one step": (
        lambda rows: rows.__setitem__(slice(0, 2), []),
        {"done": "", "truncated": "end", "last_observation": "drop"},
        "row 1: is a truncated episode of one step, of which drop leaves none",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_logs_are_one_line_that_names_the_row(kind: str, tmp_path: Path) -> None:
    change, words, text = BROKEN[kind]
    rows = rows_of()
    change(rows)
    with pytest.raises(pb.ConfigError) as caught:
        made(write(tmp_path / "logs.csv", rows), **words)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert local_ids() == []


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("logs.csv", b"", "is empty"),
        ("logs.xlsx", b"x", "must be a file that ends in"),
        ("logs.parquet", b"PAR1 no", "cannot be read"),
        ("logs.jsonl", b'{"id": 1\n', "cannot be read"),
        ("logs.csv", b"id,t,a,b,act,r,end\n", "there are no rows"),
        ("logs.csv", b"id,t,a,b,act,r,end\n1,2\n", "cannot be read"),
        ("logs.csv", b"id,t,a,a,b,act,r,end\n1,2,3,3,x,lo,1,1\n", "has more than one column 'a'"),
        ("logs.csv", "id,t,a,b,act,r,end\n1,0,1,\xe9,lo,1,1\n".encode("latin-1"), "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(name, content, text, tmp_path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(pb.ConfigError) as caught:
        made(tmp_path / name)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"aa": [1]}, "'aa' is in neither --obs nor --act, which have a"),
        ({"a": [0, 1]}, "has no entry for b, act"),
        ({**RANGES, "a": {"low": 2, "high": 1}}, "a: must be {low: number, high: number}"),
        ({**RANGES, "b": ["x", "x"]}, "b: must be"),
        ({**RANGES, "a": 5}, "a: must be"),
    ],
)
def test_wrong_ranges_are_one_line(entry, text, tmp_path) -> None:
    with pytest.raises(pb.ConfigError, match=r"^--ranges: ") as caught:
        made(write(tmp_path / "logs.csv", rows_of()), ranges=entry)
    assert text in str(caught.value)


def test_the_command_prints_what_was_made_and_a_name_is_taken_once(tmp_path, capsys) -> None:
    file = write(tmp_path / "logs.csv", rows_of())
    words = "--user id --order t --obs a,b --act act --reward r --done end --users real --steps 6"
    line = ["import", str(file), *words.split(), "--last-observation", "repeat"]
    assert main([*line, "--name", "clinic/logs-v1"]) == 2
    assert "--public: which share of the real users is public?" in capsys.readouterr().err
    assert main([*line, "--name", "clinic/logs-v1", "--public", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "imported 24 steps in 8 episodes of 4 users\n" in out
    assert "of the public users; change them with --ranges" in out
    assert "observes a, b=x, b=y\nactions  0 is hi, 1 is lo\n" in out
    assert "data.id=clinic/logs-v1 data.public=0.5 privacy.noise=secure log=none\n" in out
    assert main([*line, "--name", "clinic/logs-v1", "--public", "0.5"]) == 2
    assert "clinic/logs-v1 exists already at" in capsys.readouterr().err


def test_minari_files_have_the_same_episodes_and_card(tmp_path) -> None:
    file = write(tmp_path / "logs.csv", rows_of())
    _, ours = made(file, "clinic/a-v1", behavior_prob="p")
    _, theirs = made(file, "clinic/b-v1", behavior_prob="p", minari=True)
    assert (datasets_root() / "clinic/b-v1/data/main_data.hdf5").is_file()
    assert theirs.card["logs"] == ours.card["logs"]
    assert theirs.users.tolist() == ours.users.tolist()
    np.testing.assert_array_equal(theirs.behavior_probs, ours.behavior_probs)
    for k in range(ours.episodes):
        np.testing.assert_array_equal(theirs.episode(k).observations, ours.episode(k).observations)
        assert theirs.episode(k).actions.tolist() == ours.episode(k).actions.tolist()


@pytest.mark.parametrize("minari", [False, True])
def test_the_environment_of_a_dataset_is_what_the_dataset_says(tmp_path, minari) -> None:
    made(write(tmp_path / "logs.csv", rows_of()), minari=minari)
    spec = env_spec(EnvConfig(name="logs", kind="logs", id="clinic/logs-v1", obs_scaling="none"))
    assert (spec.obs_dim, spec.discrete, spec.actions, spec.max_episode_steps) == (3, True, 2, 6)
    assert spec.observation_space.high.tolist() == [9.0, 1.0, 1.0]


def test_fewer_public_users_than_gave_the_ranges_are_refused(tmp_path) -> None:
    rows = rows_of(users=10)
    made(write(tmp_path / "logs.csv", rows), ranges=None, public=0.3)
    spec = env_spec(EnvConfig(name="logs", kind="logs", id="clinic/logs-v1", obs_scaling="none"))
    for share, users in ((0.2, None), (0.3, 5)):
        with pytest.raises(pb.ConfigError, match=r"data\.public: the ranges of .* 3 public users"):
            open_data(DataConfig(id="clinic/logs-v1", public=share, users=users), spec)
    with pytest.raises(pb.ConfigError, match=r"data\.user_key: .* null makes others public"):
        open_data(DataConfig(id="clinic/logs-v1", public=0.5, user_key=None), spec)
    assert open_data(DataConfig(id="clinic/logs-v1", public=0.3), spec).public_users == 3
    words = ["algo=dp_lspi", "env=logs", "data.id=clinic/logs-v1", "data.public=0.3", "log=none"]
    notes = make_plan([compose(words)]).gate.guarantee(0).notes
    assert "their data give the scaling, the ranges and choices of the columns" in notes["dataset"]


LEARN = "algo=dp_bc env=logs data.public=0.1 privacy.z=0 rounds=2 privacy.users_per_round=9"
TURNED = {"a": {"low": 0, "high": 9}, "b": ["y", "x"], "act": ["hi", "lo"]}


def learned(tmp_path: Path, name: str, ranges: dict, **more) -> pb.Run:
    made(write(tmp_path / "logs.csv", rows_of(users=30)), name, ranges=ranges, **more)
    folder = tmp_path / "runs" / name[-2:]
    return pb.run(f"{LEARN} log=none data.id={name} hydra.run.dir={folder}")


def test_a_policy_of_logs_acts_on_columns_by_name(tmp_path) -> None:
    run = learned(tmp_path, "test/logs-v0", TURNED)
    policy = pb.load_policy(run.folder)
    by_name = [policy.act({"b": b, "a": 2.5}, greedy=True) for b in "xy"]
    numbers = policy.act([[2.5, 0.0, 1.0], [2.5, 1.0, 0.0]], greedy=True)
    assert by_name == [("hi", "lo")[k] for k in numbers]
    assert policy.act([{"a": 2.5, "b": "x"}, {"a": 2.5, "b": "y"}], greedy=True) == by_name
    for wrong, text in (
        ({"a": 1.0}, "takes the columns a, b; got a"),
        ({"a": 1.0, "b": "z"}, "b must be one of y, x, got 'z'"),
        ({"a": 1.0, "b": "x", "c": 0}, "got a, b, c"),
        ({"a": None, "b": "x"}, "a must be a number, got None"),
    ):
        with pytest.raises(ValueError, match=text):
            policy.act(wrong)
    with pytest.warns(UserWarning, match="a=12 is outside its range, 0 to 9"):
        policy.act({"a": 12, "b": "x"})
    files = {"privrl_bench.json": ""}
    torch.jit.load(pb.export(run.folder, "torchscript"), _extra_files=files)
    about = json.loads(files["privrl_bench.json"])
    assert (about["obs_names"], about["action_names"]) == (["a", "b=y", "b=x"], ["hi", "lo"])


def test_actions_of_numbers_have_the_names_of_their_columns(tmp_path) -> None:
    ranges = {"a": RANGES["a"], "b": RANGES["b"], "p": {"low": 0, "high": 1}}
    run = learned(tmp_path, "test/logs-v0", ranges, act="p")
    (column, number), *none = pb.load_policy(run.folder).act({"a": 2.5, "b": "x"}).items()
    assert (column, none, 0 <= number <= 1) == ("p", [], True)


def test_a_policy_of_other_names_is_refused_for_a_dataset(tmp_path) -> None:
    run = learned(tmp_path, "test/logs-v0", TURNED)
    made(tmp_path / "logs.csv", "test/logs-v1")
    words = ["algo=dp_fqe", "env=logs", "data.id=test/logs-v1", "data.public=0.1"]
    with pytest.raises(pb.ConfigError, match="does not fit the policy: a, b=x, b=y there, a, b=y"):
        pb.plan([*words, f"algo.target={run.folder}"])
