"""What the classifier learns from: pieces of reviews, each with the share of kind words in it.

It will judge beginnings of reviews that break off anywhere, so it learns from such; and from pieces of two
reviews, so that its logit grows with every kind sentence and not with the first one only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from privrl_bench.models.language.corpus import Corpus, Review

SURE = (
    5e-4  # no piece is kinder than 1 - this: bounds the logits, where real classifiers saturate too
)


def pieces(corpus: Corpus, numbers: Sequence[int], seed: int) -> list[tuple[str, float]]:
    """(text, target in [SURE, 1 - SURE]), one piece for each of the reviews `numbers`."""
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
    """Some sentences in a row, the last one often broken off, and the opinions that are in them."""
    count = len(review.sentences)
    first = 0 if draw.random() < 0.7 else draw.randrange(count)
    last = draw.randrange(first, count)
    words = review.sentences[last].split(" ")
    kept = len(words) if draw.random() < 0.4 else draw.randint(1, len(words))
    text = " ".join([*review.sentences[first:last], *words[:kept]])
    # An opinion is in a sentence's last words; what is broken off before them is none yet.
    ends = last + 1 if kept >= len(words) - 1 else last
    return text, [opinion for opinion in review.opinions[first:ends] if opinion is not None]
