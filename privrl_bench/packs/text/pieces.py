"""Training data of the classifier: pieces of reviews, each with its share of positive opinions.

The classifier scores truncated beginnings of reviews, so it is trained on those; and on pieces of two
reviews, so that its logit increases with every positive sentence, not only with the first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from privrl_bench.packs.text.corpus import Corpus, Review

SURE = 5e-4  # label smoothing, which bounds the logits as in real classifiers


def pieces(corpus: Corpus, numbers: Sequence[int], seed: int) -> list[tuple[str, float]]:
    """Return (text, target in [SURE, 1 - SURE]) of one piece of each of the reviews `numbers`."""
    draw = random.Random(f"{seed}/pieces/{numbers[0]}/{len(numbers)}")
    found = []
    for number in numbers:
        review = corpus.review(number)
        text, opinions = _piece(review, draw)
        if draw.random() < 0.15:
            other, more = _piece(corpus.review(draw.choice(numbers)), draw)
            text, opinions = f"{text} {other}", opinions + more
        target = sum(opinions) / len(opinions) if opinions else 0.5
        found.append((text, min(max(target, SURE), 1 - SURE)))
    return found


def _piece(review: Review, draw: random.Random) -> tuple[str, list[float]]:
    """Consecutive sentences, the last one often truncated, and their opinions."""
    count = len(review.sentences)
    first = 0 if draw.random() < 0.7 else draw.randrange(count)
    last = draw.randrange(first, count)
    words = review.sentences[last].split(" ")
    kept = len(words) if draw.random() < 0.4 else draw.randint(1, len(words))
    text = " ".join([*review.sentences[first:last], *words[:kept]])
    # A sentence's last words carry its opinion; a sentence truncated before them has none.
    ends = last + 1 if kept >= len(words) - 1 else last
    return text, [opinion for opinion in review.opinions[first:ends] if opinion is not None]
