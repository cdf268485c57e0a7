"""The command `privrl explain`: the guarantee of a run folder in full."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from privrl_bench.api.explaining import explain
from privrl_bench.cli.parsing import Parser, given
from privrl_bench.run.crash import guarded

ABOUT = """Explain the guarantee of a run: what epsilon is of, every caveat, note and assumption.

RUN is a run folder. Reads its summary.json, or plan.json while the run is not finished."""


def main(arguments: Sequence[str] | None = None, prog: str = "privrl explain") -> int:
    """Run the command and return its exit code."""
    return guarded(lambda: _explain(given(arguments), prog), "rerun the same command")


def _explain(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    folder = parser.read(words).run
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 60), 110)
    print("\n".join(explain(folder).lines(width)))
    return 0
