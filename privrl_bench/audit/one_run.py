"""The one-run attack: the bound of Steinke, Nasr and Jagielski (2023) from many canaries in one run.

Every slot of every round holds its own canary, included by its own fair coin. After the run the adversary
guesses the coins of the most extreme scores: "in" for the highest, "out" for the lowest, and makes no guess
for the others. The bound assumes nothing about the mechanism beyond (epsilon, delta)-DP and is therefore
loose: delta is multiplied by the number of canaries. Scores subtract what canaries of other rounds sent
where noise is correlated (`canary`); under the claimed noise a score depends on its own coin only.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.audit import bounds
from privrl_bench.audit.bounds import Bound
from privrl_bench.audit.canary import claim_of, contradictions, run_canaries
from privrl_bench.audit.finding import Finding, Say
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.rules import rules

_MOST_PER_ROUND = 64


def right_guesses(scores: np.ndarray, coins: np.ndarray, guesses: int) -> int:
    """Number of correct guesses: half are "in" for the highest scores, half "out" for the lowest.

    Args:
        scores: [m].
        coins: [m] bool, true for "in".
        guesses: an even number, at most m.
    """
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int((~coins[order[:half]]).sum() + coins[order[len(order) - half :]].sum())


def attack(config: RunConfig, canaries: int, confidence: float, say: Say) -> Finding:
    """Train once with canaries in every slot and bound epsilon.

    Args:
        config: of the run; its number of rounds is replaced by the one that `canaries` requires.
        canaries: maximum number. The numbers of used and guessed canaries depend on the claim only and
            not on the run, so that the bound holds.
        confidence: of the bound.
        say: receives lines of progress.

    Raises:
        ConfigError: Poisson sampling, where inclusion does not depend on the coin only; or as
            `run_canaries`.
    """
    if rules(config.privacy).sampler.independent:
        raise ConfigError("--attack", "one-run is for cohorts of fixed size; use canary")
    run = run_canaries(config, canaries, _MOST_PER_ROUND, say, "one-run")
    delta = config.privacy.delta
    used, guesses = bounds.one_run_plan(run.mu, run.coins.size, delta, confidence)
    scores, coins = run.scores.ravel()[:used], run.coins.ravel()[:used]
    right = right_guesses(scores, coins, guesses)
    value = bounds.one_run_epsilon(used, guesses, right, delta, confidence)
    claim, what = claim_of(run)
    counts: dict[str, float] = {"canaries": used, "guesses": guesses, "right": right}
    return Finding(
        attack="one-run",
        claim=claim,
        claim_of=what,
        bounds=[Bound("one-run", value, None, "", counts)],
        inside=scores[coins],
        outside=scores[~coins],
        mu=run.mu,
        seconds=run.seconds,
        problems=contradictions(run),
        notes=[
            f"{used} canaries in {run.rounds} rounds, {guesses} guessed, {right} correct; loose by "
            "construction, see the canary attack for a tight bound"
        ],
        start=-run.mu / 2.0 if config.privacy.adjacency == "replace_one" else 0.0,
    )
