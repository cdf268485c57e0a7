"""Polynomial-decay averages of released parameters."""

import pytest
import torch

from privrl_bench.functional.averaging import AVERAGE, averaged


@pytest.mark.parametrize("averaging", [0.0, 1.0, 4.0])
def test_the_average_is_that_of_its_weights(averaging):
    iterates = [torch.tensor([[float(i), float(i * i)]]) for i in range(9)]
    tensors = {"actor": iterates[0], "other": torch.ones(1)}
    for index, one in enumerate(iterates):
        tensors = averaged(tensors | {"actor": one}, averaging, index)
        assert torch.equal(tensors["actor"], one)
    expected = iterates[0]
    for index, one in enumerate(iterates[1:], start=1):
        weight = (averaging + 1) / (averaging + 1 + index)
        expected = (1 - weight) * expected + weight * one
    assert torch.allclose(tensors[AVERAGE], expected)
    assert torch.equal(tensors["other"], torch.ones(1))


def test_averaging_zero_is_the_plain_mean_and_a_large_one_follows_the_last():
    values = [torch.tensor([float(i)]) for i in range(1, 6)]
    for averaging, expected in ((0.0, 3.0), (1e9, 5.0)):
        tensors = {"actor": values[0]}
        for index, one in enumerate(values):
            tensors = averaged({**tensors, "actor": one}, averaging, index)
        assert float(tensors[AVERAGE]) == pytest.approx(expected)


def test_without_averaging_nothing_changes():
    tensors = {"actor": torch.ones(2)}
    assert averaged(tensors, None, 3) is tensors
    assert averaged(tensors, 4.0, 0)[AVERAGE].equal(tensors["actor"])
