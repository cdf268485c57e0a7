"""Statistics, tables and pictures from run folders."""

import json
import math
import re
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import yaml
from fake_runs import write_run, write_sweep

from privrl_bench.cli.main import main
from privrl_bench.functional.statistics import bootstrap_ci, improvement, iqm_ci, mean_ci, profile
from privrl_bench.reporting.page import _MORE_EPISODES, _ONE_SEED, counted
from privrl_bench.reporting.plots import curves, epsilon_lines, not_monotone, return_against_epsilon
from privrl_bench.reporting.run_loader import load_run, load_runs
from privrl_bench.reporting.runs import Run, of_one_length, usable
from privrl_bench.reporting.style import figure
from privrl_bench.reporting.table_writer import csv_text, latex
from privrl_bench.reporting.tables import (
    exact,
    left_out,
    markdown,
    printed,
    summarise,
    write_tables,
)


def test_mean_and_interval_by_hand():
    mean, half = mean_ci([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t(0.975, 2) = 4.302653
    assert math.isnan(mean_ci([5.0])[1])
    with pytest.raises(ValueError, match="no values"):
        mean_ci([])


def test_interquartile_mean_by_hand_and_its_interval():
    eight = np.array([[0, 1], [2, 3], [4, 5], [6, 100]])
    assert iqm_ci(eight, np.random.default_rng(0))[0] == 3.5
    scores = np.random.default_rng(5).normal(size=(10, 2))
    first = iqm_ci(scores, np.random.default_rng(0))
    assert first == iqm_ci(scores, np.random.default_rng(0))
    assert first != iqm_ci(scores, np.random.default_rng(1))
    assert first[1] <= first[0] <= first[2]
    with pytest.raises(ValueError, match="runs, tasks"):
        iqm_ci([1.0, 2.0], np.random.default_rng(0))


def test_runs_are_grouped_over_seeds_and_infinity_is_written(tmp_path):
    write_sweep(tmp_path)
    rows = {(row.algo, row.z): row for row in summarise(load_runs(tmp_path))}
    assert len(rows) == 7
    one = rows["dppg", 1.0]
    assert one.seeds == 4
    assert one.mean == pytest.approx(470.0)
    assert one.epsilon == 30.0
    assert rows["ppo", None].epsilon == math.inf
    text = markdown(list(rows.values()))
    assert "| inf " in text
    assert "unit: segment of 64 steps; notion central" in text
    assert "outside epsilon: shared critic" in text
    assert ",inf," in csv_text(*exact(list(rows.values())))


def test_variants_are_named_by_what_differs_and_hardware_is_no_variant(tmp_path):
    write_run(tmp_path / "a", seed=0, extra={"critic": None})
    write_run(tmp_path / "b", seed=0, extra={"critic": "private"})
    variants = {row.variant for row in summarise(load_runs(tmp_path))}
    assert variants == {"algo.critic=null", "algo.critic=private"}


def test_a_setting_that_an_older_run_lacks_is_no_variant(tmp_path):
    write_run(tmp_path / "a", seed=0)  # before there was such a key
    write_run(tmp_path / "b", seed=0, extra={"newer": 1.0, "critic": "shared"})
    write_run(tmp_path / "c", seed=0, extra={"newer": 1.0, "critic": "private"})
    variants = {row.variant for row in summarise(load_runs(tmp_path))}
    assert variants == {"", "algo.critic=shared", "algo.critic=private"}


def test_torn_lines_unfinished_and_damaged_runs_are_reported_not_fatal(tmp_path):
    folder = write_run(tmp_path / "torn")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 101, "ste')
    write_run(tmp_path / "cut", seed=1, status="interrupted")
    write_run(tmp_path / "bad", seed=2)
    (tmp_path / "bad" / "summary.json").write_text("{")
    runs = load_runs(tmp_path)
    assert len(runs) == 3
    assert [row.seeds for row in summarise(runs)] == [1]
    text = "\n".join(left_out(runs))
    assert "cut" in text
    assert "bad" in text
    torn = next(run for run in runs if run.folder.name == "torn")
    assert len(torn.metrics) == 12


def test_a_run_whose_epsilon_cannot_be_read_is_not_counted(tmp_path, capsys):
    """It was counted, as formal, with "-" for epsilon."""
    write_run(tmp_path / "good")
    values = ["abc", None, [1.0]]
    for seed, value in enumerate(values, start=1):
        path = write_run(tmp_path / f"bad{seed}", seed=seed) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"epsilon": value}))
    assert [run.folder.name for run in usable(load_runs(tmp_path))] == ["good"]
    assert main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr().err
    for value in values:
        assert f"summary.json: epsilon is not a number: {value!r}" in shown


