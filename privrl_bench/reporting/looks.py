"""How lines look: colour, kind of line and marker of each; no two lines of a panel look the same."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Okabe and Ito's colours, without sky blue and yellow, which are too light for thin lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")
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
_SHADES = (0.1, 10.0)  # epsilon of the darkest and the lightest shade, unless there are others


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


def lightness(epsilon: float, among: Sequence[float]) -> float:
    """Place of epsilon between dark (0) and light (1), on a log scale; `among`: all of the panel."""
    low, high = min(_SHADES[0], *among), max(_SHADES[1], *among)
    return math.log(epsilon / low) / math.log(high / low)


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
