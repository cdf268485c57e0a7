"""What a run will do and cost, before any training: rounds, users, noise, epsilon, and results near it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privrl_bench.composition.identity import identity
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.rules import rules
from privrl_bench.reporting import frontier
from privrl_bench.reporting.frontier import Least, Prediction
from privrl_bench.reporting.nearest import Measured, nearest, store
from privrl_bench.reporting.runs import flatten
from privrl_bench.run.epsilon_words import warning
from privrl_bench.run.plan import Plan


@dataclass(frozen=True)
class BlockNoise:
    """Noise in the mean of one round, of one part of a release.

    Attributes:
        name: of the part, e.g. `actor`.
        parameters: P, its size.
        clip: L2 bound of one user's row, parameter units.
        std: noise standard deviation of one number of the mean, the largest over the rounds.
        norm: expected L2 norm of the noise over P numbers.
        users_needed: users of a round with which `norm` would be at most `clip`, at this z; None: a round has
            one user in any case.
    """

    name: str
    parameters: int
    clip: float
    std: float
    norm: float
    users_needed: int | None


@dataclass(frozen=True)
class PlanReport:
    """The plan of one run.

    Attributes:
        users_per_round: U.
        rounds: number of releases.
        rounds_asked: what `rounds` or `total_steps` say. More than `rounds`: a budget or a population limits
            them.
        by_population: whether there are as many rounds as the population has users for.
        users: in all, each used once; None: they are drawn, or segments.
        population: the bound on the number of users, or None.
        who: users in words.
        steps_per_user, steps: T, and environment steps of the whole run.
        z: noise multiplier; None without a mechanism.
        target: `privacy.epsilon`, or None.
        noise: of every part of a release; empty where a release has no noise of a known size.
        noise_text: more about the noise, in words.
        epsilons: adjacency -> epsilon of the whole run, the run's own adjacency first.
        status: formal | unreviewed | heuristic | none.
        caveats: what epsilon does not cover.
        nearest: measured results of the same algorithm and environment, the nearest epsilon first.
        as_planned, best_split: return by previews of this plan, and of the best split of its users between
            rounds and cohorts; None: no preview.
        least_users: the least number of users at this epsilon with which the predicted return is near that of
            runs without noise; None: no preview, or nothing that large was measured.
        has_store: whether there are results to compare with.
        from_data: see `Users.from_data`: `steps` are then of trajectories, not of an environment.
    """

    algo: str
    env: str
    hyperparameter_source: str
    users_per_round: int
    rounds: int
    rounds_asked: int
    by_population: bool
    users: int | None
    population: int | None
    who: str
    steps_per_user: int
    steps: int
    mechanism: str
    sampling: str
    z: float | None
    target: float | None
    noise: tuple[BlockNoise, ...]
    noise_text: str
    epsilons: dict[str, float]
    delta: float
    status: str
    unit: str
    notion: str
    caveats: tuple[str, ...]
    nearest: tuple[Measured, ...]
    as_planned: Prediction | None
    best_split: Prediction | None
    least_users: Least | None
    has_store: bool
    from_data: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: infinity is "inf", an undefined number None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    def lines(self) -> list[str]:
        """The plan as a table, in lines."""
        return _lines(self)


def report_of(parts: Plan, r: int = 0, results: Path | None = None) -> PlanReport:
    """The plan of replica r.

    Args:
        parts: of the run; nothing is simulated and no user's data are read.
        r: the replica.
        results: a results store; None: that of the source tree, where there is one.
    """
    gate, config = parts.gate, parts.configs[r]
    privacy, mechanism = config.privacy, gate.mechanism
    guarantee = gate.guarantee(r)
    steps = parts.rounds * parts.round_steps
    epsilons = gate.planned_epsilons(r) if mechanism.private else {privacy.adjacency: math.inf}
    epsilons[privacy.adjacency] = guarantee.epsilon
    folder = results or store()
    near: list[Measured] = []
    previews: tuple[Prediction | None, Prediction | None, Least | None] = (None, None, None)
    if folder is not None:
        settings = identity(config)
        previews = _previews(parts, r, folder)
        near = nearest(config.algo.name, config.env.label, epsilons, settings, folder)
    return PlanReport(
        algo=config.algo.name,
        env=config.env.label,
        hyperparameter_source=config.hyperparameter_source,
        users_per_round=privacy.users_per_round,
        rounds=parts.rounds,
        rounds_asked=_asked(parts, r),
        by_population=parts.users.room(parts.rounds).limits,
        users=parts.users.needed(parts.rounds),
        population=privacy.population,
        who=parts.users.words(parts.rounds).full,
        steps_per_user=parts.steps,
        steps=steps,
        mechanism=privacy.mechanism,
        sampling=privacy.sampling,
        z=privacy.z if mechanism.private and not mechanism.one_release else None,
        target=privacy.epsilon,
        noise=_noise(parts, r),
        noise_text=mechanism.describe_noise(r, parts.algo.terms().server_steps(parts.rounds)),
        epsilons=epsilons,
        delta=privacy.delta,
        status=guarantee.status,
        unit=guarantee.unit,
        notion=guarantee.notion,
        caveats=tuple(f"{name}: {why}" for name, why in guarantee.caveats.items()),
        nearest=tuple(near),
        as_planned=previews[0],
        best_split=previews[1],
        least_users=previews[2],
        has_store=folder is not None,
        from_data=parts.users.from_data,
    )


def _previews(
    parts: Plan, r: int, folder: Path
) -> tuple[Prediction | None, Prediction | None, Least | None]:
    """(of the plan, of the best split of its users, least users): each user is in one round, z is given."""
    config, gate = parts.configs[r], parts.gate
    used = parts.users.needed(parts.rounds)
    if used is None or gate.participation != 1 or not config.privacy.z or gate.is_preview:
        return None, None, None
    settings = dict(flatten(asdict(config)))
    measured = frontier.points(config.algo.name, config.env.label, settings, folder)
    z, users = config.privacy.z, config.privacy.population or used
    return (
        frontier.predict(measured, used, z, parts.rounds),
        frontier.best(measured, users, z),
        frontier.least_users(measured, z),
    )


def _asked(parts: Plan, r: int) -> int:
    """Rounds that the configuration asks for, before a budget or a population limits them."""
    config = parts.configs[r]
    by_steps = config.total_steps // parts.round_steps
    if config.algo.traits.one_round:
        return parts.rounds
    if parts.users.room(parts.rounds).limits and parts.rounds < by_steps:
        return by_steps
    return config.rounds or by_steps


def _noise(parts: Plan, r: int) -> tuple[BlockNoise, ...]:
    """Noise of every part of a release, relative to the public number of users."""
    users, one = parts.config.privacy.users_per_round, rules(parts.config.privacy).sampler.exact
    found = []
    noise = parts.gate.mechanism.release_noise(r)
    for block in parts.gate.blocks:
        if not noise.get(block.name):
            continue
        # The mean of a chi distribution with P degrees of freedom, times the standard deviation.
        chi = math.sqrt(2.0) * math.exp(
            math.lgamma((block.size + 1) / 2) - math.lgamma(block.size / 2)
        )
        norm = noise[block.name] * chi
        found.append(
            BlockNoise(
                block.name,
                block.size,
                block.clip,
                noise[block.name] / users,
                norm / users,
                None if one else math.ceil(norm / block.clip),
            )
        )
    return tuple(found)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _lines(plan: PlanReport) -> list[str]:
    """What `privrl plan` prints."""
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


def _size(plan: PlanReport) -> tuple[str, str]:
    if plan.from_data:
        return "trajectories", f"of at most {plan.steps_per_user:,} steps"
    return "steps", f"{plan.steps:,}, {plan.steps_per_user:,} of one user"


def _rounds(plan: PlanReport) -> str:
    if plan.rounds == plan.rounds_asked:
        return f"{plan.rounds:,}"
    limit = f"the population of {plan.population:,}, of which each is used once"
    if not plan.by_population and plan.target is not None:
        limit = f"the budget, epsilon {shown_epsilon(plan.target)}"
    return f"{plan.rounds:,} of {plan.rounds_asked:,}, limited by {limit}"


def _noise_lines(plan: PlanReport) -> list[str]:
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


def _nearest_lines(plan: PlanReport) -> list[str]:
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


def _split_lines(plan: PlanReport) -> list[str]:
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


def _least_line(plan: PlanReport) -> list[str]:
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
