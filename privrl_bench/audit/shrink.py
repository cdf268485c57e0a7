"""Sizes at which the leak test takes seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privrl_bench.audit.visits import WINDOW
from privrl_bench.config.schema import RunConfig
from privrl_bench.experiment.builder import env_spec, user_steps

LATER = 2  # rounds after the user's
USERS = 4  # of a round
_PEOPLE = 6  # who played a known policy
_STEPS, _EPOCHS, _MINIBATCHES, _EPISODES = 64, 2, 4, 1
# Every round trains the policy in the model, a little.
_MODEL_BASED = {
    **{"check_every": 1, "improve_every": 1, "policy_steps": 10, "policy_turns": 1},
    **{"rollouts": 16, "rollout_length": 3},
}


def shrink(
    config: RunConfig,
    given: frozenset[str] = frozenset(),
    rounds: int = LATER + 2,
    users: int = USERS,
    user: int = 0,
) -> tuple[RunConfig, list[str]]:
    """The configuration with sizes at which the test takes seconds.

    Args:
        config: one run.
        given: keys that were asked for and stay as they are.
        rounds: rounds that have to fit.
        users: users of a round.
        user: who is to be another, where users come one after the other.

    Returns: the configuration, and what was cut: `env.user_steps 2048 -> 64`.
    """
    cuts: list[str] = []
    if config.collector in ("returning_users", "prompts"):  # whose users are used up
        rounds = max(rounds, WINDOW)

    def cut(config: RunConfig, group: str, **limits: Any) -> RunConfig:
        section = getattr(config, group)
        changes = {
            key: limit
            for key, limit in limits.items()
            if f"{group}.{key}" not in given and (getattr(section, key, None) or 0) > limit
        }
        cuts.extend(f"{group}.{k} {getattr(section, k)} -> {v}" for k, v in changes.items())
        return replace(config, **{group: replace(section, **changes)})

    config = cut(config, "algo", epochs=_EPOCHS, minibatches=_MINIBATCHES, **_MODEL_BASED)
    config = cut(config, "privacy", users_per_round=users)
    config = cut(config, "eval", episodes=_EPISODES)
    config = cut(config, "hardware", env_workers=0)
    if config.algo.evaluator == "mspbe":
        config = cut(config, "privacy", population=_PEOPLE)
        config = cut(config, "algo", reference=_PEOPLE)
    takes = config.collector in ("dataset", "returning_users", "behavior")
    if takes and not config.algo.full_batch and "rounds" not in given:
        config, cuts = replace(config, rounds=rounds), [*cuts, f"rounds -> {rounds}"]
    if config.collector == "dataset":
        return config, cuts
    if config.env.kind == "text":
        config = cut(config, "algo", baseline_prompts=users)
        need = rounds * config.privacy.users_per_round * config.env.text.new_tokens
        if config.total_steps > need and not {"total_steps", "rounds"} & given:
            cuts.append(f"total_steps {config.total_steps} -> {need}")
            config = replace(config, total_steps=need)
        return config, cuts
    if config.collector == "returning_users":  # few users, so that the user joins soon
        config = cut(config, "algo", act_every=1, new_users=user + 1)
        coming = config.algo.people(config.rounds or rounds)
        config = cut(config, "privacy", users_per_round=coming - 1, population=coming)
    # T, in the key that it comes from; a minibatch needs a step.
    spec = env_spec(config.env)
    steps = user_steps(config.env, spec)
    key = "max_episode_steps" if config.env.user == "episode" else "user_steps"
    explicit: Any = {key: steps}
    config = replace(config, env=replace(config.env, **explicit))
    config = cut(config, "env", **{key: max(_STEPS, getattr(config.algo, "minibatches", 1))})
    need = rounds * config.privacy.users_per_round * getattr(config.env, key)
    once = not config.privacy.rules.sampler.every_round
    bounded = (spec.users or config.privacy.population) and once
    wrong = config.total_steps < need or (bounded and config.total_steps > need)
    if wrong and "total_steps" not in given:
        cuts.append(f"total_steps {config.total_steps} -> {need}")
        config = replace(config, total_steps=need)
    return config, cuts
