"""Checks of an environment before training: `check_env` for `privrl check-env`, `brief` before every training.

No real user takes part: an environment that declares users is reset with the options of a simulation only
(docs/environments.md).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privrl_bench.config.schema import EnvConfig
from privrl_bench.config.schema.env import wrappers_in_words
from privrl_bench.envs.construction import (
    make_env,
    make_unchecked,
    max_episode_steps,
    render_modes,
)
from privrl_bench.envs.measure import (
    LARGEST,
    Play,
    play,
    play_corners,
    untouched_randomness,
)
from privrl_bench.envs.proposal import EnvMeasures, measured
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.spaces import clipped_far_from_zero
from privrl_bench.envs.user_declaration import declared_users, reset_options
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec

ERROR, WARNING, FINE = "error", "warning", "fine"
_BRIEF_STEPS, _BRIEF_SECONDS = 128, 0.4
PROVISIONAL = 1000  # time limit for the checks of an environment without one
_TWICE = 200  # steps that are repeated to test determinism


@dataclass(frozen=True)
class EnvFinding:
    """What one check found.

    Attributes:
        severity: `error` (training cannot work), `warning` or `fine`.
        check: name of the check.
        text: what was found, on one line.
    """

    severity: str
    check: str
    text: str


@dataclass(frozen=True)
class EnvReport:
    """Everything about one environment.

    Attributes:
        label: of the environment.
        findings: in the order of the checks.
        measured: ranges under random actions; None: no step was possible.
    """

    label: str
    findings: list[EnvFinding] = field(default_factory=list)
    measured: EnvMeasures | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found that prevents training."""
        return all(one.severity != ERROR for one in self.findings)


def check_env(config: EnvConfig, steps: int = 5000, seconds: float = 20.0) -> EnvReport:
    """Make every check. An environment without a time limit gets a provisional one for the others.

    Args:
        config: the environment; its scaling is not applied.
        steps: of random actions.
        seconds: that random actions may take.

    Raises:
        ConfigError: The environment cannot be made.
    """
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = make_unchecked(config)
        try:
            found = [*_gymnasium(env, config.label), *_pictures(env)]
            if config.wrappers:
                found.append(EnvFinding(FINE, "wrappers", wrappers_in_words(config)))
            limit = _missing_limit(config, env)
        finally:
            env.close()
        if limit is not None:
            found.append(limit)
            config = replace(config, max_episode_steps=PROVISIONAL)
        plain = replace(config, obs_scaling="none", reward_scaling="none")
        try:
            spec = env_spec(plain)
        except ConfigError as error:
            refused = EnvFinding(ERROR, _name_of(error), error.problem)
            return EnvReport(config.label, [*found, refused])
        found += [*_spaces(spec), *_unreachable(spec.action_space, config)]
        played = play(plain, steps, seconds)
        found += [*_values(played), *_corners(plain, 5.0)]
        found += [*_determinism(plain), *_lengths(played, config, spec)]
        found += _users(config, spec)
        numbers = measured(played, config) if played.rewards and not played.problem else None
        return EnvReport(config.label, found, numbers)


def brief(config: EnvConfig) -> list[EnvFinding]:
    """Check values, shapes, determinism and the corners of the actions in about a second.

    Args:
        config: an environment that `env_spec` accepts.

    Returns:
        Errors and warnings, or one finding that is fine.
    """
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = make_env(config)
        try:
            first = play(config, _BRIEF_STEPS, _BRIEF_SECONDS, env)
            found = list(_values(first))
            if not first.problem:
                steps = sum(first.lengths)
                if not first.agrees(play(config, steps, _BRIEF_SECONDS, env)):
                    new = play(config, steps, _BRIEF_SECONDS)
                    found += filter(None, [_differs(False, first.agrees(new))])
                found += [
                    *_corners(config, _BRIEF_SECONDS, env),
                    *_unreachable(env.action_space, config),
                ]
        finally:
            env.close()
    bad = [one for one in found if one.severity != FINE]
    steps = sum(first.lengths)
    return bad or [EnvFinding(FINE, "check", f"{steps} random steps, played twice: nothing found")]


def _name_of(error: ConfigError) -> str:
    """The check that an error of `env_spec` belongs to."""
    return "users" if error.key == "env" else "spaces"


