"""Run the commands whose output README.md and docs/ show, and paste what they print.

    python -m privrl_bench.papers.pages.write_outputs [--check]

A block is `<!-- printed: COMMAND -->`, an indented text, `<!-- /printed -->`. `first=N` and `last=N` before the
colon keep the first and the last lines of the output, with a line `...` for those between. Commands run in a
new folder, so training runs are new. --check runs nothing: 1 if a block is empty or not closed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(
    r"(<!-- printed(?P<kept>(?: (?:first|last)=\d+)*): (?P<command>.+?) -->\n\n)"
    r"(?P<text>.*?)(\n<!-- /printed -->)",
    re.DOTALL,
)
PROGRESS = re.compile(r"^\S+ \S+: [\d,]+ of [\d,]+ steps .*\n", re.MULTILINE)


def pages() -> list[Path]:
    """The files that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def printed(command: str, folder: Path) -> str:
    """What a command prints, without progress lines and with paths relative to its folder.

    Raises:
        SystemExit: the command failed.
    """
    program, *words = shlex.split(command)
    path = Path(sys.executable).parent / program
    done = subprocess.run(
        [str(path), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"error: {command}: exit code {done.returncode}\n{done.stderr}")
    text = PROGRESS.sub("", done.stdout + done.stderr)
    return text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def kept(text: str, options: str) -> str:
    """The lines of an output that a block keeps, indented."""
    counts = {name: int(n) for name, n in re.findall(r"(first|last)=(\d+)", options)}
    lines = text.rstrip().splitlines()
    first, last = counts.get("first", 0), counts.get("last", 0)
    if counts and len(lines) > first + last:
        lines = [*lines[:first], *(["..."] if first and last else []), *lines[len(lines) - last :]]
    return "".join(f"    {line.rstrip()}\n" if line.strip() else "\n" for line in lines)


def filled(text: str, folder: Path) -> str:
    """A page with the output of all its blocks."""

    def replaced(found: re.Match[str]) -> str:
        print(f"  {found['command']}", flush=True)
        return found[1] + kept(printed(found["command"], folder), found["kept"]) + found[5]

    return BLOCK.sub(replaced, text)


def problems() -> list[str]:
    """Blocks that are empty or not closed."""
    lines = []
    for page in pages():
        text = page.read_text()
        name = page.relative_to(ROOT)
        blocks = list(BLOCK.finditer(text))
        if not len(blocks) == text.count("<!-- printed") == text.count("<!-- /printed -->"):
            lines.append(f"{name}: a block is not closed")
        lines += [f"{name}: {x['command']}: empty" for x in blocks if not x["text"].strip()]
    return lines


def main() -> int:
    """Fill or check all pages. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run nothing; 1 if a block is broken")
    if parser.parse_args().check:
        for line in problems():
            print(f"error: {line}", file=sys.stderr)
        return int(bool(problems()))
    for page in pages():
        text = page.read_text()
        if not BLOCK.search(text):
            continue
        print(f"{page.relative_to(ROOT)}:")
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(filled(text, Path(folder)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
