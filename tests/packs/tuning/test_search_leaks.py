"""Defects planted in what a search publishes: each is found by `privrl tune --audit leaks`."""

import pytest

import privrl_bench as pb
from privrl_bench.audit import leaks
from privrl_bench.cli.main import main
from privrl_bench.config.overrides import later_wins
from privrl_bench.packs.tuning import trials, tune_runs
from privrl_bench.packs.tuning.tune_runs import publish

SEARCH = [
    *("algo=dppg", "env=cartpole", "algo.hidden=[4]", "privacy.users_per_round=3", "privacy.z=1"),
    *("env.user_steps=16", "env.max_episode_steps=30", "eval.episodes=2"),
    *("algo.lr=loguniform(1e-3,1e-2)", "tune.score_range=[0,30]", "tune.score_users=3"),
]


MORE_SEARCHES = ("tune.score=public", "tune.runs=fixed(3)")


def searched(*words):
    """The report, of the search alone."""
    report = pb.tune_leaks(later_wins(SEARCH, words)).report
    return [name for name in report.undeclared if name.startswith("search ")], report


@pytest.fixture(autouse=True)
def search_alone(monkeypatch):
    """Searches are tested without the late rounds of one of their runs, to save time."""
    real = leaks.find_leaks
    monkeypatch.setattr(leaks, "find_leaks", lambda *args: real(*args, late=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), *(pytest.param((x,), marks=pytest.mark.slow) for x in MORE_SEARCHES)], ids=str
)
def test_a_search_without_a_defect(words):
    given = [word for word in SEARCH if not (words == ("tune.score=public",) and "score_" in word)]
    report = pb.tune_leaks(later_wins(given, words)).report
    assert report.ok, report.lines()
    assert "a search of 3 runs with the user in each" in "\n".join(report.lines())


@pytest.mark.slow
def test_a_search_that_is_scored_by_private_returns(monkeypatch):
    def score(search, job):
        return trials.read_lines(job.folder / "metrics.jsonl")[-1]["train/entropy"]

    monkeypatch.setattr(trials, "_score_of", score)
    found, _ = searched()
    assert "search summary.json search" in found


@pytest.mark.slow
def test_a_search_that_publishes_its_number_of_runs(monkeypatch):
    def published(folder, *args):
        found = publish(folder, *args)
        count = len(list((folder / "trials").iterdir()))
        tune_runs.write_json(folder / "summary.json", found | {"steps": count})
        return found

    monkeypatch.setattr(tune_runs, "publish", published)
    found, report = searched()
    assert found == ["search summary.json steps"]
    assert report.found[found[0]].substitute == "fewer runs, 2"


@pytest.mark.slow
def test_a_search_that_says_that_it_had_one_run(monkeypatch):
    def published(folder, source, *args):
        found = publish(folder, source, *args)
        if len(list((folder / "trials").iterdir())) == 1:
            tune_runs.write_json(folder / "summary.json", found | {"solved": 1})
        return found

    monkeypatch.setattr(tune_runs, "publish", published)
    found, report = searched()
    assert found == ["search summary.json solved"]
    assert report.found[found[0]].substitute == "fewer runs, 1"


@pytest.mark.slow
def test_a_search_that_publishes_rows_of_the_kept_run(monkeypatch):
    def published(folder, source, *args):
        (folder / "rows.txt").write_text((source / "metrics.jsonl").read_text())
        return publish(folder, source, *args)

    monkeypatch.setattr(tune_runs, "publish", published)
    found, _ = searched()
    assert found == ["search file rows.txt"]


@pytest.mark.slow
def test_the_command(capsys):
    """It ends with 0 where nothing is found. The gate itself may refuse what a run sends."""
    words = [word for word in SEARCH if "score_" not in word]
    assert main(["tune", "--audit", "leaks", *words, *MORE_SEARCHES]) == 0
    assert "verdict  formal: no path around the gate" in capsys.readouterr().out