# --- one check each


def _missing_limit(config: EnvConfig, env: Any) -> EnvFinding | None:
    """The error that there is no time limit; None: there is one."""
    try:
        max_episode_steps(config, env)
    except ConfigError as error:
        text = f"{error.problem}: {error.key}=<steps>; the other checks use {PROVISIONAL}"
        return EnvFinding(ERROR, "lengths", text)
    return None


def _gymnasium(env: Any, label: str) -> Iterator[EnvFinding]:
    """Findings of Gymnasium's own checker, on the environment without wrappers."""
    import gymnasium as gym
    from gymnasium.utils.env_checker import check_env as gymnasium_checker

    inner = env.unwrapped
    if declared_users(env, label) is not None:

        class Simulated(gym.Wrapper[Any, Any, Any, Any]):
            """Every reset is a simulation."""

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                """See `gymnasium.Env.reset`."""
                return self.env.reset(seed=seed, options=reset_options(None))

        inner = Simulated(inner)
    problem = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_checker(inner, skip_render_check=True, skip_close_check=True)
        except (
            Exception,
            SystemExit,
        ) as error:  # assertions of the checker, and the user's own code
            text = _line(str(error))
            problem = (
                text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
            )
    said = dict.fromkeys(_line(str(one.message)) for one in caught if _about(one))
    for text in said:
        yield EnvFinding(WARNING, "gymnasium", text)
    if problem:
        # What prevents training is found again by our own checks, as an error.
        yield EnvFinding(WARNING, "gymnasium", f"the checker stopped: {problem}")
    elif not said:
        yield EnvFinding(FINE, "gymnasium", "Gymnasium's checker has no objection")


def _about(warning: warnings.WarningMessage) -> bool:
    """Whether a warning is about the environment, and not about our wrapper or unbounded observations."""
    text = str(warning.message)
    ours = "is different from the unwrapped version" in text or re.search(r" is -?infinity\b", text)
    return not ours and not issubclass(warning.category, DeprecationWarning)


