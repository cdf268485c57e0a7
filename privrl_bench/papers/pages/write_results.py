"""Fill the results in README.md and docs/ from the results store in outputs/paper, and draw its figures.

    python -m privrl_bench.papers.pages.write_results [--check | --redraw | --outputs]

A block is `<!-- results:NAME -->`, text, `<!-- /results -->`. Its text is replaced by that of the function
`BLOCKS[NAME]` in privrl_bench/papers/pages. Figures are drawn if their tables have changed (figures.py),
with --redraw all of them. --check writes nothing and exits with 1 if a page or a figure
differs, or a committed row is not what its words give today or does not say where it was made. A block
without a function, or a function without a block: exit 2.
--outputs runs the commands whose output the pages show, and pastes what they print. Such a block is
`<!-- printed: COMMAND -->`, an indented text, `<!-- /printed -->`. `first=N` and `last=N` before the colon keep
the first and the last lines of the output, with a line `...` for those between; `columns=N` has what a terminal
of N columns shows, of a bar its middle; `at=COMMIT` has what an earlier commit printed, and is filled once.
Commands run in a new folder, so training runs are new. --check runs none: a block must be closed and have text.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import identity
from privrl_bench.errors import ConfigError
from privrl_bench.papers.pages import (  # noqa: F401  (they register their blocks)
    control,
    dppg,
    figures,
    kept_tables,
    primorl,
    state,
)
from privrl_bench.papers.pages.store import BLOCKS, STORE
from privrl_bench.reporting.run_loader import TOGETHER, digest_of, read_rows, stores

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"(<!-- results:(\S+) -->)(.*?)(<!-- /results -->)", re.DOTALL)
PRINTED = re.compile(
    r"(<!-- printed(?P<kept>(?: (?:first|last|columns|at)=\w+)*): (?P<command>.+?) -->\n\n)"
    r"(?P<text>.*?)(\n<!-- /printed -->)",
    re.DOTALL,
)
CONTROL = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")
PROGRESS = re.compile(r"^\S+ \S+: [\d,]+ of [\d,]+ steps .*\n", re.MULTILINE)


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


def printed(command: str, folder: Path, options: Mapping[str, str]) -> str:
    """What a command prints, without progress lines and with paths relative to its folder.

    Raises:
        SystemExit: the command failed.
    """
    program, *words = shlex.split(command)
    source, width = ROOT, options.get("columns", "160")
    if commit := options.get("at"):
        source = folder / commit
        source.mkdir(exist_ok=True)
        tree = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x"], cwd=source, input=tree.stdout, check=True)
    call = [str(Path(sys.executable).parent / program), *words]
    if "columns" in options:
        call = ["script", "-qec", shlex.join(call), "/dev/null"]
    done = subprocess.run(
        call,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": width, "NO_COLOR": "1"},
        capture_output=True,
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()  # with the returns of a bar
    if done.returncode not in (0, 2):  # 2: bad input, which a page may show
        raise SystemExit(f"error: {command}: exit code {done.returncode}\n{out}{err}")
    states = [re.split(r"\r(?:\x1b\[2K)?", line.rstrip("\r")) for line in out.split("\n")]
    text = "\n".join(line[len(line) // 2] for line in states) + err
    text = PROGRESS.sub("", CONTROL.sub("", text))
    return text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def kept(text: str, options: Mapping[str, str]) -> str:
    """The lines of an output that a block keeps, indented."""
    lines = text.rstrip().splitlines()
    first, last = int(options.get("first", 0)), int(options.get("last", 0))
    if first + last and len(lines) > first + last:
        lines = [*lines[:first], *(["..."] if first and last else []), *lines[len(lines) - last :]]
    return "".join(f"    {line.rstrip()}\n" if line.strip() else "\n" for line in lines)


def with_outputs(text: str, folder: Path) -> str:
    """A page with the output of all its blocks."""

    def replaced(found: re.Match[str]) -> str:
        options = dict(one.split("=") for one in found["kept"].split())
        if "at" in options and found["text"].strip():
            return found[0]
        print(f"  {found['command']}", flush=True)
        return found[1] + kept(printed(found["command"], folder, options), options) + found[5]

    return PRINTED.sub(replaced, text)


def problems() -> list[str]:
    """Blocks without a function, functions without a block, and markers without their counterpart."""
    found, lines = set(), []
    for page in pages():
        text = page.read_text()
        found |= set(names(text))
        if not len(names(text)) == text.count("<!-- results:") == text.count("<!-- /results -->"):
            lines.append(f"{page.relative_to(ROOT)}: a marker is not closed")
        blocks = list(PRINTED.finditer(text))
        if not len(blocks) == text.count("<!-- printed") == text.count("<!-- /printed -->"):
            lines.append(f"{page.relative_to(ROOT)}: a block of a command is not closed")
        empty = [one["command"] for one in blocks if not one["text"].strip()]
        lines += [f"{page.relative_to(ROOT)}: {command}: empty" for command in empty]
    lines += [f"no function for the block {name}" for name in sorted(found - set(BLOCKS))]
    return lines + [f"no block for the function {name}" for name in sorted(set(BLOCKS) - found)]


def difference(row: Mapping[str, str]) -> str:
    """What is wrong with a row, in words; empty if its overrides and its seed have its digest.

    Numbers that a plan finds, z of an epsilon and rounds of a population, are the row's `settings`.
    """
    try:
        composed = _composed(row["overrides"])
    except ConfigError as error:
        return f"cannot be composed: {error}"
    known = {**composed, "seed": int(row["seed"])}
    if known["fit_population"] or known.get("privacy.z", 0) is None:
        recorded = json.loads(row["settings"])
        found = {key: recorded[key] for key in ("privacy.z", "rounds") if key in recorded}
        known |= {**found, "fit_population": False}
    return "" if row["digest"] == digest_of(known) else "another digest"


@cache
def _composed(overrides: str) -> dict[str, Any]:
    """The identity of overrides. Raises ConfigError."""
    return identity(compose(overrides.split()))


def row_problems() -> list[str]:
    """A line for each committed row that its words do not give, or that does not say where it was made."""
    lines = []
    for folder in stores(STORE):
        item = folder.relative_to(STORE).as_posix()
        for row in read_rows(folder):
            reason = _today(row)
            lines += [f"{item}: {row['run']}: {reason}"] if reason else []
    return lines


def _today(row: Mapping[str, str]) -> str:
    missing = [name for name in ("processor", "torch", "numpy", TOGETHER) if not row.get(name)]
    return difference(row) or (f"no {', '.join(missing)}" if missing else "")


def main() -> int:
    """Fill or compare all pages. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page differs")
    parser.add_argument("--redraw", action="store_true", help="draw all figures")
    parser.add_argument("--outputs", action="store_true", help="run the commands on the pages")
    options = parser.parse_args()
    for line in problems():
        print(f"error: {line}", file=sys.stderr)
    if problems():
        return 2
    code = 0
    for page in pages():
        text = page.read_text()
        new = filled(text)
        if options.outputs and PRINTED.search(text):
            with tempfile.TemporaryDirectory() as folder:
                new = with_outputs(new, Path(folder))
        if new == text:
            continue
        code = int(options.check)
        print(f"{'differs' if options.check else 'wrote'} {page.relative_to(ROOT)}")
        if not options.check:
            page.write_text(new)
    if not options.check:
        figures.draw(options.redraw)
    for line in (*figures.problems(), *row_problems()):
        code = 1
        print(f"error: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
