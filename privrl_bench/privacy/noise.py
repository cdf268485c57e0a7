"""Where the gate's noise comes from. Only this module draws it (`per_transition.py` draws its own, beside it).

`seeded` is reproducible and gives no protection against an adversary who knows the seed, which is published
with the run; it is refused for users who are not known to be simulated (`users/refusals.py`). `secure`
is for data of real users. Whoever takes part in a round by chance, and what a search draws, comes from the same
source as the noise. Clipped rows are integers on a public grid (`grid.py`), and get integer noise (`integers`):

- `secure`: the discrete Gaussian (Canonne, Kamath and Steinke 2020), sampled exactly by the OpenDP library from
  random bits of the operating system. There is no stream that could be known, stored or repeated, and no
  floating-point number. Its time depends on the noise, and time is not protected.
- `seeded`: normal numbers of NumPy's generator, rounded to integers.

Other laws are made of random bits (`bits`), which both sources have: of a generator, or of a fresh key. The
discrete Laplace is sampled exactly from them, in integers only (`discrete_laplace`).

Mechanisms whose outputs are not clipped rows (noise on users' devices, smooth sensitivity) take floating-point
noise (`normal`), and a note of the guarantee says so. There `secure` protects from:

- *A known, guessed, stored or repeated stream.* Every release has a ChaCha20 key of its own, 256 bits
  from the operating system, used once and kept nowhere. So there is no state that a checkpoint, a copy of
  the object, a forked process or a restored snapshot of the process could continue a second time.
- *Reading the low bits of a lone draw* (Mironov 2012 for Laplace; Jin et al. 2022 for Gaussians, DP-SGD
  included). Each number is the sum of 2n = 4 normals divided by 2 (Holohan and Braghin 2021, section 5.1,
  n = 2, as Opacus' secure mode has it, which counts 2^(53 (2n - 1)) = 2^159 guesses). Theirs may share
  uniforms in pairs; here every normal has two uniforms of its own.
- *The sampler's time* (Jin et al. 2022). Box-Muller rejects nothing, so its work does not depend on the
  noise; NumPy's ziggurat does. The binomial below rejects too, but its time depends on the size of a cohort,
  not on the noise.
- *The precision of the result* (Haney et al. 2022). A small sum of larger doubles ends in zeros that
  continuous noise would not have, and more draws do not mend that: doubles must not leave the gate. These
  mechanisms round what they release to multiples of a public power of two near a thousandth of the noise
  (`contribution.on_grid`).

Not protected: keys and noise lie in memory (swap, core dumps) until it is used again; the tails of a
floating-point draw end at 17 standard deviations; log and cos are as exact as the machine's library. None is
in epsilon.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.grid import MOST_NOISE
from privrl_bench.privacy.guarantee import SEEDED

# No other stream of a run has these words: `functional/rng.py` has names of its own, tested to differ.
_NOISE_TAG = 90
_COHORT_TAG = 91
_MEMBERS_TAG = 92
_SEARCH_TAG = 93
_BITS_TAG = 94
_FLOATS = (
    "floating point",
    "noise and outputs are floating-point numbers; what a proof on real ones leaves open: noise.py",
)


class SeededNoise:
    """Reproducible noise: a function of (seed, settings, round, attempt). For research on simulators.

    It gives no protection against an adversary who knows the seed.

    Args:
        seed: of the run.
        settings: a number that stands for everything that changes the rows or the noise's size. Two runs
            of one seed with other settings would else share their noise, and the difference of their
            releases would be free of it. The plan gives 128 bits of a hash of all settings, z and clip
            among them.
    """

    name = "seeded"

    @staticmethod
    def notes(exact: bool) -> dict[str, str]:
        """What the guarantee assumes of the noise: name -> why. `exact`: of integers only."""
        seeded = (
            "reproducible research on simulators: the seed is published with the run (configuration, W&B), so "
            "epsilon holds against an adversary who does not know it, and for one run of these settings and "
            "seed; run again on other data, with other code or beside other runs, the noise is the same "
            "(privacy.noise=secure for real data)"
        )
        return {SEEDED: seeded} | ({} if exact else dict([_FLOATS]))

    def __init__(self, seed: int, settings: int):
        self._words = [seed, settings]

    def normal(self, sizes: list[int], round_index: int, attempt: int) -> list[Tensor]:
        """One float64 N(0, I) vector for each size; a second attempt at a round draws other noise."""
        # NumPy's generator has 128 bits of state; torch's takes 32 bits of its seed, so that two of a
        # thousand rounds would share their noise more often than delta allows.
        words = np.random.SeedSequence([*self._words, _NOISE_TAG, round_index, attempt])
        stream = np.random.default_rng(words)
        return [torch.from_numpy(stream.standard_normal(size)) for size in sizes]

    def integers(
        self, sizes: list[int], stds: list[float], round_index: int, attempt: int
    ) -> list[Tensor]:
        """One int64 vector for each size: `normal` times the standard deviation, rounded."""
        drawn = self.normal(sizes, round_index, attempt)
        return [torch.round(std * x).to(torch.int64) for std, x in zip(stds, drawn, strict=True)]

    def bits(self, round_index: int, attempt: int) -> Callable[[int], bytes]:
        """A stream of random bytes for one attempt, from its beginning; `stream(n)` gives its next n."""
        words = np.random.SeedSequence([*self._words, _BITS_TAG, round_index, attempt])
        return np.random.default_rng(words).bytes

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """Number of users who join a round; as secret as the noise."""
        words = np.random.SeedSequence([*self._words, _COHORT_TAG, round_index])
        return int(np.random.default_rng(words).binomial(n, q))

    def choose(self, n: int, count: int, round_index: int) -> np.ndarray:
        """[count] which of n users join a round: every set of that size is as likely."""
        words = np.random.SeedSequence([*self._words, _MEMBERS_TAG, round_index])
        return np.random.default_rng(words).choice(n, count, replace=False)

    def uniform(self, size: int, index: int) -> np.ndarray:
        """[size] numbers in (0, 1] for the choices of a search; as secret as the noise."""
        words = np.random.SeedSequence([*self._words, _SEARCH_TAG, index])
        return 1.0 - np.random.default_rng(words).random(size)


class SecureNoise:
    """Noise that cannot be had again: a fresh operating-system key for every release, no state.

    The module's text says what that protects from, and what not.
    """

    name = "secure"
    _SUMS = 4

    @staticmethod
    def notes(exact: bool) -> dict[str, str]:
        """See `SeededNoise.notes`."""
        return {} if exact else dict([_FLOATS])

    def integers(
        self, sizes: list[int], stds: list[float], round_index: int, attempt: int
    ) -> list[Tensor]:
        """One int64 vector for each size, of the discrete Gaussian; the counters are not used."""
        return [discrete_gaussian(size, std) for size, std in zip(sizes, stds, strict=True)]

    def normal(self, sizes: list[int], round_index: int, attempt: int) -> list[Tensor]:
        """See `SeededNoise.normal`; of mechanisms on floating-point outputs."""
        stream = _random_bytes()
        return [torch.from_numpy(self._vector(stream, size)) for size in sizes]

    def bits(self, round_index: int, attempt: int) -> Callable[[int], bytes]:
        """See `SeededNoise.bits`: a new stream at every call."""
        return _random_bytes()

    def _vector(self, stream: Callable[[int], bytes], size: int) -> np.ndarray:
        """[size] standard normals. The sums run one after the other: memory stays at a few vectors."""
        total = np.zeros(size)
        for _ in range(self._SUMS):
            radius = np.sqrt(-2.0 * np.log(_uniform(stream, size)))
            total += radius * np.cos(2.0 * np.pi * _uniform(stream, size))
        return total / np.sqrt(self._SUMS)

    def binomial(self, n: int, q: float, round_index: int) -> int:
        """See `SeededNoise.binomial`."""
        # PCG64 is no cryptographic generator: each gives one number, from 128 bits that only the
        # operating system knew, so there is no stream to read the next number from.
        return int(np.random.default_rng(secrets.randbits(128)).binomial(n, q))

    def choose(self, n: int, count: int, round_index: int) -> np.ndarray:
        """See `SeededNoise.choose`; as `binomial`, a generator of its own for every draw."""
        return np.random.default_rng(secrets.randbits(128)).choice(n, count, replace=False)

    def uniform(self, size: int, index: int) -> np.ndarray:
        """See `SeededNoise.uniform`."""
        return _uniform(_random_bytes(), size)


def discrete_gaussian(size: int, std: float) -> Tensor:
    """[size] int64 numbers, each k with probability proportional to exp(-k^2 / (2 std^2)), exactly.

    Source: Canonne, Kamath and Steinke 2020, algorithm 3, as the OpenDP library has it.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    vectors = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    add_noise = dp.m.make_gaussian(*vectors, scale=std)
    return torch.tensor(add_noise([0] * size), dtype=torch.int64)


