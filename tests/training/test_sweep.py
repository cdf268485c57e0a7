"""A sweep as one program: who trains with whom, and that nobody can tell afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_train import code_of

from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.cli import train as cli
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import HardwareConfig, RunConfig
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.kernels import machine
from privrl_bench.training import loop as training
from privrl_bench.training import sweep
from privrl_bench.training.folder import RunDir, read_lines
from privrl_bench.training.sweep import Job, Outcome

ROUNDS = 8
TINY = (
    *("privacy.users_per_round=4", "env.user_steps=16", f"total_steps={64 * ROUNDS}"),
    *("algo.hidden=[8]", "eval.episodes=2", "eval.every=256"),
    *("log=none", "log.plot=false", "log.progress=false"),
)
BASE = compose(later_wins([*TINY, "algo.epochs=1"]))
SEGMENTS = replace(BASE, env=replace(BASE.env, user="segment"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def seeds(base: RunConfig, count: int, root: str) -> list[Job]:
    """Jobs with seeds 0, 1, ... and folders `root`/0, `root`/1, ..."""
    return [Job(n, replace(base, seed=n), Path(root, str(n)).absolute(), []) for n in range(count)]


def seeds_in(work: Sequence[Job], root: str) -> list[Job]:
    """The same jobs with folders below `root`."""
    return [replace(job, folder=Path(root, job.folder.name).absolute()) for job in work]


def sweep_of(work: Sequence[Job]) -> tuple[int, list[Outcome]]:
    """Exit code and outcomes."""
    outcomes = sweep.run_jobs(work)
    return sweep.interruption(outcomes), outcomes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of three seeds of SEGMENTS, finished; no test changes them."""
    work = seeds(SEGMENTS, 3, str(tmp_path_factory.mktemp("whole")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cores", lambda: 1)
        code, outcomes = sweep_of(work)
    assert (code, statuses(outcomes)) == (0, ["done"] * 3)
    return [job.folder for job in work]


def begun(root: Path) -> list[Path]:
    """Metrics of the runs under `root` that have ended a round: the first line is before any data.

    Other processes may make and remove folders meanwhile.
    """
    found = [
        Path(at, "metrics.jsonl") for at, _, files in os.walk(root) if "metrics.jsonl" in files
    ]
    return [path for path in found if len(read_lines(path)) > 1]


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def content(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "metrics.jsonl").read_bytes(), (folder / "ledger.jsonl").read_bytes()


def assert_close(folder: Path, other: Path) -> None:
    """The same metrics but for the order of floating-point sums."""
    rows = [read_lines(path / "metrics.jsonl") for path in (folder, other)]
    assert len(rows[0]) == len(rows[1]) == 1 + ROUNDS  # one before any data
    for row, same in zip(*rows, strict=True):
        assert row.keys() == same.keys()
        for name, value in row.items():
            expected = same[name]
            if expected is not None:
                expected = pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert value == expected, name


def on_steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[training.Trainer], None]) -> None:
    """Call `act` after every round of every session."""
    real = training.Trainer.step

    def step(session: training.Trainer) -> None:
        real(session)
        act(session)

    monkeypatch.setattr(training.Trainer, "step", step)


# --- grouping

ONE = st.tuples(
    st.integers(0, 3),  # seed
    st.sampled_from([0.0, 1.0]),  # z
    st.sampled_from([0.1, 0.2]),  # clip
    st.sampled_from([1, 2]),  # epochs: here only runs with 1 can be trained together
)


class Alone(DppgConfig):
    """Settings of an algorithm that trains one run at a time."""

    traits = replace(DppgConfig.traits, replicas=False)


@settings(max_examples=60)
@given(st.lists(ONE, max_size=24), st.integers(1, 5), st.integers(1, 3))
def test_groups_hold_every_job_once_and_differ_in_seed_and_z_only(
    drawn: list[tuple[Any, ...]], most: int, processes: int
) -> None:
    work = []
    for number, (seed, z, clip, epochs) in enumerate(drawn):
        run = replace(
            BASE,
            seed=seed,
            privacy=replace(BASE.privacy, z=z, clip=clip),
            algo=(DppgConfig if epochs == 1 else Alone)(**{**vars(BASE.algo), "epochs": epochs}),
            hardware=HardwareConfig(max_replicas=most),
        )
        work.append(Job(number, run, Path(f"own{number}"), []))
    groups = sweep.schedule(work, processes)
    assert sorted(job.number for group in groups for job in group) == list(range(len(work)))
    for group in groups:
        assert 1 <= len(group) <= most
        assert [job.number for job in group] == sorted(job.number for job in group)
        runs = [job.config for job in group]
        blank = [replace(run, seed=0, privacy=replace(run.privacy, z=0.0)) for run in runs]
        assert all(run == blank[0] for run in blank)
        assert len(group) == 1 or runs[0].algo.epochs == 1
    assert len(groups) >= min(processes, len(work))  # no process is without work


