"""Checks of an environment before training: `check_env` for `privrl check-env`, `brief` before every training.

Nothing here changes training: environments are made for the purpose, seeds are fixed, and the global random
states of Python, NumPy and torch are put back. No real user takes part: an environment that declares users is
reset with the options of a simulation only (docs/environments.md).
"""

from __future__ import annotations

import copy
import json
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import yaml
from gymnasium.utils.env_checker import check_env as gymnasium_checker

from privrl_bench.config.overrides import GENERIC, choices
from privrl_bench.config.schema import EnvConfig
from privrl_bench.config.schema.env import wrappers_in_words
from privrl_bench.envs.construction import make_env, make_unchecked, max_episode_steps
from privrl_bench.envs.registry import env_spec
from privrl_bench.envs.spaces import corner_actions
from privrl_bench.envs.user_declaration import declared_users, reset_options
from privrl_bench.errors import ConfigError
from privrl_bench.types import EnvSpec

ERROR, WARNING, FINE = "error", "warning", "fine"
PROVISIONAL = 1000  # time limit for the checks of an environment without one
_BRIEF_STEPS, _BRIEF_SECONDS = 128, 0.4
_TWICE = 200  # steps that are repeated to test determinism
_LARGEST = float(np.finfo(np.float32).max)
_SEED = 20_250_117  # of the first episode and of the actions
_HELD = 8  # steps with each corner of the actions
_SHOWN = 6  # numbers of an action that a message lists
_MOST = 256  # observations with more numbers get no constants
_GAMMA = 0.99  # of the return whose deviation scales rewards, as Gymnasium's wrapper has it


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
        proposed: a YAML file with public scaling constants from random actions, ready to use; None: no step
            was possible, or the environment has a file.
    """

    label: str
    findings: list[EnvFinding] = field(default_factory=list)
    proposed: str | None = None

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
        ConfigError: the environment cannot be made.
    """
    with untouched_randomness():
        with closing(make_unchecked(config)) as env:
            found = list(_gymnasium(env, config.label))
            if config.wrappers:
                found.append(EnvFinding(FINE, "wrappers", wrappers_in_words(config)))
            try:
                max_episode_steps(config, env)
            except ConfigError as error:
                where = f"{error.key}=<steps>, or max_episode_steps where it is registered"
                text = f"{error.problem}: {where}; the other checks use {PROVISIONAL}"
                found.append(EnvFinding(ERROR, "lengths", text))
                config = replace(config, max_episode_steps=PROVISIONAL)
        plain = replace(config, obs_scaling="none", reward_scaling="none")
        try:
            spec = env_spec(plain)
        except ConfigError as error:
            check = "users" if error.key == "env" else "spaces"
            return EnvReport(config.label, [*found, EnvFinding(ERROR, check, error.problem)])
        image = "; algo.network=cnn takes the image as it is" if spec.image else ""
        found.append(EnvFinding(FINE, "observations", f"{spec.observations}{image}"))
        found.append(EnvFinding(FINE, "actions", spec.action_words))
        with closing(make_env(plain)) as env:
            first = play(env, min(steps, _TWICE), 5.0)
            same = list(_determinism(plain, env, first, thorough=True))
            played = play(env, steps, seconds)
            found += [*_values(played), *_corners(env, 5.0), *same]
        found += [*_lengths(played, config, spec), _users(config, spec)]
        new = config.name in GENERIC or config.wrappers
        possible = new and not played.problem and played.rewards
        return EnvReport(config.label, found, _proposal(played, config) if possible else None)


def brief(config: EnvConfig) -> list[EnvFinding]:
    """Check values, shapes, determinism and the corners of the actions in about a second.

    Args:
        config: an environment that `env_spec` accepts.

    Returns:
        Errors and warnings, or one finding that is fine.
    """
    with untouched_randomness(), closing(make_env(config)) as env:
        first = play(env, _BRIEF_STEPS, _BRIEF_SECONDS)
        found = list(_values(first))
        if not first.problem:
            found += _determinism(config, env, first)
            found += _corners(env, _BRIEF_SECONDS)
    steps = sum(first.lengths)
    fine = EnvFinding(FINE, "check", f"{steps} random steps, played twice: nothing found")
    return [one for one in found if one.severity != FINE] or [fine]


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """No warnings; the global random states of Python, NumPy and torch are put back."""
    saved = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        torch.random.set_rng_state(saved[2])


