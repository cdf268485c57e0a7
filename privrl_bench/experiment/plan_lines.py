"""What `privrl plan` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privrl_bench.experiment.epsilon_words import warning
from privrl_bench.metrics import shown_epsilon

if TYPE_CHECKING:
    from privrl_bench.experiment.planning import Plan


def lines_of(plan: Plan) -> list[str]:
    """Return the plan as a table, in lines."""
    rows = [
        ("users per round", f"{plan.users_per_round:,}"),
        ("rounds", _rounds(plan)),
        *([("users in all", plan.who)] if plan.who else []),
        _size(plan),
        ("values", plan.hyperparameter_source),
    ]
    if plan.z is not None:
        how = f"{plan.mechanism}, {plan.sampling} sampling"
        rows.append(("z", f"{plan.z:g}, the noise multiplier ({how})"))
    if plan.noise_text:
        rows.append(("noise", plan.noise_text))
    rows += [
        (
            f"epsilon, {name.replace('_', '-')}",
            f"{shown_epsilon(value)} at delta {plan.delta:g}",
        )
        for name, value in plan.epsilons.items()
    ]
    if large := warning(next(iter(plan.epsilons.values()))):
        rows.append(("warning", large))
    rows += [("status", plan.status), ("unit", plan.unit), ("notion", plan.notion)]
    rows += [("caveat", caveat) for caveat in plan.caveats]
    width = max(len(name) for name, _ in rows) + 2
    table = [f"  {name:{width}}{text}" for name, text in rows]
    return [
        f"{plan.algo} on {plan.env}",
        *table,
        *_noise_lines(plan),
        *_nearest_lines(plan),
        *_split_lines(plan),
        *_least_line(plan),
    ]


def _size(plan: Plan) -> tuple[str, str]:
    if plan.from_data:
        return "trajectories", f"of at most {plan.steps_per_user:,} steps"
    return "steps", f"{plan.steps:,}, {plan.steps_per_user:,} of one user"


def _rounds(plan: Plan) -> str:
    if plan.rounds == plan.rounds_asked:
        return f"{plan.rounds:,}"
    limit = f"the population of {plan.population:,}, of which each is used once"
    if not plan.by_population and plan.target is not None:
        limit = f"the budget, epsilon {shown_epsilon(plan.target)}"
    return f"{plan.rounds:,} of {plan.rounds_asked:,}, limited by {limit}"


def _noise_lines(plan: Plan) -> list[str]:
    """The table of the parts of a release."""
    if not plan.noise:
        return []
    head = (
        "part",
        "parameters",
        "clip",
        "std of one",
        "norm of all",
        "norm / clip",
        "users needed",
    )
    rows = [
        (
            one.name,
            f"{one.parameters:,}",
            f"{one.clip:g}",
            f"{one.std:.3g}",
            f"{one.norm:.3g}",
            f"{one.norm / one.clip:.2f}",
            "-" if one.users_needed is None else f"{one.users_needed:,}",
        )
        for one in plan.noise
    ]
    lines = _aligned([head, *rows])
    return [
        "noise in the mean of a round (users needed: for a norm of at most the clip, at this z)",
        *lines,
    ]


def _nearest_lines(plan: Plan) -> list[str]:
    """Measured results."""
    if not plan.has_store:
        return [
            "measured and predicted: nothing, because there are no results here (a wheel has none); give a "
            "folder of results with --results DIR, such as outputs/paper of the source tree"
        ]
    if math.isinf(next(iter(plan.epsilons.values()))):
        return ["measured: results are compared by epsilon, which is infinite here"]
    if not plan.nearest:
        return [f"measured: no formal result of {plan.algo} on {plan.env} in the results store"]
    lines = ["measured, nearest epsilon first"]
    for one in plan.nearest:
        lines += [f"  {one.line()}", f"      {one.item}: {one.words}"]
    return lines


def _split_lines(plan: Plan) -> list[str]:
    """Previews of this number of users at this epsilon."""
    if plan.best_split is None:
        return []
    of = f"{plan.population or plan.users:,} users at this epsilon"
    lines = [f"predicted from runs of the default values with as much noise in the mean: {of}"]
    if plan.as_planned is not None:
        lines.append(f"  as planned  {plan.as_planned.line()}")
    one = plan.best_split
    if (one.rounds, one.users) != (plan.rounds, plan.users_per_round):
        lines.append(f"  best split  {one.line()}")
        lines.append(f"              rounds={one.rounds} privacy.users_per_round={one.users}")
    return lines


def _least_line(plan: Plan) -> list[str]:
    """How many users would be enough at this epsilon."""
    if plan.least_users is None:
        return []
    return [f"predicted least number of users at this epsilon: {plan.least_users.line()}"]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
