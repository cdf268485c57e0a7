"""W&B as a mirror: what an offline run holds, and that W&B can never stop a run."""

import json
import math
import os
import subprocess
import sys

import pytest
from wandb_file import offline_runs, records

from privrl_bench.config.schema import LogConfig
from privrl_bench.training.wandb_logger import CHART, WandbLogger

PNG = bytes.fromhex(  # one pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c636000000002"
    "000148afa4710000000049454e44ae426082"
)
GUARANTEE = {"status": "heuristic", "epsilon": math.inf, "caveats": ["shared critic: leaks"]}
ROW = {
    "round": 1,
    "steps": 512,
    "privacy/epsilon": 4.4,
    "eval/return_mean": 20.0,
    "train/return_mean": 19.0,
}


def mirror(folder, **changes):
    config = LogConfig(**{"wandb": "offline", "tags": ["test"], **changes})
    resolved = {"algo": {"name": "dppg"}, "privacy": {"z": 1.0}, "seed": 3}
    return WandbLogger(config, folder, resolved, GUARANTEE)


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """A finished run, read from its file."""
    folder = tmp_path_factory.mktemp("offline") / "dppg" / "cartpole" / "z=1,seed=3"
    one = mirror(folder)
    assert one.mode == "offline"
    one.log(ROW)
    one.log({"round": 2, "steps": 1024, "privacy/epsilon": 6.0})
    summary = {"status": "done", "return": {"mean": 20.0}, "epsilon": math.inf}
    one.finish(summary | {"wall_seconds": 123456.5})
    one.finish({"status": "again"})  # no effect
    (run,) = offline_runs(folder)
    return run


def test_an_offline_run_reads_back_whole(offline):
    run = offline
    assert (run.project, run.name, run.group) == ("privrl_bench", "z=1,seed=3", "dppg/cartpole/z=1")
    assert run.tags == ["test"]
    assert run.job_type == "dppg"
    assert run.config["privacy"] == {"z": 1.0}
    assert run.config["guarantee"]["status"] == "heuristic"
    assert [row["steps"] for row in run.history] == [512, 1024]
    assert run.history[0]["eval/return_mean"] == 20.0
    assert run.step_metrics["*"] == "steps"
    assert run.summary["status"] == "done"
    assert run.exit_code == 0


def test_a_file_that_is_still_being_written_reads_as_far_as_it_goes(offline):
    whole = list(records(offline.raw))
    for end in range(len(offline.raw)):  # a record cut short is not a record
        begun = list(records(offline.raw[:end]))
        assert begun == whole[: len(begun)]


def test_private_metrics_never_leave_the_folder(tmp_path, offline):
    """`offline` has logged a training return and the seconds that it took."""
    assert b"train/" not in offline.raw
    assert b"123456.5" not in offline.raw
    with pytest.raises(KeyError, match="train/return_mean"):
        mirror(tmp_path, wandb="none").finish({"status": "done", "train/return_mean": 1.0})
    with pytest.raises(KeyError):
        mirror(tmp_path, wandb="none").log({"secret": 1.0})


def test_several_runs_one_after_another_and_side_by_side(tmp_path):
    a, b = mirror(tmp_path / "a"), mirror(tmp_path / "b")
    a.log({**ROW, "eval/return_mean": 1.0})
    b.log({**ROW, "eval/return_mean": 2.0})
    a.finish({"status": "done"})
    b.finish({"status": "failed"}, exit_code=1)
    for name, value, code in (("a", 1.0, 0), ("b", 2.0, 1)):
        (run,) = offline_runs(tmp_path / name)
        assert run.history[0]["eval/return_mean"] == value
        assert run.exit_code == code


def test_none_does_not_even_import_wandb(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from privrl_bench.training.wandb_logger import WandbLogger\n"
        "from privrl_bench.config.schema import LogConfig\n"
        f"m = WandbLogger(LogConfig(wandb='none'), Path({str(tmp_path)!r}), {{}}, {{}})\n"
        "m.log({'round': 1}); m.finish({})\n"
        "assert 'wandb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(tmp_path.iterdir())


def run_alone(folder, home, mode, **environment):
    """A mirror in a process with an empty home; returns (mode it ended in, stderr)."""
    code = (
        "from pathlib import Path\n"
        "from privrl_bench.training import wandb_logger\n"
        "from privrl_bench.training.wandb_logger import WandbLogger\n"
        "from privrl_bench.config.schema import LogConfig\n"
        "wandb_logger.INIT_TIMEOUT_S = 4.0\n"  # 20 for users; an absent server is absent sooner
        f"m = WandbLogger(LogConfig(wandb={mode!r}), Path({str(folder)!r}), {{}}, {{}})\n"
        f"m.log({json.dumps(ROW)}); print(m.mode); m.finish({{'status': 'done'}})"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    return done.stdout.strip(), done.stderr


def test_offline_needs_no_account_and_leaves_the_home_alone(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    mode, _ = run_alone(tmp_path / "run", home, "offline")
    assert mode == "offline"
    assert not list(home.iterdir())
    assert len(offline_runs(tmp_path / "run")) == 1


@pytest.mark.slow
def test_online_without_a_login_goes_on_offline_and_says_so(tmp_path):
    mode, said = run_alone(tmp_path / "run", tmp_path, "online")
    assert mode == "offline"
    assert "not logged in" in said
    assert len(offline_runs(tmp_path / "run")) == 1


@pytest.mark.slow
def test_an_unreachable_server_never_stops_a_run(tmp_path):
    mode, said = run_alone(
        tmp_path / "run",
        tmp_path,
        "online",
        WANDB_BASE_URL="http://127.0.0.1:9",
        WANDB_API_KEY="0" * 40,
    )
    assert mode == "offline"
    assert "online is not available" in said
    assert any(run.history for run in offline_runs(tmp_path / "run"))


def sent(folder):
    """Contents of all files that W&B would upload, beside the record file."""
    here = (folder / "wandb").rglob("*")
    return [p.read_bytes() for p in here if p.is_file() and p.suffix != ".wandb"]


def test_the_policy_the_picture_and_a_point_are_sent_and_nothing_else(tmp_path):
    files = {"policy.pt": b"the policy", "curve.png": PNG, "checkpoint.pt": b"secret steps"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    one = mirror(tmp_path)
    summary = {"status": "done", "return": {"mean": 20.0}, "epsilon": 4.5}
    one.finish(summary, released=[tmp_path / "policy.pt", tmp_path / "curve.png"])
    (run,) = offline_runs(tmp_path)
    kinds = dict(run.artifacts)
    assert kinds.pop("policy") == ["policy.pt"]
    assert set(kinds) == {"run_table"}  # of the chart
    rows = {key: value for row in run.history for key, value in row.items()}
    assert rows["curve/_type"] == "image-file"
    assert any(key.startswith(CHART) for key in rows)
    assert any(content == PNG for content in sent(tmp_path))
    assert any(b"4.5" in content and b"20.0" in content for content in sent(tmp_path))
    assert not any(b"secret" in content for content in [run.raw, *sent(tmp_path)])


def test_no_other_file_can_be_sent(tmp_path, capsys):
    (tmp_path / "checkpoint.pt").write_bytes(b"secret steps")
    one = mirror(tmp_path)
    one.finish({"status": "done"}, released=[tmp_path / "checkpoint.pt"])
    assert "checkpoint.pt is not released" in capsys.readouterr().err
    (run,) = offline_runs(tmp_path)
    assert not run.artifacts
    assert not any(b"secret" in content for content in [run.raw, *sent(tmp_path)])
