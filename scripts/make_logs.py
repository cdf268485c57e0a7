"""Logs of simulated users for `privrl import`: a Parquet file, an episode of each with one of several policies.

    python scripts/make_logs.py cartpole.parquet outputs/poor outputs/better --env env=cartpole --users 10_000

A policy is a run folder, or `uniform`. User k has policy k modulo their number.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.packs.offline.fixed_policies import FixedPolicy, choose, fixed_policy
from privrl_bench.rollout import rollout


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--env", required=True, nargs="+")
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = compose(["algo=ppo", *args.env, "env.obs_scaling=none"]).env
    spec = env_spec(config)
    policies = [fixed_policy(name, config, spec) for name in args.policies]
    tables = []
    for k, policy in enumerate(policies):
        who = np.arange(k, args.users, len(policies))
        tables.append(_logs(config, spec, policy, who, args.seed))
    table = pa.concat_tables(tables)
    parquet.write_table(table, args.out)
    print(f"{args.out}: {table.num_rows:,} steps of {args.users:,} users")


def _logs(config, spec, policy: FixedPolicy, who: np.ndarray, seed: int) -> pa.Table:  # type: ignore[no-untyped-def]
    slots = make_slots(config, len(who))
    obs = slots.reset(np.arange(len(who)), [seed * 1_000_003 + int(u) for u in who])
    rng = np.random.default_rng([seed, len(who), int(who[0])])
    going, rows, now, offered = np.ones(len(who), bool), [], obs.copy(), np.zeros(0)

    actions = np.zeros(0)

    def act(_: np.ndarray, t: int) -> np.ndarray:
        nonlocal actions, offered, now
        now = obs.copy()
        offered = policy.probabilities(torch.from_numpy(now)).numpy()
        actions = choose(offered, rng.random(len(who)))
        return actions

    for step in rollout(slots, obs, going, act, spec.max_episode_steps):
        on = np.flatnonzero(step.acted)
        names = [f"o{d}" for d in range(spec.obs_dim)]
        last = step.t == spec.max_episode_steps - 1
        rows.append(
            {
                "user": who[on],
                "t": np.full(len(on), step.t),
                **{name: now[on, d] for d, name in enumerate(names)},
                "action": actions[on],
                "reward": step.rewards[on],
                "end": step.terminated[on],
                "cut": ~step.terminated[on] & (step.done[on] | last),
                "p": offered[on, actions[on]],
            }
        )
    slots.close()
    return pa.table({key: np.concatenate([row[key] for row in rows]) for key in rows[0]})


if __name__ == "__main__":
    main()