# --- steps


@dataclass
class Play:
    """Steps of one instance.

    Attributes:
        obs: raw flat observations, resets included.
        rewards: as they were returned, one for each step.
        lengths: steps of each episode; the last one may be incomplete.
        terminated: number of episodes that ended by themselves.
        complete: whether the last episode ended.
        outside: observations outside the declared space.
        bits: of everything the environment returned, in order.
        kind: of observations of another type than the space has.
        problem: why it stopped early: an exception, or a value of the wrong kind; empty: it did not.
    """

    obs: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    complete: bool = True
    outside: int = 0
    bits: list[bytes] = field(default_factory=list)
    kind: str = ""
    problem: str = ""

    def agrees(self, again: Play) -> bool:
        """Whether the shorter of two plays is the beginning of the other, bit for bit."""
        count = min(len(self.bits), len(again.bits))
        return self.bits[:count] == again.bits[:count] and not again.problem


def play(env: Any, steps: int, seconds: float) -> Play:
    """Act at random in an environment from `make_env` for at most so many steps and seconds."""
    found, until = Play(), time.monotonic() + seconds
    actions = copy.deepcopy(env.action_space)  # some environments replace theirs at every reset
    actions.seed(_SEED)

    def going() -> bool:
        return sum(found.lengths) < steps and time.monotonic() < until

    while not found.problem and going():
        _episode(env, actions.sample, found, going)
    return found


def _episode(env: Any, choose: Callable[[], Any], found: Play, going: Callable[[], bool]) -> None:
    """Play one episode from a reset, while `going`, into `found`."""
    users = declared_users(env, "the environment")
    more = {} if users is None else {"options": reset_options(None)}
    call = "reset"
    try:
        obs, _ = env.reset(seed=_SEED + len(found.lengths), **more)
        found.lengths.append(0)
        found.complete = False
        _see(env, found, obs)
        call = "step"
        while not found.problem and not found.complete and going():
            obs, reward, over, cut, _ = env.step(choose())
            found.lengths[-1] += 1
            _see(env, found, obs)
            if np.ndim(reward) or not np.issubdtype(np.asarray(reward).dtype, np.number):
                found.problem = f"rewards must be numbers, step returned a {type(reward).__name__}"
                return
            found.rewards.append(float(reward))
            found.bits.append(np.array([reward, over, cut], np.float64).tobytes())
            found.terminated += bool(over)
            found.complete = bool(over or cut)
    except (Exception, SystemExit) as error:  # the user's own code
        found.problem = f"{call} raised {type(error).__name__}: {_line(str(error))}"


def _see(env: Any, found: Play, obs: Any) -> None:
    """Record one observation."""
    space = env.observation_space
    array = np.asarray(obs)
    if array.shape != space.shape:
        found.problem = (
            f"an observation has shape {array.shape}, the observation_space has {space.shape}"
        )
        return
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        found.problem = f"observations must be numbers, they are {array.dtype}"
        return
    if array.dtype != space.dtype:
        found.kind = f"observations are {array.dtype}, the observation_space has {space.dtype}"
    found.outside += bool(
        np.isfinite(array).all() and not space.contains(array.astype(space.dtype))
    )
    found.obs.append(array.astype(np.float64).reshape(-1))
    found.bits.append(array.tobytes())


