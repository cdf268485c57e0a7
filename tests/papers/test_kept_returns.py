"""What is kept of runs until a task is solved, its statistics, and the verdicts that they give."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from test_convergence import a_run

from privrl_bench.papers import convergence as kept
from privrl_bench.papers.convergence import by_setting, keep, kept_runs, table
from privrl_bench.papers.convergence import kept as kept_of
from privrl_bench.papers.pages.state import by_our_interval, interval_of
from privrl_bench.papers.paper_item import Line

ENDS = np.array([10, 20, 30, 40])


def a_kept(returns, solved=None) -> kept.KeptRun:
    return kept.KeptRun("p", "l", "a", 0, solved, 1.0, "none", np.array(returns, float), ENDS)


def test_a_curve_reaches_a_level_at_the_end_of_a_mean_or_never() -> None:
    curve = np.array([1.0, 475.0, 400.0, 500.0])
    assert kept.reaches(475)(curve, ENDS) == 20
    assert kept.reaches(501)(curve, ENDS) == 40  # never: the number of episodes


def test_a_plateau_is_95_percent_of_the_last_100_episodes() -> None:
    ends = np.arange(10, 201, 10)
    curve = np.array([0.0] * 5 + [379.0] * 3 + [380.0] * 2 + [400.0] * 10)
    assert kept.level_at_end(curve, ends) == 400
    assert kept.reaches_plateau(475)(curve, ends) == 90
    assert kept.reaches_plateau(800)(curve, ends) == 90
    assert kept.reaches_plateau(801)(curve, ends) == 200  # less than half is learned: never


def test_the_last_mean_counts_its_episodes_only() -> None:
    values, ends = kept.means_of(np.array([1.0] * 10 + [4.0] * 5))
    assert (values.tolist(), ends.tolist()) == ([1.0, 4.0], [10, 15])
    assert kept.level_at_end(values, ends) == 2.0


def test_the_bootstrap_is_of_the_mean_curve_and_deterministic() -> None:
    fast, slow = [0, 500, 500, 500], [0, 0, 0, 500]
    runs = [a_kept(fast)] * 19 + [a_kept(slow)]
    found = kept.of_mean_curve(runs, kept.reaches(475))
    assert found[0] == 20  # the mean is exactly 475
    assert found == kept.of_mean_curve(runs, kept.reaches(475))
    assert found[1:] == (20, 40)  # two slow runs or more in a quarter of the samples
    same = kept.of_mean_curve([a_kept(slow)] * 5, kept.reaches(475))
    assert same == (40, 40, 40)
    never = kept.of_mean_curve([a_kept([1, 2, 3, 4])] * 3, kept.reaches(475))
    assert never == (40, 40, 40)
    assert np.isnan(kept.of_mean_curve([a_kept(fast)], kept.reaches(475))[1:]).all()


def test_unsolved_runs_count_as_the_last_episode() -> None:
    assert (a_kept([0] * 4).episode, a_kept([0] * 4, 25).episode) == (40, 25)
    assert kept.of_single_runs(np.arange(41)) == (1, 39)


@pytest.mark.parametrize(
    ("paper", "ours", "better", "verdict"),
    [
        (180, (50, 400), "less", "inside"),
        (180, (180, 180), "less", "inside"),
        (400, (250, 390), "less", "above"),  # ours needs fewer episodes
        (400, (410, 500), "less", "below"),
        (1000, (1000, 1000), "less", "inside"),  # both never
        (600, (1000, 1000), "less", "below"),  # ours never
        (0.39, (0.5, 0.9), "none", "below"),
        (0.95, (0.5, 0.9), "none", "below"),  # outside on any side
        (0.55, (0.5, 0.9), "none", "inside"),
    ],
)
def test_our_interval_judges(paper, ours, better, verdict) -> None:
    assert by_our_interval(paper, ours, better) == verdict


def test_intervals_of_tables_are_read_and_other_words_refused() -> None:
    assert interval_of("0.498 to 0.731") == (0.498, 0.731)
    with pytest.raises(ValueError, match="float"):
        interval_of("-")
    with pytest.raises(ValueError, match="better: more"):
        by_our_interval(1, (0, 2), "more")


def test_the_table_from_what_is_kept_is_the_table_from_the_runs(tmp_path) -> None:
    facts = {"window": 3, "target": 10.0, "held": 20.0, "episodes": 25}
    climb = list(range(25))
    runs = {
        "a": [a_run(tmp_path, [9, 10, 11]), a_run(tmp_path, climb)],
        "b": [a_run(tmp_path, [1, 2, 3, 4, 5] * 5)],
    }
    panels = [SimpleNamespace(label="task", lines=[Line(k, True, [k]) for k in "abc"])]
    picture = SimpleNamespace(panels=panels, facts=facts | {"kept": "other"})
    shown = kept_of(picture, runs)
    keep(picture, shown, tmp_path)
    assert not (tmp_path / kept.RETURNS_FILE).exists()  # another item keeps these runs
    picture.facts = facts
    keep(picture, shown, tmp_path)
    first = (tmp_path / kept.RETURNS_FILE).read_bytes()
    keep(picture, shown, tmp_path)
    assert (tmp_path / kept.RETURNS_FILE).read_bytes() == first
    read = kept.read_returns(tmp_path)
    for one, two in zip(read, kept_runs(picture, runs), strict=True):
        assert (one.line, one.algo, one.solved) == (two.line, two.algo, two.solved)
        assert (one.seed, one.epsilon) == (two.seed, two.epsilon)
        assert one.returns.tolist() == two.returns.tolist()
    head, lines = table(picture, shown)
    assert table(picture, by_setting(picture, read)) == (head, lines)
    shown = dict(zip(head, lines[0], strict=True))
    assert (shown["solved"], shown["single runs, 95 %"]) == ("2", "3 to 12")
    assert shown["curve at 10"] == "10"  # the mean of the first ten is (19 - 1.1 + 4.5) / 2
    assert shown["curve at 10, 95 %"] == "10 to 20"
