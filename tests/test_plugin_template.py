"""The template under examples/plugin is installed and used as its README says: by its entry point alone."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
RUN = (
    "algo=critic_reinforce",
    "env=thermostat",
    "log=none",
    "log.plot=false",
    "log.progress=false",
)
RUN = (*RUN, "rounds=4", "privacy.users_per_round=12", "eval.episodes=1", "eval.every=0")


def install(source, target):
    """As pip does; where pip or setuptools is missing, the same files are made by hand."""
    if all(map(importlib.util.find_spec, ("pip", "setuptools"))):
        pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
        subprocess.run(
            [sys.executable, *pip, "--disable-pip-version-check", "--target", target, source],
            check=True,
        )
        return
    shutil.copytree(source / "privrl_example", target / "privrl_example")
    about = target / "privrl_example-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: privrl-example\nVersion: 0.1.0\n")
    text = "[privrl_bench.plugins]\nprivrl_example = privrl_example\n"
    (about / "entry_points.txt").write_text(text)


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """A function that runs a module with the template installed; returns what it printed."""
    folder = tmp_path_factory.mktemp("template")
    source, target, work = folder / "source", folder / "installed", folder / "work"
    shutil.copytree(ROOT / "examples" / "plugin", source)
    target.mkdir()
    work.mkdir()
    install(source, target)
    path = os.pathsep.join([str(target), str(ROOT), os.environ.get("PYTHONPATH", "")])

    def call(*words, folder=work):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call.source, call.work = source, work
    return call


def read(folder, name):
    return json.loads((folder / name).read_text())


def tensors(value, name=""):
    """The tensors of nested mappings, by name."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    inner = value.items() if isinstance(value, dict) else ()
    return {k: x for key, one in inner for k, x in tensors(one, f"{name}/{key}").items()}


@pytest.mark.slow
def test_it_trains_is_reviewed_and_trains_again_with_two_workers(call):
    one, two = call.work / "one", call.work / "two"
    call("privrl_bench.cli.train", *RUN, f"hydra.run.dir={one}", "hardware.workers=1")
    guarantee = read(one, "summary.json")["guarantee"]
    assert guarantee["status"] == "unreviewed"
    assert 0.0 < guarantee["epsilon"] < float("inf")
    assert read(one, "provenance.json")["plugins"] == {"privrl_example": "0.1.0"}

    said = call("privrl_bench.cli.main", "audit", "leaks", *RUN)
    assert "verdict  passed: no path around the gate" in said
    assert "review   recorded in" in said

    workers = ("hardware.workers=2", "hardware.shard_users=3", "log.full=true")
    said = call("privrl_bench.cli.train", *RUN, f"hydra.run.dir={two}", *workers)
    assert "workers up to 2 processes; each computes the updates of some users of a round" in said
    assert read(two, "summary.json")["guarantee"]["status"] == "formal"
    assert (two / "leaks.json").exists()
    assert read(one, "identity.json") == read(two, "identity.json")
    first, second = (torch.load(x / "policy.pt", weights_only=True) for x in (one, two))
    assert tensors(first)
    for name, value in tensors(first).items():
        assert torch.equal(value, tensors(second)[name]), name


@pytest.mark.slow
def test_its_own_tests_pass(call):
    said = call("pytest", "-q", "-p", "no:cacheprovider", "tests", folder=call.source)
    assert "3 passed" in said
