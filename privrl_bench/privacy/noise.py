"""Where privacy noise comes from. Only this module draws it."""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_NOISE_TAG = 90
_COHORT_TAG = 91


class NoiseSource(Protocol):
    """Standard normal vectors, and the cohort draws that must be as secret as the noise."""

    name: str

    def normal(self, sizes: list[int], round_index: int, attempt: int) -> list[Tensor]:
        """One float64 N(0, I) vector for each size, for one release."""
        ...

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """Number of people who join a round."""
        ...


class SeededNoise:
    """Reproducible noise: a function of (seed, round, attempt). It protects nobody who is up against
    someone that knows the seed; for research on simulators."""

    name = "seeded"

    def __init__(self, seed: int):
        self._seed = seed

    def normal(self, sizes: list[int], round_index: int, attempt: int) -> list[Tensor]:
        """See `NoiseSource.normal`. A second attempt at a round draws other noise."""
        # NumPy's generator has 128 bits of state; torch's takes 32 bits of its seed, so that two of a
        # thousand rounds would share their noise more often than delta allows.
        words = np.random.SeedSequence([self._seed, _NOISE_TAG, round_index, attempt])
        stream = np.random.default_rng(words)
        return [torch.from_numpy(stream.standard_normal(size)) for size in sizes]

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """See `NoiseSource.binomial`."""
        words = np.random.SeedSequence([self._seed, _COHORT_TAG, round_index])
        return int(np.random.default_rng(words).binomial(n, q))


class SecureNoise:
    """Noise from ChaCha20 keyed by the operating system, anew in every process, never stored.

    Each number is the sum of four float64 Box-Muller normals divided by 2, which hides the low bits
    that floating-point attacks on a single draw read (Holohan and Braghin 2021, section 5).
    """

    name = "secure"
    _SUMS = 4

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        key, nonce = secrets.token_bytes(32), secrets.token_bytes(16)
        self._stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
        self._random = secrets.SystemRandom()

    def _uniform(self, count: int) -> np.ndarray:
        """`count` float64 numbers in (0, 1], 53 random bits each."""
        bits = np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64) >> np.uint64(
            11
        )
        return (bits.astype(np.float64) + 1.0) * 2.0**-53

    def normal(self, sizes: list[int], round_index: int, attempt: int) -> list[Tensor]:
        """See `NoiseSource.normal`; the counters are not used."""
        drawn = []
        for size in sizes:
            count = self._SUMS * size
            radius = np.sqrt(-2.0 * np.log(self._uniform(count)))
            single = radius * np.cos(2.0 * np.pi * self._uniform(count))
            total = single.reshape(self._SUMS, size).sum(axis=0) / np.sqrt(self._SUMS)
            drawn.append(torch.from_numpy(total))
        return drawn

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """See `NoiseSource.binomial`."""
        rng = np.random.default_rng(self._random.getrandbits(256))
        return int(rng.binomial(n, q))


def noise_source(kind: str, seed: int) -> NoiseSource:
    """`seeded` or `secure` (see `privacy.noise`)."""
    return SecureNoise() if kind == "secure" else SeededNoise(seed)
