"""The batch script of docs/scaling.md, with a `scontrol` that writes down what it is asked."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = (
    *("privacy.users_per_round=4", "env.user_steps=16", "total_steps=64_000", "algo.hidden=[8]"),
    *("log=none", "log.progress=false", "log.plot=false", "eval.every=32_000", "eval.episodes=2"),
)


@pytest.mark.slow
def test_the_batch_script_requeues_and_resumes(tmp_path: Path) -> None:
    (script,) = re.findall(
        r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs/scaling.md").read_text(), re.S
    )
    (tmp_path / "job.sh").write_text(script)
    run = shlex.join([sys.executable, "-m", "privrl_bench", *WORDS])
    for name, line in {"privrl-bench": f"exec {run}", "scontrol": 'echo "$@" >> asked'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "17",
        "OMP_NUM_THREADS": "1",
    }

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "job.sh"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )

    first = start()
    ledger, end = [], time.monotonic() + 300
    while not ledger and time.monotonic() < end:
        ledger = list(tmp_path.glob("outputs/**/ledger.jsonl"))
        assert first.poll() is None
    first.send_signal(signal.SIGUSR1)
    first.communicate(timeout=300)
    assert first.returncode == 128 + signal.SIGUSR1
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    status = json.loads((ledger[0].parent / "status.json").read_text())
    assert status["status"] == "interrupted"
    assert status["reason"].startswith("SIGUSR1")
    again = start()
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0
    assert "resume " in said
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
    status = json.loads((ledger[0].parent / "status.json").read_text())
    assert status["status"] == "done"
