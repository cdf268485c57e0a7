"""What a run will do and cost, before any training: rounds, users, noise, epsilon, and results near it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privrl_bench.composition.identity import identity
from privrl_bench.config.overrides import GENERIC, choices, explicit_keys, own_file
from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.schema.env import wrappers_in_words
from privrl_bench.envs.backends import on_device
from privrl_bench.envs.check import ERROR, FINE, EnvFinding, brief
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import workers_of
from privrl_bench.metrics import again, shown_epsilon
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.guarantee import UNREVIEWED, WEAK_DELTA, too_large
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.reporting.nearest import nearest, store
from privrl_bench.training.charging import charge_of
from privrl_bench.training.folder import json_safe
from privrl_bench.training.plan import Plan
from privrl_bench.training.progress import coloured, folded, in_sweep, title
from privrl_bench.training.workers import one_process
from privrl_bench.users import kind_of


@dataclass(frozen=True)
class BlockNoise:
    """Noise in the mean of one round, of one part of a release.

    Attributes:
        name: of the part, e.g. `actor`.
        parameters: P, its size.
        clip: L2 bound of one user's row, parameter units.
        std: noise standard deviation of one number of the mean, the largest over the rounds.
        norm: expected L2 norm of the noise over P numbers.
    """

    name: str
    parameters: int
    clip: float
    std: float
    norm: float


@dataclass(frozen=True)
class PlanReport:
    """What `privrl plan` shows of a run.

    Attributes:
        facts: what `plan.json` has (`describe_plan`), and more:

            - `population`: the bound on the number of users, or None.
            - `rounds_asked`: what `rounds` or `total_steps` say. More than `rounds`: a budget or a population
              limits them.
            - `noise`: a `BlockNoise` of every part of a release; empty where its size is not known.
            - `nearest`: `Measured` results of the same algorithm and environment, the nearest epsilon first;
              None: there are no results to compare with.
        text: the lines that are printed.
    """

    facts: dict[str, Any]
    text: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: infinity is "inf", an undefined number "nan"."""
        plain: dict[str, Any] = json_safe(asdict(self)["facts"])
        return plain

    def lines(self) -> list[str]:
        """The plan as `privrl plan` prints it."""
        return self.text


def report_of(parts: Plan, r: int = 0, results: Path | None = None) -> PlanReport:
    """The plan of replica r.

    Args:
        parts: of the run; nothing is simulated and no user's data are read.
        r: the replica.
        results: a results store; None: that of the source tree, if it exists.
    """
    config, facts = parts.configs[r], describe_plan(parts, r)
    adjacency, epsilon = config.privacy.adjacency, facts["epsilon"]
    facts["epsilons"] = {adjacency: epsilon} | facts["epsilons"] | {adjacency: epsilon}
    folder, near = results or store(), None
    if folder is not None:
        known = facts["algo"], facts["env"], facts["epsilons"]
        near = nearest(*known, identity(config), folder)
    facts |= {
        "population": config.privacy.population,
        "rounds_asked": _asked(parts, r),
        "noise": _noise(parts, r),
        "nearest": near,
    }
    more = [*_noise_lines(facts["noise"]), *_nearest_lines(facts)]
    users = f"{_count(facts['rounds'], 'round')} of {_count(facts['users_per_round'], 'user')}"
    spent = f"epsilon {shown_epsilon(epsilon)} at delta {facts['delta']:g}"
    status = facts["guarantee"]["status"]
    answer = f"{facts['algo']} on {facts['env']}: {users}, {spent}, {status}"
    return PlanReport(facts, [answer, *_table(parts, r, facts), *more])


