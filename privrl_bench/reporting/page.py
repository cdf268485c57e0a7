"""One self-contained HTML page: figures, tables, guarantees and provenance."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from privrl_bench.reporting.runs import Run

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #d5dae1; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 13px; }
th, td { border-bottom: 1px solid #e3e7ec; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: #f3f5f8; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } img { max-width: 100%; } figcaption, .note { color: #566070; font-size: 13px; }
.formal { color: #14713d; font-weight: 600; } .heuristic { color: #a05a00; font-weight: 600; }
.none { color: #777; }
"""


class Part(Protocol):
    """A part of a page."""

    def html(self) -> str:
        """The part as HTML."""


@dataclass(frozen=True)
class Paragraph:
    """Text."""

    text: str

    def html(self) -> str:
        """The paragraph."""
        return f"<p>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Table:
    """A table of texts. Cells that begin like numbers are aligned right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def html(self) -> str:
        """The table below its title, with its note."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.head)
        rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in self.rows)
        note = f"<p class='note'>{html.escape(self.note)}</p>" if self.note else ""
        body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"<h2>{html.escape(self.title)}</h2>{body}{note}"


@dataclass(frozen=True)
class Picture:
    """A PNG file and its caption."""

    title: str
    path: Path
    caption: str = ""

    def html(self) -> str:
        """The picture, with its data in the page."""
        data = base64.b64encode(self.path.read_bytes()).decode()
        name = html.escape(self.title, quote=True)
        return (
            f"<h2>{name}</h2><figure><img alt='{name}' src='data:image/png;base64,{data}'>"
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def write_page(path: Path, title: str, parts: Sequence[Part], runs: Sequence[Run]) -> None:
    """Write the page. Provenance of `runs` comes last."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [part.html() for part in (*parts, provenance_table(runs))]
    text = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def provenance_table(runs: Sequence[Run]) -> Table:
    """Commits, versions and machines of the runs, and the number of runs of each."""
    counts: dict[tuple[str, ...], int] = {}
    for run in runs:
        made = run.provenance
        versions = made.get("versions") or {}
        dirty = " with changes" if made.get("dirty") else ""
        key = (
            f"{str(made.get('commit') or '?')[:10]}{dirty}",
            ", ".join(f"{k} {v}" for k, v in sorted(versions.items()) if v),
            f"{made.get('processor', '?')}, {made.get('cores', '?')} cores, {made.get('platform', '?')}, "
            f"Python {made.get('python', '?')}",
        )
        counts[key] = counts.get(key, 0) + 1
    rows = [[str(count), *key] for key, count in sorted(counts.items(), key=lambda x: -x[1])]
    return Table("Provenance", ("runs", "commit", "versions", "machine"), rows)


def _cell(text: str) -> str:
    first = text.strip().partition(" ")[0]
    kind = first if first in ("formal", "heuristic", "none") else ""
    if first and (
        first[0].isdigit() or (first[0] in "-+" and first[1:2].isdigit()) or first == "inf"
    ):
        kind = "number"
    return (
        f"<td class='{kind}'>{html.escape(text)}</td>" if kind else f"<td>{html.escape(text)}</td>"
    )
