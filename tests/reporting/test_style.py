"""One style for all figures: what colour, shade, kind of line and legend mean, and how much a panel holds."""

from __future__ import annotations

import math

from privrl_bench.papers.run_figures import paper_values
from privrl_bench.reporting.style import (
    CUT,
    WIDTH,
    LineMark,
    curve,
    epsilon_axis,
    figure,
    legend,
    looks,
    looks_of_panels,
    returns_of,
    shade,
)


def test_a_method_has_the_same_colour_and_marker_beside_any_others() -> None:
    (alone,) = looks([LineMark("gpope", 1.0)])
    beside = looks(
        [LineMark("dp_lsw", 1.0), LineMark("lstd", status="none"), LineMark("gpope", 1.0)]
    )
    assert beside[2] == alone
    assert len({look.colour for look in beside}) == len({look.marker for look in beside}) == 3
    assert looks([LineMark("my own method")]) == looks([LineMark("my own method")])


def test_a_smaller_epsilon_is_darker() -> None:
    for epsilons in ([0.1, 1.0, 10.0], [0.01, 0.5, 300.0], [0.6]):
        found = looks([LineMark("dppg", epsilon) for epsilon in epsilons])
        sums = [sum(look.colour) for look in found]
        assert sums == sorted(sums)
        assert len(set(sums)) == len(sums)
    assert sum(shade("ppo", 0.0)) < sum(shade("ppo", 0.5)) < sum(shade("ppo", 1.0))


def test_only_formal_lines_are_solid_and_no_two_lines_look_the_same() -> None:
    statuses = ("formal", "heuristic", "none", "unreviewed")
    found = looks([LineMark("dppg", 1.0, status) for status in statuses])
    assert [look.dash for look in found] == ["-", "--", ":", "-."]
    same = looks(
        [LineMark("dppg")] * 3
        + [LineMark("dppg", 1.0)] * 3
        + [LineMark("dppg", math.inf, "none")] * 2
    )
    assert len(set(same)) == 8


def test_every_line_of_a_panel_has_its_own_marker_and_a_name_the_same_in_all_panels() -> None:
    names = {f"z = {z}": LineMark("dppg", 1.0 / z) for z in (1, 2, 3)}
    first = {"PPO": LineMark("ppo", status="none"), **names}
    second = {"another": LineMark("dppg", 0.1), "z = 3": names["z = 3"], "PPO": first["PPO"]}
    every = looks_of_panels([[*first.items()], [*second.items()]])
    pairs = zip((first, second), every, strict=True)
    shown = [dict(zip(panel, found, strict=True)) for panel, found in pairs]
    for found in shown:
        assert len({look.marker for look in found.values()}) == len(found)
    (twice,) = looks_of_panels([[("DPPG", LineMark("dppg")), ("DPPG", LineMark("dppg"))]])
    assert twice[0].marker != twice[1].marker
    for name in ("PPO", "z = 3"):
        assert shown[0][name].marker == shown[1][name].marker


def test_intervals_end_at_the_largest_return_and_the_legend_says_so(tmp_path) -> None:
    (look,) = looks([LineMark("dppg")])
    for env, highest in (("cartpole", 500.0), ("hopper", 520.0)):
        with figure(tmp_path / "a.svg", 1) as places:
            returns_of(places[0], env)
            ends = ([470, 480], [510, 520])
            curve(places[0], look, "line", [1, 2], [490, 500], ends)
            paper_values(places[0], [(490.0, 20.0, look)])
            legend(places)
            bars = [s for c in places[0].containers for s in c[2][0].get_segments()]
            bands = [path.vertices for c in places[0].collections[:1] for path in c.get_paths()]
            tops = [top for points in (*bars, *bands) for top in points[:, 1]]
            (shared,) = places[0].figure.legends
            labels = [text.get_text() for text in shared.texts]
        assert max(tops) == highest
        assert (CUT in labels) == (env == "cartpole")


def test_one_legend_plain_ticks_and_both_files(tmp_path) -> None:
    with figure(tmp_path / "a.png", 3, vector=True) as places:
        for axes in places[:2]:
            for at, look in enumerate(looks([LineMark("dppg"), LineMark("ppo", status="none")])):
                curve(
                    axes, look, f"line {at}", [1, 2, 3], [1, 2, 3], ([0, 1, 2], [2, 3, 4]), (at, 2)
                )
        (other,) = looks([LineMark("ucbvi")])
        curve(places[2], other, "line 0", [0.1, 1.0], [1, 2])
        epsilon_axis(places[2], [0.1, 1.0])
        paper_values(places[2], [(1.0, 0.5, other)])
        legend(places)
        made = places[0].figure
        ticks = [tick.get_text() for tick in places[2].get_xticklabels()]
    assert ticks == ["0.1", "0.2", "0.5", "1"]
    (shared,) = made.legends
    assert [t.get_text() for t in shared.texts] == ["line 0", "line 1", "paper's mean and interval"]
    assert 0 < float(shared.legend_handles[0].get_color()) < 1  # of two methods: grey
    assert not any(axes.get_legend() for axes in places)
    assert made.get_figwidth() == WIDTH
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
