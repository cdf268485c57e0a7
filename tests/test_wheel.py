"""The wheel works without a checkout: train, explain, evaluate, report, from another folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUN = "outputs/dppg/cartpole/z=1,rounds=2,seed=0"


def call(path, folder, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the files of the wheel of the last commit."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([sys.executable, *pip, "-w", str(folder), str(source)], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as file:
        file.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.slow
def test_a_wheel_trains_and_reports_without_a_checkout(installed, tmp_path):
    where = call(installed, tmp_path, "-c", "import privrl_bench as p; print(p.__file__)")
    assert where.startswith(str(installed))
    train = ("-m", "privrl_bench", "algo=dppg", "env=cartpole", "privacy.z=1", "rounds=2")
    assert "formal" in call(installed, tmp_path, *train, "log=none")
    privrl = ("-m", "privrl_bench.cli.main")
    assert "used once" in call(installed, tmp_path, *privrl, "explain", RUN)
    assert "return" in call(installed, tmp_path, *privrl, "evaluate", RUN, "--episodes", "2")
    call(installed, tmp_path, *privrl, "report", "outputs/dppg/cartpole")
    assert "test accuracy" in call(installed, tmp_path, *privrl, "text")
    smoke = ("reproduce", "dppg-fig3", "--scale", "smoke")  # the papers' files are in the wheel
    assert "fig3" in call(installed, tmp_path, *privrl, *smoke)
