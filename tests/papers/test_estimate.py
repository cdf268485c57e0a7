"""Core-hours of items, from the speeds of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from privrl_bench.papers import estimate, reproduce
from privrl_bench.papers.items import Paper, Setting
from privrl_bench.reporting.run_loader import load_run, write_results

WORDS = ["algo=dppg", "total_steps=8192"]  # two rounds of 64 users with 64 steps
ITEM = {"title": "T", "rows": [["cartpole", "DPPG", 1, 1, WORDS, None]]}
CURVES = {"title": "F", "picture": "curves", "like": "a"}


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    scales = {"paper": {"seeds": 3, "first_seed": 1000, "words": []}}
    content = {"paper": "P", "scales": scales, "items": {"a": ITEM, "b": CURVES}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    return Paper(tmp_path / "p.yaml")


def finished(folder: Path, steps: int, seconds: float, together: int) -> None:
    """A finished run, as far as its speed goes."""
    folder.mkdir(parents=True)
    texts = {
        "status.json": {"status": "done"},
        "summary.json": {"status": "done", "epsilon": 1.0, "steps": steps}
        | {"steps_per_second": steps / seconds, "guarantee": {"epsilon": 1.0, "delta": 1e-5}},
        "provenance.json": {"trained_together": together, "workers": 1},
        "config.yaml": {"algo": {"name": "dppg"}, "env": {"name": "cartpole"}},
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content))


def test_hours_are_steps_times_the_share_of_the_group_s_seconds(paper: Paper, tmp_path) -> None:
    key = Setting("cartpole", tuple(WORDS), 3, first=1000).key(1000)
    assert key.endswith("seed=1000")
    finished(tmp_path / "p" / "paper" / "runs" / key, 8192, 40.0, together=4)
    first, second = estimate.costs([(paper, ["a", "b"])], "paper", None, tmp_path)
    assert (first.runs, first.finished, first.steps) == (3, 1, 2 * 8192)
    assert first.hours == pytest.approx(2 * 10 / 3600)  # 10 core-seconds a run
    assert (second.runs, second.steps, second.hours) == (3, 0, 0)  # the same runs
    shown = estimate.table([first, second], tmp_path)
    assert "| p-a " in shown
    assert "Not in the sum" not in shown
    write_results({key: load_run(tmp_path / "p" / "paper" / "runs" / key)}, tmp_path / "rows")
    (first,) = estimate.costs([(paper, ["a"])], "paper", None, tmp_path / "rows")
    assert first.hours == pytest.approx(3 * 10 / 3600)  # by the row's speed


def test_a_target_is_found_and_an_order_of_words_is_no_other_run(tmp_path) -> None:
    uniform = ["algo=gpope", "data.policy=uniform", "privacy.population=10", "rounds=2"]
    line = {"label": "l", "target": 1.0, "words": uniform}
    other = {"label": "o", "target": 1.0, "words": [uniform[0], *uniform[:0:-1]]}
    item = {"title": "F", "picture": "datasize", "panels": [
        {"env": "chain", "label": "c", "words": [], "lines": [line, other]}
    ]}  # fmt: skip
    scales = {"paper": {"seeds": 2, "words": []}}
    content = {"paper": "P", "scales": scales, "items": {"a": item}}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(content))
    one = Setting("chain", tuple(uniform), 2, 1.0).calibrated()
    finished(tmp_path / "p" / "paper" / "runs" / one.key(0), 40, 1.0, together=1)
    (found,) = estimate.costs([(Paper(tmp_path / "p.yaml"), ["a"])], "paper", None, tmp_path)
    assert (found.settings, found.finished, found.steps) == (2, 2, 2 * 10 * 20)


def test_an_unknown_speed_is_named_and_is_not_counted_as_nothing(paper: Paper, tmp_path) -> None:
    shown = estimate.table(list(estimate.costs([(paper, ["a"])], "paper", 1, tmp_path)), tmp_path)
    assert "and more" in shown
    assert (
        "Not in the sum: dppg on cartpole: no finished run. To measure speeds: --scale smoke"
        in shown
    )


def test_the_command_runs_nothing(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(reproduce, "run_jobs", lambda jobs: pytest.fail("trained"))
    words = ["dppg-fig4", "gpope-table1", "--scale", "paper", "--estimate", "--out", str(tmp_path)]
    assert reproduce.main(words) == 0
    assert "core-hours" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
