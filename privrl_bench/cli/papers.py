"""The command `privrl reproduce`: the tables and figures of papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from privrl_bench.cli.parsing import Parser, check_at_least, given
from privrl_bench.config.overrides import conf_dir
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.experiment.crash import guarded
from privrl_bench.reporting.reproduce import Paper, reproduce

ABOUT = """Reproduce tables and figures of papers: run what is missing, compare, draw.

  {0} dppg-table1 --scale smoke
  {0} dppg-table1 dppg-fig1 --scale paper --seeds 5
  {0} all --scale short

Runs and pages go to outputs/reproduce/<paper>/<scale>/. Rerun the same command to resume."""
SCALES = ("smoke", "short", "paper")


def main(arguments: Sequence[str] | None = None, prog: str = "privrl reproduce") -> int:
    """Run the command and return its exit code."""
    return guarded(lambda: _reproduce(given(arguments), prog))


def papers() -> dict[str, Path]:
    """Return the YAML file of each paper: inside the package in a wheel, in scripts/ in a source tree."""
    root = conf_dir().parent
    folder = next(path for path in (root / "papers", root / "scripts" / "papers") if path.is_dir())
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _reproduce(words: Sequence[str], prog: str) -> int:
    known = {
        f"{name}-{item}": (path, item)
        for name, path in papers().items()
        for item in Paper(path).items()
    }
    parser = Parser(prog, ABOUT.format(prog))
    parser.add_argument("items", nargs="+", metavar="ITEM", help=f"{', '.join(known)}, all")
    parser.add_argument("--scale", choices=SCALES, default="short", help="size (default short)")
    parser.add_argument("--seeds", type=int, metavar="N", help="instead of the scale's own number")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/reproduce"), metavar="DIR",
        help="for runs and pages (default outputs/reproduce)",
    )  # fmt: skip
    parser.add_argument(
        "--report-only", action="store_true", help="run nothing, report what exists"
    )
    options = parser.read(words)
    check_at_least("--seeds", options.seeds, 1)
    chosen: dict[Path, list[str]] = {}
    for word in known if "all" in options.items else options.items:
        if word not in known:
            near = suggest(word, known)
            raise ConfigError(
                "item", f"no such item {word}{near}; allowed: {', '.join(known)}, all"
            )
        path, item = known[word]
        chosen.setdefault(path, []).append(item)
    settings = (options.scale, options.seeds, options.out, options.report_only)
    return max(reproduce(Paper(path), items, *settings) for path, items in chosen.items())