def _line(text: str) -> str:
    """One line without the terminal's colours and Gymnasium's prefix."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.split()).removeprefix("WARN: ")


# --- one check each


def _gymnasium(env: Any, label: str) -> Iterator[EnvFinding]:
    """Findings of Gymnasium's own checker; none where users are declared, whom it would reset."""
    if declared_users(env, label) is not None:
        return
    problem = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_checker(env.unwrapped, skip_render_check=True, skip_close_check=True)
        except (Exception, SystemExit) as error:  # assertions of the checker, and the user's code
            problem = f"{type(error).__name__}: {_line(str(error))}"
    said = dict.fromkeys(
        _line(str(one.message))
        for one in caught
        if not issubclass(one.category, DeprecationWarning)
        and not re.search(
            r"different from the unwrapped version| is -?infinity\b", str(one.message)
        )
    )
    for text in said:
        yield EnvFinding(WARNING, "gymnasium", text)
    if problem:
        # What prevents training is found again by our own checks, as an error.
        yield EnvFinding(WARNING, "gymnasium", f"the checker stopped: {problem}")
    elif not said:
        yield EnvFinding(FINE, "gymnasium", "Gymnasium's checker has no objection")


def _values(played: Play) -> Iterator[EnvFinding]:
    """Whether observations and rewards are finite numbers inside their space."""
    if played.problem:
        yield EnvFinding(ERROR, "values", played.problem)
    for name, numbers in (("observations", played.obs), ("rewards", played.rewards)):
        bad = sum(not (np.abs(x) <= _LARGEST).all() for x in numbers)
        if bad:
            text = f"{bad} of {len(numbers)} {name} are not finite in single precision"
            yield EnvFinding(ERROR, "values", text)
    if not played.problem:
        yield EnvFinding(FINE, "values", f"{len(played.rewards)} random steps")
    if played.kind:
        yield EnvFinding(WARNING, "values", played.kind)
    if played.outside:
        text = (
            f"{played.outside} of {len(played.obs)} observations are outside the observation_space"
        )
        yield EnvFinding(WARNING, "values", text)


def _corners(env: Any, seconds: float) -> Iterator[EnvFinding]:
    """Whether the actions at the ends of their space can be held: policies play them often."""
    until, tried = time.monotonic() + seconds, 0
    for action in corner_actions(env.action_space):
        if time.monotonic() > until:
            break
        tried, found = tried + 1, Play()
        _episode(env, lambda: copy.copy(action), found, lambda: found.lengths[-1] < _HELD)  # noqa: B023
        problem = next((one.text for one in _values(found) if one.severity == ERROR), "")
        if problem:
            shown = ", ".join(f"{x:g}" for x in np.ravel(action)[:_SHOWN])
            shown += ", ..." if np.size(action) > _SHOWN else ""
            text = f"{problem} (at the action [{shown}], a corner of its space)"
            yield EnvFinding(ERROR, "corners", text)
            return
    text = f"{tried} actions at the ends of their space, some steps each: finite numbers"
    yield EnvFinding(FINE, "corners", text)


def _determinism(
    config: EnvConfig, env: Any, first: Play, thorough: bool = False
) -> Iterator[EnvFinding]:
    """Whether seed and actions determine everything, in a new instance and after other episodes.

    Args:
        config: of the environment.
        env: has played `first`, and nothing before.
        first: the steps that are repeated.
        thorough: play a new instance also where the used one gives the same results.
    """
    steps = sum(first.lengths)
    if first.problem or not steps:
        return
    used = new = first.agrees(play(env, steps, 60.0))
    if thorough or not used:
        with closing(make_env(config)) as other:
            new = first.agrees(play(other, steps, 60.0))
    if not new:
        text = (
            "the same seed and actions give other results in a new instance: seeded runs cannot be reproduced, "
            "and env.user=segment cannot be resumed"
        )
        yield EnvFinding(WARNING, "determinism", text)
    elif not used:
        text = (
            "an episode depends on those before it in the same instance: reset leaves state behind, so that "
            "a user's data can reach the next user (docs/environments.md)"
        )
        yield EnvFinding(ERROR, "determinism", text)
    else:
        text = f"the same seed and actions give the same bits ({steps} steps)"
        yield EnvFinding(FINE, "determinism", text)


