"""Train the text models that are part of the package (privrl_bench/models/language/small/).

    python scripts/make_small_models.py
    python scripts/make_small_models.py --out models

A language model and a classifier of reviews of a grammar, 150 s of CPU time. Other machines, versions and
numbers of threads give other weights, and results of env=sentiment_small change with them, so the files are
made again only together with those results.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from privrl_bench.config.schema import TextConfig
from privrl_bench.experiment.run_dir import write_json
from privrl_bench.models.language.recipe import recipe_of
from privrl_bench.models.language.small_models import CARD, SHIPPED, describe, make


def main() -> None:
    """Make the models and print their quality."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder (default: the package's)")
    parser.add_argument("--size", choices=("small", "smoke"), default="small", help="of the models")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    card = make(recipe_of(TextConfig(size=words.size)), words.out, progress=True)
    write_json(words.out / CARD, card)
    print(describe(card))


if __name__ == "__main__":
    main()
