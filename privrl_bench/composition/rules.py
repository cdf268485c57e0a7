"""Rules between the sections of a run. Ranges of single settings are declared beside them: `ranges.py`.

These hold for every run; `given_rules.py` has the rules of what the command line gives.
"""

from __future__ import annotations

import importlib.util

from privrl_bench import envs
from privrl_bench.config.schema import RunConfig
from privrl_bench.config.traits import Draws
from privrl_bench.envs.backends import check_backend, on_device
from privrl_bench.errors import ConfigError, refuse, require_among, require_choice
from privrl_bench.privacy.rules import check, drawing, rules, taking
from privrl_bench.users import kind_of


def check_run(run: RunConfig) -> None:
    """Refuse combinations of settings that have no meaning or no analysis. Raises `ConfigError`."""
    check(run.privacy)
    for rule in RULES:
        rule(run)


def _takes(run: RunConfig, key: str, value: str, allowed: tuple[str, ...]) -> None:
    require_among(key, value, allowed, f"algo={run.algo.name} takes")


# --- rules of every run


def _kind(run: RunConfig) -> None:
    """A kind of environment that there is."""
    require_choice("env.kind", run.env.kind, envs.REGISTRY.names())


def _users(run: RunConfig) -> None:
    """The settings have a meaning with such users."""
    kind_of(run).check(run)


def _sampling(run: RunConfig) -> None:
    """The sampler finds users as they and the algorithm allow."""
    traits, sampler = run.algo.traits, rules(run.privacy).sampler
    draws = [one for one in traits.draws if one in kind_of(run).draws]
    _takes(run, "privacy.sampling", sampler.name, drawing(draws))
    starts = " or ".join(unit for unit in traits.units if unit != "segment")
    refuse(
        sampler.draws is Draws.SAMPLED and run.env.user == "segment",
        "env.user",
        f"with privacy.sampling={sampler.name} users come and go, so a user must start from a reset: use "
        f"{starts}, got 'segment'",
    )


def _mechanism(run: RunConfig) -> None:
    """The algorithm can be used with the mechanism."""
    algo, mechanism = run.algo, rules(run.privacy).mechanism
    if mechanism.on_devices:
        refuse(
            not algo.traits.noised_observations,
            "privacy",
            f"local is noise on live users' devices, but algo={algo.name} needs the gate's clip and noise",
        )
        return
    sends = algo.traits.sends
    refuse(
        not mechanism.private and all(kind.calibrated for kind in taking(sends)),
        "privacy",
        f"algo={algo.name} is private by construction; for a run without noise use privacy.z=0, "
        "for a non-private baseline algo=ppo or algo=a2c",
    )
    if mechanism.takes not in sends:
        allowed = tuple(kind.name for kind in taking(sends))
        _takes(run, "privacy.mechanism", mechanism.name, allowed)


def _noise(run: RunConfig) -> None:
    """Without a mechanism there is no noise."""
    z = run.privacy.z
    if not rules(run.privacy).mechanism.private and z:
        raise ConfigError("privacy.z", f"privacy=none adds no noise, so it must be 0, got {z:g}")
    refuse(
        run.privacy.noise == "secure" and importlib.util.find_spec("opendp") is None,
        "privacy.noise",
        "secure needs OpenDP: pip install 'privrl-bench[secure]'",
    )


def _fit_population(run: RunConfig) -> None:
    """A population limits the rounds of users who are used once."""
    how = f"limits users that are used once; privacy.sampling={run.privacy.sampling} draws them"
    drawn = rules(run.privacy).sampler.every_round
    refuse(run.fit_population and drawn, "fit_population", how)


def _unit(run: RunConfig) -> None:
    """The algorithm can be used with the definition of a user."""
    _takes(run, "env.user", run.env.user, run.algo.traits.units)


def _scaling(run: RunConfig) -> None:
    """Scaling by users' data is in the release."""
    obs, reward = run.env.obs_scaling, run.env.reward_scaling
    for key, value in (("obs_scaling", obs), ("reward_scaling", reward)):
        refuse(
            value == "private" and not run.algo.traits.learns_scaling,
            f"env.{key}",
            f"private is a block of a private release, which algo={run.algo.name} does not make; "
            "use public, running or none",
        )


def _device(run: RunConfig) -> None:
    """A GPU is requested only where it is used."""
    refuse(
        run.hardware.device not in run.algo.traits.devices,
        "hardware",
        f"algo={run.algo.name} computes on the CPU only; use hardware=cpu",
    )


def _backend(run: RunConfig) -> None:
    """Users are simulated on a device only where the whole round is there."""
    env, algo = run.env, run.algo
    check_backend(env)
    if not on_device(env):
        return
    why = ""
    if not algo.traits.device_rounds:
        why = f"algo={algo.name} trains users whom the CPU simulates"
    elif env.user == "segment":
        why = "its users start from a reset, unlike those of env.user=segment"
    elif "running" in (env.obs_scaling, env.reward_scaling):
        why = "it keeps no running statistics"
    elif rules(run.privacy).mechanism.on_devices:
        why = (
            f"noise on users' own devices (privacy.mechanism={run.privacy.mechanism}) is on the CPU"
        )
    refuse(bool(why), "env.backend", f"is {env.backend}, but {why}; use auto")


RULES = (
    *(_kind, _users, _mechanism, _sampling, _unit, _scaling, _fit_population, _noise, _device),
    _backend,
)
