"""Committed rows: the overrides of a row give its settings, or the row says that they do not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from privrl_bench.papers.pages import write_results
from privrl_bench.papers.recomposed import difference
from privrl_bench.reporting.results_store import MADE_AT, RUNS_FILE

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "outputs" / "paper"
FILES = sorted(PAPER.rglob(RUNS_FILE))


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_row_gives_its_recorded_settings_or_says_that_it_does_not(file: Path) -> None:
    """If defaults have changed on purpose: python -m privrl_bench.papers.pages.write_results --mark."""
    found = {row["run"]: (difference(row), row.get(MADE_AT)) for row in rows(file)}
    wrong = [f"{run}: {what}" for run, (what, made_at) in found.items() if what and not made_at]
    fine = [run for run, (what, made_at) in found.items() if made_at and not what]
    assert wrong == []
    assert fine == [], "marked, but their overrides give their settings"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"overrides": "algo=dppg env=hopper privacy.epsilon=8 eval.every=400_000"}, "digest"),
        ({"overrides": "algo=dppg env=hopper privacy.epsilon=8 privacy.clop=1"}, "composed"),
        ({"seed": "7"}, "digest"),
        ({"digest": "v1:0123456789abcdef"}, "digest"),
        ({"settings": '{"privacy.clip":0.7500001}'}, "privacy.clip"),
        ({"env": "walker2d"}, "env.name"),
    ],
)
def test_a_corrupted_row_is_found(change: dict[str, str], what: str) -> None:
    row = next(
        row
        for row in rows(PAPER / "dppg" / "small_epsilon" / RUNS_FILE)
        if row["env"] == "hopper" and "privacy.epsilon=8" in row["overrides"]
    )
    assert difference(row) == ""
    assert what in difference({**row, **change})


def test_pages_say_which_rows_are_not_current() -> None:
    pages = [page.read_text() for page in write_results.pages()]
    marked = [file.parent for file in FILES if any(row.get(MADE_AT) for row in rows(file))]
    assert marked
    for item in marked:
        name = f"outputs/paper/dppg/{item.name}/"
        assert any(name in page and "runs are not current" in page for page in pages), name


def test_rows_are_marked_by_a_command(tmp_path, monkeypatch) -> None:
    lines = (PAPER / "dppg" / "formal" / RUNS_FILE).read_text().splitlines(keepends=True)
    old = "".join(lines[:2]).replace(",made_at\n", "\n").replace(",01c768b3\n", "\n")
    (tmp_path / RUNS_FILE).write_text(old)
    assert write_results.mark(tmp_path) == 1
    assert (tmp_path / RUNS_FILE).read_text() == "".join(lines[:2])
