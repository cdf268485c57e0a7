"""The example under examples/insulin passes its own tests; it needs simglucose, which `make setup` installs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_its_own_tests_pass(tmp_path):
    source = tmp_path / "insulin"
    shutil.copytree(ROOT / "examples" / "insulin", source, ignore=shutil.ignore_patterns("outputs"))
    path = os.pathsep.join([str(source), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 passed" in done.stdout