def test_groups_are_split_evenly() -> None:
    work = seeds(BASE, 17, "x")
    groups = sweep.schedule(work)
    assert [len(group) for group in groups] == [5, 6, 6]
    groups = sweep.schedule(work[:6], processes=3)
    assert [len(group) for group in groups] == [2, 2, 2]
    groups = sweep.schedule(work[:4], processes=3)
    assert [len(group) for group in groups] == [1, 1, 2]
    groups = sweep.schedule(work, processes=2)
    assert [len(group) for group in groups] == [4, 4, 4, 5]
    other = [replace(job, config=replace(job.config, total_steps=99)) for job in work[:8]]
    groups = sweep.schedule([*work, *seeds_in(other, "y")], processes=2)
    assert [len(group) for group in groups] == [5, 6, 6, 8]


# --- results


def test_a_sweep_leaves_what_lone_runs_leave(capsys: pytest.CaptureFixture[str]) -> None:
    # Sixteen steps leave the critic's regression ill-conditioned; a larger ridge does not amplify rounding.
    words = (*TINY, "algo.critic_ridge=1")
    assert code_of("-m", "privacy.z=1,3", "seed=0,1", *words) == 0
    out = capsys.readouterr().out
    assert "4 jobs, up to 4 train together in one of 1 groups" in out
    assert "results: " not in out  # a row for each setting, no lines of runs
    folders = [str(path.parent) for path in Path("outputs").rglob("summary.json")]
    assert len(folders) == 4
    Path("outputs").rename("sweep")
    for z, seed in ((1, 0), (3, 1)):
        (name,) = (one for one in folders if f"z={z}," in one and f"seed={seed}" in one)
        assert code_of(f"privacy.z={z}", f"seed={seed}", *words) == 0
        alone, together = Path(name), Path("sweep", *Path(name).parts[1:])
        assert {p.name for p in alone.iterdir()} == {p.name for p in together.iterdir()}
        assert_close(together, alone)
        intents = [
            [
                {key: x for key, x in line.items() if key != "previous"}  # a hash of digests, too
                for line in read_lines(path / "ledger.jsonl")
                if "digest" not in line
            ]
            for path in (together, alone)
        ]
        assert intents[0] == intents[1]
        for file in ("config.yaml", "plan.json"):
            assert (together / file).read_bytes() == (alone / file).read_bytes()


def test_algorithms_of_a_sweep_train_in_groups_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["env.user_steps=64", "total_steps=512", *(w for w in TINY if "steps" not in w)]
    assert code_of("-m", "algo=dppg,ppo", "seed=0,1", *words) == 0
    out = capsys.readouterr().out
    assert "4 jobs, up to 2 train together in one of 2 groups" in out
    assert "4 jobs: 4 done" in out


# --- failures


def pooled(algo: str) -> RunConfig:
    run = compose(later_wins([f"algo={algo}", "env.user=segment", *TINY]))
    return replace(run, algo=replace(run.algo, minibatches=2)) if algo == "ppo" else run


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("algo", ["dppg", "ppo", "a2c"])
def test_a_diverged_replica_fails_alone_and_the_others_do_not_notice(
    algo: str, monkeypatch: pytest.MonkeyPatch, whole: list[Path]
) -> None:
    base = SEGMENTS
    if algo != "dppg":
        base = pooled(algo)
        work = seeds(base, 3, "whole")
        assert statuses(sweep_of(work)[1]) == ["done"] * 3
        whole = [job.folder for job in work]

    def blow_up(session: training.Trainer) -> None:
        if session.round == 4:
            session.state.tensors["actor"][1, 0] = float("nan")

    on_steps(monkeypatch, blow_up)
    code, outcomes = sweep_of(seeds(base, 3, "cut"))
    assert code == 0
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert "round 3 gave non-finite parameters" in outcomes[1].reason
    assert outcomes[1].exit_code == 1
    for n in (0, 2):
        assert content(whole[n]) == content(Path("cut", str(n)))
        assert RunDir(Path("cut", str(n))).status()["status"] == "done"
    failed = RunDir(Path("cut/1"))
    assert failed.status() == {"status": "failed", "reason": outcomes[1].reason}
    assert json.loads((failed / "summary.json").read_text())["steps"] == 3 * 64
    saved = failed.load_checkpoint()
    assert saved is not None
    assert saved["round"] == 3
    assert all(bool(x.isfinite().all()) for x in saved["state"].values())
    for file in ("ledger.jsonl", "metrics.jsonl"):  # nothing after its last round
        assert max(line["round"] for line in read_lines(failed / file)) == 3


