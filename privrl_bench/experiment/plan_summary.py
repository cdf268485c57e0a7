"""The plan of a run, as a file and in words."""

from __future__ import annotations

from typing import Any

from privrl_bench.experiment.builder import RunComponents
from privrl_bench.experiment.declared_users import needed
from privrl_bench.privacy.account import Account


def describe_plan(parts: RunComponents, r: int) -> dict[str, Any]:
    """The plan of replica r as `plan.json` holds it."""
    gate, config = parts.gate, parts.configs[r]
    return {
        "algo": config.algo.name,
        "env": config.env.label,
        "seed": config.seed,
        "z": config.privacy.z if gate.mechanism.private else None,
        "epsilon": gate.planned_epsilon(r),
        "epsilons": gate.planned_epsilons(r) if gate.mechanism.private else {},
        "epsilon_paper": gate.mechanism.paper_epsilon(r),
        "delta": config.privacy.delta,
        "guarantee": gate.guarantee(r).to_dict(),
        "rounds": parts.rounds,
        "releases": parts.rounds,
        "releases_per_user": gate.participation or parts.rounds,
        "users_per_round": config.privacy.users_per_round,
        "users": needed(config, parts.rounds),
        "steps_per_user": parts.steps,
        "steps": parts.rounds * parts.round_steps,
        "parameters": {block.name: block.size for block in gate.blocks},
        "clip": {block.name: block.clip for block in gate.blocks},
        "event": gate.event(r).to_dict(),
        **preview_facts(gate, r),
        **({} if parts.data is None else {"data": parts.data.describe()}),
        **gate.mechanism.plan_entries(r, parts.algo.server_steps(parts.rounds)),
    }


def preview_facts(account: Account, r: int) -> dict[str, Any]:
    """`preview`: cohort, users and epsilon of the run that replica r is a preview of; empty for others."""
    config = account.configs[r]
    if config.noise_cohort is None:
        return {}
    users = config.noise_cohort * account.rounds
    epsilon = account.real_epsilon(r)
    return {"preview": {"users_per_round": config.noise_cohort, "users": users, "epsilon": epsilon}}
