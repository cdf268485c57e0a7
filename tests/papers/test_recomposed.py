"""Committed rows: the overrides of a row give its digest, or the row says which version made it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity
from privrl_bench.papers.pages import write_results
from privrl_bench.papers.pages.store import BEFORE
from privrl_bench.papers.pages.write_results import difference
from privrl_bench.reporting.run_loader import MADE_AT, RUNS_FILE, digest_of
from privrl_bench.training.plan import make_plan

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "outputs" / "paper"
FILES = sorted(PAPER.rglob(RUNS_FILE))
WORDS = "algo=dppg env=hopper privacy.epsilon=8 eval.every=200_000"


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def row() -> dict[str, str]:
    """What a results store has of a run that was made today."""
    (config,) = make_plan([compose([*WORDS.split(), "seed=3"])]).given
    settings = {"privacy.z": config.privacy.z, "rounds": config.rounds, "privacy.clip": 0.75}
    return {
        **{"run": "dppg/hopper/epsilon=8,seed=3", "seed": "3", "overrides": WORDS, "commit": ""},
        **{"digest": digest_of(identity(config)), "settings": json.dumps(settings)},
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_row_gives_its_digest_or_says_what_made_it(file: Path) -> None:
    """If defaults have changed on purpose: python -m privrl_bench.papers.pages.write_results --mark."""
    found = {row["run"]: difference(row) for row in rows(file) if not row.get(MADE_AT)}
    assert {run: what for run, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"overrides": WORDS.replace("200", "400")}, "digest"),
        ({"overrides": f"{WORDS} privacy.clop=1"}, "composed"),
        ({"seed": "7"}, "digest"),
        ({"digest": "v2:0123456789abcdef"}, "digest"),
        ({"settings": '{"privacy.z":0.7500001}'}, "digest"),
    ],
)
def test_a_corrupted_row_is_found(row: dict[str, str], change: dict[str, str], what: str) -> None:
    assert difference(row) == ""
    assert what in difference({**row, **change})


def test_pages_say_which_rows_are_not_current() -> None:
    pages = [page.read_text() for page in write_results.pages()]
    assert sum(f"were made at `{BEFORE}`" in page for page in pages) == 1
    old = [
        file.parent
        for file in FILES
        if {row.get(MADE_AT) or "" for row in rows(file)} - {"", BEFORE}
    ]
    assert old
    for item in old:
        name = f"outputs/paper/dppg/{item.name}/"
        assert any(name in page and "runs are not current" in page for page in pages), name


def test_rows_are_marked_by_a_command(row: dict[str, str], tmp_path: Path) -> None:
    changed = [{**row, "seed": "4"}, {**row, "seed": "5", "commit": "0123456789"}]
    with (tmp_path / RUNS_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*row, MADE_AT])
        writer.writeheader()
        writer.writerows([{**row, MADE_AT: ""}, *({**one, MADE_AT: ""} for one in changed)])
        writer.writerow({**row, MADE_AT: BEFORE})
    for _ in range(2):
        assert write_results.mark(tmp_path) == 3
        marks = [one[MADE_AT] for one in rows(tmp_path / RUNS_FILE)]
        assert marks == ["", "unknown", "01234567", BEFORE]
