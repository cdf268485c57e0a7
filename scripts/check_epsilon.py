"""Compare the epsilon of the package with independent computations; write docs/epsilon_checks.md.

    python scripts/check_epsilon.py [--check]

Compositions of Gaussians: the formula of Balle and Wang (2018) in 50 digits. Sampled cohorts: a lower and an
upper bound from the densities of the outputs alone (`tests/privacy/brackets.py`), without dp-accounting.
Exits with 1 if an epsilon is below its lower bound; --check writes nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import mpmath
import numpy as np
from scipy import stats

from privrl_bench.metrics import shown_epsilon, shown_measured
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, joint_z
from privrl_bench.privacy.accounting.strategy import Strategy
from privrl_bench.privacy.devices import Ranges
from privrl_bench.privacy.mechanisms import smooth
from privrl_bench.privacy.mechanisms.tree import levels
from privrl_bench.reporting.table_writer import compact

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "privacy"))
import brackets  # noqa: E402

PAGE = ROOT / "docs" / "epsilon_checks.md"
Bracket = tuple[float, float]


# Of a proof: they need not be the outputs for any two neighbours.
PAIR = "the dominating pair"


class Case(NamedTuple):
    """One configuration: the epsilon of the package, and bounds that share no code with it.

    `bounded`: the two distributions whose epsilon the lower bound is below.
    """

    mechanism: str
    setting: str
    ours: Callable[[], float]
    bounds: Callable[[], Bracket]
    bounded: str = "the mechanism"


# -- independent values -------------------------------------------------------------------------


def balle_wang(mu: float, delta: float) -> float:
    """Exact epsilon of two Gaussians `mu` deviations apart, in 50 digits.

    >>> round(balle_wang(1.0, 1e-5), 6)
    4.377178
    """
    with mpmath.workdps(50):
        m, d = mpmath.mpf(mu), mpmath.mpf(delta)

        def left(e: mpmath.mpf) -> mpmath.mpf:
            return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m) - d

        low, high = mpmath.mpf(0), m * (m / 2 + 2 * mpmath.sqrt(-2 * mpmath.log(d)))
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if left(middle) > 0 else (low, middle)
        return float(high)


def smooth_epsilon(goal: float, delta: float, size: int) -> float:
    """Exact epsilon of the worst neighbours of smooth sensitivity: shifted and scaled as far as allowed.

    The log ratio of N(0, I) and N(a e, s^2 I) is a quadratic form with one centre, so its tails are those of
    noncentral chi-square variables.
    """
    a, b = 1.0 / smooth.noise_factor(goal, delta), smooth.smoothness(goal, delta, size)

    def spent(e: float, s: float) -> float:
        # ln p / q = size ln s - |x|^2 / 2 + |x - a e|^2 / (2 s^2) = -k |x + c e|^2 + m, up to the sign of k.
        k = (1.0 - s**-2) / 2.0
        c = a / (s * s - 1.0)
        m = size * math.log(s) + a * a / (2.0 * s * s) + k * c * c
        radius = (m - e) / k
        if radius < 0:
            return 0.0 if k > 0 else 1.0
        law = stats.ncx2.cdf if k > 0 else stats.ncx2.sf
        here = law(radius, size, c * c)
        there = law(radius / s**2, size, (c + a) ** 2 / s**2)
        return float(here - math.exp(e) * there)

    found = 0.0
    for s in (math.exp(b), math.exp(-b)):
        low, high = 0.0, goal
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if spent(middle, s) > delta else (low, middle)
        found = max(found, high)
    return found


# -- configurations -----------------------------------------------------------------------------


def gaussian(
    name: str, setting: str, events: dict[ReleaseEvent, int], delta: float, mu: float
) -> Case:
    """Releases to fixed cohorts; `mu` is computed independently by the caller."""
    return Case(
        name,
        setting,
        lambda: ledger_epsilon(Counter(events), delta),
        lambda: (balle_wang(mu, delta),) * 2,
    )


def plain(z: float, delta: float, count: int = 1, adjacency: str = "zero_out") -> Case:
    """`count` releases about one user."""
    event = ReleaseEvent("gaussian", z, adjacency, sampling="fixed")
    mu = math.sqrt(count) * (2.0 if adjacency == "replace_one" else 1.0) / z
    words = f"z = {z:g}, {count} releases, delta {delta:g}, {adjacency.replace('_', '-')}"
    return gaussian("gaussian", words, {event: count}, delta, mu)


def blocks(multipliers: tuple[float, ...], delta: float, adjacency: str = "zero_out") -> Case:
    """One release of several blocks, each with noise of its own."""
    event = ReleaseEvent("gaussian", joint_z(multipliers), adjacency, sampling="fixed")
    mu = math.hypot(*(1.0 / z for z in multipliers)) * (2.0 if adjacency == "replace_one" else 1.0)
    words = (
        f"z of blocks {', '.join(f'{z:.4g}' for z in multipliers)}, delta {delta:g}, {adjacency}"
    )
    return gaussian("gaussian, blocks", words.replace("_", "-"), {event: 1}, delta, mu)


def tree(z: float, rounds: int, delta: float) -> Case:
    """A row of a running sum is in one node of each level."""
    event = ReleaseEvent("gaussian", z / math.sqrt(levels(rounds)), "zero_out", sampling="fixed")
    nodes = 1 + math.floor(math.log2(rounds))
    words = f"z = {z:g}, {rounds} rounds, delta {delta:g}"
    return gaussian("tree", words, {event: 1}, delta, math.sqrt(nodes) / z)


def correlated(z: float, a: float, rounds: int, participation: int, delta: float) -> Case:
    """A user in the first rounds, under noise correlated over rounds; C written out as a matrix."""
    strategy = Strategy.damped_square_root(a, rounds)
    seen = z * strategy.norm() / strategy.sensitivity(participation)
    event = ReleaseEvent("correlated", seen, "zero_out", sampling="fixed")
    c = [a**k * float(Fraction(math.comb(2 * k, k), 4**k)) for k in range(rounds)]
    c = [x if x >= 1e-3 else 0.0 for x in c]
    row = [sum(c[t - s] for s in range(min(t + 1, participation))) for t in range(rounds)]
    words = f"z = {z:g}, a = {a:g}, {rounds} rounds, {participation} of one user, delta {delta:g}"
    moved = math.hypot(*row) / math.hypot(*c)
    return gaussian("correlated", words, {event: 1}, delta, moved / z)


def local(z: float, width: float, size: int, steps: int, delta: float) -> Case:
    """`steps` observations of `size` numbers, each in a box of `width`, noise std z width."""
    ranges = Ranges(np.zeros(size), np.full(size, width), np.full(size, width))
    event = ReleaseEvent(
        "gaussian", 1.0 / ranges.mu(z, steps), "any_trajectory_pair", sampling="fixed"
    )
    words = f"z = {z:g}, {steps} observations of {size} numbers, delta {delta:g}"
    return gaussian("local", words, {event: 1}, delta, math.sqrt(steps * size) / z)


def poisson(
    z: float, q: float, count: int, delta: float, truncation: tuple[int, int] | None = None
) -> Case:
    """Poisson cohorts. `truncation`: (population, cap); None: cohorts are not cut."""
    population, cap = truncation or (None, None)
    event = ReleaseEvent("gaussian", z, "add_or_remove", q, population, cap, sampling="poisson")
    words = f"z = {z:g}, q = {q:.4g}, T = {count}, delta {delta:g}"
    words += f", at most {cap} of {population}" if truncation else ""
    cut = brackets.cut_poisson(z, q, *truncation) if truncation else (None, 0.0)

    return Case(
        "poisson",
        words,
        lambda: ledger_epsilon(Counter({event: count}), delta),
        lambda: brackets.bracket(brackets.poisson(z, q), count, delta, *cut),
        PAIR if truncation else "the mechanism",
    )


def everybody(z: float, users: int, count: int, delta: float, adjacency: str) -> Case:
    """Poisson cohorts of the whole population."""
    event = ReleaseEvent("gaussian", z, adjacency, 1.0, users, users, sampling="poisson")
    words = f"z = {z:g}, q = 1, T = {count}, delta {delta:g}, {adjacency.replace('_', '-')}"
    return gaussian("poisson, q = 1", words, {event: count}, delta, math.sqrt(count) / z)


def uniform_single_user(z: float, n: int, count: int, delta: float) -> Case:
    """Against the pair that is proven to dominate."""
    event = ReleaseEvent(
        "gaussian", z, "replace_one", 1.0 / n, n, 1, sampling="uniform_single_user"
    )
    return Case(
        "uniform_single_user",
        f"z = {z:g}, n = {n}, T = {count}, delta {delta:g}",
        lambda: ledger_epsilon(Counter({event: count}), delta),
        lambda: brackets.bracket(brackets.uniform_single_user(z, n), count, delta),
        bounded=PAIR,
    )


def smoothed(goal: float, delta: float, size: int) -> Case:
    """The theorem is loose: its epsilon is the upper bound, the worst neighbours the lower one."""
    event = ReleaseEvent(
        "smooth", 0.0, "replace_one", 1.0, 100, None, goal, delta, sampling="fixed"
    )

    def ours() -> float:
        smooth.require_admissible(goal, delta, size)
        return ledger_epsilon([event], delta)

    words = f"epsilon {shown_epsilon(goal)}, {size} numbers, delta {delta:g}"

    def bounds() -> Bracket:
        return smooth_epsilon(goal, delta, size), goal

    return Case("smooth", words, ours, bounds, bounded="the theorem's worst pair")


FAST = [
    *(plain(z, 1e-5) for z in (1.0, 0.05)),
    plain(3.0, 1e-9, adjacency="replace_one"),
    blocks((1.61, 4.03, 1.13), 1e-5),
    tree(2.3, 1000, 1e-5),
    correlated(24.0, 0.95, 146, 1, 1e-5),
    correlated(2.0, 0.95, 146, 9, 1e-5),
    local(50.0, 2.0, 4, 500, 1e-5),
    poisson(1.5, 1e-3, 1000, 1e-5),
    poisson(3.0, 0.01, 1000, 1e-5),
    poisson(2.0, 0.25, 50, 1e-6),
    poisson(3.0, 0.01, 1000, 1e-5, (3000, 63)),
    *(everybody(1.0, 8, 3, 1e-5, adjacency) for adjacency in ("add_or_remove", "zero_out")),
    uniform_single_user(6.0, 100, 1000, 1e-5),
    smoothed(0.5, 1e-5, 4),
]
CASES = [
    *FAST,
    plain(0.37, 3e-7),
    plain(1.0, 1e-5, adjacency="replace_one"),
    plain(0.013, 1e-5, adjacency="replace_one"),
    plain(37.0, 1e-12),
    plain(123.0, 1e-3, adjacency="replace_one"),
    plain(1.0, 1e-5, 4),
    plain(1.7, 1e-5, 9),
    plain(0.2, 1e-5, 9),
    blocks((2.0, 2.0, 2.0, 2.0), 1e-5, "replace_one"),
    tree(2.3, 1, 1e-5),
    tree(2.3, 3, 1e-5),
    tree(2.3, 1024, 1e-5),
    correlated(1.0, 1.0, 600, 1, 1e-5),
    correlated(5.0, 1.0, 300, 3, 1e-5),
    local(1.0, 1.0, 3, 200, 1e-5),
    poisson(0.37, 0.013, 777, 3e-7),
    poisson(0.8, 0.01, 100, 1e-5),
    poisson(1.0, 1e-3, 1000, 1e-3),
    poisson(1.1, 256 / 60_000, 1000, 1e-5),
    poisson(0.5, 30 / 29_700, 1000, 1e-5, (29_700, 63)),
    poisson(1.5, 30 / 30_000, 1000, 1e-5, (30_000, 63)),
    poisson(1.0, 1 / 1000, 1000, 1e-3, (1000, 7)),
    poisson(1.0, 1 / 100, 200, 1e-5, (100, 7)),
    poisson(0.25, 1e-3, 1000, 1e-5),
    poisson(0.45, 1e-3, 5000, 1e-5),
    poisson(1.5, 1e-3, 10_000, 1e-5),
    poisson(0.5, 1e-3, 10_000, 1e-5),
    poisson(0.3, 0.1, 1000, 1e-5),
    poisson(5.0, 0.01, 100_000, 1e-7),
    poisson(20.0, 0.01, 10_000, 1e-5),
    poisson(40.0, 0.5, 100, 1e-5),
    uniform_single_user(2.0, 100, 1000, 1e-5),
    uniform_single_user(1.0, 1000, 1000, 1e-5),
    uniform_single_user(20.0, 10, 50, 1e-5),
    uniform_single_user(3.392, 1000, 10_000, 1e-5),
    smoothed(0.1, 1e-9, 40),
    smoothed(1.0, 1e-5, 10),
]


# -- the page -----------------------------------------------------------------------------------

HEAD = """# Epsilon against independent computations

