"""One self-contained HTML page: figures, tables, guarantees and provenance."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

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


def paragraph(text: str) -> str:
    """Text, as HTML."""
    return f"<p>{html.escape(text)}</p>"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """A table below its title, with its note, as HTML. Cells that begin like numbers are aligned right."""
    names = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    below = f"<p class='note'>{html.escape(note)}</p>" if note else ""
    body = f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"
    return f"<h2>{html.escape(title)}</h2>{body}{below}"


def picture(title: str, path: Path, caption: str = "") -> str:
    """A PNG file below its title, with its caption, as HTML with the data of the file."""
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(title, quote=True)
    return (
        f"<h2>{name}</h2><figure><img alt='{name}' src='data:image/png;base64,{data}'>"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def write_page(path: Path, title: str, parts: Sequence[str], runs: Sequence[Run]) -> None:
    """Write the page of these parts (HTML). Provenance of `runs` comes last."""
    body = [f"<h1>{html.escape(title)}</h1>", *parts, provenance(runs)]
    text = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def provenance(runs: Sequence[Run]) -> str:
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
    return table("Provenance", ("runs", "commit", "versions", "machine"), rows)


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
