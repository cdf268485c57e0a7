"""docs/claims.md says what the script computes, and everything it refers to exists."""

import copy
import logging
import math

import pytest
import yaml

from privrl_bench.papers.pages import write_claims as claims

DATA = yaml.safe_load(claims.DATA.read_text())


@pytest.fixture(scope="module")
def page():
    """The page as computed now, once; about ten seconds."""
    logging.disable(logging.WARNING)
    try:
        return claims.render(DATA)
    finally:
        logging.disable(logging.NOTSET)


def cells(page, start):
    """The cells of the row that begins so."""
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.filterwarnings("ignore")
def test_the_committed_page_is_up_to_date(page):
    assert claims.PAGE.read_text() == page, "run: python -m privrl_bench.papers.pages.write_claims"


@pytest.mark.filterwarnings("ignore")
def test_known_answers_are_on_the_page(page):
    second = cells(page, "DPPG, appendix B.1 (second bound)")
    assert second[1:3] == ["≈ 5.0", "1e-5"]
    assert second[4:6] == ["4.3772", "9.9973"]
    assert second[6:8] == ["zero-out only", "**covered**"]
    dosing = [line for line in page.splitlines() if "(Dosing)" in line]
    assert "80.0326" in dosing[0]  # rounded up
    assert "too small" in dosing[0]
    assert "7.5813" in dosing[1]
    curve = cells(page[page.index("## DPPG: epsilon along") : page.index("## Noise without")], "1")
    assert curve[1:7] == ["3.8243", "3.1387", "7.5813", "5.0004", "4.3772", "9.9973"]
    assert curve[7:] == ["13.09", "35.74"]
    low = cells(page, "PriMORL, table 1 (Balance, Low)")
    assert float(low[4]) == pytest.approx(71.75, abs=0.1)
    assert "D&O" in page
    assert "GPOPE" in page


@pytest.mark.filterwarnings("ignore")
def test_every_epsilon_has_a_delta_and_every_claim_a_verdict(page):
    judged = [claims.judge(row) for row in DATA["printed"]]
    verdicts = {claims.COVERED, claims.NOT_COVERED, claims.UNDETERMINED}
    for row in judged:
        assert row["claim"] in verdicts
        assert row.get("infinite") or 0 < row["delta"] < 1
        assert row["why"]
        assert "{" not in row["why"]
        if row["claim"] == claims.COVERED and not row.get("infinite"):
            assert row["zero_out"] <= row["at_most"]
            assert not row.get("outside")
    assert "18 finite epsilons" in page
    assert [row["claim"] for row in judged].count(claims.NOT_COVERED) == 5


@pytest.mark.filterwarnings("ignore")
def test_the_page_has_no_local_names(page):
    for private in ("/work", "/tmp", "/home", "/root", "shared/", "facts"):
        assert private not in page


def test_everything_the_page_refers_to_exists():
    assert claims.missing(DATA) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": ["tests/privacy/test_clip.py::test_that_was_renamed"]}, "no test test_that"),
        ({"tests": ["tests/privacy/test_gone.py"]}, "no file tests/privacy/test_gone.py"),
        ({"module": "privrl_bench/privacy/gone.py"}, "no module"),
        ({"tests": []}, "closed needs a module and a test"),
        ({"fate": "caveat", "name": "caveat that nobody declares"}, "in the source"),
        ({"fate": "not here yet"}, "a fate must be one of closed, caveat, note, limit"),
    ],
)
def test_a_reference_to_nothing_is_reported(change, message):
    data = copy.deepcopy(DATA)
    (fate,) = (f for f in data["holes"][28]["fates"] if f["fate"] == "closed")
    fate.update(change)
    assert any(message in problem for problem in claims.missing(data))


def test_every_hole_has_a_fate():
    data = copy.deepcopy(DATA)
    data["holes"][6]["fates"] = []
    assert claims.missing(data) == ["hole 7: no fate"]


@pytest.mark.filterwarnings("ignore")
def test_every_hole_is_closed_or_a_limit_and_all_are_counted(page):
    kinds = [claims.kinds(hole) for hole in DATA["holes"]]
    assert all(found & {"closed", "limit"} for found in kinds)
    closed = sum("closed" in found for found in kinds)
    assert f"Of the 35, {closed} are closed" in page
    assert f"and {35 - closed} are limits." in page


def test_check_writes_nothing_and_exits_with_1_when_the_page_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(claims, "render", lambda data: "new\n")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setattr(claims, "PAGE", tmp_path / "claims.md")
    monkeypatch.setattr(claims, "missing", lambda data: [])
    monkeypatch.setattr("sys.argv", ["write_claims", "--check"])
    assert claims.main() == 1
    assert not claims.PAGE.exists()
    claims.PAGE.write_text("old\n")
    assert claims.main() == 1
    assert claims.PAGE.read_text() == "old\n"
    monkeypatch.setattr("sys.argv", ["write_claims"])
    assert claims.main() == 0
    monkeypatch.setattr("sys.argv", ["write_claims", "--check"])
    assert claims.main() == 0
    assert "up to date" in capsys.readouterr().out
    monkeypatch.setattr(claims, "missing", lambda data: ["hole 1: no module"])
    assert claims.main() == 2


def test_delta_at_and_rounds_for_invert_what_they_should():
    for z, delta in ((1.0, 1e-5), (0.5, 1e-3), (0.1, 1e-3)):
        exact = claims.gaussian(z, delta, "zero_out")
        assert claims.delta_at(z, exact) == pytest.approx(delta, rel=1e-5)
    assert claims.rounds_for(math.sqrt, 50.0, 1000, 1e-4) == pytest.approx(2500, abs=1)