def test_all_replicas_may_diverge(monkeypatch: pytest.MonkeyPatch) -> None:
    def blow_up(session: training.Trainer) -> None:
        session.state.tensors["actor"][session.round - 1, 0] = float("nan")

    on_steps(monkeypatch, blow_up)
    assert statuses(sweep_of(seeds(BASE, 2, "x"))[1]) == ["failed", "failed"]
    assert [RunDir(Path("x", n)).load_checkpoint()["round"] for n in "01"] == [0, 1]  # type: ignore[index]


def test_a_simulator_that_fails_stops_its_own_job_only(
    monkeypatch: pytest.MonkeyPatch, whole: list[Path]
) -> None:
    def fail(session: training.Trainer) -> None:
        if session.round == 3 and any(run.seed == 1 for run in session.parts.configs):
            raise EnvironmentFailure("pump is stuck")

    on_steps(monkeypatch, fail)
    _, outcomes = sweep_of(seeds(SEGMENTS, 3, "cut"))
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert outcomes[1].reason == "EnvironmentFailure: pump is stuck"
    for n in (0, 2):
        assert_close(Path("cut", str(n)), whole[n])
        assert outcomes[n].summary["ledger"]["repeated"] == 0


def test_what_is_wrong_with_one_folder_is_the_matter_of_its_job() -> None:
    first, second, third, fourth = seeds(BASE, 4, "x")
    sweep_of([replace(second, config=replace(BASE, total_steps=64))])
    sweep_of([third])
    (third.folder / "status.json").write_text('{"status": "running"}')
    (third.folder / "checkpoint.pt").write_bytes(b"damaged")
    sweep_of([fourth])
    (fourth.folder / "status.json").write_text('{"status": "running"}')
    (fourth.folder / "ledger.jsonl").write_text('damaged\n"\n')
    _, outcomes = sweep_of([first, second, third, fourth, replace(first, number=4)])
    assert statuses(outcomes) == ["done", "failed", "failed", "failed", "skipped"]
    assert "total_steps: 64 -> 512" in outcomes[1].reason
    assert outcomes[1].bad_input
    assert outcomes[1].exit_code == 2
    assert "checkpoint.pt is damaged; use resume=restart" in outcomes[2].reason
    assert "ledger.jsonl line 1 is damaged" in outcomes[3].reason


# --- interruptions


def test_a_stopped_sweep_goes_on_job_by_job(whole: list[Path]) -> None:
    work = seeds(SEGMENTS, 3, "cut")
    sweep_of(work[:1])  # finished before the sweep

    def stop(session: training.Trainer) -> None:
        if session.round == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        on_steps(patch, stop)
        code, outcomes = sweep_of(work)
    assert code == 143
    assert statuses(outcomes) == ["skipped", "interrupted", "interrupted"]
    saved = RunDir(work[1].folder).load_checkpoint()
    assert saved is not None
    assert saved["round"] == 5
    code, outcomes = sweep_of(work)
    assert code == 0
    assert statuses(outcomes) == ["skipped", "done", "done"]
    for one, other in zip(work, whole, strict=True):
        assert_close(one.folder, other)


def test_a_signal_stops_what_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(session: training.Trainer) -> None:
        if session.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    work = seeds(BASE, 4, "x")
    with pytest.MonkeyPatch.context() as patch:
        on_steps(patch, stop)
        assert sweep_of(work[:1])[0] == 130  # stands at round 2, the others at 0
    resumed: list[int] = []

    def stop_at_four(session: training.Trainer) -> None:
        resumed.append(len(session.parts.configs))
        if session.round == 4:
            os.kill(os.getpid(), signal.SIGINT)

    on_steps(monkeypatch, stop_at_four)
    code, outcomes = sweep_of(work)
    assert code == 130
    assert statuses(outcomes) == ["interrupted"] * 4
    assert resumed == [1, 1]
    assert not work[1].folder.exists()


