"""The command: exit codes, one error line, folders, the table of a sweep. `run` is a stub here."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import exit_code

from privrl_bench.api import launch
from privrl_bench.cli import train as cli
from privrl_bench.composition import hydra_compose as config
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.training.sweep import Outcome


def result_of(
    status: str,
    reason: str,
    folder: Path,
    summary: dict[str, Any] | None = None,
    exit_code: int = 0,
) -> Outcome:
    return Outcome(status, reason, str(folder), exit_code, summary or {})


class Runs:
    """Stands for `privrl_bench.training.runner.run_each`: remembers what it got, does what the seed says."""

    def __init__(self) -> None:
        self.seen: list[tuple[RunConfig, str, list[str]]] = []

    def __call__(
        self, configs: list[RunConfig], folders: list[Path], overrides: list[list[str]]
    ) -> list[Outcome | ConfigError]:
        if len(configs) > 1 and any(run.seed == 1 for run in configs):
            raise RuntimeError("one of the group broke")
        return [self.one(*given) for given in zip(configs, folders, overrides, strict=True)]

    def one(self, run: RunConfig, folder: Path, words: list[str]) -> Outcome | ConfigError:
        self.seen.append((run, str(folder.relative_to(Path.cwd())), words))
        if run.seed == 1:
            raise RuntimeError("the simulator\nbroke")
        if run.seed == 2:
            return ConfigError("env.id", "unknown")
        if run.seed == 3:
            return result_of("failed", "diverged", folder, exit_code=1)
        if run.seed == 4:
            return result_of("interrupted", "SIGTERM", folder, exit_code=143)
        return result_of("done", "", folder, {"return": {"mean": 12.345}, "epsilon": 4.3772})

    @property
    def folders(self) -> list[str]:
        return [folder for _, folder, _ in self.seen]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    stub = Runs()
    module = types.ModuleType("privrl_bench.training.runner")
    module.run_each = stub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "privrl_bench.training.runner", module)
    monkeypatch.chdir(tmp_path)
    return stub


def code_of(*words: str) -> int:
    return exit_code(cli.main, words)


def test_a_lone_run_gets_its_config_folder_and_words(runs: Runs) -> None:
    assert code_of("env=hopper", "privacy.z=0.5", "log=none", "seed=9") == 0
    ((run, folder, words),) = runs.seen
    assert (run.env.name, run.privacy.z, run.privacy.clip) == ("hopper", 0.5, 0.75)
    assert folder == "outputs/dppg/hopper/z=0.5,seed=9"
    assert words == ["env=hopper", "privacy.z=0.5", "log=none", "seed=9"]
    assert not list(Path.cwd().rglob("*.log"))
    assert not list(Path.cwd().rglob(".hydra"))


@pytest.mark.slow
def test_a_job_of_a_sweep_has_the_folder_of_the_lone_run(runs: Runs) -> None:
    assert code_of("seed=7", "-m", "algo=dppg,ppo", "algo.lr=1e-3", "env=pendulum") == 0
    in_sweep = list(runs.folders)
    runs.seen.clear()
    for algo in ("dppg", "ppo"):
        assert code_of(f"algo={algo}", "algo.lr=1e-3", "env=pendulum", "seed=7") == 0
    assert runs.folders == in_sweep
    assert in_sweep[1] == "outputs/ppo/pendulum/algo.lr=0.001,seed=7"


def test_a_run_folder_of_ones_own(runs: Runs) -> None:
    assert code_of("hydra.run.dir=here") == 0
    assert runs.folders == ["here"]


@pytest.mark.parametrize(("seed", "code"), [(0, 0), (1, 1), (2, 2), (3, 1), (4, 143)])
def test_exit_codes_of_a_lone_run(
    runs: Runs, capsys: pytest.CaptureFixture[str], seed: int, code: int
) -> None:
    assert code_of(f"seed={seed}") == code
    assert (capsys.readouterr().err == "error: env.id: unknown\n") == (code == 2)
    assert Path("outputs").exists() == (code != 2)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("word", ["hydra/launcher=basic", "hardware.max_replicas=1"])
def test_a_failing_job_stops_no_other_and_is_in_the_table(
    runs: Runs, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert code_of("-m", "seed=0,1,2,3,5", word) == 1
    assert len(runs.seen) == 5
    table = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in table if line.startswith("outputs/")]
    leaf = "outputs/dppg/cartpole/seed="
    assert rows == [
        [leaf + "1", "RuntimeError: the simulator broke"],
        [leaf + "2", "env.id: unknown"],
        [leaf + "3", "diverged"],
    ]
    assert table[-1] == "5 jobs: 2 done, 3 failed"


def test_the_table_of_a_sweep_has_a_row_for_each_setting_and_the_range_of_few_seeds(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(run: RunConfig, folder: Path, words: list[str]) -> Outcome:
        value = {0: 460.0, 1: 500.0, 2: 500.0}[run.seed] / run.privacy.z
        epsilon = 4.0 / run.privacy.z
        known = {"status": "heuristic", "caveats": ["shared critic: no noise"]}
        summary = {"return": {"mean": value}, "epsilon": epsilon, "guarantee": known}
        told = ("spaces: unbounded", f"epsilon {epsilon:g}")
        return replace(result_of("done", "", folder, summary), warnings=told)

    monkeypatch.setattr(runs, "one", one)
    monkeypatch.setattr(Runs, "__call__", lambda self, *a: [one(*x) for x in zip(*a, strict=True)])
    assert code_of("-m", "seed=range(3)", "privacy.z=1,2") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = next(i for i, line in enumerate(lines) if line[:2] == ["z", "runs"])
    rows = [" ".join(line) for line in lines[at + 1 : at + 3]]
    assert rows == [
        "1 3 of 3 486.7 (460.0 to 500.0, range of 3 runs) 4 heuristic",
        "2 3 of 3 243.3 (230.0 to 250.0, range of 3 runs) 2 heuristic",
    ]
    assert " ".join(lines[at + 3]) == "not covered by epsilon: shared critic: no noise"
    warned = [" ".join(line) for line in lines[at + 4 : at + 7]]
    assert warned == ["warning: spaces: unbounded", "warning: epsilon 4", "warning: epsilon 2"]
    assert lines[at + 7] == ["report:", "privrl", "report", "outputs/dppg/cartpole"]
    assert lines[at + 8] == ["6", "jobs:", "6", "done"]


def test_an_interrupted_sweep_starts_no_further_job(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("-m", "seed=0,4,5", "hardware.max_replicas=1") == 143
    assert [run.seed for run, _, _ in runs.seen] == [0, 4]
    assert capsys.readouterr().out.splitlines()[-1] == (
        "3 jobs: 1 done, 2 interrupted; rerun the same command to resume"
    )


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["seed=0,1", "privacy.z=1,-1"],
            "privacy.z: must be auto or 0 or in [1e-6, 1e6], got -1.0",
        ),
        (["seed=range(50)", "env=hopper,hoper"], "env: no such choice 'hoper' (did you mean hop"),
        (["algo=dppg,ppo", "algo.critic=none"], "algo.critic: no such key"),
        (["seed=1,x"], "seed: must be an integer, got 'x'"),
        (["hydra/launcher=none", "seed=1,2"], "hydra/launcher: no such choice 'none'"),
    ],
)
def test_a_wrong_value_stops_a_sweep_before_its_first_job(
    runs: Runs, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    assert code_of("-m", *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {error}")
    assert not runs.seen
    assert not Path("outputs").exists()


def test_a_combination_without_meaning_fails_alone(runs: Runs) -> None:
    assert code_of("-m", "privacy=none,fixed", "algo=dppg,ppo") == 1
    assert len(runs.seen) == 2  # dppg with fixed, ppo with none


def test_a_gpu_that_is_not_there_is_bad_input(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert code_of("hardware=gpu") == 2
    assert "use hardware=cpu" in capsys.readouterr().err
    assert not runs.seen


@pytest.mark.parametrize("word", ["algo=dpgp", "--bogus"])
def test_bad_input_of_a_lone_run_prints_one_line_only(
    runs: Runs, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert code_of(word) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not list(Path.cwd().iterdir())


def test_help_names_groups_keys_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("--help") == 0
    shown = capsys.readouterr().out
    assert shown.count("  privrl-bench ") == 5
    for word in ("mountain_car", "poisson", "privacy.users_per_round", "--config-dir DIR"):
        assert word in shown
    assert ", ".join(config.choices("algo")) in " ".join(shown.split())  # over two lines
    for word in ("schema", "tuned/", "Powered by Hydra"):
        assert word not in shown


def test_cfg_job_prints_the_composed_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of("--cfg", "job", "env=hopper", "privacy.z=0.5") == 0
    shown = capsys.readouterr().out
    assert "clip: 0.75" in shown
    assert "z: 0.5" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (["a: bad"], "a: bad"),
        (["a: bad", "a: bad"], "a: bad (all 2 jobs were refused)"),
        (["a: bad", "b: bad"], "a: bad (all 2 jobs were refused; another reason: b: bad)"),
    ],
)
def test_if_all_jobs_are_refused_their_reasons_are_one_error(reasons, text, monkeypatch):
    found = [Outcome("failed", reason, exit_code=2, bad_input=True) for reason in reasons]
    monkeypatch.setattr(launch, "_run", lambda *_: found)
    with pytest.raises(ConfigError) as error:
        launch.launch(["algo=dppg"])
    assert str(error.value) == text


# --- as a program


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "privrl_bench.cli.train", "-m", "privacy.zz=1,2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_the_first_line_of_a_run_comes_before_the_heavy_imports(tmp_path: Path) -> None:
    words = ["plan_only=true", "algo=dppg", "env=cartpole", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "privrl_bench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    heavy = [line.rpartition("|")[2].strip() in ("torch", "numba") for line in lines]
    assert lines.index("dppg on cartpole  seed=0") < heavy.index(True)