def discrete_laplace(bits: Callable[[int], bytes], size: int, scale: float) -> Tensor:
    """[size] int64 numbers, each k with probability proportional to exp(-|k| / b), exactly; b = ceil(scale).

    Source: Canonne, Kamath and Steinke 2020, algorithm 2.

    Args:
        bits: see `SeededNoise.bits`; it goes on where it is.
        size: how many.
        scale: in (0, 2^54].

    Raises:
        PrivacyError: another scale.
    """
    if not 0.0 < scale <= MOST_NOISE:
        raise PrivacyError(f"Laplace noise of {scale:g} units is beyond 64-bit integers")
    b, found, left = math.ceil(scale), np.zeros(size, dtype=np.int64), np.arange(size)
    while len(left):
        rest = _below(bits, b, len(left))
        kept = _with_chance_exp(bits, rest, b)
        whole, going = np.zeros(len(left), dtype=np.int64), np.flatnonzero(kept)
        while len(going):  # geometric: how often in a row something of chance exp(-1) happens
            going = going[_with_chance_exp(bits, np.full(len(going), b), b)]
            whole[going] += 1
        far, negative = rest + b * whole, _below(bits, 2, len(left)) == 1
        kept &= ~(negative & (far == 0))  # or 0 had two signs
        found[left[kept]] = np.where(negative, -far, far)[kept]
        left = left[~kept]
    return torch.from_numpy(found)


