"""Where users return: noise with sampled cohorts, and correlated noise in a fixed order.

    python scripts/compare_noise.py

For plans of algorithms whose users take part in several rounds, and for some epsilons: the standard
deviation of the noise in the sum of all releases, in clips, (a) with independent noise and the amplification
of random cohorts, (b) with correlated noise and users who take part in a fixed order, each once in every 1 / q
rounds, which has no amplification. Both have the smallest z for the epsilon. The best correlation is taken. A
ratio below 1 favours (b). It says nothing about how much of the noise training forgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.calibrate import z_for
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.accounting.strategy import Strategy

DELTA = 1e-5
CORRELATIONS = (0.0, 0.8, 0.95, 0.99, 0.999, 1.0)


def poisson(q: float, population: int) -> Callable[[float], ReleaseEvent]:
    """A release to a Poisson cohort."""
    return lambda z: ReleaseEvent("gaussian", z, "add_or_remove", q, population, sampling="poisson")


def one_of(n: int) -> Callable[[float], ReleaseEvent]:
    """A release about one of n users."""
    return lambda z: ReleaseEvent(
        "gaussian", z, "replace_one", 1.0 / n, n, 1, sampling="uniform_single_user"
    )


# name: (release, rounds, rounds between two of one user in a fixed order, adjacency of that order)
PLANS = {
    "PriMORL, 30 of 30,000 in each of 1000 rounds": (poisson(1e-3, 30_000), 1000, 1000, "zero_out"),
    "PriMORL, 18 of 1800 in each of 1000 rounds": (poisson(1e-2, 1800), 1000, 100, "zero_out"),
    "DQN, 200 of 5000 in each of 1000 rounds": (poisson(0.04, 5000), 1000, 25, "zero_out"),
    "GPOPE, one of 1000 in each of 3000 rounds": (one_of(1000), 3000, 1000, "replace_one"),
}


def fixed_order(
    epsilon: float, rounds: int, separation: int, adjacency: str
) -> tuple[float, float]:
    """(noise of the last iterate in clips, best correlation) of (b)."""
    z = z_for(epsilon, lambda z: ReleaseEvent("gaussian", z, adjacency, sampling="fixed"), 1, DELTA)
    found = []
    for a in CORRELATIONS:
        strategy = Strategy.damped_square_root(a, rounds)
        sensitivity = strategy.sensitivity(-(-rounds // separation), separation)
        last, _ = strategy.iterate_noise([1.0] * rounds)
        found.append((z * last / strategy.norm() * sensitivity, a))
    return min(found)


def main() -> None:
    """Compute and print."""
    for name, (event, rounds, separation, adjacency) in PLANS.items():
        for epsilon in (0.3, 1.0, 3.0, 10.0):
            sampled = z_for(epsilon, event, rounds, DELTA, digits=3) * math.sqrt(rounds)
            ordered, a = fixed_order(epsilon, rounds, separation, adjacency)
            print(
                f"{name}, epsilon {shown_epsilon(epsilon)}: sampled {sampled:.1f}, correlated {ordered:.1f} "
                f"(correlation {a:g}), ratio {ordered / sampled:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
