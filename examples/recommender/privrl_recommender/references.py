"""Reference policies without learning: what a private policy is compared with.

They are played with newly drawn tastes only, so they use no data of a declared user.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from privrl_recommender.env import CATEGORIES, SESSION, Recommender

Rule = Callable[[int], int]  # number of the recommendation, from 0 -> category


def mean_clicks(rule: Rule, sessions: int, seed: int) -> float:
    """Play a rule that does not look at the user's clicks.

    Args:
        rule: the category of each recommendation.
        sessions: number of sessions, each of a newly drawn user.
        seed: of the users and their clicks.

    Returns:
        Mean number of clicks in a session.
    """
    env = Recommender(users=None)
    env.reset(seed=seed)
    clicks = 0.0
    for _ in range(sessions):
        env.reset()
        clicks += sum(env.step(rule(t))[1] for t in range(SESSION))
    return clicks / sessions


def references(sessions: int, seed: int = 0) -> dict[str, float]:
    """Measure the reference policies.

    The best category and the best pair, shown in turn, are chosen with half as many other sessions each.

    Args:
        sessions: number of sessions for each mean.
        seed: of the sessions.

    Returns:
        Name -> mean number of clicks in a session: `random`, `best category`, `best pair`.
    """
    count = len(CATEGORIES)
    rng = np.random.default_rng(seed)

    def best(candidates: list[tuple[int, ...]]) -> tuple[int, ...]:
        return max(
            candidates,
            key=lambda shown: mean_clicks(lambda t: shown[t % len(shown)], sessions // 2, seed + 1),
        )

    def measured(shown: tuple[int, ...]) -> float:
        return mean_clicks(lambda t: shown[t % len(shown)], sessions, seed)

    return {
        "random": mean_clicks(lambda t: int(rng.integers(count)), sessions, seed),
        "best category": measured(best([(c,) for c in range(count)])),
        "best pair": measured(best(list(itertools.combinations(range(count), 2)))),
    }
