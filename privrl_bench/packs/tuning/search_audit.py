"""The canary attack on a search: one coin for all of its runs, the best score is kept.

The canary is in the data of every run of the search. Each run is a canary unit of a real training run
(`canary.py`), with its log likelihood ratio. The score that decides which run is kept may be any function of
what the run releases (`tune.score=public`); the adversary's is the likelihood ratio itself, which favours the
canary most. The number of runs and the choice are the search's own code. The adversary sees the kept run only;
the claim of a fixed number of runs covers all of them, so the bound is weak there.
"""

from __future__ import annotations

import math

import numpy as np

from privrl_bench.audit import bounds
from privrl_bench.audit.canary import contradictions, run_canaries
from privrl_bench.audit.finding import Finding, Say
from privrl_bench.audit.options import Options
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.packs.tuning.best_of_runs import RunCount, draw_search
from privrl_bench.packs.tuning.tune_runs import best_of

_NONE = -1e6  # of a search without a run
_SEARCH_TAG = 63


def attack(
    config: RunConfig, runs: RunCount | int, claim: float, options: Options, say: Say
) -> Finding:
    """Bound epsilon of a search from below.

    Args:
        config: of its runs; see `run_canaries`.
        runs: of the search.
        claim: epsilon of the search.
        options: `scores`: runs of all searches together, at least; `per_round`; `confidence` of the bound.
        say: receives lines of progress.

    Raises:
        ConfigError: as `run_canaries`, or `scores` are too few.
    """
    scores, confidence = options.scores, options.confidence
    run = run_canaries(config, scores, options.per_round, say, "search")
    with_canary, without = run.split()
    inside = _kept(with_canary, runs, config.seed, 1)
    outside = _kept(without, runs, config.seed, 0)
    half = min(len(inside), len(outside)) // 2
    if not half:
        raise ConfigError(
            "--scores", f"{scores} runs are too few for searches with and without the canary"
        )
    delta = config.privacy.delta
    threshold = _best_threshold(inside[:half], outside[:half], delta, confidence)
    found = bounds.direct_bound(inside[half:], outside[half:], threshold, delta, confidence)
    return Finding(
        attack="search",
        claim=claim,
        claim_of="the kept run of a search, with a canary in the data of all of its runs",
        bounds=[found],
        inside=inside[half:],
        outside=outside[half:],
        mu=None,
        seconds=run.seconds,
        problems=contradictions(run),
        notes=[
            f"{len(inside)} searches with the canary and {len(outside)} without, of {run.coins.size} runs",
            "the adversary's score is a run's likelihood ratio; half of the searches choose the threshold",
        ],
    )


def _kept(pool: np.ndarray, runs: RunCount | int, seed: int, coin: int) -> np.ndarray:
    """The scores of the kept runs of as many searches as the runs [n] of a pool suffice for."""
    kept: list[float] = []
    first, number = 0, 0
    while True:
        identity = (_SEARCH_TAG << 40) + 2 * number + coin
        drawn = draw_search("seeded", seed, identity, runs, 0)
        own = pool[first : first + drawn.count]
        if len(own) < drawn.count or first >= len(pool):
            return np.array(kept)
        best = best_of(own.tolist(), drawn.ties)
        kept.append(_NONE if best is None else float(own[best]))
        first, number = first + drawn.count, number + 1


def _best_threshold(
    inside: np.ndarray, outside: np.ndarray, delta: float, confidence: float
) -> float:
    """The threshold with the largest bound on searches that the result does not use."""
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0.3, 0.999, 200))
    return max(
        (float(t) for t in candidates if math.isfinite(t)),
        key=lambda t: bounds.direct_bound(inside, outside, t, delta, confidence).epsilon,
    )
