"""What pages show of the results store; that they are up to date is checked by `write_results --check`."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.papers.pages import store
from privrl_bench.papers.pages import write_results as script
from privrl_bench.papers.pages.dppg import share


def test_findings_have_the_numbers_of_the_tables() -> None:
    pages = {page: page.read_text() for page in script.pages()}
    tables = [table.read_text() for table in (script.ROOT / "outputs/paper").rglob("table.md")]
    tables += [block[3] for text in pages.values() for block in script.BLOCK.finditer(text)]
    known = " ".join("\n".join(tables).split())
    for page, text in pages.items():
        if page.parent.name == "results":
            written = script.BLOCK.sub("", text.partition("\n## ")[0])
            found = re.findall(r"-?[\d.,]+ (?:± [\d.e+]*\d|\(-?\d[\d.]* to -?[\d.]+\))", written)
            assert [one for one in found if one not in known] == [], page.name


def test_known_numbers_are_shown() -> None:
    assert "24 are inside the interval that judges them, 14 above it and 6 below it" in (
        script.BLOCKS["state/sentence"]()
    )
    row = "| CartPole | 0.1 | 37,376 | 2.4M | 10 | 500.0 ± 0.0 | 491.1 | 500.0 ± 0.0 | 100% |"
    assert row in script.BLOCKS["readme"]()
    assert (
        "| PriMORL High, z = 0.5 | 778.9 ± 53.5 | 5.1 | 865 ± 103 | 3.26 (4.4) |"
        in script.BLOCKS["primorl/table1"]()
    )


def test_runs_of_one_program_share_its_hours(monkeypatch) -> None:
    pair = [SimpleNamespace(summary={"wall_seconds": 5400}, provenance={"trained_together": 2})] * 2
    alone = SimpleNamespace(summary={"wall_seconds": 1800}, provenance={"trained_together": 1})
    monkeypatch.setattr(store, "stored", lambda item: [*pair, alone])
    assert store.core_hours("dppg/fig1") == "2.0"


def test_output_of_a_command_is_pasted_as_a_terminal_shows_it(tmp_path) -> None:
    page = "<!-- printed columns=80 first=2: privrl explain nix -->\n\n\n<!-- /printed -->"
    filled = script.with_outputs(page, tmp_path)
    assert "-->\n\n    error: RUN: there is no nix; name a run folder\n\n<!--" in filled
    fixed = page.replace("columns=80", "at=abc").replace("\n\n\n", "\n\n    text\n\n")
    assert script.with_outputs(fixed, tmp_path) == fixed
    assert script.kept("a\nb\nc\n", {"first": "1", "last": "1"}) == "    a\n    ...\n    c\n"


@pytest.mark.slow
def test_changed_numbers_are_replaced_and_unknown_blocks_are_reported(
    tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "docs").mkdir()
    readme = tmp_path / "README.md"
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for name in ("figures.draw", "figures.problems", "row_problems"):  # of the committed store
        monkeypatch.setattr(f"{script.__name__}.{name}", lambda *_: [])
    monkeypatch.setattr(script, "BLOCKS", {"a/b": lambda: "7", "a/c": lambda: "| x |\n|---|"})
    monkeypatch.setattr("sys.argv", ["write_results"])
    readme.write_text(
        "is <!-- results:a/b -->6<!-- /results -->\n<!-- results:a/c --><!-- /results -->"
    )
    assert script.main() == 0
    assert readme.read_text() == (
        "is <!-- results:a/b -->7<!-- /results -->\n"
        "<!-- results:a/c -->\n| x |\n|---|\n<!-- /results -->"
    )
    readme.write_text(readme.read_text().replace(">7<", ">8<"))
    monkeypatch.setattr("sys.argv", ["write_results", "--check"])
    assert script.main() == 1
    assert "differs README.md" in capsys.readouterr().out
    readme.write_text("<!-- results:a/d -->6<!-- /results --> <!-- results:a/b -->")
    assert script.main() == 2
    shown = capsys.readouterr().err
    assert "no function for the block a/d" in shown
    assert "no block for the function a/c" in shown
    assert "a marker is not closed" in shown


def test_the_interval_of_a_share_is_that_of_the_gains_where_the_whole_does_not_vary() -> None:
    gains, whole = np.array([1.0, 2.0, 3.0]), np.full(3, 4.0)
    mean, half = mean_ci(gains / 4)
    assert share(gains, whole) == f"{100 * mean:.0f} ± {100 * half:.0f} %"
    assert share(whole, gains).startswith("200 ± 248")  # the relative error is the same
