"""When a run is saved again: a part of the time, whatever a save takes."""

import time

import pytest

from privrl_bench.training.loop import Clock


@pytest.mark.parametrize(
    ("save", "ago", "due"),
    [
        (0.0, 2.0, True),  # saves that cost nothing: after the pause
        (0.0, 0.2, False),
        (1.0, 15.0, False),  # a second for a save: not before 20
        (1.0, 25.0, True),
    ],
)
def test_the_next_checkpoint_waits_as_long_as_the_last_one_cost(save, ago, due):
    clock = Clock([0.0])
    clock._cost, clock._saved_at = save, time.perf_counter() - ago
    assert clock.due(1.0) is due
