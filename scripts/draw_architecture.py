"""Draw docs/architecture.svg: the rooms of the package, the way of the data, and who imports whom.

    python scripts/draw_architecture.py

Imports are read from the source; a room is a module or a subpackage of `privrl_bench`. What is placed, and
the way of the data, is written here. The picture carries its own list of imports, which a test compares
with the source; imports that follow from others are not drawn.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
# Words that every room may use; arrows to them would say nothing.
WORDS = (
    *("errors", "schema", "types", "streams", "metrics", "measure", "machine", "signals"),
    *("jit", "crash", "ranges", "presets"),
)
# room -> (x, y, what it is for)
ROOMS: dict[str, tuple[float, float, str]] = {
    "cli": (0, 0, "the door"),
    "config": (0, 1, "YAML to RunConfig"),
    "words": (-0.85, 0.1, "of a command"),
    "explicit": (-0.85, -0.5, "given, so used"),
    "mistakes": (0.6, 1.45, "one clear line"),
    "jobs": (1, 0, "a job, its outcome"),
    "sweep": (1, 1, "groups, processes"),
    "run": (2, 0, "folders in,\nresults out"),
    "training": (3, 0, "files, screen,\nclock"),
    "rundir": (2, 1, "run folder"),
    "rows": (3, 1, "metrics in order"),
    "log": (5, 1, "W&B, progress"),
    "report": (5, 2, "tables, pictures"),
    "assemble": (4, 1, "config to parts"),
    "session": (4, 0, "one round"),
    "audit": (5, 0, "leaks, epsilon"),
    "reproduce": (0, -0.8, "papers' tables"),
    "collect": (1, -0.8, "makes datasets"),
    "play": (3, -0.8, "a known policy"),
    "people": (2, -0.8, "who keep what\nthey did"),
    "episodes": (0, 4, "compiled"),
    "played": (2, -1.6, "who played\nonce"),
    "values": (4, -0.8, "errors of\nvalues"),
    "trivial": (5, 3, "learns nothing"),
    "exact": (4, 3, "known tables"),
    "envs": (0, 2, "slots"),
    "rollout": (1, 2, "users act"),
    "algos": (2, 2, "local, server"),
    "privacy": (3, 2, "THE GATE"),
    "evaluate": (4, 2, "nobody's episodes"),
    "data": (0, 3, "Minari, split"),
    "text": (-0.85, 2.5, "prompts, answers"),
    "text_rollout": (-0.85, 1.6, "users with\nprompts"),
    "text_evaluate": (-0.85, 0.7, "answers to\npublic prompts"),
    "source": (0.85, 3, "rounds of\na dataset"),
    "nets": (1.75, 3, "policies"),
    "maths": (2.65, 3, "pure functions"),
}
# the way of the data, with what travels
DATA = [
    ("envs", "rollout", "observations"),
    ("rollout", "algos", "UserBatch"),
    ("data", "source", ""),
    ("source", "algos", ""),
    ("algos", "privacy", "rows"),
    ("privacy", "algos", "Released"),
    ("privacy", "evaluate", "policy"),
]


def room(path: Path) -> str:
    """The room that a file is in."""
    parts = path.relative_to(ROOT / "privrl_bench").parts
    return parts[0].removesuffix(".py")


def imports() -> dict[str, set[str]]:
    """Room -> rooms that it imports, itself apart."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "privrl_bench").rglob("*.py")):
        here = room(path)
        if here == "__init__":
            continue
        used = found.setdefault(here, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "privrl_bench":
                    names = [f"privrl_bench.{alias.name}" for alias in node.names]
            used |= {name.split(".")[1] for name in names if name.startswith("privrl_bench.")}
        used.discard(here)
    return found


def drawn(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Imports between rooms without the words, and without those that follow from others."""
    graph = {a: {b for b in used if b not in WORDS} for a, used in found.items() if a not in WORDS}

    def reach(start: str, without: str) -> set[str]:
        seen: set[str] = set()
        todo = [b for b in graph[start] if b != without]
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += graph[here]
        return seen

    return sorted((a, b) for a, used in graph.items() for b in used if b not in reach(a, b))


def listing(found: dict[str, set[str]]) -> str:
    """All imports as JSON, which the picture carries."""
    return json.dumps({a: sorted(used) for a, used in sorted(found.items())})


def draw(path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = imports()
    missing = set(found) - set(ROOMS) - set(WORDS)
    if missing:
        raise SystemExit(f"give these rooms a place in ROOMS: {sorted(missing)}")
    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "privrl_bench", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set(xlim=(-0.55, 5.55), ylim=(3.95, -0.45))
        axes.axis("off")
        for a, b in drawn(found):
            _arrow(axes, a, b, color="0.6", linewidth=0.8, rad=0.08)
        for a, b, what in DATA:
            back = (b, a) in [(x, y) for x, y, _ in DATA] and a == "privacy"
            _arrow(
                axes, a, b, color="C3", linewidth=2.4, rad=0.35 if back or b == "evaluate" else 0.0
            )
            x, y = (ROOMS[a][0] + ROOMS[b][0]) / 2, (ROOMS[a][1] + ROOMS[b][1]) / 2
            axes.text(
                x,
                y + (0.3 if b == "privacy" else -0.27),
                what,
                color="C3",
                ha="center",
                va="center",
            )
        for name, (x, y, text) in ROOMS.items():
            gate = name == "privacy"
            axes.text(
                x,
                y,
                f"{name}\n{text}",
                ha="center",
                va="center",
                linespacing=1.35,
                weight="bold" if gate else "normal",
                bbox={
                    "boxstyle": "round,pad=0.45",
                    "facecolor": "#fde3df" if gate else "#eef3f8",
                    "edgecolor": "C3" if gate else "0.5",
                },
            )
        axes.text(
            -0.5,
            3.75,
            "red: the way of the data. grey: imports (those that follow from others left out). "
            f"Used by all: {', '.join(WORDS)}.",
            color="0.3",
            va="center",
        )
        figure.savefig(path, metadata={"Date": None, "Description": listing(found)})


def _arrow(axes, a: str, b: str, *, rad: float, **style) -> None:  # type: ignore[no-untyped-def]
    axes.annotate(
        "",
        xy=ROOMS[b][:2],
        xytext=ROOMS[a][:2],
        arrowprops={
            "arrowstyle": "-|>",
            "shrinkA": 24,
            "shrinkB": 26,
            "connectionstyle": f"arc3,rad={rad}",
            **style,
        },
    )


if __name__ == "__main__":
    draw(PICTURE)
    print(f"look at {PICTURE.relative_to(ROOT)}")
