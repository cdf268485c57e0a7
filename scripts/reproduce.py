"""Reproduce a paper's tables and figures: run what is missing, compare, draw.

    python scripts/reproduce.py dppg-table1 --scale smoke
    python scripts/reproduce.py dppg-table1 dppg-fig1 --scale paper --seeds 5
    python scripts/reproduce.py all --scale short

Runs and pages go to outputs/reproduce/<paper>/<scale>/. Rerun to resume.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from privrl_bench.cli.reproduce import reproduce
from privrl_bench.errors import ConfigError
from privrl_bench.reporting.papers import Paper

PAPERS = {path.stem: path for path in sorted((Path(__file__).parent / "papers").glob("*.yaml"))}
SCALES = ("smoke", "short", "paper")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if a run failed; 2 for a wrong word; 130 when interrupted."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [f"{name}-{item}" for name, path in PAPERS.items() for item in Paper(path).items()]
    parser.add_argument("items", nargs="+", metavar="ITEM", help=f"{', '.join(known)}, all")
    parser.add_argument("--scale", choices=SCALES, default="short")
    parser.add_argument("--seeds", type=int, help="instead of the scale's own number")
    parser.add_argument("--out", type=Path, default=Path("outputs/reproduce"))
    parser.add_argument(
        "--report-only", action="store_true", help="run nothing, report what is there"
    )
    options = parser.parse_args(arguments)
    words = known if "all" in options.items else options.items
    code = 0
    try:
        for name, path in PAPERS.items():
            items = [w.removeprefix(f"{name}-") for w in words if w.startswith(f"{name}-")]
            words = [w for w in words if not w.startswith(f"{name}-")]
            if items:
                args = (options.scale, options.seeds, options.out, options.report_only)
                code = max(code, reproduce(Paper(path), items, *args))
        if words:
            raise ConfigError("item", f"no such item {words[0]}; allowed: {', '.join(known)}, all")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; rerun to resume", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