def assert_a_picture(path):
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.stat().st_size > 10_000


def test_the_command_prints_the_table_and_writes_a_page(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)  # pictures are drawn without one
    write_sweep(tmp_path / "runs")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert "470.0 (4" in capsys.readouterr().out
    names = {p.name for p in (tmp_path / "out").iterdir()}
    pictures = {f"{n}.{k}" for n in ("curves", "return_against_epsilon") for k in ("png", "svg")}
    assert {"table.md", "table.csv", "table.tex", "index.html"} | pictures <= names
    for name in ("curves", "return_against_epsilon"):
        assert_a_picture(tmp_path / "out" / f"{name}.png")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "470.0 (4" in page
    assert "http" not in re.sub(r"data:image/png;base64,[^']*", "", page)  # nothing is fetched
    assert page.count("data:image/png") >= 2
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_profiles_and_chances_of_improvement_by_hand():
    assert profile([1.0, 2.0, 2.0, 5.0], [0.0, 1.0, 1.5, 2.0, 9.0]).tolist() == [
        1,
        0.75,
        0.75,
        0.25,
        0,
    ]
    rng = np.random.default_rng(0)
    value, low, high = improvement([3.0, 1.0], [2.0, 1.0], rng)
    assert value == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert 0.0 <= low <= value <= high <= 1.0
    assert improvement([5.0] * 4, [1.0] * 4, rng) == (1.0, 1.0, 1.0)
    for empty in (lambda: profile([], [1.0]), lambda: improvement([], [1.0], rng)):
        with pytest.raises(ValueError, match="no scores"):
            empty()


def test_latex_escapes_its_signs():
    text = latex(["a_b", "95 %"], [["1 ± 2", "x & y"]])
    assert r"a\_b & 95 \% \\" in text
    assert r"1 $\pm$ 2 & x \& y \\" in text


