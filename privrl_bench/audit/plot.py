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

_FORMS = {"gdp": "GDP", "direct": "direct", "one-run": "Steinke et al."}
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
    height = max(2.6, 1.2 + 0.18 * bars) if rows == 1 else 2.6
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
    x = np.linspace(low, high, 200)
    for scores, label, colour, shift in (
        (finding.outside.clip(low, high), "without the user", PALETTE[0], 0.0),
        (finding.inside.clip(low, high), "with the user", PALETTE[1], finding.mu or 0.0),
    ):
        label = f"{label} ({len(scores)})"
        axes.hist(scores, edges, density=True, alpha=0.45, color=colour, label=label)
        if finding.mu is not None:
            axes.plot(x, norm.pdf(x, finding.start + shift), color=colour, linewidth=1.1)
    if finding.mu is not None:
        axes.plot([], [], color="0.4", label=f"as claimed: {finding.mu:.3g} apart")
    threshold = finding.best.details.get("threshold")
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle=":", linewidth=1.2, label="threshold")
    axes.set_title(finding.attack)
    axes.set_xlabel("score, in standard deviations of the noise")
    axes.set_ylabel("density")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.22), ncols=2)


def _bars(axes: Any, findings: Sequence[Finding]) -> None:
    shown = [(i, one, bound) for i, one in enumerate(findings) for bound in one.bounds]
    labels = [f"{one.attack}: {_FORMS[bound.form]}" for _, one, bound in shown]
    for place, (i, one, bound) in enumerate(shown):
        colour = _OVER if bound in one.exceeded() else _COLOURS[i % len(_COLOURS)]
        axes.barh(place, bound.epsilon, color=colour, alpha=0.85, height=0.62)
        axes.text(0.0, place, f" {shown_measured(bound.epsilon, 3)}", va="center")
    claims = [
        (place, one.claim) for place, (_, one, _) in enumerate(shown) if one.claim is not None
    ]
    if claims:
        at, claimed = zip(*claims, strict=True)
        ends = np.subtract(at, 0.42), np.add(at, 0.42)
        axes.vlines(claimed, *ends, color="black", linewidth=1.5, label="claimed epsilon")
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.22))
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set_title("measured lower bounds")
    axes.set_xlabel("epsilon")
