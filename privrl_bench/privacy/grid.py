"""The public integer grid on which users' rows are added.

After clipping a row is rounded to multiples of a public power of two, and from there to the released mean
everything is an integer: sums over users, noise, and what correlated noise cancels. So no sum depends on the
order or the grouping of users, and no proof takes a floating-point number for a real one (Mironov 2012;
Casacuberta et al. 2022; Haney et al. 2022).

1. *A row.* `clip_rows` scales a row to norm at most (1 - 4e-6) clip, and rounding P numbers to multiples of s
   moves it by at most s sqrt(P) / 2. With s <= 2^-BITS clip and P <= MOST_NUMBERS that is 1.2e-7 clip, and the
   errors of double precision are below 6e-8 clip. So the integer row has norm at most (1 - MARGIN) clip / s.
   (Kairouz, Liu and Steinke 2021 rotate and round at random, because their grid is coarse.)
   In L1 rounding to the nearest could add P s / 2, 0.2 % of the clip for the longest rows. So numbers are
   rounded towards zero there, which makes none of them larger, whatever P is; the errors of double precision
   are a share of at most 2 P 2^-53 < 6e-8 of the norm, and the same MARGIN holds.
2. *A sum.* MOST_USERS rows are below 2^61 in every number, and noise is below 2^60 up to 64 standard deviations
   of at most MOST_NOISE: 64-bit integers hold both, and integer sums are exact.
3. *Noise.* `seeded`: a normal number in double precision, rounded to an integer. A sum is an integer, so that
   this is post-processing of Gaussian noise. `secure`: the discrete Gaussian (Canonne, Kamath and Steinke
   2020), sampled exactly (`noise.py`).
4. *Epsilon of the discrete Gaussian.* It satisfies the Renyi bound of the Gaussian (theorem 4 there). For the
   other accountants: let q be the Gaussian of the same parameter sigma, rounded to integers, and p the
   discrete one. With x = k / sigma, -1 / (8 sigma^2) <= log(q(k) / p(k)) <= x^2 / (8 sigma^2), up to exp(-2
   pi^2 sigma^2), because q(k) is the mean of the density over [k - 1/2, k + 1/2]. So for N numbers p and q
   differ by a factor within exp(+-eta), eta = t / (8 sigma^2), unless the squared norm of x is above t = N + 2
   sqrt(N c) + 2 c, which has probability at most exp(-c (1 - 1 / sigma^2)) (both are sub-Gaussian). Hence
   (epsilon, delta) with q is (epsilon + 2 eta, exp(eta) delta + 2 exp(epsilon - c)) with p. Adaptive rounds
   and secret cohorts change nothing: compare the joint laws of cohorts and noise. `discrete_cost` is eta for c
   = TAIL. `OnGrid.slack` is at least four times as much; `Account.epsilon_of` adds it to epsilon and takes
   this share off delta.
5. *Epsilon of the discrete Laplace* of parameter b units, P(k) proportional to exp(-|k| / b), for rows in L1
   norm. Let a = exp(-1 / b). For two sums that are d units apart in one number and |epsilon| <= d / b,
       delta(epsilon) <= 1 - a^((d - epsilon b) / 2) / cosh(1 / (2 b)),
   and that of continuous Laplace noise at distance d + 1 / (4 b) is larger, as ln cosh u <= u^2 / 2; beyond,
   both are 0 or 1 - exp(epsilon). For two numbers at distances d and e continuous noise gives delta = 1 -
   exp(-A) (1 + x) for A = (d + e - epsilon b) / (2 b) and some x >= 0 (by integration), at most the 1 - exp(-A)
   of one number at distance d + e. A larger delta everywhere is a dominating pair (Zhu, Dong and Wang 2022),
   which composes: over the numbers of a row, whose distances add up to its L1 norm, and over adaptive rounds.
   So a release costs at most what one number with continuous noise does at distance (1 - MARGIN) clip / s +
   P / (4 b). That is at most clip / s: for b >= 1e-8 clip / s, P / (4 b) is below 2^26 2^-36 1e8 < 1e5 < MARGIN
   clip / s, and `privacy.z` is at least 1e-6.
6. *Correlated noise*: `mechanisms/correlated.py`.
"""

from __future__ import annotations

import math

L1, L2 = 1, 2  # norms of rows
LEAST_CLIP = 2.0**-300  # and its inverse the largest: squares of rows stay in double precision
BITS = 36  # a clip is 2^36 to 2^37 units
MOST_NUMBERS = 2**28  # in a row
MOST_USERS = 2**24  # in a round
MOST_NOISE = 2.0**54  # standard deviation of noise, in units
MARGIN = 3.8e-6  # of a clip: what rounded rows leave free
REPEATS = 100  # rounds that may be repeated, beyond as many as are planned
SLACK, MOST_SLACK = 1e-9, 1e-3  # the least and the most that discrete noise may cost
TAIL = 2000.0  # exp(-TAIL) times exp(epsilon) is nothing beside any delta, for epsilon up to MOST_EPSILON
MOST_EPSILON = 1000.0


def unit_of(clip: float) -> float:
    """The value of 1 on the grid of a block: a power of two, at most 2^-BITS of its clip norm.

    >>> unit_of(1.0) == 2.0**-36, unit_of(0.4) == 2.0**-38
    (True, True)
    """
    return math.ldexp(1.0, math.frexp(clip)[1] - 1 - BITS)


def discrete_cost(numbers: int, std: float) -> float:
    """The module's eta of `numbers` discrete Gaussian numbers whose parameter is at least `std` units."""
    norm = numbers + 2.0 * math.sqrt(numbers * TAIL) + 2.0 * TAIL
    return norm / (8.0 * std**2)
