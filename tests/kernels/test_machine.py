"""The numbers of threads of torch and BLAS."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from privrl_bench.config.compose import compose
from privrl_bench.experiment.runner import run
from privrl_bench.kernels.jit import jit
from privrl_bench.kernels.machine import use_threads


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    with threadpool_limits():
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
def test_use_threads_sets_every_blas_library(threads, count):
    use_threads(3 - count)
    use_threads(count)
    multiply = jit(lambda x, y: np.dot(x, y))
    x = np.ones((4, 4), np.float32)
    multiply(x, x)  # compiled code loads its own BLAS
    used = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    assert len(used) >= 2  # NumPy's and SciPy's
    assert set(used) == {count}
    assert torch.get_num_threads() == count


SMALL = ["log=none", "eval.episodes=1", "eval.every=0"]
FAMILIES = {
    # 256 features: with two threads torch's LU solver of oneMKL fails on batches of this size.
    "private critic": [
        "algo=dppg", "env=hopper", "tuned=dppg_mujoco", "rounds=1", "env.max_episode_steps=20",
        "privacy.users_per_round=4", "env.user_steps=16",
    ],
    "natural gradient": ["algo=dppg_kl", "env=riverswim", "rounds=2"],
    "least squares": [
        "algo=lstd", "env=chain", "data.policy=uniform", "privacy.population=10", "algo.reference=4",
    ],
    "policy evaluation": [
        "algo=gpope", "env=chain", "data.policy=uniform", "privacy.population=10", "rounds=2",
        "algo.reference=4",
    ],
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_two_threads_train_what_one_trains(threads, family, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "privrl_bench.experiment.builder.noise_key", lambda config: 7
    )  # threads change the noise
    found = []
    for count in (1, 2):
        words = [*FAMILIES[family], *SMALL, f"hardware.threads={count}"]
        (result,) = run([compose(words)], [tmp_path / str(count)], [words])
        assert result.status == "done", result.reason
        found.append(torch.load(tmp_path / str(count) / "policy.pt", weights_only=False)["actor"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)
