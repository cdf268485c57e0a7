"""Errors against the number of users: numbers by hand, and both files of the figure."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from privrl_bench.papers.datasize import draw_errors, error_table, spread_of
from privrl_bench.papers.paper_item import Line
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import aligned, parsed

METRIC = "eval/mspbe"


def a_run(tmp_path, errors, population, private=True) -> Run:
    rows = [{"steps": k + 1, METRIC: x} for k, x in enumerate(errors)]
    settings = {"population": population, "z": 1.5, "clip": 0.1}
    config = {
        "algo": {"lr": 0.3},
        "rounds": 7,
        "privacy": settings | {"mechanism": "gaussian" if private else "none"},
    }
    epsilon = 0.99 if private else "inf"
    status = {"status": "formal" if private else "none"}
    summary = {"epsilon": epsilon, "delta": 1e-5, "guarantee": status}
    return Run(tmp_path, config=config, metrics=rows, summary=summary)


def test_the_last_error_counts_and_broken_ones_are_counted_apart(tmp_path) -> None:
    runs = [a_run(tmp_path, errors, 10) for errors in ([9, 1], [3], [8], [math.inf], [])]
    spread = spread_of(runs, METRIC)
    assert (spread.trials, spread.broken, spread.mean, spread.median) == (5, 2, 4.0, 3.0)
    assert spread.deviation == pytest.approx(math.sqrt(13))  # (9 + 1 + 16) / 2
    assert math.isnan(spread_of(runs[3:], METRIC).mean)


class Setting(str):
    """Stands for the settings of a line's runs."""

    words = ("algo=gpope",)


def test_pictures_and_numbers(tmp_path) -> None:
    runs = {
        "a": [a_run(tmp_path, [1.0], 10), a_run(tmp_path, [3.0], 10)],
        "b": [a_run(tmp_path, [0.1], 100), a_run(tmp_path, [0.3], 100)],
        "level": [a_run(tmp_path, [0.01], 10, private=False)],
        "missing": [],
    }
    lines = [
        Line("GPOPE", True, [Setting("a"), Setting("b"), Setting("missing")]),
        Line("LSTD", False, [Setting("level")]),
        Line("none", False, [Setting("missing")]),
    ]
    panels = [SimpleNamespace(label=name, lines=lines) for name in ("n", "step")]
    facts = {"metric": METRIC, "x": ["privacy.population", "algo.lr"]}
    picture = SimpleNamespace(panels=panels, facts=facts)
    head, found = error_table(picture, runs)
    draw_errors(picture, parsed(aligned(head, found)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert (tmp_path / "figure.svg").read_text().count("trajectories n") >= 1
    assert len(found) == 6
    first, second, level = [dict(zip(head, line, strict=True)) for line in found[:3]]
    assert first["n"] == "10"
    assert first["MSPBE, mean ± std"] == f"2 ± {np.std([1, 3], ddof=1):.2g}"
    assert (second["n"], second["median"], second["trials"]) == ("100", "0.2", "2")
    assert (first["z"], first["clip"], first["epsilon"]) == ("1.5", "0.1", "0.99")
    assert (level["z"], level["clip"], level["status"]) == ("-", "-", "none")
    assert level["epsilon"] == "inf"