def _table(parts: Plan, r: int, facts: dict[str, Any]) -> list[str]:
    """Users, rounds, noise and guarantee, a line each."""
    config, guarantee, mechanism = parts.configs[r], parts.gate.guarantee(r), parts.gate.mechanism
    privacy, who = config.privacy, parts.users.words(parts.rounds).full
    rows = [
        ("users per round", f"{privacy.users_per_round:,}"),
        ("rounds", _rounds(parts, r, facts["rounds_asked"])),
        *([("users in all", who)] if who else []),
        ("trajectories", f"of at most {parts.steps:,} steps")
        if parts.users.from_data
        else ("steps", f"{facts['steps']:,}, {parts.steps:,} of one user"),
        ("values", config.hyperparameter_source),
        *([("device", _device(config))] if on_device(config.env) else []),
    ]
    if mechanism.private and not mechanism.one_release:
        how = f"{privacy.mechanism}, {privacy.sampling} sampling"
        rows.append(("z", f"{privacy.z:g}, the noise multiplier ({how})"))
    if noise := mechanism.describe_noise(r):
        rows.append(("noise", noise))
    if scale := parts.algo.terms().result_scale:
        std = scale * facts["noise"][0].std if facts["noise"] else 0.0
        rows.append(("noise of result", f"standard deviation {std:.3g}, beside that of the users"))
    for name, value in facts["epsilons"].items():
        text = f"{shown_epsilon(value)} at delta {privacy.delta:g}"
        rows.append((f"epsilon, {name.replace('_', '-')}", text))
    if charge := charge_of(parts):
        rows += charge.rows(parts, r)
    known = (too_large(facts["epsilon"]), parts.algo.terms().warning)
    rows += [("warning", text) for text in known if text]
    rows += [(name, getattr(guarantee, name)) for name in ("status", "unit", "notion")]
    rows += [("caveat", f"{name}: {why}") for name, why in guarantee.caveats.items()]
    width = max(len(name) for name, _ in rows) + 2
    return [f"  {name:{width}}{text}" for name, text in rows]


def _device(config: RunConfig) -> str:
    """Where the parts of a round are computed."""
    there = f"{config.hardware.device}: users' environments (env.backend={config.env.backend})"
    return f"{there}, actions, training, clip and sum; CPU: noise, evaluation with env.backend=auto"


def _asked(parts: Plan, r: int) -> int:
    """Rounds that the configuration asks for, before a budget or a population limits them."""
    config = parts.configs[r]
    by_steps = config.total_steps // parts.round_steps
    if config.algo.traits.one_round:
        return parts.rounds
    if parts.users.room(parts.rounds).limits and parts.rounds < by_steps:
        return by_steps
    return config.rounds or by_steps


def _noise(parts: Plan, r: int) -> list[BlockNoise]:
    """Noise of every part of a release, relative to the public number of users."""
    users, found = parts.config.privacy.users_per_round, []
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
            BlockNoise(block.name, block.size, block.clip, noise[block.name] / users, norm / users)
        )
    return found


def _rounds(parts: Plan, r: int, asked: int) -> str:
    privacy, rounds = parts.configs[r].privacy, parts.rounds
    if rounds == asked:
        return f"{rounds:,}"
    limit = f"the population of {privacy.population:,}, of which each is used once"
    if not parts.users.room(rounds).limits and privacy.epsilon is not None:
        limit = f"the budget, epsilon {shown_epsilon(privacy.epsilon)}"
    return f"{rounds:,} of {asked:,}, limited by {limit}"


