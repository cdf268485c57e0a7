"""Compiled code gives the same bits whether it is compiled by the process or loaded from the cache."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privrl_bench.envs import hiv
from privrl_bench.kernels import actor_critic_training, jit, mlp_training
from privrl_bench.packs.imitations import q_training
from privrl_bench.packs.offline.model_based import ensemble_training

PROGRAM = """
import sys
from pathlib import Path
from privrl_bench.composition.compose import compose
from privrl_bench.training.runner import run
words = ["env=cartpole", "privacy.z=1", "seed=11", "rounds=6", "log.plot=false", *sys.argv[2:]]
run([compose(words)], [Path(sys.argv[1])], [words])
"""
PARTS = """
from privrl_bench.kernels.jit import part
SHIFT = {shift}

@part
def shifted(x):
    return x + SHIFT
"""
KERNEL = """
from privrl_bench.kernels.jit import jit
from {parts} import shifted

@jit
def total(x):
    found = 0.0
    for i in range(x.size):
        found += shifted(x[i])
    return found
"""


@pytest.mark.slow
def test_a_run_that_compiles_is_the_run_that_loads(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    batch = []
    for name in ("first", "second"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / name), "algo=dppg"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        batch.append(done.stderr)
    for file in ("metrics.jsonl", "ledger.jsonl"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    assert "digest" in json.loads((tmp_path / "first/ledger.jsonl").read_text().splitlines()[-1])
    assert ["compiling kernels" in lines for lines in batch] == [True, False]


def zeros(*shape):
    return np.zeros(shape, np.float32)


def train_users():
    order, widths = np.zeros((1, 1, 1, 2), np.int64), np.array([2, 3, 2])
    moments = [zeros(1, 17) for _ in range(3)]
    head = (0, 0.2, 0.1, True)
    mlp_training.train_users(
        *moments, zeros(1, 4, 5), order, widths, head, 0, 1e-3, 1.0, False, zeros(1, 17)
    )
    return mlp_training.train_users


def train_models():
    order, widths = np.zeros((1, 1, 1, 2), np.int64), np.array([2, 3, 2])
    radius = np.float64(1.0)
    ensemble_training.train_models(
        zeros(1, 1, 17), np.zeros(1, np.int64), zeros(1, 4, 3), order, widths, np.array([17]),
        radius, 1e-3, 1e-4, True, zeros(1, 1, 17),
    )  # fmt: skip
    return ensemble_training.train_models


def train_pooled():
    order, actor, critic = (
        np.zeros((1, 1, 1, 2), np.int64),
        np.array([2, 3, 2]),
        np.array([2, 3, 1]),
    )
    head, value = (0, 0.2, 0.1, True), (0.5, np.inf)
    actor_critic_training.train_pooled(
        zeros(3, 1, 17),
        zeros(3, 1, 13),
        zeros(1, 4, 7),
        order,
        actor,
        critic,
        head,
        value,
        1.0,
        0,
        1e-3,
    )
    return actor_critic_training.train_pooled


def learn():
    memory = (zeros(4, 2), np.zeros(4, np.int64), zeros(4), zeros(4, 2), zeros(4))
    rows, widths = np.zeros((1, 2), np.int64), np.array([2, 3, 2])
    vectors = [zeros(17) for _ in range(5)]
    q_training.learn(
        *vectors, 0, memory, rows, zeros(1, 17), widths, (1e-3, 0.0, 0.1), 1.0, np.float32(0.1)
    )
    return q_training.learn


def days():
    hiv.after_days(np.concatenate([hiv.START, hiv.USUAL])[:, None], np.array([0]), 0.1)
    return hiv._days


@pytest.mark.parametrize("used", [train_users, train_models, train_pooled, learn, days])
def test_a_kernel_holds_its_parts(used):
    """The linker may replace any other function in the module, so no other may reorder sums."""
    kernel = used()
    for compiled in kernel.overloads.values():
        module = compiled.library._get_module_for_linking()
        names = (compiled.fndesc.mangled_name, compiled.fndesc.llvm_cpython_wrapper_name)
        others = [f for f in module.functions if not f.is_declaration and f.name not in names]
        assert [f.name for f in others if "reassoc" in str(f)] == []


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write a kernel and its part as two modules with their own cache folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # no stale bytecode within a second
    (tmp_path / "kernel_of_test.py").write_text(KERNEL.format(parts="parts_of_test"))

    def load(shift=1.0):
        (tmp_path / "parts_of_test.py").write_text(PARTS.format(shift=shift))
        for name in ("parts_of_test", "kernel_of_test"):
            spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        return module.total

    return load


def kept(total):
    return sorted(Path(total._cache.cache_path).glob("*.nbc"))


def hits(total):
    return sum(total.stats.cache_hits.values())


def test_machine_code_is_loaded(modules):
    assert modules()(np.ones(3)) == 6.0
    again = modules()
    assert again(np.ones(3)) == 6.0
    assert hits(again) == 1
    again(np.ones(3, np.float32))
    assert len(kept(again)) == 2


def test_machine_code_that_names_a_moved_module_is_compiled_again(modules):
    total = modules()
    total(np.ones(3))
    (path,) = kept(total)
    moved = b"cno_such_module\nNoSuchType\n."  # a pickle of a name in a module that is gone
    path.write_bytes(total._cache._digest(moved) + moved)
    again = modules()
    assert again(np.ones(3)) == 6.0
    assert hits(again) == 0


def test_machine_code_of_an_older_part_in_another_module_is_not_used(modules):
    modules()(np.ones(3))
    changed = modules(shift=2.0)
    assert changed(np.ones(3)) == 9.0
    assert hits(changed) == 0
    assert len(kept(changed)) == 1


def test_damaged_machine_code_is_compiled_again(modules):
    total = modules()
    total(np.ones(3))
    (file,) = kept(total)
    file.write_bytes(file.read_bytes()[:-9] + bytes(9))
    again = modules()
    assert again(np.ones(3)) == 6.0
    assert hits(again) == 0
    third = modules()
    third(np.ones(3))
    assert hits(third) == 1


def test_a_full_disk_is_reported(modules, monkeypatch):
    lines = []
    monkeypatch.setattr(jit, "_say", lines.append)
    total = modules()

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert total(np.ones(3)) == 6.0
    assert "No space left on device; every run compiles them" in lines[1]
    assert kept(total) == []
