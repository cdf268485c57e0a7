"""The figure of an audit: scores with and without the user, and bounds compared with the claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from privrl_bench.audit.finding import Finding
from privrl_bench.metrics import shown_measured
from privrl_bench.reporting.style import PALETTE, RC, WIDTH

_FORMS = {"gdp": "GDP", "direct": "direct", "normal": "t test", "one-run": "Steinke et al."}
_OVER = PALETTE[1]  # for bounds above their claim
_COLOURS = tuple(one for one in PALETTE if one != _OVER)


def audit_figure(findings: Sequence[Finding], title: str, path: Path) -> None:
    """Write the figure: a histogram of each finding with scores, then all bounds and claims.

    Args:
        findings: of one audit, at least one.
        title: one or two lines.
        path: of the PNG.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [f for f in findings if np.concatenate([f.inside, f.outside]).std() > 0]
    bars = sum(len(f.bounds) for f in findings)
    panels = len(shown) + 1
    columns = min(panels, 2)
    rows = -(-panels // columns)
    height = max(2.4, 1.0 + 0.18 * bars) if rows == 1 else 2.4
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH * columns, height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for one, finding in zip(axes, shown, strict=False):
            _histogram(one, finding)
        _bars(axes[len(shown)], findings)
        for spare in axes[panels:]:
            spare.set_axis_off()
        figure.suptitle(title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def _histogram(axes: Any, finding: Finding) -> None:
    both = np.concatenate([finding.inside, finding.outside])
    low, high = np.quantile(both, [0.001, 0.999])
    edges = np.linspace(low, high, int(np.clip(len(both) ** 0.5 / 2, 10, 60)))
    for scores, label, colour in (
        (finding.outside, "without the user", PALETTE[0]),
        (finding.inside, "with the user", PALETTE[1]),
    ):
        axes.hist(
            scores,
            bins=edges,
            density=True,
            alpha=0.45,
            color=colour,
            label=f"{label} ({len(scores)})",
        )
    if finding.mu is not None:
        x = np.linspace(low, high, 200)
        for centre, colour in (
            (finding.start, PALETTE[0]),
            (finding.start + finding.mu, PALETTE[1]),
        ):
            axes.plot(x, norm.pdf(x, centre), color=colour, linewidth=1.1)
        axes.plot([], [], color="0.4", label=f"as claimed: {finding.mu:.3g} apart")
    threshold = finding.best.details.get("threshold")
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle=":", linewidth=1.2, label="threshold")
    axes.set_title(finding.attack)
    axes.set_xlabel("score, in standard deviations of the noise")
    axes.set_ylabel("density")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2)


def _bars(axes: Any, findings: Sequence[Finding]) -> None:
    labels: list[str] = []
    marked = False
    for number, finding in enumerate(findings):
        for bound in finding.bounds:
            place = len(labels)
            labels.append(f"{finding.attack}: {_FORMS[bound.form]}")
            decides = bound.form != "normal"
            over = decides and finding.claim is not None and bound.epsilon > finding.claim
            axes.barh(
                place,
                bound.epsilon,
                color=_OVER if over else _COLOURS[number % len(_COLOURS)],
                alpha=0.85 if decides else 0.35,
                height=0.62,
            )
            axes.text(0.0, place, f" {shown_measured(bound.epsilon, 3)}", va="center")
            if finding.claim is not None:
                axes.plot(
                    [finding.claim] * 2,
                    [place - 0.42, place + 0.42],
                    color="black",
                    linewidth=1.5,
                    label=None if marked else "claimed epsilon",
                )
                marked = True
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_title("measured lower bounds (pale: they do not decide)")
    axes.set_xlabel("epsilon")
    if marked:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16))
