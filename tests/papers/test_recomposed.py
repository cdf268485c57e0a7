"""Rows whose words do not give their digest are found; `write_results --check` looks for them."""

from __future__ import annotations

import csv
import json

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity
from privrl_bench.papers.pages import write_results
from privrl_bench.papers.pages.write_results import difference
from privrl_bench.reporting.run_loader import RUNS_FILE, digest_of
from privrl_bench.training.plan import make_plan

WORDS = "algo=dppg env=hopper privacy.epsilon=8 eval.every=200_000"


@pytest.fixture(scope="module")
def row() -> dict[str, str]:
    """What a results store has of a run that was made today."""
    (config,) = make_plan([compose([*WORDS.split(), "seed=3"])]).given
    settings = {"privacy.z": config.privacy.z, "rounds": config.rounds, "privacy.clip": 0.75}
    return {
        **{"run": "dppg/hopper/epsilon=8,seed=3", "seed": "3", "overrides": WORDS, "commit": ""},
        **{"digest": digest_of(identity(config)), "settings": json.dumps(settings)},
    }


def test_a_row_without_a_processor_is_found(row: dict[str, str], tmp_path, monkeypatch) -> None:
    made = {"processor": "a", "torch": "b", "numpy": "c", "trained_together": "1"}
    (tmp_path / "p" / "item").mkdir(parents=True)
    monkeypatch.setattr(write_results, "STORE", tmp_path)
    rows = [{**row, **made}, {**row, **made, "processor": ""}, {**row, **made, "seed": "4"}]
    with (tmp_path / "p" / "item" / RUNS_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    reasons = [line.rpartition(": ")[2] for line in write_results.row_problems()]
    assert reasons == ["no processor", "another digest"]


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