def _line(text: str) -> str:
    """One line without the terminal's colours and Gymnasium's prefix."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.split()).removeprefix("WARN: ")


def _spaces(spec: EnvSpec) -> Iterator[EnvFinding]:
    """What the policy makes of the spaces."""
    image = "; algo.network=cnn takes the image as it is" if spec.image else ""
    yield EnvFinding(FINE, "observations", f"{spec.observations}{image}")
    yield EnvFinding(FINE, "actions", spec.action_words)


def _unreachable(space: Any, config: EnvConfig) -> Iterator[EnvFinding]:
    """A component of the actions of which a new policy plays one value only."""
    if text := clipped_far_from_zero(space, config.action == "stretch"):
        yield EnvFinding(WARNING, "actions", text)


def _corners(config: EnvConfig, seconds: float, env: Any = None) -> Iterator[EnvFinding]:
    """Whether the actions at the ends of their space can be played: policies play them often."""
    tried, problem = play_corners(config, seconds, env)
    text = problem or f"{tried} actions at the ends of their space, some steps each: finite numbers"
    yield EnvFinding(ERROR if problem else FINE, "corners", text)


def _pictures(env: Any) -> Iterator[EnvFinding]:
    """Whether `privrl play` can show it."""
    modes = render_modes(env)
    shown = [mode for mode in modes if mode in ("human", "rgb_array")]
    if shown:
        yield EnvFinding(FINE, "pictures", f"privrl play can show it ({', '.join(shown)})")
        return
    has = f"its render modes are {', '.join(modes)}" if modes else "it has no render modes"
    text = f"privrl play cannot show it: {has}, which training does not need (docs/environments.md)"
    yield EnvFinding(FINE, "pictures", text)


def _values(played: Play) -> Iterator[EnvFinding]:
    """Whether observations and rewards are finite numbers inside their space."""
    if played.problem:
        yield EnvFinding(ERROR, "values", played.problem)
    bad = sum(not (np.abs(x) <= LARGEST).all() for x in played.obs)
    if bad:
        text = f"{bad} of {len(played.obs)} observations are not finite in single precision"
        yield EnvFinding(ERROR, "values", text)
    bad = sum(not abs(x) <= LARGEST for x in played.rewards)
    if bad:
        text = f"{bad} of {len(played.rewards)} rewards are not finite in single precision"
        yield EnvFinding(ERROR, "values", text)
    elif not played.problem:
        yield EnvFinding(FINE, "values", f"{len(played.rewards)} steps with finite numbers")
    if played.outside:
        text = (
            f"{played.outside} of {len(played.obs)} observations are outside the observation_space"
        )
        yield EnvFinding(WARNING, "values", text)


def _determinism(config: EnvConfig) -> Iterator[EnvFinding]:
    """Whether seed and actions determine everything, in a new instance and after other episodes."""
    first = play(config, _TWICE, 5.0)
    steps = sum(first.lengths)
    if first.problem or not steps:
        return
    env = make_env(config)
    try:
        play(config, steps, 60.0, env)
        again = play(config, steps, 60.0, env)
    finally:
        env.close()
    found = _differs(first.agrees(again), first.agrees(play(config, steps, 60.0)))
    text = f"the same seed and actions give the same bits ({steps} steps, three times)"
    yield found or EnvFinding(FINE, "determinism", text)


def _differs(in_a_used_instance: bool, in_a_new_instance: bool) -> EnvFinding | None:
    """What it means that the same seeds and actions gave equal results in one instance and not in another."""
    if not in_a_new_instance:
        text = (
            "the same seed and actions give other results in a new instance: seeded runs cannot be reproduced, "
            "and env.user=segment cannot be resumed"
        )
        return EnvFinding(WARNING, "determinism", text)
    text = (
        "an episode depends on those before it in the same instance: reset leaves state behind, so that "
        "a user's data can reach the next user (docs/environments.md)"
    )
    return None if in_a_used_instance else EnvFinding(ERROR, "determinism", text)


def _lengths(played: Play, config: EnvConfig, spec: EnvSpec) -> Iterator[EnvFinding]:
    """Lengths of episodes, and what T steps of a user are."""
    limit, ended = spec.max_episode_steps, sorted(played.episodes)
    if not ended:
        text = f"no episode ended in {sum(played.lengths)} random steps; the limit is {limit}"
        yield EnvFinding(WARNING, "lengths", text)
        return
    middle = ended[len(ended) // 2]
    text = (
        f"{len(ended)} episodes of {ended[0]} to {ended[-1]} steps, median {middle}, limit {limit}; "
        f"{played.terminated} ended by themselves"
    )
    yield EnvFinding(FINE, "lengths", text)
    if ended[-1] > limit:
        text = f"an episode of {ended[-1]} steps exceeds the limit of {limit}"
        yield EnvFinding(ERROR, "lengths", text)
    steps = config.user_steps
    if config.user == "episode" or steps is None:
        what = "one episode" if config.user == "episode" else f"{limit} steps, the episode limit"
        yield EnvFinding(FINE, "user_steps", f"a user is {what} (env.user={config.user})")
    elif config.user == "fresh" and steps < ended[0]:
        text = (
            f"T = env.user_steps={steps} is less than the shortest episode ({ended[0]}): no user reaches the "
            f"end of an episode; env.user_steps={min(limit, ended[-1])} would do, or env.user=episode"
        )
        yield EnvFinding(WARNING, "user_steps", text)
    else:
        many = steps / max(middle, 1)
        count = f"about {math.ceil(many)} episodes" if many > 1 else "part of an episode"
        text = f"T = env.user_steps={steps}: a user has {count} of random play"
        yield EnvFinding(FINE, "user_steps", text)


def _users(config: EnvConfig, spec: EnvSpec) -> Iterator[EnvFinding]:
    """Who is reset when."""
    if spec.users is None:
        again = {
            "fresh": "every user starts from a reset and is reset again after each end within their T steps",
            "episode": "every user is one episode from one reset",
            "segment": "environments are not reset between users, so that users share episodes (leaks)",
        }[config.user]
        text = f'simulated; the environment declares none (metadata["users"]); {again}'
        yield EnvFinding(FINE, "users", text)
        return
    text = (
        f"{spec.users} declared; training resets user k with options {reset_options(0)} (k = 0 here), and "
        f"evaluation and this check with {reset_options(None)}, which the environment takes"
    )
    yield EnvFinding(FINE, "users", text)