def _with_chance_exp(bits: Callable[[int], bytes], part: np.ndarray, whole: int) -> np.ndarray:
    """Whether events of chance exp(-part / whole) happen, exactly, for 0 <= part <= whole; int64 in, bool out.

    Of events of chance part / (whole k), k = 1, 2, ..., the first that does not happen has an odd k with this
    chance (Canonne, Kamath and Steinke 2020, algorithm 1).
    """
    first, going, k = np.ones(len(part), dtype=np.int64), np.arange(len(part)), 1
    while len(going):
        happened = _below(bits, whole, len(going)) < part[going]
        happened &= _below(bits, k, len(going)) == 0
        going, k = going[happened], k + 1
        first[going] = k
    return first % 2 == 1


def _below(bits: Callable[[int], bytes], n: int, count: int) -> np.ndarray:
    """`count` int64 numbers, uniform in 0, ..., n - 1, exactly: words beyond a multiple of n are redrawn."""
    most = np.uint64(2**64 // n * n - 1)
    words = np.frombuffer(bits(8 * count), dtype=np.uint64).copy()
    while len(again := np.flatnonzero(words > most)):
        words[again] = np.frombuffer(bits(8 * len(again)), dtype=np.uint64)
    return (words % np.uint64(n)).astype(np.int64)


def _random_bytes() -> Callable[[int], bytes]:
    """A ChaCha20 key stream under a key that nothing else has; `stream(n)` gives its next n bytes."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    # The key is never used again, so the nonce need not differ; it begins with the 32-bit block counter,
    # which must start at 0 to leave room for the longest release.
    cipher = Cipher(algorithms.ChaCha20(secrets.token_bytes(32), bytes(16)), mode=None)
    encrypt = cipher.encryptor().update
    return lambda count: encrypt(bytes(count))


def _uniform(stream: Callable[[int], bytes], count: int) -> np.ndarray:
    """`count` float64 numbers in (0, 1], 53 random bits each."""
    bits = np.frombuffer(stream(8 * count), dtype=np.uint64) >> np.uint64(11)
    return (bits.astype(np.float64) + 1.0) * 2.0**-53


NoiseSource = SeededNoise | SecureNoise


def noise_source(kind: str, seed: int, settings: int) -> NoiseSource:
    """`seeded` or `secure` (see `privacy.noise`); `settings` as in `SeededNoise`. Or PrivacyError."""
    if kind == "seeded":
        return SeededNoise(seed, settings)
    if kind == "secure":
        return SecureNoise()
    raise PrivacyError(f"no source of noise is called {kind!r}")
