"""A paper's numbers beside ours: tables, pictures and one page for each table or figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privrl_bench.functional.statistics import mean_ci
from privrl_bench.metrics import shown_epsilon
from privrl_bench.reporting import convergence, datasize, page, states
from privrl_bench.reporting.plots import figure, legend_below, steps_axis
from privrl_bench.reporting.runs import Run, number
from privrl_bench.reporting.tables import aligned, latex, short

Runs = Mapping[Any, Sequence[Run]]  # what is wanted -> finished runs


@dataclass(frozen=True)
class Cell:
    """One number of a table: the paper's (mean, half width), and the runs that answer it."""

    env: str
    label: str
    paper: tuple[float, float]
    paper_like: Any  # as the paper does it; None: as the formal runs do
    formal: Any  # ours with a formal guarantee; None: there is none

    @property
    def judged_by(self) -> Any:
        """The runs that stand against the paper's number."""
        return self.formal if self.paper_like is None else self.paper_like


@dataclass(frozen=True)
class Table:
    """A paper's table."""

    title: str
    cells: list[Cell]


@dataclass(frozen=True)
class Line:
    """One line of a figure; several settings are its points."""

    label: str
    formal: bool
    needs_release: list[Any]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure."""

    label: str
    lines: list[Line]


@dataclass(frozen=True)
class Picture:
    """A paper's figure. `kind`: a name in `_DRAW`.

    `facts` are a figure's own numbers, where it needs no runs.
    """

    title: str
    kind: str
    panels: list[Panel] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def write_item(
    item: Table | Picture, paper: str, out: Path, runs: Runs, trivial: Mapping[str, str]
) -> Path:
    """Write files of one table or figure into `out`. Returns the page's path.

    Args:
        item, paper: what it is, and whose.
        out: a folder, made if need be.
        runs: finished runs of everything that the item wants.
        trivial: environment -> return of a policy that learns nothing, as text.
    """
    out.mkdir(parents=True, exist_ok=True)
    every = [run for some in runs.values() for run in some]
    if isinstance(item, Table):
        head, lines = comparison(item, runs, trivial)
        text = f"# {item.title}\n\n{aligned(head, lines)}\n\n{NOTE}\n\n{verdict(item, runs)}\n"
        (out / "table.md").write_text(text)
        (out / "table.tex").write_text(latex(head, lines))
        (out / "table.csv").write_text("\n".join([_csv(head), *map(_csv, lines)]) + "\n")
        print(text)
        parts: list[Any] = [verdict(item, runs), page.Table(item.title, head, lines, NOTE)]
        parts.append(page.Table("Guarantees", *guarantees(every)))
    else:
        picture = out / "figure.png"
        _DRAW[item.kind](item, runs, picture)
        caption = item.facts.get("caption") or _caption(item, runs)
        parts = [page.Picture(item.title, picture, caption)]
        head, lines = _NUMBERS.get(item.kind, points)(item, runs)
        if lines:
            parts.append(page.Table("Numbers", head, lines))
            (out / "table.md").write_text(f"# {item.title}\n\n{aligned(head, lines)}\n")
            (out / "table.csv").write_text("\n".join([_csv(head), *map(_csv, lines)]) + "\n")
            parts.append(page.Table("Guarantees", *guarantees(every)))
    path = out / "index.html"
    page.write_page(path, f"{item.title}. {paper}", parts, every)
    return path


# --- tables

HEAD = (
    *("env", "method", "paper", "as the paper does it", "formal", "trivial", "seeds", "steps"),
    *(
        "epsilon, paper-like",
        "epsilon, formal",
        "epsilon by the paper's formula",
        "status",
        "verdict",
    ),
)
NOTE = (
    "Returns: mean ± half width of the 95 % interval over seeds, final evaluations. "
    "Verdict: our mean as the paper does it (formal where there is no such run), against the paper's "
    "interval. epsilon: at the delta of the "
    "runs, for the unit that the guarantees name."
)


def comparison(
    table: Table, runs: Runs, trivial: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """(head, lines) with the paper's numbers, ours, the formal ones and the trivial policy's."""
    lines: list[list[str]] = []
    for cell in table.cells:
        ours, formal = runs.get(cell.paper_like, []), runs.get(cell.formal, [])
        epsilons = [_epsilon(some) for some in (ours, formal)]
        printed = runs.get(cell.judged_by, [])
        formula = {number(run.summary.get("epsilon_paper")) for run in printed}
        lines.append(
            [
                cell.env,
                cell.label,
                f"{cell.paper[0]:.1f} ± {cell.paper[1]:.1f}",
                _mean(ours),
                _mean(formal) if cell.formal else "",
                "" if lines and lines[-1][0] == cell.env else trivial.get(cell.env, ""),
                f"{len(ours)} / {len(formal)}" if cell.formal else str(len(ours)),
                f"{max(number(r.summary.get('steps')) for r in printed):,.0f}" if printed else "-",
                epsilons[0],
                epsilons[1] if cell.formal else "",
                shown_epsilon(max(formula, default=math.nan)),
                " / ".join(_status(some) for some in (ours, formal) if some) or "-",
                judged(cell, runs.get(cell.judged_by, [])),
            ]
        )
    return list(HEAD), lines


def judged(cell: Cell, runs: Sequence[Run]) -> str:
    """inside | above | below the paper's interval, or `no run`."""
    if not runs:
        return "no run"
    mean = float(np.mean([run.final_value for run in runs]))
    low, high = cell.paper[0] - cell.paper[1], cell.paper[0] + cell.paper[1]
    return "below" if mean < low else "above" if mean > high else "inside"


