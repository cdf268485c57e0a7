"""How every figure looks. matplotlib is imported when a figure is drawn, and needs no display.

Colour is the method, shade is the rank of epsilon in its panel (dark: small), and the kind of line is the
status of the guarantee: solid is formal, dashed heuristic, dotted not private. Every line of a panel has its
own marker, so that lines can be told apart in grey. Intervals end at the largest return of a task. A figure is
half a page wide.
"""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RC: Any = {
    "savefig.dpi": 300,
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,  # two periods of a dashed line
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "privrl_bench",  # the same runs give the same file
}
MOST_LINES = 6  # of a panel
WIDTH = 3.4  # inches, half a page
_ACROSS = 2
_LINE = 0.125  # inches, of a legend
MARKED = 6  # markers along a curve
LARGEST = {  # returns that no policy exceeds; of other tasks it is not known
    **{"cartpole": 500.0, "acrobot": 0.0, "pendulum": 0.0},
    **{"cartpole_balance": 1000.0, "cartpole_swingup": 1000.0},
}
CUT = "intervals end at the task's largest return"
_TASKS = "CartPole Acrobot Pendulum Hopper HalfCheetah Dosing-0 Dosing-1 Walker2d Ant RiverSwim"
NAMES = {
    **{name.lower().replace("-", ""): name for name in f"{_TASKS} MountainCar".split()},
    **{"cartpole_balance": "Balance", "cartpole_swingup": "Swingup"},
}

# Okabe and Ito's colours, without sky blue and yellow, which are too light for thin lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*", "<")
# Place in the palette and the markers. Methods that are compared in a paper have different ones.
_METHODS = {
    name: at
    for at, names in enumerate(
        (
            "dppg dppg_kl gpope",
            "ppo dppg_l2 dp_lsw",
            "a2c ucbvi dp_lsl",
            "reinforce primorl dp_lstd",
            "dqn dqn_replay mopo",
            "lstd wis_lstd",
        )
    )
    for name in names.split()
}
DASHES = {"formal": "-", "heuristic": "--", "unreviewed": "-.", "none": ":"}


# --- axes, legend, files


@contextmanager
def figure(
    path: Path, panels: int, vector: bool = False, row_height: float | None = None
) -> Iterator[Sequence[Any]]:
    """`panels` axes, at most two to a row, saved to `path` with room for the legend below.

    `vector`: also as SVG and PDF, beside it. `row_height`: inches, instead of the usual.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        # No pyplot: no global state, and no display is needed.
        wide = min(panels, _ACROSS)
        high = math.ceil(panels / wide)
        made: Any = Figure(figsize=(WIDTH, 1), layout="constrained")
        FigureCanvasAgg(made)
        places = list(made.subplots(high, wide, squeeze=False).ravel())
        for spare in places[panels:]:
            spare.remove()
        yield places[:panels]
        for axes in places[:panels]:
            axes.set_title(NAMES.get(axes.get_title(), axes.get_title()))
        for axes in places[:panels] if wide > 1 else []:
            axes.set_title(textwrap.fill(axes.get_title(), 26))
            axes.set_ylabel(textwrap.fill(axes.get_ylabel(), 20))
            axes.set_xlabel(textwrap.fill(axes.get_xlabel(), 30))
        rows = sum(text.get_text().count("\n") + 1 for one in made.legends for text in one.texts)
        rows = sum(math.ceil(rows / one._ncols) for one in made.legends)
        height = row_height or (2.1 if wide == 1 else 1.5)
        made.set_size_inches(WIDTH, height * high + _LINE * rows)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        for kind in {Path(path).suffix, *undated} if vector else {Path(path).suffix}:
            made.savefig(Path(path).with_suffix(kind), metadata=undated.get(kind))


def legend(places: Sequence[Any]) -> None:
    """One legend of all panels, below them. A label of several methods is shown in grey."""
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in found:
                found[label] = handle
            elif hasattr(handle, "get_color") and abs(_hue(found[label]) - _hue(handle)) > 0.05:
                found[label] = _in_grey(found[label], handle)
    notes = [text.partition(": ") for axes in places for text in getattr(axes, _NOTES, ())]
    for kind, colon, _ in dict.fromkeys((*note[:2], "") for note in notes):
        every = dict.fromkeys(note[2] for note in notes if note[0] == kind)
        found[kind + colon + " or ".join(every)] = Line2D([], [], linestyle="")
    if found:
        # A character is about 0.047 inches wide, the sample of the line 0.4.
        names = [textwrap.fill(name, 60) for name in found]
        columns = int(WIDTH / (0.45 + 0.047 * max(map(len, found))))
        places[0].figure.legend(
            list(found.values()),
            names,
            loc="outside lower center",
            ncols=min(max(columns, 1), len(found)),
            borderaxespad=0.2,
            labelspacing=0.3,
            columnspacing=1.2,
        )


def _hue(handle: Any) -> float:
    from matplotlib.colors import rgb_to_hsv, to_rgb

    return float(rgb_to_hsv(to_rgb(handle.get_color()))[0])


def _in_grey(handle: Any, other: Any) -> Any:
    """A line like the handle, its colour as a grey of the same lightness, with the marker that both have."""
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D

    marker = handle.get_marker() if handle.get_marker() == other.get_marker() else ""
    grey = str(np.mean(to_rgb(handle.get_color())))
    return Line2D([], [], color=grey, ls=handle.get_linestyle(), marker=marker)


_MOST, _NOTES = "privrl_most", "privrl_notes"  # attributes of axes


def note(axes: Any, text: str) -> None:
    """Add a line of text to the legend."""
    setattr(axes, _NOTES, [*getattr(axes, _NOTES, ()), text])


def returns_of(axes: Any, env: str) -> None:
    """Declare that a panel shows returns of a task, before its lines: no interval exceeds the largest one."""
    setattr(axes, _MOST, LARGEST.get(env, math.inf))


def cut(axes: Any, ends: Any) -> Any:
    """Upper ends of intervals, at most the largest return of the panel's task."""
    most = getattr(axes, _MOST, math.inf)
    if np.any(np.asarray(ends) > most):
        note(axes, CUT)
    return np.minimum(ends, most)


