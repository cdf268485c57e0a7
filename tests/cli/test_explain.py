"""`privrl explain`, and what of a guarantee stays on the terminal."""

import json
import math
from pathlib import Path

import pytest

from privrl_bench.cli.main import main
from privrl_bench.privacy.guarantee import Guarantee

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


def test_the_terminal_keeps_the_name_of_every_caveat_and_note_in_three_lines() -> None:
    head, *rest = GUARANTEE.fold("privrl explain x")
    assert head == "epsilon 16.68 at delta 1e-05, status heuristic"
    assert len(rest) <= 3
    assert max(map(len, rest)) < 120
    text = "\n".join(rest)
    for name in (*GUARANTEE.caveats, *GUARANTEE.notes, "privrl explain x", GUARANTEE.unit):
        assert name in text
    assert "caveats shared critic, carried-over environment: not covered by epsilon" in rest


def test_everything_that_was_folded_is_explained(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run")
    assert main(["explain", str(folder)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 110
    whole = " ".join(out.split())
    for name, why in (GUARANTEE.caveats | GUARANTEE.notes).items():
        assert f"{name}: {why}".strip() in whole
    for part in (
        *("dppg on cartpole, z=1, seed 3: planned", "status heuristic", "planned for all rounds"),
        *("notion central: ", "adjacency zero-out: ", "at most 9 of them with one unit"),
        "by the formula of the paper: 5.001",
    ):
        assert part in whole


def test_a_finished_run_is_explained_by_its_summary(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "run")
    private = GUARANTEE.to_dict() | {"status": "none", "epsilon": math.inf}
    summary = {"algo": "dppg", "env": "cartpole", "seed": 3, "z": None, "guarantee": private}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert main(["explain", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "epsilon inf at delta 1e-05" in out
    assert "there is no bound" in out
    assert "Covered by epsilon\n  nothing\n" in out


@pytest.mark.parametrize("broken", [False, True])
def test_a_folder_without_a_run_is_one_line(tmp_path, capsys, broken) -> None:
    if broken:
        (tmp_path / "plan.json").write_text("{")
    assert main(["explain", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: RUN: ")
    assert error.count("\n") == 1
