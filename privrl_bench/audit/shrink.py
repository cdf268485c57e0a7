"""Reduced sizes, with which the leak test takes seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privrl_bench.audit.visits import WINDOW
from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Data, Product
from privrl_bench.experiment.builder import env_spec, user_steps
from privrl_bench.experiment.declared_users import in_order

LATER = 2  # rounds after the user's
USERS = 4  # of a round
_TRAJECTORIES = 6  # of users under a known policy
_STEPS, _EPOCHS, _MINIBATCHES, _EPISODES = 64, 2, 4, 1
# So that every round trains the policy in the model.
_MODEL_BASED = {
    **{"check_every": 1, "improve_every": 1, "policy_steps": 10, "policy_turns": 1},
    **{"rollouts": 16, "rollout_length": 3},
}


class _Cuts:
    """Reduces sizes of a configuration and records the changes.

    Args:
        config: with the original sizes.
        given: keys that are not changed.

    Attributes:
        config: the reduced configuration.
        lines: one for each change.
    """

    def __init__(self, config: RunConfig, given: frozenset[str]):
        self.config, self.given = config, given
        self.lines: list[str] = []

    def cut(self, group: str, **limits: Any) -> None:
        """Reduce settings of `group` to at most `limits`."""
        section = getattr(self.config, group)
        changes = {
            key: limit
            for key, limit in limits.items()
            if f"{group}.{key}" not in self.given and (getattr(section, key, None) or 0) > limit
        }
        self.lines.extend(f"{group}.{k} {getattr(section, k)} -> {v}" for k, v in changes.items())
        self.config = replace(self.config, **{group: replace(section, **changes)})

    def steps(self, steps: int) -> None:
        """Set `total_steps`."""
        self.lines.append(f"total_steps {self.config.total_steps} -> {steps}")
        self.config = replace(self.config, total_steps=steps)


def shrink(
    config: RunConfig,
    given: frozenset[str] = frozenset(),
    rounds: int = LATER + 2,
    users: int = USERS,
    user: int = 0,
) -> tuple[RunConfig, list[str]]:
    """Reduce the sizes of a configuration.

    Args:
        config: of one run.
        given: keys whose values are kept.
        rounds: rounds that have to fit.
        users: users of a round.
        user: the user to be replaced, where users arrive one after the other.

    Returns:
        The configuration, and the changes: `env.user_steps 2048 -> 64`.
    """
    if config.source in (Data.KEPT, Data.TEXTS) or in_order(config):  # users are used up
        rounds = max(rounds, WINDOW)
    cuts = _Cuts(config, given)
    cuts.cut("algo", epochs=_EPOCHS, minibatches=_MINIBATCHES, **_MODEL_BASED)
    cuts.cut("privacy", users_per_round=users)
    cuts.cut("eval", episodes=_EPISODES)
    cuts.cut("hardware", workers=1)
    if config.algo.traits.releases is Product.VALUES:
        many = config.rounds if "rounds" in given and config.rounds else rounds
        need = many * cuts.config.privacy.users_per_round if in_order(config) else 0
        cuts.cut("privacy", population=max(_TRAJECTORIES, need))
        cuts.cut("algo", reference=_TRAJECTORIES)
    takes = config.source in (Data.RECORDED, Data.KEPT, Data.ACTED)
    if takes and not config.algo.traits.one_round and "rounds" not in given:
        cuts.config = replace(cuts.config, rounds=rounds)
        cuts.lines.append(f"rounds -> {rounds}")
    if config.source is not Data.RECORDED:
        (_cut_texts if config.env.kind == "text" else _cut_simulated)(cuts, rounds, users, user)
    return cuts.config, cuts.lines


def _cut_texts(cuts: _Cuts, rounds: int, users: int, user: int) -> None:
    """Reduce the sizes of a run on prompts; arguments as `shrink`."""
    cuts.cut("algo", baseline_prompts=users)
    config = cuts.config
    need = rounds * config.privacy.users_per_round * config.env.text.new_tokens
    if config.total_steps > need and not {"total_steps", "rounds"} & cuts.given:
        cuts.steps(need)


def _cut_simulated(cuts: _Cuts, rounds: int, users: int, user: int) -> None:
    """Reduce the sizes of a run on simulators; arguments as `shrink`."""
    if cuts.config.source is Data.KEPT:  # few users, so that the user joins soon
        cuts.cut("algo", act_every=1, new_users=user + 1)
        coming = cuts.config.algo.people(cuts.config.rounds or rounds)
        cuts.cut("privacy", users_per_round=coming - 1, population=coming)
    config = cuts.config
    # T, in the key that determines it. A minibatch has at least one step.
    spec = env_spec(config.env)
    key = "max_episode_steps" if config.env.user == "episode" else "user_steps"
    explicit: Any = {key: user_steps(config.env, spec)}
    cuts.config = replace(config, env=replace(config.env, **explicit))
    cuts.cut("env", **{key: max(_STEPS, getattr(config.algo, "minibatches", 1))})
    need = rounds * config.privacy.users_per_round * getattr(cuts.config.env, key)
    once = not config.privacy.rules.sampler.every_round
    bounded = (spec.users or config.privacy.population) and once
    wrong = config.total_steps < need or (bounded and config.total_steps > need)
    if wrong and "total_steps" not in cuts.given:
        cuts.steps(need)
