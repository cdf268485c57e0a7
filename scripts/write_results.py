"""Fill the results in README.md and docs/ from the results store in outputs/paper.

    python scripts/write_results.py [--check]

A block is `<!-- results:NAME -->`, text, `<!-- /results -->`. Its text is replaced by that of the function
`BLOCKS[NAME]` in scripts/results_blocks. --check writes nothing and exits with 1 if a file differs. A block
without a function, or a function without a block: exit 2.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from results_blocks import BLOCKS

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- results:(\S+) -->)(.*?)(<!-- /results -->)", re.DOTALL)


def pages() -> list[Path]:
    """The files that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def names(text: str) -> list[str]:
    """Names of the blocks of a page."""
    return [found[2] for found in BLOCK.finditer(text)]


def filled(text: str) -> str:
    """A page with the text of all its blocks. A table gets lines of its own, a sentence stays inline."""

    def replaced(found: re.Match[str]) -> str:
        content = BLOCKS[found[2]]()
        edge = "\n" if "\n" in content else ""
        return f"{found[1]}{edge}{content}{edge}{found[4]}"

    return BLOCK.sub(replaced, text)


def problems() -> list[str]:
    """Blocks without a function, functions without a block, and markers without their counterpart."""
    found, lines = set(), []
    for page in pages():
        text = page.read_text()
        found |= set(names(text))
        if not len(names(text)) == text.count("<!-- results:") == text.count("<!-- /results -->"):
            lines.append(f"{page.relative_to(ROOT)}: a marker is not closed")
    lines += [f"no function for the block {name}" for name in sorted(found - set(BLOCKS))]
    return lines + [f"no block for the function {name}" for name in sorted(set(BLOCKS) - found)]


def main() -> int:
    """Fill or compare all pages. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    options = parser.parse_args()
    for line in problems():
        print(f"error: {line}", file=sys.stderr)
    if problems():
        return 2
    code = 0
    for page in pages():
        text = page.read_text()
        new = filled(text)
        if new == text:
            continue
        code = int(options.check)
        print(f"{'differs' if options.check else 'wrote'} {page.relative_to(ROOT)}")
        if not options.check:
            page.write_text(new)
    return code


if __name__ == "__main__":
    sys.exit(main())