def _noise_lines(noise: Sequence[BlockNoise]) -> list[str]:
    """The table of the parts of a release."""
    if not noise:
        return []
    rows = [("part", "parameters", "clip", "std of one", "norm of all", "norm / clip")]
    for one in noise:
        size, clip, std, norm = f"{one.parameters:,}", f"{one.clip:g}", f"{one.std:.3g}", one.norm
        rows.append((one.name, size, clip, std, f"{norm:.3g}", f"{norm / one.clip:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "noise in the mean of a round",
        *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
    ]


def _nearest_lines(facts: dict[str, Any]) -> list[str]:
    """Measured results."""
    if facts["nearest"] is None:
        return [
            "measured: nothing, because there are no results here (a wheel has none); give a "
            "folder of results with --results DIR, such as outputs/paper of the source tree"
        ]
    if math.isinf(facts["epsilon"]):
        return ["measured: results are compared by epsilon, which is infinite here"]
    if not facts["nearest"]:
        which = f"{facts['algo']} on {facts['env']}"
        return [f"measured: no formal result of {which} in the results store"]
    lines = ["measured, nearest epsilon first"]
    for one in facts["nearest"]:
        lines += [f"  {one.line()}", f"      {one.item}: {one.words}"]
    return lines


# --- plan.json


def describe_plan(parts: Plan, r: int, ledger: Ledger | None = None) -> dict[str, Any]:
    """The plan of replica r as `plan.json` holds it; of a resumed run with the ledger of its end."""
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
        "guarantee": gate.guarantee(r, ledger=ledger).to_dict(),
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
        "mechanism": mechanism_in_words(parts, r),
        **preview_facts(gate, r),
        **({"data": about} if about else {}),
        **gate.mechanism.plan_entries(r),
    }


def mechanism_in_words(parts: Plan, r: int) -> str:
    """The noise of a run; empty: it has none."""
    mechanism, privacy = parts.gate.mechanism, parts.configs[r].privacy
    if not mechanism.private or not privacy.z:
        return ""
    shape = mechanism.describe_noise(r) or privacy.mechanism
    seeded = "; seeded: for simulated users only" if privacy.noise == "seeded" else ""
    return f"z = {privacy.z:.4g}, {shape}{seeded}"


def preview_facts(account: Account, r: int) -> dict[str, Any]:
    """`preview`: cohort, users and epsilon of the run that replica r is a preview of; empty for others."""
    config = account.configs[r]
    if config.noise_cohort is None:
        return {}
    users = config.noise_cohort * account.rounds
    epsilon = account.real_epsilon(r)
    return {"preview": {"users_per_round": config.noise_cohort, "users": users, "epsilon": epsilon}}


# --- what a run prints


def announce(
    parts: Plan, r: int, folder: Path, given: Sequence[str], ledger: Ledger | None = None
) -> None:
    """Print the plan of a run: all of it with `log.full` or `plan_only`, else nothing in a sweep.

    Of runs that are trained together, the first is announced.

    Args:
        parts: of the group.
        r: the run.
        folder: of the run.
        given: its overrides.
        ledger: of a resumed run what its ledger will be at its end.
    """
    config, guarantee = parts.configs[r], parts.gate.guarantee(r, ledger=ledger)
    mechanism, full = parts.gate.mechanism, config.log.full or config.plan_only
    if r or (in_sweep() and not full):
        return
    here = Path.cwd()
    short = folder.relative_to(here) if folder.is_relative_to(here) else folder
    words = parts.users.words(parts.rounds)
    users = words.who
    if after := parts.iterations - parts.rounds:
        users += f"{'; ' if users else ''}then {_count(after, 'iteration')} of policy training"
    each = f"{_count(parts.rounds, 'round')} of {_count(config.privacy.users_per_round, 'user')}"
    lines = [("plan", f"{each}{words.size}{'; ' + users if users else ''}")]
    if full and (workers := workers_of(config)) > 1:
        reason = one_process(parts)
        several = f"up to {workers} processes; each computes the updates of some users of a round"
        lines.append(("workers", f"1: {reason}" if reason else several))
    if words.about:
        lines.append(("data", words.about))
    if unknown(config.env):
        lines += _environment_lines(config)
    elif full:
        lines.append(("values", config.hyperparameter_source))
    named = "rounds" in explicit_keys(given) and parts.users.room(parts.rounds).limits
    if parts.rounds < (asked := _asked(parts, r)) and not named:
        lines.append(("rounds", _rounds(parts, r, asked)))
    if noise := mechanism_in_words(parts, r):
        lines.append(("noise", noise))
    for facts in preview_facts(parts.gate, r).values():
        real = f"epsilon {shown_epsilon(facts['epsilon'])} at delta {config.privacy.delta:g}"
        cohort = f"{facts['users_per_round']:,} users a round ({facts['users']:,} in all)"
        lines.append(("preview", f"noise as of {cohort}, with whom the run would have {real}"))
    lines.append(("privacy", guarantee.sentence()))
    if UNREVIEWED in guarantee.notes:
        lines.append(("note", guarantee.notes[UNREVIEWED]))
    lines += [("warning", line) for line in warnings(parts, r)]
    if full and mechanism.private:
        notes = f"notion {guarantee.notion}; notes {', '.join(guarantee.notes)}"
        lines.append(("", f"{notes}; in full: privrl explain {shlex.quote(str(short))}"))
    lines.append(("folder", str(folder) if full else str(short)))
    if in_sweep():
        print(title(config))
    shown = (folded(f"  {name:7} ", text) for name, text in lines)
    print(coloured("\n".join(shown)), flush=True)