def test_status_with_a_reason_is_shown(tmp_path):
    folder = write_run(tmp_path / "x", status="failed")
    (folder / "status.json").write_text(json.dumps({"status": "failed", "reason": "NaN"}))
    assert "failed (NaN)" in left_out(load_runs(tmp_path))[0]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_shows_the_page(tmp_path):
    """Pictures are shown at their size and the table is there, without anything from outside."""
    write_sweep(tmp_path / "runs")
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    page = tmp_path / "out" / "index.html"
    probe = (
        "<script>addEventListener('load', () => {"
        "const seen = [...document.images].map(i => i.complete && i.naturalWidth > 300);"
        "document.title = JSON.stringify([seen, document.querySelectorAll('tbody tr').length,"
        "document.documentElement.scrollWidth <= innerWidth]);})</script></body>"
    )
    page.write_text(page.read_text().replace("</body>", probe))
    quiet = ("no-sandbox", "disable-gpu", "disable-background-networking", "disable-sync")
    flags = [f"--{flag}" for flag in (*quiet, "disable-component-update", "no-first-run")]
    command = ["chromium", "--headless", *flags, f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--window-size=1300,900", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    images, rows, fits = json.loads(title.group(1))
    assert len(images) >= 2
    assert all(images)
    assert rows >= 3
    assert fits


def test_a_picture_of_a_run_has_its_references_and_epsilon_where_it_grows(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "one")
    summary = json.loads((folder / "summary.json").read_text())
    summary["references"] = {"random": {"mean": 18.0}, "do nothing": {"mean": 132.0}}
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = [
        {"steps": 0, "round": 0, "privacy/epsilon": 0.0, "eval/return_mean": 20.0},
        {"steps": 64, "round": 1, "privacy/epsilon": 1.25, "eval/return_mean": 30.0},
        {"steps": 128, "round": 2, "privacy/epsilon": 2.49998, "eval/return_mean": 40.0},
        {"steps": 192, "round": 3, "privacy/epsilon": 2.49999, "eval/return_mean": 40.0},
        {"steps": 256, "round": 4, "privacy/epsilon": 2.5, "eval/return_mean": 40.0},
    ]
    for row in rows:
        row |= {"eval/return_ci95": 5.0}
    for row in rows[2:]:
        row |= {"eval/return_low": 39.0, "eval/return_high": 40.5}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, drawn = load_run(folder), []

    @contextmanager
    def kept(path, panels):
        with figure(path, panels) as places:
            yield places
            drawn.extend(places)

    monkeypatch.setattr("privrl_bench.reporting.runs.figure", kept)
    monkeypatch.delenv("DISPLAY", raising=False)
    assert run.plot(tmp_path / "one.png") == tmp_path / "one.png"
    assert_a_picture(tmp_path / "one.png")
    (axes,) = drawn
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels[1:] == ["random (18.0)", "do nothing (132.0)"]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (39.0, 40.5)
    (top,) = axes.child_axes
    assert [tick.get_text() for tick in top.get_xticklabels()] == ["1.25", "2.5"]
    assert list(top.get_xticks()) == [64, 128]  # not at 192 and 256, whose labels are 2.5, too


def test_a_bootstrap_interval_stays_in_the_range_of_its_values():
    returns = [500.0] * 9 + [120.0]
    mean, half = mean_ci(returns)
    low, high = bootstrap_ci(returns)
    assert mean + half > 500.0  # what a CartPole cannot reach
    assert 120.0 <= low < mean < high <= 500.0
    assert bootstrap_ci(returns) == bootstrap_ci(returns[::-1])
    assert bootstrap_ci([3.0, 3.0]) == (3.0, 3.0)
    assert all(math.isnan(x) for x in bootstrap_ci([3.0]))
    assert bootstrap_ci([0.0, 1.0]) == (0.0, 1.0)  # two values say no more than their range
    with pytest.raises(ValueError, match="no values"):
        bootstrap_ci([])
    many = np.random.default_rng(1).normal(size=400)
    wide = [mean_ci(many)[0] + sign * mean_ci(many)[1] for sign in (-1, 1)]
    assert bootstrap_ci(many) == pytest.approx(wide, abs=0.01)


def test_few_runs_have_a_range_and_no_interval_that_is_called_95_percent(tmp_path):
    for seed, final in enumerate([194.1, 261.1]):
        write_run(tmp_path / "few" / str(seed), seed=seed, final=final)
    for seed in range(5):
        write_run(tmp_path / "more" / str(seed), seed=seed, final=200.0 + seed, z=2.0)
    few, more = (load_runs(tmp_path / name) for name in ("few", "more"))
    rows = summarise(few)
    text = markdown(rows).partition("Return: ")[0]
    assert "return (range of 2 seeds)" in text
    assert "227.6 (194.1 to 261.1) " in text
    both = markdown(summarise([*few, *more])).partition("Return: ")[0]
    assert "227.6 (194.1 to 261.1, range of 2 seeds)" in both
    assert "return (95 % interval)" in both
    assert "95 % interval" not in text
    head, ((*values,),) = exact(rows)
    line = dict(zip(head, values, strict=True))
    assert [line[key] for key in ("low", "high", "interval")] == [194.1, 261.1, "range of 2 seeds"]
    assert math.isnan(line["iqm_low"])
    assert not [name for name in head if name.startswith("ci")]  # one interval, and its name
    head, ((*values,),) = exact(summarise(more))
    line = dict(zip(head, values, strict=True))
    assert line["interval"] == "95 % interval"
    assert line["iqm_low"] < line["iqm"] < line["iqm_high"]
    assert "202.0 (200" in markdown(summarise(more))
    assert [counted(runs)[1][:1] for runs in (few, few[:1])] == [[], [_ONE_SEED + _MORE_EPISODES]]
    assert "range" not in markdown(summarise(more)).partition("Return: ")[0]


def test_one_seed_has_the_interval_over_its_episodes_with_their_number(tmp_path):
    folder = write_run(tmp_path / "one", final=29.9)
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["return"].update(mean=29.9, low=23.1, high=33.0, episodes=10)
    path.write_text(json.dumps(summary))
    text = markdown(summarise(load_runs(tmp_path)))
    assert "return (95 % interval over 10 episodes)" in text
    assert "29.9 (23.1 to 33.0) " in text
    assert "for one seed the interval of its final evaluation" in text
    for seed in range(5):
        write_run(tmp_path / str(seed), seed=seed, final=200.0 + seed, z=2.0)
    both = markdown(summarise(load_runs(tmp_path)))
    assert "29.9 (23.1 to 33.0, 95 % interval over 10 episodes)" in both


@pytest.mark.fast_every(2)
@pytest.mark.parametrize(
    ("seeds", "name"), [(2, "range of 2 seeds"), (5, "95 % interval"), (1, None)]
)
def test_legends_say_what_a_band_is(tmp_path, monkeypatch, seeds, name):
    for seed in range(seeds):
        write_run(tmp_path / str(seed), seed=seed, final=100.0 + seed)
    seen = {}

    @contextmanager
    def kept(path, *rest, **more):
        with figure(path, *rest, **more) as (axes,):
            yield (axes,)
            seen[path.stem] = " ".join(t.get_text() for t in axes.figure.legends[0].get_texts())

    monkeypatch.setattr("privrl_bench.reporting.plots.figure", kept)
    curves(load_runs(tmp_path), tmp_path / "curves.png")
    return_against_epsilon(load_runs(tmp_path), tmp_path / "epsilon.png")
    for text in (seen["curves"], seen["epsilon"]):
        assert (name in text) if name else ("range" not in text and "95 %" not in text)


def write_settings(folder, **sections):
    """Change settings of a run's config.yaml."""
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for name, values in sections.items():
        config[name] = config.get(name, {}) | values if isinstance(values, dict) else values
    path.write_text(yaml.safe_dump(config))


def write_epsilons(root, algo="dppg", population=None, finals=(100.0, 200.0, 400.0)):
    """A sweep of `privacy.epsilon`, whose z follows from it: three seeds each."""
    for epsilon, final in zip((0.5, 1.0, 2.0), finals, strict=True):
        for seed in range(3):
            folder = root / algo / f"{epsilon}" / f"{seed}"
            more = {"z": 4 / epsilon, "final": final + seed, "guarantee": "formal"}
            write_run(folder, algo=algo, seed=seed, epsilon=epsilon, **more)
            own = {"epsilon": epsilon} | ({"population": population} if population else {})
            write_settings(folder, privacy=own)


def lines_of(root):
    return {
        label: [group.epsilon for group in groups]
        for label, groups in epsilon_lines(summarise(load_runs(root)))
    }


def test_return_against_epsilon_is_one_line_for_each_algorithm(tmp_path):
    write_epsilons(tmp_path)
    write_epsilons(tmp_path, "reinforce")
    for seed in range(2):
        write_run(tmp_path / "z0" / str(seed), z=0.0, seed=seed, epsilon=math.inf)
    assert lines_of(tmp_path) == {
        "dppg": [0.5, 1.0, 2.0],
        "reinforce": [0.5, 1.0, 2.0],
        "dppg, not private": [math.inf],
    }
    labels = {group.label for group in summarise(load_runs(tmp_path))}
    assert {"dppg, epsilon 0.5", "reinforce, epsilon 2", "dppg, not private"} <= labels


def test_populations_share_a_line_unless_it_would_have_two_points_at_one_epsilon(tmp_path):
    for at, (z, epsilon, population) in enumerate([(4.0, 0.5, 100), (4.0, 0.25, 400)]):
        folder = write_run(tmp_path / "a" / str(at), z=z, epsilon=epsilon)
        write_settings(folder, privacy={"population": population})
    assert lines_of(tmp_path / "a") == {"dppg": [0.25, 0.5]}
    write_epsilons(tmp_path / "b" / "few", population=1000)
    write_epsilons(tmp_path / "b" / "many", population=9000)
    assert lines_of(tmp_path / "b") == {
        f"dppg, privacy.population={n}": [0.5, 1.0, 2.0] for n in (1000, 9000)
    }


def test_a_mean_that_falls_with_epsilon_is_said_with_whether_intervals_overlap(tmp_path):
    write_epsilons(tmp_path, finals=(100.0, 101.5, 50.0))
    (line,) = not_monotone(summarise(load_runs(tmp_path)))
    assert line == (
        "dppg on cartpole: return 51.0 at epsilon 2, 102.5 at epsilon 1; "
        "their intervals (range of 3 seeds) do not overlap"
    )
    write_epsilons(tmp_path / "b", finals=(100.0, 99.5, 500.0))
    (line,) = not_monotone(summarise(load_runs(tmp_path / "b")))
    assert line.endswith("their intervals (range of 3 seeds) overlap")


def test_runs_of_another_length_are_left_out_with_a_note(tmp_path, capsys):
    write_epsilons(tmp_path)
    write_run(tmp_path / "short", steps=6_000, seed=9, z=4.0, epsilon=1.0)
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    note = "left out, of another length: 1 run of dppg on cartpole with total_steps=6000"
    assert f"{note} (--all-lengths has them)" in out
    assert "total_steps=" not in out.partition("Return: ")[0]
    assert note in (tmp_path / "report" / "index.html").read_text()
    assert main(["report", str(tmp_path), "--all-lengths"]) == 0
    assert "total_steps=6000" in capsys.readouterr().out.partition("Return: ")[0]
    people = "total_steps: 600000\nprivacy: {population: 99}\nrounds: "
    rounds = [Run(tmp_path, config=yaml.safe_load(f"{people}{count}")) for count in (7, 9)]
    assert of_one_length(rounds) == (rounds, [])  # their number follows from the population
    kept, _ = counted(load_runs(tmp_path), ["total_steps=6_000"])
    assert [run.folder.name for run in kept] == ["short"]
    assert main(["report", str(tmp_path), "--where", "algo.lr=3e-4", "--where", "seed=1"]) == 0
    assert capsys.readouterr().out.count("| dppg ") == 3  # one for each epsilon


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algo.lrr=1", "error: --where: no run has the setting 'algo.lrr' (did you mean algo.lr?)"),
        ("algo.lr=1", "error: --where: algo.lr=1: the runs have 0.0003"),
        ("algo.lr", "error: --where: write key=value, got algo.lr"),
    ],
)
def test_a_selection_without_runs_is_one_line(tmp_path, capsys, word, said):
    write_epsilons(tmp_path)
    assert main(["report", str(tmp_path), "--where", word]) == 2
    assert capsys.readouterr().err.strip() == said


