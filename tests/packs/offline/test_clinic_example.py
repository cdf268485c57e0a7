"""examples/clinic as its page says, on fewer patients: records, import, policy, value, budget, truth."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from privrl_bench.cli.main import main as privrl
from privrl_bench.cli.train import main as train

FOLDER = Path(__file__).parents[3] / "examples/clinic"
sys.path.insert(0, str(FOLDER))
import clinic  # noqa: E402


def test_a_patient_is_treated_as_the_equations_say():
    """Without noise: 0.7 of the way to the pressure of the new dose, and its cost."""
    patients = clinic.Patients(3, np.random.default_rng(0))
    before, dose = patients._pressure.copy(), patients.dose.copy()
    drift = np.random.default_rng(1)
    patients._rng = np.random.default_rng(1)
    cost, after = patients.treat(np.array([clinic.LOWER, clinic.KEEP, clinic.RAISE]))
    assert patients.dose.tolist() == [max(dose[0] - 1, 0), dose[1], dose[2] + 1]
    goal = patients._untreated - patients._response * patients.dose
    expected = before + 0.7 * (goal - before) + drift.normal(0.0, 3.0, 3)
    np.testing.assert_allclose(after, expected)
    above = np.maximum(after - 130.0, 0.0) + 10.0 * patients.side_effects + 20.0 * (after < 105.0)
    np.testing.assert_allclose(cost, above)


def test_the_recorded_probabilities_are_those_of_the_clinic():
    made = clinic.records(20_000, 3)
    seen = np.stack([made[name] for name in clinic.OBSERVED], 1)
    usual = np.array(clinic.ACTIONS)[clinic.rule(seen)] == made["action"]
    assert usual.mean() == pytest.approx(0.8, abs=0.01)  # 0.7, and a third of 0.3
    np.testing.assert_allclose(made["probability"], np.where(usual, 0.8, 0.1))
    again = clinic.truth(clinic.rule, 5000)
    assert made["reward"].sum() / 20_000 == pytest.approx(again["value"], rel=0.15)


@pytest.mark.slow
def test_the_page_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranges.yaml").write_text((FOLDER / "ranges.yaml").read_text())
    text = (FOLDER / "README.md").read_text()
    commands = re.findall(r"^    (privrl\S*|python clinic.py) (.*)$", text, re.M)
    assert len(commands) == 8
    for program, words in commands:
        words = words.replace("20_000", "3_000").replace("data.public=0.02", "data.public=0.1")
        words = words.replace("--public 0.02", "--public 0.1").split("   #")[0]
        given = [*shlex.split(words), *["rounds=60"] * ("dp_cql" in words)]
        capsys.readouterr()
        if program == "python clinic.py":
            monkeypatch.setattr(sys, "argv", ["clinic.py", *given])
            clinic.main()
        else:
            command = privrl if program == "privrl" else train
            try:
                code = command(given)
            except SystemExit as end:
                code = end.code
            assert code in (0, None), (program, given)
    shown = capsys.readouterr().out
    assert "the clinic's rule" in shown
    values = [float(x) for x in re.findall(r"(-[\d.]+)  value", shown)]
    assert values[1] > values[0]  # the learned policy is better
