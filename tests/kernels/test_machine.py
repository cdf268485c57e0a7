"""Threads of torch and BLAS, and shares of cores."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from privrl_bench.composition.compose import compose
from privrl_bench.kernels import machine
from privrl_bench.kernels.jit import jit
from privrl_bench.kernels.machine import one_thread


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    with threadpool_limits():
        yield
    torch.set_num_threads(before)


def test_every_blas_library_has_one_thread(threads):
    torch.set_num_threads(2)
    one_thread()
    multiply = jit(lambda x, y: np.dot(x, y))
    x = np.ones((4, 4), np.float32)
    multiply(x, x)  # compiled code loads its own BLAS
    used = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert len(used) >= 2  # NumPy's and SciPy's
    assert set(used) == {1}
    assert torch.get_num_threads() == 1


def test_a_process_of_a_sweep_has_its_share_of_the_cores(monkeypatch):
    monkeypatch.undo()  # tests have one core
    lone = compose(["algo=dppg", "env=cartpole"])
    assert machine.workers_of(lone) == machine.cores()
    assert machine.workers_of(compose(["algo=dppg", "env=cartpole", "hardware.workers=5"])) == 5
    monkeypatch.setattr(machine, "_share", 2)
    assert machine.cores() == machine.workers_of(lone) == 2
    assert machine.workers_of(compose(["algo=dppg", "env=cartpole", "hardware.workers=5"])) == 2