def test_the_table_of_a_paper_has_seven_columns_and_its_notes(tmp_path):
    write_epsilons(tmp_path)
    for critic in ("private", "none"):
        write_run(tmp_path / critic, algo="ppo", z=None, epsilon=math.inf, extra={"critic": critic})
    rows = summarise(load_runs(tmp_path))
    assert len(printed(rows)[0]) == 7
    write_tables(rows, tmp_path)
    text = (tmp_path / "table.tex").read_text()
    assert r"\begin{tabular}{lllrlrl}" in text
    assert r" & $\infty$ & " in text
    assert (
        r"[1] unit: segment of 64 steps; notion central; adjacency zero\_out; delta $10^{-5}$; "
        "mechanism gaussian; outside epsilon: shared critic"
    ) in text
    assert "[2] not private" in text


def test_private_metrics_are_apart(tmp_path):
    folder = write_run(tmp_path / "one")
    rows = [{"round": 0, "steps": 0, "eval/return_mean": 1.0, "train/entropy": 0.5, "odd": 3}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load_run(folder)
    assert run.metrics == [{"round": 0, "steps": 0, "eval/return_mean": 1.0}]
    assert run.private_metrics == [{"round": 0, "steps": 0, "train/entropy": 0.5, "odd": 3}]
    assert run.curve("train/entropy")[1].tolist() == [0.5]


def test_the_axis_of_a_run_on_a_dataset_is_not_environment_steps(tmp_path):
    run = load_run(write_run(tmp_path / "a"))
    assert run.steps_name == "environment steps"
    run.config["data"] = {"id": "pendulum/ddpg-v0"}
    assert run.steps_name == "users' steps (rounds x U x T)"
    run.config["data"] = {"id": None}
    run.summary["measure"] = "mspbe"
    assert "rounds" in run.steps_name
    run.summary["measure"] = "return"
    run.config["env"]["kind"] = "text"
    assert run.steps_name == "tokens of answers, counted at their maximum length"


def test_bootstrap_intervals_cover_the_mean():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        low, high = bootstrap_ci(rng.exponential(size=10))
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 400 <= 0.99


def test_a_frame_has_the_public_rows_of_a_run(tmp_path):
    run = load_run(write_run(tmp_path / "one", points=3))
    frame = run.frame()
    assert list(frame["steps"]) == [row["steps"] for row in run.metrics]
    assert "eval/return_mean" in frame