def verdict(table: Table, runs: Runs) -> str:
    """How many cells are inside or above the paper's interval."""
    found = [judged(cell, runs.get(cell.judged_by, [])) for cell in table.cells]
    good = sum(one in ("inside", "above") for one in found)
    return (
        f"{good} of {len(found)} cells inside or above the paper's interval "
        f"({found.count('below')} below, {found.count('no run')} without a run)."
    )


def guarantees(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Every guarantee that the runs have, once."""
    seen: dict[tuple[str, ...], int] = {}
    for run in runs:
        terms = run.summary.get("guarantee") or {}
        names = ", ".join(str(line).split(":", 1)[0] for line in terms.get("caveats") or [])
        key = (
            str(terms.get("status", "?")),
            run.algo,
            run.env,
            "-" if run.z is None else f"{run.z:g}",
            shown_epsilon(run.epsilon),
            short(number(run.summary.get("delta"))),
            f"{terms.get('unit', '?')}; {terms.get('notion', '?')}; {terms.get('adjacency', '?')}",
            names or "-",
        )
        seen[key] = seen.get(key, 0) + 1
    head = ["status", "algo", "env", "z", "epsilon", "delta", "for whom", "outside epsilon", "runs"]
    return head, [[*key, str(count)] for key, count in seen.items()]


def _mean(runs: Sequence[Run]) -> str:
    if not runs:
        return "-"
    mean, half = mean_ci([run.final_value for run in runs])
    digits = 1 if abs(mean) >= 10 else 2  # mean logits of texts are small numbers
    return f"{mean:.{digits}f}" if math.isnan(half) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def _epsilon(runs: Sequence[Run]) -> str:
    return shown_epsilon(max(run.epsilon for run in runs)) if runs else "-"


def _status(runs: Sequence[Run]) -> str:
    return "/".join(sorted({run.guarantee_status for run in runs}))


def _csv(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)


# --- figures


def points(picture: Picture, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """The numbers behind a figure: final return, and the regret where it is known."""
    lines = []
    for panel in picture.panels:
        for line in panel.lines:
            for want in line.needs_release:
                some = runs.get(want, [])
                if not some:
                    continue
                regrets = [run.curve("exact/regret")[1] for run in some]
                regret = [float(one[-1]) for one in regrets if len(one)]
                spread = "{:.0f} ± {:.0f}".format(*mean_ci(regret)) if len(regret) > 1 else ""
                z = {run.z for run in some}
                lines.append(
                    [
                        panel.label,
                        line.label,
                        ", ".join("-" if one is None else f"{one:g}" for one in z),
                        str(len(some)),
                        _mean(some),
                        spread,
                        f"{np.median(regret):.0f}" if regret else "",
                        _epsilon(some),
                        "/".join(sorted({run.guarantee_status for run in some})),
                    ]
                )
    head = ["panel", "line", "z", "seeds", "return", "regret", "median regret", "epsilon", "status"]
    return head, lines


def _caption(picture: Picture, runs: Runs) -> str:
    seeds = {len(some) for some in runs.values() if some}
    if not seeds:
        return ""
    many = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
    return f"means over {many} seeds with 95 % intervals; formal lines are solid, others dashed"


def _draw_curves(
    picture: Picture,
    runs: Runs,
    path: Path,
    metric: str = "eval/return_mean",
    label: str = "return",
) -> None:
    """Mean over seeds against steps, with bands."""
    most = max((len(panel.lines) for panel in picture.panels), default=0)
    with figure(path, max(len(picture.panels), 1), legend_below=most, vector=True) as places:
        for axes, panel in zip(places, picture.panels, strict=False):
            for at, line in enumerate(panel.lines):
                some = [run for want in line.needs_release for run in runs.get(want, [])]
                found = [dict(zip(*run.curve(metric), strict=True)) for run in some]
                found = [one for one in found if one]
                if not found:
                    continue
                steps = sorted(set(found[0]).intersection(*found[1:]))
                pairs = np.array([mean_ci([one[step] for one in found]) for step in steps])
                style = "-" if line.formal else "--"
                name = f"{line.label} ({len(found)})"
                axes.plot(steps, pairs[:, 0], style, color=_colour(at), label=name)
                if len(found) > 1:
                    low, high = pairs[:, 0] - pairs[:, 1], pairs[:, 0] + pairs[:, 1]
                    axes.fill_between(steps, low, high, color=_colour(at), alpha=0.12, linewidth=0)
            axes.set_title(panel.label)
            steps_axis(axes, label)
            legend_below_axes(axes)


def _draw_regret(picture: Picture, runs: Runs, path: Path) -> None:
    _draw_curves(picture, runs, path, "exact/regret", "cumulative regret")


def _draw_epsilon(picture: Picture, runs: Runs, path: Path) -> None:
    """Final return against epsilon, log axis."""
    most = max((len(panel.lines) for panel in picture.panels), default=0)
    with figure(path, max(len(picture.panels), 1), legend_below=most, vector=True) as places:
        for axes, panel in zip(places, picture.panels, strict=False):
            axes.set_xscale("log")
            known: set[float] = set()
            for at, line in enumerate(panel.lines):
                some: list[tuple[float, list[Run]]] = []
                for want in line.needs_release:
                    found = list(runs.get(want, []))
                    if found:
                        some.append((max(run.epsilon for run in found), found))
                some.sort(key=lambda one: one[0])
                if not some:
                    continue
                known |= {epsilon for epsilon, _ in some}
                pairs = [mean_ci([run.final_value for run in found]) for _, found in some]
                axes.errorbar(
                    [epsilon for epsilon, _ in some],
                    [mean for mean, _ in pairs],
                    yerr=[0.0 if math.isnan(half) else half for _, half in pairs],
                    fmt="o-" if line.formal else "s--",
                    capsize=3,
                    color=_colour(at),
                    label=line.label,
                )
            axes.set_title(panel.label)
            if len(known) == 1:  # a log axis of one point has no width
                axes.set_xlim(min(known) / 3, max(known) * 3)
            axes.set_xlabel("epsilon of the guarantee, log scale")
            axes.set_ylabel("final return")
            legend_below_axes(axes)


def _draw_accounting(picture: Picture, runs: Runs, path: Path) -> None:
    """Epsilon of one release against z: the paper's two mechanisms, their switch, and the exact curve."""
    from privrl_bench.privacy.accounting.releases import (
        ReleaseEvent,
        epsilon_paper,
        ledger_epsilon,
    )

    z, deltas = np.geomspace(0.1, 10.0, 200), picture.facts["deltas"]
    with figure(path, len(deltas), legend_below=4, vector=True) as places:
        for axes, delta in zip(places, deltas, strict=True):
            printed = np.array([epsilon_paper(x, delta) for x in z])
            first = np.sqrt(2 * np.log(1.25 / delta)) / z
            relations = {"zero_out": "exact, zero-out", "replace_one": "exact, replace-one"}
            axes.loglog(z, first, ":", color="C7", label="first mechanism (valid below epsilon 1)")
            axes.loglog(
                z, np.where(printed >= 1, printed, np.nan), color="C1", label="what DPPG prints"
            )
            axes.loglog(z, np.where(printed < 1, printed, np.nan), color="C1")
            for at, (relation, name) in enumerate(relations.items()):
                exact = [ledger_epsilon([ReleaseEvent("gaussian", x, relation)], delta) for x in z]
                axes.loglog(z, exact, color=("C0", "C2")[at], label=name)
            axes.axhline(1.0, color="gray", linewidth=0.6)
            axes.set_title(f"one release, delta = {delta:g}")
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("epsilon")
            legend_below_axes(axes)


def _draw_spent(picture: Picture, runs: Runs, path: Path) -> None:
    """Return against what was spent when a policy was evaluated: curves within runs, log axis."""
    most = max((len(panel.lines) for panel in picture.panels), default=0)
    with figure(path, max(len(picture.panels), 1), legend_below=most, vector=True) as places:
        for axes, panel in zip(places, picture.panels, strict=False):
            axes.set_xscale("log")
            for at, line in enumerate(panel.lines):
                for run in (run for want in line.needs_release for run in runs.get(want, [])):
                    steps, returns = run.curve()
                    spent = dict(zip(*run.curve("privacy/epsilon"), strict=True))
                    label = (
                        line.label
                        if not any(x.get_label() == line.label for x in axes.lines)
                        else None
                    )
                    axes.plot(
                        [spent.get(s, math.nan) for s in steps],
                        returns,
                        "-" if line.formal else "--",
                        color=_colour(at),
                        alpha=0.7,
                        label=label,
                    )
            axes.set_title(panel.label)
            axes.set_xlabel("epsilon spent so far, log scale")
            axes.set_ylabel("return")
            legend_below_axes(axes)


def _draw_rounds(picture: Picture, runs: Runs, path: Path) -> None:
    """Largest number of rounds that stays under an epsilon, against z: the paper's moments, and PLD."""
    from privrl_bench.privacy.accounting.calibrate import rounds_for
    from privrl_bench.privacy.accounting.releases import ReleaseEvent

    facts = picture.facts
    with figure(path, len(facts["epsilons"]), legend_below=2, vector=True) as places:
        for axes, target in zip(places, facts["epsilons"], strict=True):
            for at, (kind, name) in enumerate(
                (("rdp", "moments (RDP), as printed"), ("pld", "PLD"))
            ):
                found = []
                for z in facts["z"]:
                    event = ReleaseEvent("gaussian", z, "add_or_remove", facts["q"])
                    found.append(rounds_for(target, event, facts["delta"], kind) or math.nan)
                axes.loglog(facts["z"], found, "o-", color=("C1", "C0")[at], label=name)
            axes.set_title(
                f"epsilon {shown_epsilon(target)} at delta {facts['delta']:g}, q = {facts['q']:g}"
            )
            axes.set_xlabel("noise multiplier z")
            axes.set_ylabel("largest number of rounds")
            legend_below_axes(axes)


def _draw_riverswim(picture: Picture, runs: Runs, path: Path) -> None:
    """The transition chances of RiverSwim, left and right."""
    from privrl_bench.envs.riverswim import model

    found = model()
    with figure(path, 2, vector=True) as places:
        for axes, action, name in zip(places, (0, 1), ("swim left", "swim right"), strict=True):
            behavior_probs = found.transitions[:, action]
            axes.imshow(behavior_probs, cmap="Blues", vmin=0, vmax=1)
            for s in range(len(behavior_probs)):
                for n in range(len(behavior_probs)):
                    if behavior_probs[s, n]:
                        dark = behavior_probs[s, n] > 0.5
                        text = f"{behavior_probs[s, n]:g}"
                        axes.text(n, s, text, ha="center", va="center", color="w" if dark else "k")
            axes.grid(False)
            axes.set_xticks(
                range(len(behavior_probs)), [f"s{n + 1}" for n in range(len(behavior_probs))]
            )
            axes.set_yticks(
                range(len(behavior_probs)), [f"s{n + 1}" for n in range(len(behavior_probs))]
            )
            axes.set_xlabel("next state")
            axes.set_ylabel("state")
            pays = {"swim left": "pays 0.005 in s1", "swim right": "pays 1 in s6"}[name]
            axes.set_title(f"{name}: {pays} (p = 0.6)")


def legend_below_axes(axes: Any) -> None:
    """A legend under the panel, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        legend_below(axes)
    else:
        axes.text(0.5, 0.5, "no run", ha="center", va="center", transform=axes.transAxes)


def _colour(at: int) -> Any:
    from matplotlib import colormaps

    # Few lines: strong colours; many: the pairs of tab20.
    return f"C{at}" if at < 10 else colormaps["tab20"]((2 * at + 1) % 20)


_DRAW = {
    "curves": _draw_curves,
    "regret": _draw_regret,
    "epsilon": _draw_epsilon,
    "spent": _draw_spent,
    "rounds": _draw_rounds,
    "accounting": _draw_accounting,
    "riverswim": _draw_riverswim,
    "held": convergence.draw_held,
    "boxes": convergence.draw_boxes,
    "states": states.draw_states,
    "datasize": datasize.draw_errors,
}
_NUMBERS = {
    "held": convergence.table,
    "boxes": convergence.table,
    "states": states.state_table,
    "datasize": datasize.error_table,
}
