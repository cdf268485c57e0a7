"""Threads of this process: torch's and BLAS's."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from privrl_bench.jit import jit
from privrl_bench.machine import use_threads


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    with threadpool_limits():
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_every_library_that_multiplies_takes_as_many_threads_as_it_is_told(threads, count):
    use_threads(3 - count)
    use_threads(count)
    multiply = jit(lambda x, y: np.dot(x, y))
    x = np.ones((4, 4), np.float32)
    multiply(x, x)  # compiled code loads its own BLAS
    used = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert len(used) >= 2  # NumPy's and SciPy's
    assert set(used) == {count}
    assert torch.get_num_threads() == count
