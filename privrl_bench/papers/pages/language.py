"""Blocks of language models, from runs.csv and curves.csv.gz."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privrl_bench.papers.pages.store import block, chosen, finals, spent, spread
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import compact

# Label -> beginning of the keys of its runs.
LINES = {
    "PPO": "ppo/sentiment_small/seed",
    "DPPG z = 0.01": "dppg/sentiment_small/z=0.01,algo.",
    "DPPG z = 0.01, values for z = 0.5": "dppg/sentiment_small/z=0.01,seed",
    "DPPG z = 0.5": "dppg/sentiment_small/z=0.5,",
}


def start(runs: Sequence[Run], name: str | None = None) -> float:
    """Mean over seeds of a metric before training."""
    return float(np.mean([run.curve(name)[1][0] for run in runs]))


def last(runs: Sequence[Run], name: str, digits: int) -> str:
    """Least and largest last value of a metric."""
    values = [run.curve(name)[1][-1] for run in runs]
    digits = 0 if max(values) >= 100 else digits
    return f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"


@block("dppg/fig7")
def _texts() -> str:
    """Mean score of language models, and the gain over the start model as a share of PPO's."""
    found = {label: chosen("dppg/fig7", key) for label, key in LINES.items()}
    gains = {label: np.mean(finals(runs)) - start(runs) for label, runs in found.items()}
    lines = [
        [
            *(label, spent(runs), str(len(runs)), spread(finals(runs), 2)),
            *(f"{gains[label]:.2f}", f"{100 * gains[label] / gains['PPO']:.0f} %"),
            *(last(runs, "eval/perplexity", 1), last(runs, "eval/kl", 0)),
        ]
        for label, runs in found.items()
    ]
    names = ["", "epsilon", "seeds", "mean score", "gain", "of PPO's", "perplexity", "KL, nats"]
    return compact(names, lines)


@block("dppg/fig7-start")
def _start() -> str:
    """The start model's mean score and perplexity."""
    runs = chosen("dppg/fig7", LINES["PPO"])
    return f"{start(runs):.2f}, and perplexity {start(runs, 'eval/perplexity'):.1f}"


@block("dppg/rlhf-epsilon")
def _by_epsilon() -> str:
    """Mean score against epsilon, by users in a round."""
    lines = []
    for users, words in (("128", ""), ("512", "privacy.users_per_round=512,")):
        for z in ("0.01", "0.1", "0.5", "1", "2"):
            runs = chosen("dppg/rlhf-epsilon", f"dppg/sentiment_small/z={z},{words}seed")
            measured = (last(runs, "eval/perplexity", 1), last(runs, "eval/kl", 0))
            scores = spread(finals(runs), 2)
            lines.append([users, z, spent(runs), str(len(runs)), scores, *measured])
    names = ["users in a round", "z", "epsilon", "seeds", "mean score", "perplexity", "KL, nats"]
    return compact(names, lines)
