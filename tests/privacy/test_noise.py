"""Noise has the right size, is not reused, and secure noise is never the same, whatever is copied."""

import copy
import json
import os
import pickle
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from privrl_bench.composition.compose import compose
from privrl_bench.config.schema import LogConfig
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy import noise
from privrl_bench.privacy.grid import unit_of
from privrl_bench.privacy.noise import SecureNoise, SeededNoise, noise_source
from privrl_bench.training.runner import run

SIZE = 40_000
# Secure noise differs in every test run; at this level one in a million would fail by chance.
CHANCE = 1e-6
SOURCES = pytest.mark.parametrize(
    "source", [SeededNoise(3, 0), SecureNoise()], ids=lambda s: s.name
)


@SOURCES
def test_noise_is_standard_normal(source):
    (x,) = source.normal([SIZE], 0, 0)
    assert x.dtype == torch.float64
    x = x.numpy()
    assert stats.kstest(x, "norm").pvalue > CHANCE
    bins = np.histogram(stats.norm.cdf(x), bins=100, range=(0, 1))[0]
    assert stats.chisquare(bins).pvalue > CHANCE


@SOURCES
def test_first_four_moments(source):
    x = source.normal([SIZE], 1, 0)[0].numpy()
    low, high = stats.chi2(SIZE).interval(1 - CHANCE)
    assert low < np.sum(x**2) < high
    assert stats.norm.sf(abs(x.mean()) * np.sqrt(SIZE)) > CHANCE
    assert stats.skewtest(x).pvalue > CHANCE
    assert stats.kurtosistest(x).pvalue > CHANCE


@SOURCES
def test_numbers_blocks_and_releases_are_uncorrelated(source):
    a, b = (x.numpy() for x in source.normal([SIZE, SIZE], 2, 0))
    (c,) = (x.numpy() for x in source.normal([SIZE], 3, 0))
    for one, other in ((a, b), (a, c), (a[:-1], a[1:]), (a[::2], a[1::2])):
        assert stats.pearsonr(one, other).pvalue > CHANCE
        assert stats.pearsonr(one**2, other**2).pvalue > CHANCE


def test_seeded_noise_repeats_only_for_the_same_round_and_attempt():
    def draw(seed, index, attempt):
        return SeededNoise(seed, 0).normal([5], index, attempt)[0]

    first = draw(0, 7, 0)
    assert torch.equal(first, draw(0, 7, 0))
    for other in (draw(0, 8, 0), draw(0, 7, 1), draw(1, 7, 0)):
        assert not torch.equal(first, other)


def test_blocks_get_different_noise():
    a, b = SeededNoise(0, 0).normal([5, 5], 0, 0)
    assert not torch.equal(a, b)


@SOURCES
def test_empty_and_lone_blocks(source):
    empty, lone = source.normal([0, 1], 0, 0)
    assert empty.shape == (0,)
    assert lone.shape == (1,)


@SOURCES
def test_cohorts_are_binomial(source):
    draws = np.array([source.binomial(1000, 0.01, i) for i in range(3000)])
    edges = np.arange(4, 18)
    observed = np.array([np.sum(draws < 4), *(np.sum(draws == k) for k in edges), 0])
    observed[-1] = len(draws) - observed.sum()
    law = stats.binom(1000, 0.01)
    expected = len(draws) * np.array([law.cdf(3), *law.pmf(edges), law.sf(17)])
    assert stats.chisquare(observed, expected).pvalue > CHANCE


# -- secure noise: nothing that can be copied gives the same noise twice


