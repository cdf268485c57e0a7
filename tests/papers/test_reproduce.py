"""Reproductions: the shipped items are sound, missing runs are made, finished ones are not made again."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.recorded import RecordedUsers
from privrl_bench.papers import reproduce
from privrl_bench.papers.items import Paper, Setting, papers
from privrl_bench.papers.items import paper as paper_of
from privrl_bench.papers.paper_item import Cell, PaperTable, judged, verdict
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.reporting.runs import Run
from privrl_bench.training import sweep as jobs
from privrl_bench.training.sweep import Outcome
from privrl_bench.users import kind_of

PAPERS = list(papers().values())


# Words with a number in them, of which a figure has many: one of each is composed.
NUMBERS = ("privacy.z=", "privacy.epsilon=", "privacy.population=", "algo.lr=", "algo.dual_lr=")


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
@pytest.mark.parametrize("scale", ["smoke", "short", "paper"])
def test_every_run_of_every_item_composes(path, scale) -> None:
    paper = Paper(path)
    seen = {}
    for name in paper.items():
        for setting in paper.item(name, scale).settings():
            words = tuple(w for w in setting.words if not w.startswith(NUMBERS))
            keys = {(setting.env, words[0])}  # what a scale adds is in every run of an algorithm
            if scale == "smoke":
                keys.add(words)
            if not keys <= set(seen):
                seen |= dict.fromkeys(keys, compose(setting.overrides(0)))
    assert len(seen) > 4
    if scale == "smoke":
        live = [run for run in seen.values() if kind_of(run) is not RecordedUsers]
        # Rounds are episodes of CartPole.
        longest = [(run.rounds or 0) * 500 or run.total_steps for run in live]
        assert max(longest, default=0) <= 35_000
        sizes = [run.privacy.users_per_round * (run.env.user_steps or 1) for run in live]
        assert all(run.rounds or run.total_steps >= n for run, n in zip(live, sizes, strict=True))
        assert all(
            (run.rounds or 99) <= 5 for run in seen.values() if kind_of(run) is RecordedUsers
        )


def test_a_run_is_the_one_that_the_command_would_make(tmp_path) -> None:
    """An epsilon without a z is a target, as on the command line, not a budget for the z of a file."""
    words = ("algo=dp_lstd", "data.policy=uniform", "privacy.population=100", "privacy.epsilon=0.1")
    job, other = reproduce.unfinished([Setting("chain", words, 2)], tmp_path)
    run = compose(Setting("chain", words, 2).overrides(1))
    assert job.config.privacy == other.config.privacy == run.privacy
    assert run.privacy.z is None
    assert (job.config.rounds, job.config.fit_population) == (run.rounds, run.fit_population)


def test_a_runs_folder_is_the_one_that_the_command_would_use() -> None:
    setting = Setting("cartpole", ("algo=dppg", "paper=dppg", "privacy.z=1"), 2)
    assert setting.key(3) == "dppg/cartpole/z=1,paper=dppg,seed=3"


TINY = {
    "paper": "A paper",
    "scales": {"smoke": {"seeds": 2, "words": ["eval.episodes=2", "log.plot=false"]}},
    "items": {
        "table1": {
            "title": "Table 1",
            "rows": [
                [
                    "cartpole",
                    "DPPG",
                    10.0,
                    5.0,
                    ["algo=dppg", "paper=dppg", "total_steps=1024"],
                    None,
                ],
                [
                    "riverswim",
                    "UCB-VI",
                    1.0,
                    0.5,
                    ["algo=ucbvi", "privacy.z=1", "total_steps=60"],
                    None,
                ],
            ],
        },
        "fig1": {
            "title": "Figure 1",
            "picture": "regret",
            "panels": [{"env": "riverswim", "words": ["total_steps=60"], "label": "p = 0.6"}],
            "lines": [{"label": "tree", "words": ["algo=ucbvi"], "sweep": [1, 2], "formal": True}],
        },
        "fig3": {"title": "Figure 3", "picture": "accounting", "facts": {"deltas": [1e-5]}},
        "fig4": {"title": "Figure 4", "picture": "riverswim"},
        "fig8": {"title": "Figure 8", "picture": "curves", "like": "table1"},
    },
}


@pytest.mark.slow
def test_missing_runs_are_made_once_and_everything_is_compared(
    tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    paper = Paper(tmp_path / "tiny.yaml")
    assert reproduce.reproduce(paper, paper.items(), "smoke", None, tmp_path, False) == 0
    shown = capsys.readouterr().out
    assert "sweep   6 jobs" in shown
    assert "Of 2 cells: " in shown
    root = tmp_path / "tiny" / "smoke"
    for name in ("fig1", "fig3", "fig4", "fig8"):
        assert (root / name / "figure.png").stat().st_size > 10_000
        assert (root / name / "figure.svg").exists()
        assert "data:image/png" in (root / name / "index.html").read_text()
    text = (root / "table1" / "table.md").read_text()
    assert "10.0 ± 5.0" in text
    assert "push where the pole falls" in text
    assert "heuristic" in text
    assert (root / "table1" / "table.tex").exists()
    # Two seeds of three settings: the figure's z = 1 is the table's run.
    assert len(list(root.rglob("status.json"))) == 6

    handed = []
    monkeypatch.setattr(reproduce, "run_jobs", lambda jobs: handed.extend(jobs) or [])
    assert reproduce.reproduce(paper, paper.items(), "smoke", None, tmp_path, False) == 0
    assert handed == []


@pytest.mark.parametrize("code", [130, 143])
def test_after_an_interruption_no_report_is_written(tmp_path, capsys, monkeypatch, code) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    paper = Paper(tmp_path / "tiny.yaml")
    monkeypatch.setattr(
        reproduce, "run_jobs", lambda part: [jobs.not_started(job, code) for job in part]
    )
    assert reproduce.reproduce(paper, ["fig1"], "smoke", None, tmp_path, False) == code
    assert not (tmp_path / "tiny" / "smoke" / "fig1").exists()
    assert "rerun the same command to resume" in capsys.readouterr().err
    monkeypatch.setattr(reproduce, "run_jobs", lambda part: [Outcome("failed") for job in part])
    assert reproduce.reproduce(paper, ["fig1"], "smoke", None, tmp_path, False) == 1
    assert (tmp_path / "tiny" / "smoke" / "fig1" / "index.html").exists()
    refused = [Outcome("failed", "data.id: no dataset", bad_input=True)] * 3
    monkeypatch.setattr(reproduce, "run_jobs", lambda part: refused)
    with pytest.raises(ConfigError, match=r"data.id: no dataset \(all 3 jobs were refused\)"):
        reproduce.reproduce(paper, ["fig1"], "smoke", None, tmp_path, False)


def test_a_target_epsilon_becomes_the_least_z_of_three_digits() -> None:
    words = ("algo=gpope", "data.policy=uniform", "privacy.population=50", "rounds=4")
    found = Setting("chain", words, 2, 1.0).calibrated()
    *kept, last = found.words
    assert (tuple(kept), found.target) == (words, None)
    z = float(last.removeprefix("privacy.z="))

    def cost(z):
        event = ReleaseEvent(
            "gaussian", z, "replace_one", 1 / 50, 50, 1, sampling="uniform_single_user"
        )
        return ledger_epsilon({event: 4}, 1e-5)

    assert cost(z) <= 1.0 < cost(z - 0.01)
    assert Setting("chain", words, 2).calibrated().words == words
    with pytest.raises(ConfigError, match="target: needs privacy=uniform_single_user"):
        Setting("chain", ("algo=lstd", *words[1:3]), 2, 1.0).calibrated()


def test_points_and_words_of_a_scale(tmp_path) -> None:
    line = {
        "label": "GPOPE",
        "words": ["algo=gpope"],
        "target": 1.0,
        "scaled": {"smoke": ["rounds=5"], "paper": ["rounds=9"]},
        "points": [["privacy.population=10"], ["privacy.population=100"]],
    }
    panel = {"env": "chain", "words": ["data.policy=uniform"], "label": "chain", "lines": [line]}
    content = {
        "paper": "A paper",
        "scales": {
            "smoke": {"seeds": 2, "points": 1, "words": []},
            "paper": {"seeds": 3, "words": []},
        },
        "items": {"fig1": {"title": "T", "picture": "datasize", "panels": [panel]}},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    paper = Paper(tmp_path / "tiny.yaml")
    (one,) = paper.item("fig1", "smoke").settings()
    many = paper.item("fig1", "paper").settings()
    base = ("algo=gpope", "data.policy=uniform")
    assert (one.words, one.target) == ((*base, "rounds=5", "privacy.population=10"), 1.0)
    assert [setting.words[-1] for setting in many] == [
        "privacy.population=10",
        "privacy.population=100",
    ]
    line["scaled"]["paper"] = [["rounds=9"], ["rounds=99", "algo.lr=2"]]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    each = Paper(tmp_path / "tiny.yaml").item("fig1", "paper").settings()
    assert [setting.words[2:-1] for setting in each] == [("rounds=9",), ("rounds=99", "algo.lr=2")]
    line["scaled"]["paper"].pop()
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="scaled: has words for 1 points, the line has 2"):
        Paper(tmp_path / "tiny.yaml").item("fig1", "paper")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["dp-rl-fig2", "--report-only", "--out", "none"], "--out: no runs in none/dp-rl/short"),
        (["dppg-table1", "--out", "/proc/x"], "--out: cannot make the folder /proc/x"),
    ],
)
def test_nothing_to_report_or_nowhere_to_write(words, problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert reproduce.main(words) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_words_that_do_not_exist_are_answered(capsys) -> None:
    main = reproduce.main
    assert main(["dppg-tabel1"]) == 2
    assert "did you mean dppg-table1?" in capsys.readouterr().err
    assert main(["nobody-table1"]) == 2
    assert "allowed: dp-rl-fig2, " in capsys.readouterr().err


def test_verdicts() -> None:
    def run(value):
        return Run(Path("x"), {"status": "done"}, summary={"return": {"mean": value}})

    cell = Cell("cartpole", "PPO", (10.0, 2.0), "want", None)
    for nothing in (None, (math.nan, 1.0)):
        assert judged(replace(cell, paper=nothing), [run(7.0)]) == "-"
    other = replace(cell, comparable=False)
    assert [judged(other, runs) for runs in ([], [run(7.0)])] == ["no run", "not comparable"]
    found = [judged(cell, runs) for runs in ([], [run(7.0)], [run(8.5), run(11.0)], [run(13.0)])]
    assert found == ["no run", "below", "inside", "above"]
    assert verdict(PaperTable("T", [cell]), {"want": [run(7.0)]}) == (
        "Of 1 cells: 0 inside, 0 above, 1 below."
    )


def test_a_line_without_noise_is_not_called_formal(tmp_path) -> None:
    rows = [
        ["pendulum", f"z {z}", 1.0, 1.0, None, ["algo=primorl", f"privacy.z={z}"]] for z in (0, 1)
    ]
    items = {
        "table1": {"title": "Table 1", "rows": rows},
        "fig2": {"title": "Figure 2", "picture": "curves", "like": "table1"},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY | {"items": items}))
    (panel,) = Paper(tmp_path / "tiny.yaml").item("fig2", "smoke").panels
    assert [(line.label, line.formal) for line in panel.lines] == [
        ("z 0", False),
        ("z 1", True),
    ]


def test_facts_of_a_scale_replace_those_of_the_item() -> None:
    paper = paper_of("gpope")
    smoke, whole = (paper.item("table1", scale).facts for scale in ("smoke", "paper"))
    assert smoke["caption"] == whole["caption"]
    assert (smoke["n"], whole["n"]) == ([300], [300, 3000])
