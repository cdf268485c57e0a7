"""The plan of a run, as a file and in words."""

from __future__ import annotations

import math
from typing import Any

from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.accounting.calibrate import needed_z
from privrl_bench.run.plan import Plan


def describe_plan(parts: Plan, r: int) -> dict[str, Any]:
    """The plan of replica r as `plan.json` holds it."""
    gate, config = parts.gate, parts.configs[r]
    about = parts.users.words(parts.rounds).about
    return {
        "algo": config.algo.name,
        "env": config.env.label,
        "seed": config.seed,
        "z": config.privacy.z if gate.mechanism.private else None,
        "epsilon": gate.planned_epsilon(r),
        "epsilons": gate.planned_epsilons(r) if gate.mechanism.private else {},
        "epsilon_paper": gate.paper_epsilon(r),
        "delta": config.privacy.delta,
        "guarantee": gate.guarantee(r).to_dict(),
        "rounds": parts.rounds,
        "releases": parts.rounds,
        "releases_per_user": gate.participation or parts.rounds,
        "users_per_round": config.privacy.users_per_round,
        "users": parts.users.needed(parts.rounds),
        "steps_per_user": parts.steps,
        "steps": parts.rounds * parts.round_steps,
        "parameters": {block.name: block.size for block in gate.blocks},
        "clip": {block.name: block.clip for block in gate.blocks},
        "event": gate.event(r).to_dict(),
        **preview_facts(gate, r),
        **({"data": about} if about else {}),
        **gate.mechanism.plan_entries(r, parts.algo.terms().server_steps(parts.rounds)),
    }


def preview_facts(account: Account, r: int) -> dict[str, Any]:
    """`preview`: cohort, users and epsilon of the run that replica r is a preview of; empty for others."""
    config = account.configs[r]
    if config.noise_cohort is None:
        return {}
    users = config.noise_cohort * account.rounds
    epsilon = account.real_epsilon(r)
    return {"preview": {"users_per_round": config.noise_cohort, "users": users, "epsilon": epsilon}}


def targets(parts: Plan, r: int) -> str:
    """Return the z for common budgets over all planned rounds, as text."""
    found = [
        f"epsilon {shown_epsilon(x)}: privacy.z={needed_z(parts.gate, r, x):g}"
        for x in (1.0, 3.0, 8.0)
    ]
    return ", ".join(found)


def for_comparison(parts: Plan, r: int, epsilon: float) -> str:
    """Return the paper's number for the run's algorithm; empty: none, or no bound on the run's `epsilon`."""
    paper = parts.gate.paper_epsilon(r)
    if math.isinf(paper):
        return ""
    if parts.gate.participation is None:
        bound = f"the moments accountant, a looser bound: {shown_epsilon(paper)}"
        return f" (for comparison, {bound})" if paper > epsilon else ""
    if parts.config.algo.traits.dppg_formula:
        return f" (for comparison, the DPPG paper's formula: {shown_epsilon(paper)})"
    return ""
