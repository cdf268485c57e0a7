"""What a run that is resumed prints: where it continues, and what its repeated rounds cost."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.account import Account


def warning(account: Account, r: int, round_index: int) -> str:
    """Return that epsilon will exceed `privacy.epsilon`, because rounds are repeated; empty: it will not.

    Args:
        account: with the ledger of the earlier part of the run.
        r: the replica.
        round_index: where it continues, from 0.
    """
    limit = account.configs[r].epsilon
    if limit is None or not account.ledgers[r].lines:
        return ""
    repeated, epsilon = account.continued(r, round_index)
    if not repeated or epsilon <= limit:
        return ""
    return (
        f"{numbers(repeated)} released more than once, and every release counts: epsilon "
        f"{shown_epsilon(epsilon)} after all {account.rounds} rounds, above "
        f"privacy.epsilon={shown_epsilon(limit)}"
    )


def numbers(indices: Sequence[int]) -> str:
    """Return rounds, counted from 1 as in metrics, with their verb.

    >>> numbers([3]), numbers([3, 4, 5, 8])
    ('round 4 is', 'rounds 4 to 6, 9 are')
    """
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    shown = ", ".join(
        f"{first + 1}" if first == last else f"{first + 1} to {last + 1}" for first, last in ranges
    )
    return f"round {shown} is" if len(indices) == 1 else f"rounds {shown} are"
