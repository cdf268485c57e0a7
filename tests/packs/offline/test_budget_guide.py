"""The session of docs/guides/budget.md, on made-up users: within the budget, and as the page shows it."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest

import privrl_bench as pb
from privrl_bench.cli.main import main as privrl
from privrl_bench.cli.train import main as train

PAGE = Path(__file__).parents[3] / "docs/guides/budget.md"


def visits(users=2000, seed=0):
    """Each user: up to six visits, a pressure that two of three drugs lower, a reward for a low one."""
    rng, rows = np.random.default_rng(seed), []
    for user in range(users):
        pressure, age = rng.normal(150, 15), int(rng.integers(20, 90))
        for t in range(length := int(rng.integers(2, 7))):
            dose = str(rng.choice(["none", "low", "high"], p=[0.5, 0.3, 0.2]))
            chance = {"none": 0.5, "low": 0.3, "high": 0.2}[dose]
            seen = np.clip(pressure, 80, 220)
            pressure += {"none": 4, "low": -6, "high": -10}[dose] + rng.normal(0, 3)
            reward = 2.0 - abs(pressure - 125) / 25
            rows.append((user, t, age, seen, dose, reward, t == length - 1, chance))
    return pandas.DataFrame(
        rows, columns=["user", "t", "age", "pressure", "dose", "reward", "end", "p"]
    )


@pytest.mark.slow
def test_the_session_stays_within_the_budget_and_prints_what_the_page_shows(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    columns = {"user": "user", "order": "t", "obs": ["age", "pressure"], "act": "dose"}
    columns |= {"reward": "reward", "done": "end", "behavior_prob": "p"}
    said = {"users": "real", "steps": 6, "last_observation": "repeat"}
    ranges = {"age": {"low": 0, "high": 120}, "pressure": {"low": 80, "high": 220}}
    ranges["dose"] = ["none", "low", "high"]
    pb.import_logs(visits(), name="clinic/logs-v1", ranges=ranges, **columns, **said)
    text = PAGE.read_text()
    commands = re.findall(r"^    (privrl\S*) (.*)$", text, re.M)
    assert len(commands) == 8
    for program, words in commands:
        capsys.readouterr()
        command = privrl if program == "privrl" else train
        try:
            code = command(shlex.split(words))
        except SystemExit as end:
            code = end.code
        assert code in (0, None), (program, words)
    shown = capsys.readouterr().out
    page = re.search(r"<!-- shown -->\n(.*?)<!-- /shown -->", text, re.S)[1]
    assert [line.strip() for line in page.splitlines()] == [
        line.strip() for line in shown.splitlines()[:5]
    ]
    # Two searches of two runs, one training run, three evaluations.
    assert len(shown.splitlines()) == 5 + 8
    assert shown.count(" settled ") == 8
    folders = [one.run for one in pb.open_budget("clinic.budget").entries()]
    assert pb.verify_budget("clinic.budget", folders) == []