def _lengths(played: Play, config: EnvConfig, spec: EnvSpec) -> Iterator[EnvFinding]:
    """Lengths of episodes, and whether T steps reach the end of one."""
    limit = spec.max_episode_steps
    ended = sorted(played.lengths if played.complete else played.lengths[:-1])
    if not ended:
        text = f"no episode ended in {sum(played.lengths)} random steps; the limit is {limit}"
        yield EnvFinding(WARNING, "lengths", text)
        return
    text = (
        f"{len(ended)} episodes of {ended[0]} to {ended[-1]} steps, median {ended[len(ended) // 2]}, limit "
        f"{limit}; {played.terminated} ended by themselves"
    )
    yield EnvFinding(FINE, "lengths", text)
    if ended[-1] > limit:
        text = f"an episode of {ended[-1]} steps exceeds the limit of {limit}"
        yield EnvFinding(ERROR, "lengths", text)
    steps = config.user_steps
    if config.user == "fresh" and steps is not None and steps < ended[0]:
        text = (
            f"T = env.user_steps={steps} is less than the shortest episode ({ended[0]}): no user reaches the "
            f"end of an episode; env.user_steps={min(limit, ended[-1])} would do, or env.user=episode"
        )
        yield EnvFinding(WARNING, "user_steps", text)


def _users(config: EnvConfig, spec: EnvSpec) -> EnvFinding:
    """Who is reset when."""
    text = f'simulated (env.user={config.user}); the environment declares none (metadata["users"])'
    if spec.users is not None:
        text = (
            f"{spec.users} declared; training resets user k with options {reset_options(0)} (k = 0 here), and "
            f"evaluation and this check with {reset_options(None)}, which the environment takes"
        )
    return EnvFinding(FINE, "users", text)


# --- public constants


def _return_std(played: Play) -> float:
    """Standard deviation of the running discounted returns of all steps, which restart with every episode."""
    found, at = [0.0] * (not played.rewards), 0
    for length in played.lengths:
        total = 0.0
        for reward in played.rewards[at : at + length]:
            total = _GAMMA * total + (reward if np.isfinite(reward) else 0.0)
            found.append(total)
        at += length
    return float(np.std(found))


def _short(x: np.ndarray) -> list[float]:
    """Three significant digits."""
    return [float(f"{value:.3g}") for value in x]


def _proposal(played: Play, config: EnvConfig) -> str:
    """A YAML file: which environment it is, and public constants; numbers that are not finite are left out."""
    name = config.name
    if name in GENERIC:
        plain = config.label.split(":")[-1].split("/")[-1].lower()
        name = "".join(c if c.isalnum() else "_" for c in plain)
    if name in choices("env"):
        name = f"my_{name}"  # a file beside the package's cannot have its name
    keys: dict[str, Any] = {"name": name, "kind": config.kind}
    for key in ("id", "domain", "task", "max_episode_steps", "obs_parts", "wrappers", "kwargs"):
        if getattr(config, key):
            keys[key] = getattr(config, key)
    keys = json.loads(json.dumps(keys))  # plain lists and mappings
    obs = np.array(played.obs)
    obs = obs[np.isfinite(obs).all(axis=1)]
    obs = obs if len(obs) else np.zeros((1, len(played.obs[0])))
    spread = obs.std(axis=0)
    spread[spread < 1e-6] = 1.0  # constant here, which says nothing about its scale
    if len(spread) > _MOST:
        keys["obs_scaling"] = "none"
    else:
        means, stds = _short(obs.mean(axis=0)), _short(spread)
        keys |= {"obs_scaling": "public", "obs_mean": means, "obs_std": stds}
    largest = np.abs(np.nan_to_num(played.rewards, posinf=0.0, neginf=0.0)).max()
    scale = max(_return_std(played), largest / config.reward_clip) or 1.0  # no reward is clipped
    keys |= {"reward_scaling": "public", "reward_scale": _short(np.array([1.0 / scale]))[0]}
    text = yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=1000)
    return (
        "# Public constants, from random actions in simulation. They are configuration and not covered\n"
        "# by epsilon: use them only if they are public knowledge or the simulation has no user's data.\n"
        + text.rstrip()
    )
