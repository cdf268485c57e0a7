"""The report of runs: tables, plots, and one self-contained HTML page with them and their provenance."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import RETURN
from privrl_bench.functional.statistics import FEWEST, improvement
from privrl_bench.reporting.plots import (
    curves,
    not_drawn,
    not_monotone,
    profiles,
    return_against_epsilon,
)
from privrl_bench.reporting.runs import Run, of_one_length, selected, usable
from privrl_bench.reporting.table_writer import short
from privrl_bench.reporting.tables import Group, definitions, printed, summarise, write_tables

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

_ONE_SEED = "one seed does not show how much training differs between seeds"
_MORE_EPISODES = "; for more episodes of the same policy: privrl evaluate --episodes 500"


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


# --- the report of runs


def counted(
    runs: Sequence[Run], where: Iterable[str] = (), all_lengths: bool = False
) -> tuple[list[Run], list[str]]:
    """(finished runs that a report counts, notes about them).

    Args:
        runs: of any kind.
        where: `key=value` that they have, see `runs.selected`.
        all_lengths: also runs of other lengths than most have, see `runs.of_one_length`.

    Raises:
        ConfigError: no run is left.
    """
    kept = usable(runs)
    if not kept:
        raise ConfigError("", "there is no finished run")
    kept = selected(kept, where)
    kept, other = (kept, []) if all_lengths else of_one_length(kept)
    notes = [f"left out, of another length: {one} (--all-lengths has them)" for one in other]
    rows = summarise(kept)
    if alone := [row for row in rows if row.seeds == 1]:
        returns = any(row.measure is RETURN for row in alone)
        notes.append(_ONE_SEED + _MORE_EPISODES * returns)
    return kept, [*notes, *not_monotone(rows)]


def write_report(runs: Sequence[Run], out: Path, title: str, notes: Sequence[str] = ()) -> Path:
    """Write tables, plots and index.html.

    Args:
        runs: of any kind; those that are not finished are counted out.
        out: an existing folder.
        title: of the page.
        notes: below the table.

    Returns:
        The path of the page.
    """
    rows = summarise(runs)
    write_tables(rows, out)
    below = [*definitions(rows), *notes]
    parts = [table("Final returns", *printed(rows)), *map(paragraph, below)]
    reason = not_drawn(runs)
    if reason:
        parts.append(paragraph(reason))
    else:
        curves(runs, out / "curves.png")
        parts.append(picture("Learning curves", out / "curves.png", "mean over seeds"))
    return_against_epsilon(runs, out / "return_against_epsilon.png")
    parts.append(picture("Return against epsilon", out / "return_against_epsilon.png"))
    if not reason and any(len(run.curve("exact/regret")[0]) for run in runs):
        curves(runs, out / "regret.png", "exact/regret", "cumulative regret")
        parts.append(picture("Regret", out / "regret.png", "expected, by dynamic programming"))
    many = [group for group in rows if group.seeds >= FEWEST]
    if many and not reason:
        profiles(many, out / "profiles.png")
        caption = "share of a group's seeds whose final return is above a threshold"
        parts.append(picture("Performance profiles", out / "profiles.png", caption))
    pairs = comparisons(many)
    if pairs:
        parts.append(
            table(
                "Probability of improvement",
                ("env", "X", "Y", "P(X > Y)", "95 % interval"),
                pairs,
                f"probability that a seed of X ends above one of Y; bootstrap over seeds, of {FEWEST} or more",
            )
        )
    page = out / "index.html"
    write_page(page, f"privrl_bench: {title}", parts, runs)
    return page


def comparisons(groups: Sequence[Group]) -> list[list[str]]:
    """Return the probability of improvement for every pair of groups of one environment."""
    lines = []
    for one, other in combinations(groups, 2):
        measure = one.runs[0].measure
        if one.env != other.env or measure is not other.runs[0].measure:
            continue
        x, y = ([run.final_value for run in group.runs] for group in (one, other))
        if measure.direction == "down":
            x, y = y, x
        value, low, high = improvement(x, y, np.random.default_rng(0))
        spread = f"{short(low, 2)} to {short(high, 2)}"
        lines.append([one.env, one.label, other.label, f"{value:.2f}", spread])
    return lines