def _environment_lines(config: RunConfig) -> list[tuple[str, str]]:
    """What is said of an environment that is none of the package's: wrappers, checks, whose values."""
    lines = [("wrapped", wrappers_in_words(config.env))] if config.env.wrappers else []
    checks = check_before_training(config)
    lines += [("check", one.text) for one in checks if one.severity == FINE]
    source = config.hyperparameter_source
    if source.startswith("algo/"):
        source += f"; they were not tuned for {config.env.label}"
    return [*lines, ("values", source)]


def _count(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> _count(1, "round"), _count(8, "user")
    ('1 round', '8 users')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def warnings(parts: Plan, r: int) -> list[str]:
    """What is to be known before replica r is trained, of its environment, delta and epsilon."""
    checks = check_before_training(parts.configs[r])
    found = [f"{one.check}: {one.text}" for one in checks if one.severity != FINE]
    guarantee = parts.gate.guarantee(r)
    large = (guarantee.caveats | guarantee.notes).get(WEAK_DELTA)
    if large is not None:
        found.append(f"{WEAK_DELTA}: {large}")
    return [*found, *filter(None, [too_large(guarantee.epsilon), parts.algo.terms().warning])]


def repeat_warning(account: Account, r: int, ledger: Ledger | None) -> str:
    """Return that epsilon will exceed `privacy.epsilon`, because rounds are repeated; empty: it will not.

    Args:
        account: of the run.
        r: the replica.
        ledger: what that of a resumed run will be at its end; None: it is not resumed.
    """
    limit, repeated = account.configs[r].epsilon, ledger.repeated() if ledger else []
    if limit is None or not repeated:
        return ""
    if (epsilon := account.guarantee(r, ledger=ledger).epsilon) <= limit:
        return ""
    return (
        f"{again(len(repeated))}: epsilon {shown_epsilon(epsilon)} after all {account.rounds} rounds, "
        f"above privacy.epsilon={shown_epsilon(limit)}"
    )


# --- environments that are none of the package's own

_CHECKED: dict[str, list[EnvFinding]] = {}


def unknown(config: EnvConfig) -> bool:
    """Whether the environment is none that the package or a plugin names, or has wrappers."""
    named = config.name in choices("env") and own_file("env", config.name) is None
    named = named and config.name not in GENERIC and not config.wrappers
    return config.kind in GENERIC and not named


def check_before_training(config: RunConfig) -> list[EnvFinding]:
    """Findings of `envs.check.brief` for an unknown Gymnasium environment that is simulated; else none.

    Raises:
        ConfigError: One is an error, with which training cannot work.
    """
    if not (config.env.check and kind_of(config).in_environments):
        return []
    if config.env.kind != "gym" and not config.env.wrappers:
        return []
    if not unknown(config.env):
        return []
    key = repr(config.env)
    if key not in _CHECKED:
        _CHECKED[key] = brief(config.env)
    for one in _CHECKED[key]:
        if one.severity == ERROR:
            raise ConfigError(
                "env.wrappers" if config.env.wrappers else "env.id",
                f"{config.env.label}: {one.text}; privrl check-env shows more, env.check=false trains on it",
            )
    return _CHECKED[key]