`python scripts/check_epsilon.py` computes this page. *epsilon* is the value of the package. *lower* and
*upper* are bounds that share no code with it:

- Gaussian compositions: the formula of Balle and Wang in 50 digits (both bounds are equal).
- Sampled cohorts: discretised output densities, composed by FFT (`tests/privacy/brackets.py`).
- Smooth sensitivity: the exact epsilon of the largest shift and scale that the theorem allows, and the
  theorem, which is loose.
- Cohorts with a cap, and `uniform_single_user` (one of n users in each round): bounds of the pair of
  distributions that is proven to dominate.

*lower bounds* says whose epsilon is at least *lower*. For *the mechanism* two neighbours attain it. For a pair
of a proof, *lower* and *epsilon / lower* check the computation only: the mechanism itself may cost less than
*lower*.

An epsilon below its lower bound is an error; the script then exits with 1. Epsilons are rounded up, lower
bounds down.

"""


def check(case: Case) -> tuple[float, float, float]:
    """(epsilon of the package, lower bound, upper bound)."""
    return case.ours(), *case.bounds()


def below(ours: float, lower: float) -> bool:
    """Whether an epsilon is too small, by more than the last digits of double precision."""
    return ours < lower * (1.0 - 1e-8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    head = ["mechanism", "configuration", "epsilon", "lower", "lower bounds"]
    head += ["upper", "epsilon / lower"]
    lines, wrong = [], 0
    for case in CASES:
        ours, lower, upper = check(case)
        wrong += below(ours, lower)
        cells = [case.mechanism, case.setting, shown_epsilon(ours, 6)]
        cells += [shown_measured(lower, 6), case.bounded, shown_epsilon(upper, 6)]
        cells.append(f"{ours / lower:.5f}")
        lines.append(cells)
        print(" | ".join(cells), flush=True)
    print(f"{len(CASES)} configurations, {wrong} below the lower bound")
    if not arguments.check:
        found = f"\n{len(CASES)} configurations, {wrong} below the lower bound.\n"
        PAGE.write_text(HEAD + compact(head, lines) + "\n" + found)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
