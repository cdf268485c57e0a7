"""Which operations give other bits on other processors, which libraries emulate on this one.

    python scripts/measure_bits.py

Libraries choose kernels by the processor, or by a variable of the environment. Every operation is computed for
each setting in a new process. Features that this processor does not have cannot be emulated.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

NO_AVX2 = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
SETTINGS = {
    "torch without AVX": {"ATEN_CPU_CAPABILITY": "default"},
    "torch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "MKL with AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "OpenBLAS of Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS of Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "NumPy without AVX2": {"NPY_DISABLE_CPU_FEATURES": NO_AVX2},
    "Numba for Haswell": {"NUMBA_CPU_NAME": "haswell"},
    "Numba without FMA": {"NUMBA_CPU_NAME": "nehalem"},
    "glibc without AVX2, FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F"},
}


def operations() -> dict[str, Callable[[], Any]]:
    """Operations of runs, as the package computes them; inputs are exact on every processor."""
    import torch

    from privrl_bench.composition.compose import compose
    from privrl_bench.envs.registry import make_slots
    from privrl_bench.kernels import mlp_training, q_training
    from privrl_bench.kernels.machine import one_thread
    from privrl_bench.kernels.ridge import ridge_regressions
    from privrl_bench.models.mlp import Mlp
    from privrl_bench.privacy.noise import noise_source
    from privrl_bench.types import generator

    one_thread()
    random = np.random.default_rng(0)

    def exact(*shape: int) -> Any:
        return torch.from_numpy(random.integers(-999, 999, shape) / 1024).float()

    net, widths = Mlp(6, (64, 64), 3), np.array([6, 64, 64, 3])
    params, obs = exact(4, net.size), exact(4, 128, 6)
    phi, weights, count = exact(16, 128, 129), exact(129), torch.full((16,), 128.0)
    q = [x.numpy().copy() for x in exact(5, net.size)]
    q[2:] = [np.zeros_like(x) for x in q[2:]]
    memory = [exact(512, 6), torch.zeros(512).long(), exact(512), exact(512, 6), exact(512)]
    users = [params.numpy(), *np.zeros((2, 4, net.size), np.float32)]
    order = np.arange(128).reshape(1, 1, 1, 128).repeat(4, 1)
    more = ((0, 0.2, 0.1, True), 0, 1e-3, 1.0, False)  # see `train_users`

    def update() -> Any:
        rows = torch.cat([obs, torch.zeros(4, 128, 1), exact(4, 128, 2)], 2)
        ball = np.zeros((4, net.size), np.float32)
        mlp_training.train_users(*users, rows.numpy(), order, widths, *more, ball)
        return ball

    def learned() -> Any:
        rows = random.integers(0, 512, (8, 64))
        arrays = tuple(x.numpy() for x in memory)
        none, rates = np.zeros((0, net.size), np.float32), (1e-3, 0.01, 0.05)
        q_training.learn(*q, 0, arrays, rows, none, widths, rates, np.inf, np.float32(0))
        return q[0]

    def episode() -> Any:
        slots = make_slots(compose(["env=acrobot", "privacy.z=1"]).env, 8)
        slots.reset(np.arange(8), list(range(8)))
        return np.stack([slots.step(np.arange(8), np.full(8, t % 3)).obs for t in range(200)])

    return {
        "initial weights: normal numbers": lambda: torch.randn(4096, generator=generator(1)),
        "initial weights: QR": lambda: torch.linalg.qr(exact(64, 64))[0],
        "actions: network and softmax": lambda: torch.log_softmax(net.forward(params, obs), -1),
        "critic: value": lambda: torch.einsum("utf,f->ut", phi, weights),
        "critic: ridge": lambda: ridge_regressions(phi, exact(16, 128), count, 0.1),
        "user update (compiled)": update,
        "DQN's update (compiled)": learned,
        "Acrobot, 200 steps": episode,
        "noise": lambda: noise_source("seeded", 0, 0).normal([4096], 0, 0)[0],
    }


def digests() -> dict[str, str]:
    """Digest of each operation's result, in this process."""
    found = {name: np.asarray(compute()).tobytes() for name, compute in operations().items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}


def main() -> None:
    """Print the table."""
    if sys.argv[1:] == ["--digests"]:
        print(json.dumps(digests()))
        return
    results = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, setting in {"this processor": {}, **SETTINGS}.items():
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache, **setting}
            command = [sys.executable, __file__, "--digests"]
            results[name] = json.loads(subprocess.check_output(command, env=environment))
    here = results.pop("this processor")
    for name, found in results.items():
        other = [operation for operation in here if found[operation] != here[operation]]
        print(f"{name:26}{'; '.join(other) or 'nothing differs'}", flush=True)


if __name__ == "__main__":
    main()