def curve(
    axes: Any,
    look: Look,
    label: str,
    x: Any,
    mean: Any,
    ends: tuple[Any, Any] | None = None,
    turn: tuple[int, int] = (0, 1),
) -> None:
    """A line with its intervals as a band; beside more than one other line, as bars at its markers.

    Args:
        axes: Panel.
        look: Of the line.
        label: For the legend.
        x: [n] places of the points.
        mean: [n] their values.
        ends: [n] lower and upper ends of the intervals.
        turn: (k, n): the k-th of n lines. Each has its own points with a marker.
    """
    x, mean = np.asarray(x, dtype=float), np.asarray(mean, dtype=float)
    drawn = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    axes.plot(x, mean, **drawn, markevery=_apart(x, turn), label=label)
    if ends is not None and turn[1] > 2:  # bands would hide each other
        at = _apart(x, turn)
        _bars(axes, look, *(np.asarray(values)[at] for values in (x, mean, *ends)))
    elif ends is not None:
        axes.fill_between(x, ends[0], cut(axes, ends[1]), **_band(look))


def _apart(x: np.ndarray, turn: tuple[int, int]) -> list[int]:
    """Indices of the markers along a line, those of its turn."""
    places = (np.arange(MARKED) + (turn[0] + 0.5) / turn[1]) / MARKED
    wanted = x[0] + (x[-1] - x[0]) * places
    return sorted({int(np.abs(x - one).argmin()) for one in wanted})


def dots(
    axes: Any,
    look: Look,
    label: str,
    x: Any,
    mean: Any,
    ends: tuple[Any, Any],
    turn: tuple[int, int] = (0, 1),
) -> None:
    """Points with intervals, joined by a line; arguments as of `curve`. Lines are set apart sideways."""
    x, mean = np.asarray(x, dtype=float), np.asarray(mean, dtype=float)
    aside = 0.012 * (turn[0] - (turn[1] - 1) / 2)
    if axes.get_xscale() == "log":
        x = x * (x.max() / x.min()) ** aside
    else:
        x = x + (x.max() - x.min()) * aside
    drawn = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    axes.plot(x, mean, **drawn, label=label)
    _bars(axes, look, x, mean, *ends)


def _bars(axes: Any, look: Look, x: Any, mean: Any, low: Any, high: Any) -> None:
    sides = np.nan_to_num(np.maximum([mean - low, cut(axes, high) - mean], 0.0))
    axes.errorbar(x, mean, sides, fmt="none", ecolor=look.colour, elinewidth=0.7, capsize=1.5)


def level(
    axes: Any, look: Look, label: str, value: float, ends: tuple[float, float] | None = None
) -> None:
    """A horizontal line over the whole panel with its interval as a band. Its marker is beside the panel."""
    drawn = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    across = {"transform": axes.get_yaxis_transform(), "clip_on": False, "markevery": [1]}
    axes.plot([0, 1.02], [value, value], **drawn, **across, label=label)
    if ends is not None and ends[0] < ends[1]:
        axes.axhspan(ends[0], float(cut(axes, ends[1])), **_band(look))


def _band(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "alpha": 0.15, "linewidth": 0}


