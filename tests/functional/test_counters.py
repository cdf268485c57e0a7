"""Random numbers from counters: known answers, and a user's numbers depend on nobody else."""

import math

import pytest
import torch

from privrl_bench.functional.rng import Streams, philox, uniform

# "kat_vectors" of the authors' Random123 library: counter, key, words.
KNOWN = [
    ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def counters(slots, *words, seed=3, name="policy"):
    return Streams(seed).counters(name, slots, *words)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_words(counter, key, expected) -> None:
    words = philox([torch.tensor([x]) for x in counter], key)
    assert " ".join(f"{int(x):08x}" for x in words) == expected


@pytest.mark.parametrize("kind", ["uniform", "gaussian"])
def test_a_users_numbers_depend_on_the_slot_and_not_on_the_others(kind) -> None:
    many, some = counters(range(256), 5), counters(range(64, 128), 5)
    for shape in ((7, 3), (2, 1)):
        drawn = getattr(many, kind)(shape[0], 256, shape[1])
        assert torch.equal(drawn[:, 64:128], getattr(some, kind)(shape[0], 64, shape[1]))


def test_calls_rounds_streams_and_seeds_have_different_numbers() -> None:
    one = counters(range(64), 0)
    found = [one.uniform(4, 64), one.uniform(4, 64), counters(range(64), 1).uniform(4, 64)]
    found += [counters(range(64), 0, seed=4).uniform(4, 64)]
    found += [counters(range(64), 0, name="env").uniform(4, 64)]
    found += [Streams(3).public.counters("policy", range(64), 0).uniform(4, 64)]
    everything = torch.stack(found).flatten()
    assert len(everything.unique()) > 0.999 * len(everything)
    assert torch.equal(counters(range(64), 0).uniform(4, 64), found[0])


def test_the_numbers_have_their_distributions() -> None:
    x, y = counters(range(1024), 0).uniform(200, 1024), counters(range(1024), 1).gaussian(200, 1024)
    count = x.numel()
    assert x.min() >= 0 < 1 - x.max()
    for moment, expected in ((1, 1 / 2), (2, 1 / 3), (4, 1 / 5)):
        assert (x.double() ** moment).mean() == pytest.approx(expected, abs=5 / math.sqrt(count))
    for moment, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = 5 * math.sqrt(spread / count)
        assert (y.double() ** moment).mean() == pytest.approx(expected, abs=error)
    # Neighbours in time and in slots are not correlated.
    for one in (x - 0.5, y):
        assert abs((one[1:] * one[:-1]).mean()) < 5 / math.sqrt(count)
        assert abs((one[:, 1:] * one[:, :-1]).mean()) < 5 / math.sqrt(count)


def test_uniform_takes_both_kinds_of_generators() -> None:
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(
        uniform(generator, 3, 2), torch.rand(3, 2, generator=generator.manual_seed(0))
    )
    assert torch.equal(uniform(counters(range(2), 0), 3, 2), counters(range(2), 0).uniform(3, 2))
