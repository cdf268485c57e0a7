"""However a run ends, its folder says so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_runner import assert_same, cartpole, essence, train

from privrl_bench.algorithms.base import Algorithm
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.kernels import machine
from privrl_bench.kernels.signals import Stopped
from privrl_bench.training import loop as training
from privrl_bench.training import runner, workers
from privrl_bench.training.results import MetricWriter

STOPS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
PLACES: dict[str, tuple[Any, str]] = {
    "building with the ledger": (runner, "announce"),
    "plan.json": (runner, "describe_plan"),
    "making the trainer": (training, "Trainer"),
    "W&B": (training, "WandbLogger"),
    "resuming": (training.Experiment, "_resume"),
    "a round": (training.Trainer, "step"),
    "a shard": (workers.ShardWork, "run"),
    "after the release": (Algorithm, "after_release"),
    "an evaluation": (MetricWriter, "begin_evaluation"),
    "a checkpoint": (training.Experiment, "_save"),
    "the summary": (training, "summary_of"),
    "the files": (training, "save_results"),
}
KINDS: list[Callable[[], BaseException]] = [
    lambda: ConfigError("env", "is wrong"),
    lambda: SystemExit(3),
    KeyboardInterrupt,
    lambda: Stopped(signal.SIGUSR1),
    MemoryError,
    lambda: BrokenPipeError(32, "Broken pipe"),
    lambda: EnvironmentFailure("the environment raised"),
    lambda: RuntimeError("something"),
    GeneratorExit,
]


def tiny() -> RunConfig:
    return cartpole(total_steps=512 * 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `tiny()`, finished; no test changes it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cores", lambda: 1)
        train(tiny(), folder)
    return folder


# Every place with two kinds and every kind with two places and more in the fast suite.
CASES = [
    pytest.param(
        place,
        kind,
        id=f"{place}-{type(kind()).__name__}",
        marks=() if (i - k) % len(KINDS) in (0, 4) else pytest.mark.slow,
    )
    for i, place in enumerate(PLACES)
    for k, kind in enumerate(KINDS)
]


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(("place", "kind"), CASES)
def test_no_exception_leaves_a_run_running(
    place: str, kind: Callable[[], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []

    def fails(*_: Any, **__: Any) -> None:
        reached.append(place)
        if place != "plan.json" or len(reached) > 1:  # it is described once before a folder is made
            raise kind()

    monkeypatch.setattr(*PLACES[place], fails)
    with contextlib.suppress(type(kind())):  # it goes on, or the run has failed
        train(tiny(), tmp_path / "run")
    assert reached
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    stopped = not isinstance(kind(), Exception)
    assert status["status"] == ("interrupted" if stopped else "failed")
    assert status["reason"]
    monkeypatch.undo()
    assert train(tiny(), tmp_path / "run").status == "done"


def test_a_full_disk_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    def announce(*_: Any, **__: Any) -> None:
        monkeypatch.setattr("privrl_bench.training.folder.write_json", full)
        raise ValueError("the cause")

    monkeypatch.setattr(runner, "announce", announce)
    with pytest.raises(ValueError, match="the cause"):
        train(tiny(), tmp_path / "run")


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_ends_a_run_after_its_round(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    step = training.Trainer.step

    def stopped(trainer: training.Trainer) -> None:
        os.kill(os.getpid(), number)
        step(trainer)

    monkeypatch.setattr(training.Trainer, "step", stopped)
    first = train(tiny(), tmp_path / "cut")
    monkeypatch.setattr(training.Trainer, "step", step)
    assert (first.status, first.exit_code) == ("interrupted", 128 + number)
    status = json.loads((tmp_path / "cut" / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert status["reason"].startswith(signal.Signals(number).name)
    assert (tmp_path / "cut" / "checkpoint.pt").exists()
    assert signal.getsignal(number) == signal.SIG_DFL
    assert train(tiny(), tmp_path / "cut").status == "done"
    assert_same(essence(whole), essence(tmp_path / "cut"))


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_while_building_interrupts_a_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "announce", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(Stopped) as caught:
        train(tiny(), tmp_path / "run")
    assert caught.value.signal == number
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert status["reason"].startswith(signal.Signals(number).name)


@pytest.mark.parametrize("number", [signal.SIGINT, *STOPS])
def test_a_signal_that_an_import_swallows_interrupts_a_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = runner.announce

    def swallow(*args: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        return before(*args)

    monkeypatch.setattr(runner, "announce", swallow)
    with pytest.raises(Stopped) as caught:
        train(tiny(), tmp_path / "run")
    assert caught.value.signal == number
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "interrupted"


@pytest.mark.parametrize("number", STOPS)
def test_the_handler_of_another_package_stays(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def handler(number: int, _frame: object) -> None:
        seen.append(number)

    step = training.Trainer.step

    def signalled(trainer: training.Trainer) -> None:
        os.kill(os.getpid(), number)
        step(trainer)

    monkeypatch.setattr(training.Trainer, "step", signalled)
    before = signal.signal(number, handler)
    try:
        assert train(tiny(), tmp_path / "run").status == "done"
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert seen == [number] * 2
