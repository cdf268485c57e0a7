"""`privrl explain`, and what of a guarantee stays on the terminal."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Terminal

import privrl_bench as pb
from privrl_bench.cli.console import print_table
from privrl_bench.cli.main import main
from privrl_bench.privacy.guarantee import Guarantee, meaning

LONG = "words " * 40
GUARANTEE = Guarantee(
    16.6755,
    1e-5,
    "one simulated user: 64 steps",
    "central",
    "zero-out",
    {"shared critic": f"no noise {LONG}", "carried-over environment": f"segments {LONG}"},
    {"scope": f"not timing {LONG}", "seeded noise": "an adversary without the seed"},
)


def folder_of(path: Path, **changes: object) -> Path:
    plan = {
        **{"algo": "dppg", "env": "cartpole", "seed": 3, "z": 1.0, "epsilon_paper": 5.0004},
        **{"rounds": 12, "releases_per_user": 9, "users_per_round": 8, "users": None},
        "guarantee": GUARANTEE.to_dict(),
    } | changes
    path.mkdir()
    (path / "plan.json").write_text(json.dumps(plan))
    (path / "status.json").write_text('{"status": "planned"}')
    return path


def test_a_run_says_its_guarantee_in_one_sentence() -> None:
    unit = "one simulated user: 64 steps"
    formal = replace(GUARANTEE, epsilon=1.0, caveats={})
    assert formal.sentence() == (
        "epsilon 1 at delta 1e-05, formal: with or without one user's contribution no result is more than "
        f"e^1 = 2.719 times as likely, plus 1e-05; unit: {unit}"
    )
    other = replace(formal, adjacency="replace-one").sentence()
    assert "formal: whatever one user's data are, no result" in other
    large = GUARANTEE.sentence()
    assert large.startswith("epsilon 16.68 at delta 1e-05, heuristic: ")
    huge = replace(formal, epsilon=284.4).sentence()
    assert "no result is more than e^284.4 times as likely, plus" in huge
    assert large.endswith("; not covered: shared critic, carried-over environment")
    assert replace(formal, epsilon=math.inf).sentence().startswith("not private")


def test_everything_that_was_folded_is_explained(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run")
    assert main(["explain", str(folder)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 120
    whole = " ".join(out.split())
    for name, why in (GUARANTEE.caveats | GUARANTEE.notes).items():
        assert f"{name}: {why}".strip() in whole
    for part in (
        *("dppg on cartpole, z=1, seed 3: planned", "status heuristic", "planned for all rounds"),
        *("notion central: ", "adjacency zero-out: ", "at most 9 of them with one unit"),
        "by the formula of the method's paper: 5.001",
    ):
        assert part in whole


def test_the_status_has_a_colour_on_a_terminal(tmp_path, monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["explain", str(folder_of(tmp_path / "run"))]) == 0
    assert "how well: \x1b[33mheuristic\x1b[0m, " in screen.getvalue()
    print_table(("z", "guarantee"), [("1", "formal"), ("2", "heuristic")])
    rows = screen.getvalue().splitlines()[-2:]
    assert rows == ["1  \x1b[32mformal\x1b[0m", "2  \x1b[33mheuristic\x1b[0m"]


def test_a_finished_run_is_explained_by_its_summary(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run")
    private = GUARANTEE.to_dict() | {"status": "none", "epsilon": math.inf}
    summary = {"algo": "dppg", "env": "cartpole", "seed": 3, "z": None, "guarantee": private}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["explain", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "epsilon inf at delta 1e-05" in out
    assert "from whom: nobody\n  how well: none, there is no bound" in out
    assert "Covered by epsilon\n  nothing\n" in out


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"guarantee": {"epsilon": "abc", "delta": 1e-5}}']
)
def test_a_damaged_summary_of_a_finished_run_is_not_explained_by_the_plan(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "run")
    (folder / "status.json").write_text('{"status": "done"}')
    (folder / "summary.json").write_text(content)
    assert main(["explain", str(folder)]) == 2
    err = capsys.readouterr().err
    assert "summary.json is damaged" in err
    assert err.count("\n") == 1


def explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["explain", str(folder)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_no_epsilon_covers_is_one_list(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run", rounds=500, releases_per_user=500, users_per_round=1)
    text = explained(folder, capsys)
    assert "participation: 500 releases of 1 user, at most 500" in text
    outside = text.partition("Not covered by epsilon")[2].partition("Assumptions")[0]
    names = ("caveat shared critic", "private files", "tuning", "timing", "other runs", "the seed")
    for name in (*names, "several pieces of one person"):
        assert name in outside
    secure = GUARANTEE.to_dict() | {"notes": []}
    assert "the seed" not in explained(folder_of(tmp_path / "secure", guarantee=secure), capsys)


def test_epsilon_is_read_and_the_other_adjacency_has_its_own(tmp_path, capsys) -> None:
    both = {"zero_out": 2.0, "replace_one": 4.3921}
    private = GUARANTEE.to_dict() | {"epsilon": 2.0}
    known = {"epsilon": 2.0, "epsilons": both, "guarantee": private}
    text = explained(folder_of(tmp_path / "run", **known), capsys)
    assert "epsilon 2 at delta 1e-05, zero-out, planned for all rounds" in text
    assert "epsilon 4.393 for adjacency replace-one: neighbouring" in text
    bound = (
        "with or without one user's contribution no result is more than e^2 = 7.39 times as likely"
    )
    assert f"{bound}, plus 1e-05" in text
    # More was released than was planned: the plan's number is no bound of it.
    more = known | {"guarantee": private | {"epsilon": 2.5}}
    assert "for adjacency replace-one" not in explained(folder_of(tmp_path / "b", **more), capsys)
    large = known | {"guarantee": private | {"epsilon": 50.0}}
    assert "excludes almost nothing" in explained(folder_of(tmp_path / "c", **large), capsys)


@pytest.mark.parametrize("epsilon", [1e-4, 0.37, 1.0, 9.99])
def test_the_factor_of_the_odds_is_rounded_up(epsilon) -> None:
    shown = float(meaning(epsilon, 1e-5, "zero-out").rpartition("= ")[2].partition(" ")[0])
    assert math.exp(epsilon) <= shown <= 1.02 * math.exp(epsilon)


def test_the_function_gives_what_the_command_prints(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run")
    found = pb.explain(folder)
    assert explained(folder, capsys) == " ".join(" ".join(found.lines()).split())
    assert found.sections["Guarantee"][1].startswith("status heuristic")
    with pytest.raises(pb.ConfigError, match=r"there is no .*nowhere"):
        pb.explain(tmp_path / "nowhere")


def test_it_says_where_delta_comes_from(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run", users=9344)
    assert "delta=" not in explained(folder, capsys)  # a folder without its words
    (folder / "overrides.txt").write_text("algo=dppg\nprivacy.epsilon=1\n")
    line = "delta=1e-05 (default of the YAML files, the same for every number of users)"
    assert f"{line}; 1 / users is 0.00011" in explained(folder, capsys)
    (folder / "overrides.txt").write_text("privacy.delta=1e-5\n")
    (folder / "identity.json").write_text('{"privacy.population": 50000}')
    assert "delta=1e-05 (given); 1 / users is 2e-05" in explained(folder, capsys)


@pytest.mark.parametrize("broken", [False, True])
def test_a_folder_without_a_run_is_one_line(tmp_path, capsys, broken) -> None:
    if broken:
        (tmp_path / "plan.json").write_text("{")
    assert main(["explain", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: RUN: ")
    assert error.count("\n") == 1
