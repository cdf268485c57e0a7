"""When the released policy is evaluated: `eval.every`."""

from __future__ import annotations

from privrl_bench.config.schema.run import AUTO, EVALUATIONS


def due(every: int | str, rounds: int, planned: int, round_steps: int) -> bool:
    """Whether there is an evaluation after so many rounds, the last round apart.

    Args:
        every: steps between evaluations; 0: none; auto: a twentieth of the planned rounds, at least one.
        rounds: done so far; 0: before any data.
        planned: of the whole run.
        round_steps: environment steps of a round.

    >>> [r for r in range(101) if due("auto", r, 100, 64)][:4], due("auto", 3, 6, 64)
    ([0, 5, 10, 15], True)
    >>> [r for r in range(9) if due(128, r, 8, 64)], due(0, 0, 8, 64)
    ([0, 2, 4, 6, 8], False)
    """
    if rounds == 0:
        return every != 0
    if every == AUTO:
        parts = min(EVALUATIONS, planned)
        return rounds * parts // planned > (rounds - 1) * parts // planned
    steps = rounds * round_steps
    return int(every) > 0 and steps // int(every) > (steps - round_steps) // int(every)