@pytest.mark.slow
def test_a_process_that_dies_takes_its_group_only() -> None:
    hardware = HardwareConfig(workers=2)
    work = []
    for name in ("MyEnv", "Exit"):
        env = replace(BASE.env, name="gym", id=f"my_pkg:{name}-v0", obs_mean=None, obs_std=None)
        run = replace(BASE, env=replace(env, obs_scaling="none"), hardware=hardware)
        work += seeds(run, 2, name)
    work = [replace(job, number=n) for n, job in enumerate(work)]
    _, outcomes = sweep_of(work)
    assert statuses(outcomes) == ["done", "done", "failed", "failed"]
    assert all("exit code 7" in outcome.reason for outcome in outcomes[2:])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_every_process_and_the_exit_code_tells(here: Path, number: int) -> None:
    """SIGINT as a user sends it, to one process; SIGUSR1 as SLURM sends it, to all."""
    words = [
        "-m",
        "seed=0,1,2,3",
        "hardware.workers=2",
        *later_wins(TINY, ["total_steps=1_000_000"]),
    ]
    root = str(Path(cli.__file__).parents[2])
    with open("log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "privrl_bench.cli.train", *words],
            env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        deadline = time.monotonic() + 300
        while len(found := begun(here)) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
            assert process.poll() is None, Path("log").read_text()
        if number == signal.SIGINT:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        assert process.wait(120) == 128 + number, Path("log").read_text()
    text = Path("log").read_text()
    assert "Traceback" not in text
    last = "4 jobs: 4 interrupted; rerun the same command to resume"
    assert text.splitlines()[-1] == last
    assert [RunDir(path.parent).status()["status"] for path in found] == ["interrupted"] * 4
    saved = [RunDir(path.parent).load_checkpoint() for path in found]
    assert all(one is not None and one["round"] > 0 for one in saved)


@pytest.mark.slow
def test_a_killed_process_leaves_no_run_running(here: Path) -> None:
    """Its parent writes how its runs ended."""
    words = ["-m", "seed=0,1", "hardware.workers=2", *later_wins(TINY, ["total_steps=1_000_000"])]
    root = str(Path(cli.__file__).parents[2])
    with open("log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "privrl_bench.cli.train", *words],
            env=os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
        deadline = time.monotonic() + 300
        while len(found := begun(here)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            assert process.poll() is None, Path("log").read_text()
        for pid in children_of(process.pid):
            if "resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        assert process.wait(120) == 1, Path("log").read_text()
    for path in found:
        status = RunDir(path.parent).status()
        assert status["status"] == "failed"
        assert "killed by signal 9" in status["reason"]


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_submitit_still_puts_a_job_back_into_its_queue(here: Path) -> None:
    """Its handler of SIGUSR2 stays: it saves the job and exits, then the job starts again and resumes."""
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    from privrl_bench.api.launch import launch

    words = later_wins(TINY, ["total_steps=64_000", "eval.every=8_000"])
    executor = submitit.LocalExecutor(folder=here / "jobs")
    executor.update_parameters(timeout_min=30)
    job = executor.submit(launch, words)
    deadline = time.monotonic() + 300
    while not begun(here) and time.monotonic() < deadline:
        time.sleep(0.01)
        assert not job.done(), job.stderr()
    (task,) = children_of(int(job.job_id))
    os.kill(task, signal.SIGTERM)  # which submitit ignores
    os.kill(task, signal.SIGUSR2)
    (outcome,) = job.result()
    assert outcome.status == "done"
    log = f"{job.stdout()}{job.stderr()}"
    assert "Bypassing signal SIGTERM" in log
    assert "Caught signal SIGUSR2" in log
    assert "Requeued job" in log
    assert "resume " in log  # at a round, or from the start without a checkpoint


def test_hydra_composes_every_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper composes each to see whether it can be; the launcher takes what is there."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    composed: list[list[str]] = []
    real = ConfigLoaderImpl.load_sweep_config

    def load(self: Any, master: Any, overrides: list[str]) -> Any:
        composed.append(overrides)
        return real(self, master, overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", load)
    assert code_of("-m", "privacy.z=1,3", "seed=0,1", "plan_only=true", *TINY) == 0
    assert len(composed) == 4


@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=pytest.mark.slow) for name in ("submitit_local", "ray")]
)
def test_another_launcher_gets_a_task_for_each_group(launcher: str) -> None:
    """Each in its own process; the folders are those of the package's launcher, to the last bit."""
    if launcher == "ray":
        pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    words = ("-m", "seed=0,1", "algo.epochs=1,2", *TINY)
    command = [sys.executable, "-m", "privrl_bench.cli.train", *words]
    done = subprocess.run(
        [*command, f"hydra/launcher={launcher}"], capture_output=True, text=True, check=True
    )
    assert "4 jobs in 2 tasks of the launcher" in done.stdout
    assert "4 jobs: 4 done" in done.stdout
    Path("outputs").rename("elsewhere")
    assert code_of(*words) == 0
    folders = [path.parent for path in begun(Path("outputs"))]
    assert len(folders) == 4
    for folder in folders:
        assert content(folder) == content(Path("elsewhere", folder.relative_to("outputs")))
        assert json.loads((folder / "summary.json").read_text())["status"] == "done"
