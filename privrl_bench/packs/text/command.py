"""The command `privrl text`: show the small text models of the package."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.cli.parsing import Parser, given
from privrl_bench.packs.text.models import read_card, small
from privrl_bench.training.crash import guarded

ABOUT = """Show the small text models of the package: a language model and a classifier of generated reviews.

Prints their measured quality, and the folder with policy/, classifier/ and card.json, in the layout of the
Hugging Face hub. Their files are compared with the digests in the card."""


def main(arguments: Sequence[str] | None = None, prog: str = "privrl text") -> int:
    """Run the command and return its exit code."""
    return guarded(lambda: _show(given(arguments), prog))


def _show(words: Sequence[str], prog: str) -> int:
    Parser(prog, ABOUT).read(words)
    folder, card = small(), read_card()
    test, sizes = card["test"], card["parameters"]
    print(
        f"language model: {sizes['policy']:,} parameters, test perplexity {test['perplexity']:g} per token; "
        f"classifier: {sizes['classifier']:,} parameters, test accuracy {test['accuracy']:.1%} (positive "
        f"logit {test['logit_positive']:+.2f} of positive reviews, {test['logit_negative']:+.2f} of negative "
        "ones)"
    )
    print(folder)
    return 0
