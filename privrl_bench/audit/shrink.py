"""Reduced sizes, with which the leak test takes seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.audit.visits import WINDOW
from privrl_bench.config.schema import RunConfig
from privrl_bench.privacy.rules import rules
from privrl_bench.users import kind_of

if TYPE_CHECKING:
    from privrl_bench.types import EnvSpec

LATER = 2  # rounds after the user's
USERS = 4  # of a round
_STEPS = 64  # T
_EPOCHS, _MINIBATCHES, _EPISODES = 2, 4, 1
# So that every round trains the policy in the model.
_MODEL_BASED = {
    **{"check_every": 1, "improve_every": 1, "policy_steps": 10, "policy_turns": 1},
    **{"rollouts": 16, "rollout_length": 3},
}


class Cuts:
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
        above = {k: v for k, v in limits.items() if (getattr(section, k, None) or 0) > v}
        self.put(group, **above)

    def put(self, group: str, **values: Any) -> None:
        """Set settings that `group` has."""
        section = getattr(self.config, group)
        changes = {
            key: value
            for key, value in values.items()
            if f"{group}.{key}" not in self.given and getattr(section, key, value) != value
        }
        self.lines.extend(f"{group}.{k} {getattr(section, k)} -> {v}" for k, v in changes.items())
        self.config = replace(self.config, **{group: replace(section, **changes)})

    def steps(self, steps: int) -> None:
        """Set `total_steps`."""
        self.lines.append(f"total_steps {self.config.total_steps} -> {steps}")
        self.config = replace(self.config, total_steps=steps)

    def user_steps(self, spec: EnvSpec, rounds: int) -> None:
        """Reduce T, in the key that determines it, and the length. A minibatch has at least one step.

        Args:
            spec: of the environment.
            rounds: that have to fit.
        """
        env, spec_steps = self.config.env, spec.max_episode_steps
        key = "max_episode_steps" if env.user == "episode" else "user_steps"
        explicit: Any = {key: (key == "user_steps" and env.user_steps) or spec_steps}
        self.config = replace(self.config, env=replace(env, **explicit))
        self.cut("env", **{key: max(_STEPS, getattr(self.config.algo, "minibatches", 1))})
        run = self.config
        need = rounds * run.privacy.users_per_round * getattr(run.env, key)
        bounded = spec.users or run.privacy.population
        once = bounded and not rules(run.privacy).sampler.every_round
        wrong = run.total_steps < need or (once and run.total_steps > need)
        if wrong and "total_steps" not in self.given:
            self.steps(need)

    def rounds(self, rounds: int) -> None:
        """Set `rounds` of an algorithm that has several."""
        if not self.config.algo.traits.one_round and "rounds" not in self.given:
            self.config = replace(self.config, rounds=rounds)
            self.lines.append(f"rounds -> {rounds}")


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
    kind = kind_of(config)
    if kind.used_up or kind.in_order(config):
        rounds = max(rounds, WINDOW)
    cuts = Cuts(config, given)
    cuts.cut("algo", epochs=_EPOCHS, minibatches=_MINIBATCHES, **_MODEL_BASED)
    cuts.cut("privacy", users_per_round=users)
    cuts.cut("eval", episodes=_EPISODES)
    cuts.cut("hardware", workers=1)
    kind.shrink(cuts, rounds, users, user)
    return cuts.config, cuts.lines
