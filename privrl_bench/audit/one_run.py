"""Many canaries, one run, one number: the bound of Steinke, Nasr and Jagielski 2023.

Every slot of every round holds a canary of its own, in or out by its own fair coin. After the run the
adversary guesses the coins she is surest of: "in" for the highest scores, "out" for the lowest, nothing for
the rest. The bound needs no assumption about the mechanism beside (epsilon, delta)-DP, and is loose for
it: delta enters multiplied with the number of canaries.
"""

from __future__ import annotations

import numpy as np

from privrl_bench.audit import bounds
from privrl_bench.audit.bounds import Bound
from privrl_bench.audit.canary import Finding, Say, claim_of, contradictions, run_canaries
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError

_MOST_PER_ROUND = 64


def right_guesses(scores: np.ndarray, coins: np.ndarray, guesses: int) -> int:
    """How many of `guesses` are right: half "in" for the highest scores, half "out" for the lowest.

    Args:
        scores, coins: [m], coins true for "in".
        guesses: an even number, at most m.
    """
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int((~coins[order[:half]]).sum() + coins[order[len(order) - half :]].sum())


def attack(config: RunConfig, canaries: int, confidence: float, say: Say) -> Finding:
    """Train once with canaries in every slot and bound epsilon.

    Args:
        config: of the run; `total_steps` is replaced by what `canaries` need.
        canaries: how many at most. How many of them are used, and guessed, is settled by the claim
            before the run, so that the bound holds.
        confidence: of the bound.
        say: takes lines of progress.

    Raises:
        ConfigError: Poisson sampling, where a person's coin is not the only thing that decides whether
            she is in; and whatever `run_canaries` refuses.
    """
    if config.privacy.rules.sampler.independent:
        raise ConfigError("--attack", "one-run is for cohorts of fixed size; use canary")
    run = run_canaries(config, canaries, _MOST_PER_ROUND, True, say, "one-run")
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
            f"{used} canaries in {run.rounds} rounds, {guesses} guessed, {right} right; loose by "
            "construction, see the canary attack for the tight number"
        ],
        start=-run.mu / 2.0 if config.privacy.adjacency == "replace_one" else 0.0,
    )