def epsilon_axis(axes: Any, known: Collection[float], label: str = "epsilon") -> None:
    """A log axis of epsilon, or another number, with plain ticks; `known`: the values of the points."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.set_xlabel(label)
    axes.set_xscale("log")
    if not known:
        axes.set_xlim(0.1, 10.0)
        axes.set_xticks([], [])
        return
    low, high = min(known), max(known)
    axes.set_xlim(low / 1.25, high * 1.25) if high > low else axes.set_xlim(low / 3, high * 3)
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 2.6 else (1,)
    every = [k * 10.0**n for n in range(-6, 13) for k in steps]
    ticks = [one for one in every if low <= one <= high]
    if len(ticks) < 2:
        ticks = sorted({float(f"{one:.2g}") for one in known})[:4]
    axes.set_xticks(ticks, [f"{one:g}" for one in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def steps_axis(axes: Any, label: str, steps: str) -> None:
    """Steps on the x axis, with SI prefixes, and `label` on the y axis."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_xlabel(steps)
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def empty(axes: Any, text: str) -> None:
    """A note in the middle of a panel without data."""
    axes.set_xticks([], [])
    axes.set_yticks([], [])
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="gray")


# --- colour, kind of line and marker of each line; no two lines of a panel look the same


@dataclass(frozen=True)
class LineMark:
    """What a line stands for.

    Attributes:
        method: Name of the algorithm.
        epsilon: NaN if it is not known, or differs along the line.
        status: Of the guarantee.
    """

    method: str
    epsilon: float = math.nan
    status: str = "formal"


@dataclass(frozen=True)
class Look:
    """How a line is drawn: colour (red, green, blue), kind of line, marker."""

    colour: tuple[float, float, float]
    dash: str
    marker: str


REFERENCE = Look((0.45, 0.45, 0.45), DASHES["none"], "")  # a level that no method reached


def _place(method: str) -> int:
    """Place of a method in the palette; that of an unknown one depends on its name only."""
    return _METHODS.get(method, zlib.crc32(method.encode()) % len(PALETTE))


def shade(method: str, lightness: float) -> tuple[float, float, float]:
    """Colour of a method, from dark (0) to light (1)."""
    from matplotlib.colors import to_rgb

    pure = np.array(to_rgb(PALETTE[_place(method)]))
    dark, light = max(0.0, 1 - 2 * lightness), max(0.0, 2 * lightness - 1)
    red, green, blue = pure * (1 - 0.5 * dark) * (1 - 0.35 * light) + 0.35 * light
    return float(red), float(green), float(blue)


def lightness(epsilon: float, among: Collection[float]) -> float:
    """Place of epsilon between dark (0) and light (1), by its rank among those of the panel.

    >>> lightness(0.5, [0.5, 1.0, 8.0]), lightness(1.0, [0.5, 1.0, 8.0]), lightness(2.0, [2.0])
    (0.0, 0.5, 0.5)
    """
    ranks = sorted(set(among))
    return ranks.index(epsilon) / (len(ranks) - 1) if len(ranks) > 1 else 0.5


def looks(marks: Sequence[LineMark], markers: Sequence[str] = ()) -> list[Look]:
    """Looks of the lines of a panel, all different. `markers`: of the lines, if a figure has chosen them."""
    known = [mark.epsilon for mark in marks if _finite(mark.epsilon)]
    found: list[Look] = []
    for at, (mark, marker) in enumerate(zip(marks, markers or _markers(marks), strict=True)):
        light = 0.5
        if _finite(mark.epsilon):
            light = lightness(mark.epsilon, known)
        elif mark.status != "none":  # no epsilon of its own: lines of the method share the shades
            same = [
                k
                for k, m in enumerate(marks)
                if m.method == mark.method and m.status != "none" and not _finite(m.epsilon)
            ]
            light = (same.index(at) + 0.5) / len(same)
        found.append(Look(shade(mark.method, light), DASHES.get(mark.status, "--"), marker))
    return found


def looks_of_panels(panels: Sequence[Sequence[tuple[str, LineMark]]]) -> list[list[Look]]:
    """Looks of the lines of each panel, (name, mark): a name has the same marker in all panels."""
    named: dict[tuple[str, int], LineMark] = {}  # a name that a panel has twice is two
    keys = []
    for panel in panels:
        names = [name for name, _ in panel]
        keys.append([(name, names[:at].count(name)) for at, name in enumerate(names)])
        for key, (_, mark) in zip(keys[-1], panel, strict=True):
            named.setdefault(key, mark)
    marks = [[mark for _, mark in panel] for panel in panels]
    if len(named) > len(MARKERS):
        return [looks(some) for some in marks]
    markers = dict(zip(named, _markers(list(named.values())), strict=True))
    return [
        looks(some, [markers[key] for key in own]) for some, own in zip(marks, keys, strict=True)
    ]


def _markers(marks: Sequence[LineMark]) -> list[str]:
    """A marker for each line, all different: the method's for its first line, if no method before has it."""
    first = {mark.method: _place(mark.method) for mark in reversed(marks)}
    free = [one for at, one in enumerate(MARKERS) if at not in first.values()]
    found: list[str] = []
    for mark in marks:
        own = MARKERS[first[mark.method]]
        left = [one for one in free if one not in found] or list(MARKERS)
        found.append(left[0] if own in found else own)
    return found


def _finite(epsilon: float) -> bool:
    return math.isfinite(epsilon) and epsilon > 0
