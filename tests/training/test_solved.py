"""`eval.solved`: a run is over when a window of evaluations has the mean asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.training import loop as training
from privrl_bench.training.folder import read_lines
from privrl_bench.training.loop import values_of
from privrl_bench.training.runner import run

WINDOW, ROUNDS = 4, 60
SMALL = [
    *("algo=dppg", "env=cartpole", "log=none", "env.user_steps=16", "algo.hidden=[8]"),
    *("privacy.users_per_round=4", f"rounds={ROUNDS}", "eval.every=64", "eval.episodes=1"),
    *(f"eval.window={WINDOW}", "log.progress=false"),
]


def train(folder: Path, seeds: list[int], target: str) -> list[dict]:
    """Summaries of runs that are trained together."""
    words = [[*SMALL, f"seed={s}", f"eval.solved={target}"] for s in seeds]
    results = run([compose(w) for w in words], [folder / str(s) for s in seeds], words)
    assert [one.status for one in results] == ["done"] * len(seeds)
    return [one.summary for one in results]


def first(returns: list[float], target: float) -> int | None:
    """After how many evaluations the last WINDOW have the mean, by hand."""
    for k in range(WINDOW, len(returns) + 1):
        if np.mean(returns[k - WINDOW : k]) >= target:
            return k
    return None


@pytest.mark.slow
def test_each_run_ends_when_it_is_solved_and_its_guarantee_stays_planned(tmp_path: Path) -> None:
    free = train(tmp_path / "free", [0, 1, 2], "null")
    assert all("solved" not in one for one in free)
    returns = [means_of_folder(tmp_path / "free" / str(s)) for s in range(3)]
    target = float(
        np.median([max(np.convolve(x, np.ones(WINDOW) / WINDOW, "valid")) for x in returns])
    )
    expected = [first(x, target) for x in returns]
    assert len(set(expected)) == 3, "choose seeds that are solved at different rounds"
    found = train(tmp_path / "held", [0, 1, 2], str(target))
    assert [one["solved"] for one in found] == expected
    for seed, (one, whole, end) in enumerate(zip(found, free, expected, strict=True)):
        rounds = ROUNDS if end is None else end
        folder = tmp_path / "held" / str(seed)
        assert means_of_folder(folder) == returns[seed][:rounds]
        assert (
            len({line["round"] for line in read_lines(folder / "ledger.jsonl") if "z" in line})
            == rounds
        )
        assert one["guarantee"] == whole["guarantee"]
        assert json.loads((folder / "status.json").read_text())["status"] == "done"


def means_of_folder(folder: Path) -> list[float]:
    """Of a run's evaluations after a round; the one before any data does not count."""
    return values_of(training.RunDir(folder), "eval/return_mean", after=0)


@pytest.mark.slow
def test_a_run_cut_in_two_is_solved_at_the_same_round(tmp_path: Path, monkeypatch) -> None:
    train(tmp_path / "free", [0], "null")
    returns = means_of_folder(tmp_path / "free" / "0")
    target = max(np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid"))
    end = first(returns, target)
    assert end is not None
    assert end > WINDOW
    real, words = training.Trainer.step, [*SMALL, "seed=0", f"eval.solved={target}"]

    def killed(session):
        if session.round == end - 2:
            raise KeyboardInterrupt
        real(session)

    monkeypatch.setattr(training.Trainer, "step", killed)
    (cut,) = run([compose(words)], [tmp_path / "cut"], [words])
    assert cut.status == "interrupted"
    monkeypatch.setattr(training.Trainer, "step", real)
    (done,) = run([compose(words)], [tmp_path / "cut"], [words])
    assert done.summary["solved"] == end
    assert means_of_folder(tmp_path / "cut") == returns[:end]


def test_a_target_needs_enough_evaluations() -> None:
    few = [word for word in SMALL if not word.startswith(("eval.every", "eval.window"))]
    with pytest.raises(ConfigError, match=r"eval\.solved: needs the mean of eval\.window=25"):
        compose([*few, "eval.solved=100"])
    compose([*few, "eval.solved=100", "eval.window=5"])