def test_secure_noise_differs_between_sources_and_calls():
    one, two = noise_source("secure", 0, 0), noise_source("secure", 0, 0)
    draws = [s.normal([5], 0, 0)[0] for s in (one, one, two)]
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_secure_noise_differs_between_processes_after_a_fork():
    """A forked process has a copy of everything; it must not go on with the same key."""
    source = SecureNoise()
    source.normal([5], 0, 0)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:  # nothing but the draw: no pytest, no torch threads
        status = 1
        try:
            os.write(writes, source.normal([5], 1, 0)[0].numpy().tobytes())
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    here = source.normal([5], 1, 0)[0].numpy()
    with os.fdopen(reads, "rb") as pipe:
        there = np.frombuffer(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert there.shape == here.shape
    assert not np.isin(there, here).any()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copied_source_holds_no_state_and_draws_other_noise(again):
    source = SecureNoise()
    source.normal([5], 0, 0)
    assert vars(source) == {}
    twin = again(source)
    assert not torch.equal(source.normal([5], 1, 0)[0], twin.normal([5], 1, 0)[0])
    cohorts = [[s.binomial(10**9, 0.5, 0) for _ in range(4)] for s in (source, twin)]
    assert cohorts[0] != cohorts[1]


def test_every_release_has_a_key_of_its_own(monkeypatch):
    keys = record_keys(monkeypatch)
    source = SecureNoise()
    for index in range(3):
        source.normal([5, 7], index, 0)
    assert len(keys) == len(set(keys)) == 3
    assert {len(key) for key in keys} == {32}


def record_keys(monkeypatch):
    keys = []
    real = secrets.token_bytes

    def token_bytes(count):
        keys.append(real(count))
        return keys[-1]

    monkeypatch.setattr(noise.secrets, "token_bytes", token_bytes)
    return keys


def test_noise_is_not_in_a_run_folder(tmp_path, monkeypatch):
    drawn = []
    real = SecureNoise.integers

    def integers(self, sizes, stds, round_index, attempt):
        drawn.extend(real(self, sizes, stds, round_index, attempt))
        return drawn[-len(sizes) :]

    monkeypatch.setattr(SecureNoise, "integers", integers)
    small = [
        "privacy.users_per_round=8",
        "env.user_steps=64",
        "total_steps=1024",
        "eval.episodes=1",
    ]
    config = compose(
        ["algo=dppg", "env=cartpole", "algo.critic=none", "privacy.noise=secure", *small]
    )
    quiet = LogConfig(wandb="none", plot=False, progress=False)
    result = run([replace(config, log=quiet)], [tmp_path / "run"], [["x=1"]])[0]
    assert result.status == "done"
    assert len(drawn) == 2
    secret_bytes = []
    for vector in drawn:
        unit, users = unit_of(config.privacy.clip), config.privacy.users_per_round
        for scaled in (vector, vector * unit, vector * (unit / users)):
            secret_bytes += [scaled.numpy()[:4].tobytes(), scaled.float().numpy()[:4].tobytes()]
    files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert {"checkpoint.pt", "policy.pt", "ledger.jsonl"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert not [s for s in secret_bytes if s in content], f"{path.name} holds a secret"
    line = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert line["noise"] == "secure"


# -- secure noise: the arithmetic


def test_each_number_is_the_half_sum_of_four_normals_with_uniforms_of_their_own(monkeypatch):
    """The formula by hand, from the key stream: eight uniforms for each number, none used twice."""
    key, size = bytes(range(32)), 3
    monkeypatch.setattr(noise.secrets, "token_bytes", lambda count: key[:count])
    drawn = SecureNoise().normal([size, 2], 0, 0)
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    for got, count in zip(drawn, (size, 2), strict=True):
        words = np.frombuffer(stream.update(bytes(8 * 8 * count)), dtype=np.uint64)
        assert len(set(words.tolist())) == 8 * count
        u = ((words >> np.uint64(11)).astype(np.float64) + 1) / 2**53
        radius, angle = u.reshape(4, 2, count).transpose(1, 0, 2)
        normals = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        assert np.array_equal(got.numpy(), normals.sum(axis=0) / 2)


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_no_key_runs_out_of_stream(monkeypatch, byte):
    """The block counter starts at 0: begun at random, a release could end at 2^32 with an error."""
    monkeypatch.setattr(noise.secrets, "token_bytes", lambda count: bytes([byte]) * count)
    assert torch.isfinite(SecureNoise().normal([1000], 0, 0)[0]).all()


def test_uniforms_use_all_53_bits_evenly_and_are_never_zero():
    count = 20_000
    u = noise._uniform(noise._random_bytes(), count)
    assert u.min() > 0
    assert u.max() <= 1
    bits = (u * 2**53).astype(np.uint64) - np.uint64(1)
    ones = np.array([np.sum((bits >> np.uint64(k)) & np.uint64(1)) for k in range(53)])
    assert stats.binomtest(int(ones.sum()), 53 * count).pvalue > CHANCE
    assert np.max(np.abs(ones - count / 2)) < 6 * np.sqrt(count) / 2
    assert noise._uniform(lambda n: bytes(n), 3).tolist() == [2.0**-53] * 3
    assert noise._uniform(lambda n: b"\xff" * n, 3).tolist() == [1.0] * 3


def test_low_bits_of_ordinary_numbers_cannot_be_told_from_their_high_bits():
    """Bits 1 to 4 of numbers in [1, 2); the last bit is rounding, see the next test."""
    x = np.concatenate([SecureNoise().normal([SIZE], 0, 0)[0].numpy() for _ in range(5)])
    mantissa = x[(np.abs(x) >= 1) & (np.abs(x) < 2)].view(np.uint64)
    low = (mantissa >> np.uint64(1)) & np.uint64(15)
    high = (mantissa >> np.uint64(49)) & np.uint64(7)
    table = np.zeros((16, 8))
    np.add.at(table, (low, high), 1)
    assert stats.chisquare(table.sum(axis=1)).pvalue > CHANCE
    assert stats.chi2_contingency(table).pvalue > CHANCE


def test_a_release_shows_24_bits_because_doubles_of_small_noise_have_fewer_than_53():
    """Small doubles end in zeros, which real noise would not have: the gate must round them away."""
    x = np.concatenate([SecureNoise().normal([SIZE], 0, 0)[0].numpy() for _ in range(5)])
    small = x[np.abs(x) < 2**-6].view(np.uint64)
    assert np.mean(small & np.uint64(1)) < 0.1  # the limit that the module's text names
    rounded = x[np.abs(x) < 2**-6].astype(np.float32).view(np.uint32)
    ones = int(np.sum(rounded & np.uint32(1)))
    assert stats.binomtest(ones, len(rounded)).pvalue > CHANCE


def test_other_settings_have_other_noise() -> None:
    one, two = SeededNoise(3, 1), SeededNoise(3, 2)
    a, b = one.normal([2000], 0, 0)[0], two.normal([2000], 0, 0)[0]
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.1
    again = SeededNoise(3, 1).normal([2000], 0, 0)[0]
    assert torch.equal(a, again)


def test_a_mistyped_source_of_noise_is_refused_and_not_seeded():
    with pytest.raises(PrivacyError, match="'Secure'"):
        noise_source("Secure", 0, 0)
