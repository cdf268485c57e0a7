"""Train the text models that are part of the package, a language model and a classifier of generated reviews.

    python scripts/make_small_models.py privrl_bench/packs/text/small

Takes about 90 s of CPU time, on one thread. Other machines and versions give other weights, and the results of
env=sentiment_small change with them, so the files are made again only together with those results.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from privrl_bench.config.schema import TextConfig
from privrl_bench.kernels.machine import one_thread
from privrl_bench.packs.text.recipe import recipe_of
from privrl_bench.packs.text.small_models import CARD, describe, make
from privrl_bench.run.run_dir import write_json


def main() -> None:
    """Make the models and print their quality."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for policy/, classifier/ and card.json")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    one_thread()
    card = make(recipe_of(TextConfig()), folder, progress=True)
    write_json(folder / CARD, card)
    print(describe(card))


if __name__ == "__main__":
    main()
