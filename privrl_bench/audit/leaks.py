"""`privrl-audit leaks`: what one user changes later although everybody sees the same released values.

Two worlds run the real training code with the same seed. In one round, one user of the second world is
somebody else. From then on both get the same released values, so everything that later rounds compute must
be the same, bit for bit; a difference is a path around the gate. It must be a declared caveat.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from privrl_bench.assemble import NOT_PRIVATE, env_spec, user_steps
from privrl_bench.audit.people import CRAFTED, NULL
from privrl_bench.audit.worlds import Difference, Place, World, distance
from privrl_bench.config import compose
from privrl_bench.errors import ConfigError, EnvironmentFailure, PrivacyError
from privrl_bench.machine import check_hardware, use_threads
from privrl_bench.schema import RunConfig

_PEOPLE = 6  # who played a known policy
LATER = 2  # rounds after the user's
_STEPS, _USERS, _EPOCHS, _MINIBATCHES, _EPISODES = 64, 4, 2, 4, 1  # of a test that takes seconds
# Every round trains the policy in the model, a little.
_MODEL_BASED = {
    **{"check_every": 1, "improve_every": 1, "policy_steps": 10, "policy_turns": 1},
    **{"rollouts": 16, "rollout_length": 3},
}

USAGE = """privrl-audit leaks: what gets past the gate, bit for bit

  privrl-audit leaks [group=choice ...] [key=value ...] [--round I] [--user U] [--json FILE]

Runs the real training code in two worlds that differ in one user of one round: once she contributes
nothing (null), once she is somebody else with extreme data (crafted). Both worlds get the same released
values. Everything that later rounds compute is then compared; what differs went around the gate and must
be a caveat of the configuration. `found` says where a path begins, `reaches` what later rounds compute
otherwise when all paths are left as they are. With privacy=local the user has other observations (and noised
rewards), her device shows the same, and nothing at all may differ. Sizes that cost time only are cut unless
they are given; the output says which. Not seen: time, files, and what shows after more than two rounds only.

  --round I     the user's round, from 0 (default 1)
  --user U      the user in it, from 0 (default 0)
  --json FILE   write the report as JSON, too

Exit codes: 0 what was found is what is declared; 1 it is not, or the test has no power; 2 bad input."""


@dataclass(frozen=True)
class LeakReport:
    """What the test found in one configuration.

    Attributes:
        label: algorithm and environment.
        status: formal | heuristic | none, as the configuration declares it.
        round, user: where the worlds differ, from 0.
        last: the last round that was compared.
        compared: number of comparisons of two tensors.
        declared: names of the caveats.
        open: everything is outside the gate by declaration (privacy=none).
        found: name of a path -> the first difference on it.
        reached: tensors of later rounds that differ when the paths are left as they are.
        powerless: reasons why the test could not have found anything; empty if it could.
    """

    label: str
    status: str
    round: int
    user: int
    last: int
    compared: int
    declared: tuple[str, ...]
    open: bool
    found: dict[str, Difference]
    reached: tuple[str, ...]
    powerless: tuple[str, ...]

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Paths that the configuration does not name."""
        return () if self.open else tuple(n for n in self.found if n not in self.declared)

    @property
    def missing(self) -> tuple[str, ...]:
        """Caveats that no difference stands for."""
        return tuple(name for name in self.declared if name not in self.found)

    @property
    def ok(self) -> bool:
        """Whether what was found is exactly what is declared."""
        return not (self.undeclared or self.missing or self.powerless)

    def verdict(self) -> str:
        """One line."""
        if self.powerless:
            hint = " (--round or --user chooses another; round 0 has the policy before any noise)"
            return f"no power: {'; '.join(self.powerless)}{hint}"
        wrong = []
        if self.undeclared:
            wrong.append(f"undeclared paths around the gate: {', '.join(self.undeclared)}")
        if self.missing:
            wrong.append(f"declared, no difference found: {', '.join(self.missing)}")
        if wrong:
            return f"{self.status}, but {'; '.join(wrong)}"
        count = f"{len(self.found)} path{'s' if len(self.found) != 1 else ''}"
        if self.open:
            return f"{self.status}: not private, everything is outside the gate; {count} found"
        if self.found:
            return f"{self.status}: {count} past the gate, all declared"
        return f"{self.status}: no path around the gate"

    def lines(self) -> list[str]:
        """The report for a terminal."""
        lines = [
            f"leaks   {self.label}, user {self.user} of round {self.round} crafted and null; rounds "
            f"{self.round} to {self.last} compared bit for bit: {self.compared} pairs of tensors"
        ]
        for name, seen in self.found.items():
            label = "declared" if name in self.declared else "covered by not private"
            label = "UNDECLARED" if name in self.undeclared else label
            what = f"{seen.tensor} ".removeprefix(f"{name} ")
            lines.append(
                f"  found   {name}: {what}in round {seen.round} differs by {seen.size:.2g} "
                f"({label}; {seen.person} user)"
            )
        lines += [f"  missing {name}: declared, no difference found" for name in self.missing]
        if self.reached:
            more = f" and {len(self.reached) - 6} more" if len(self.reached) > 6 else ""
            lines.append(f"  reaches {', '.join(self.reached[:6])}{more}")
        return [*lines, f"verdict  {self.verdict()}"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self) | {
            "undeclared": self.undeclared,
            "missing": self.missing,
            "ok": self.ok,
            "verdict": self.verdict(),
        }


def find_leaks(
    config: RunConfig, round_index: int = 1, user: int = 0, later: int = LATER
) -> LeakReport:
    """Run the leak test.

    Args:
        config: one run, at its own size; `shrink` makes it small.
        round_index: the user's round, from 0.
        user: the user in it, from 0.
        later: rounds after it that are compared.

    Raises:
        ConfigError: the run is too short, the user is not in the round, or two equal worlds differ.
        EnvironmentFailure: an environment raised.
        PrivacyError: the gate itself refused what the algorithm sent.
    """
    if config.algo.everybody:  # one round, and what is evaluated after it
        round_index, later = 0, 0
    place = Place(round_index, user)
    with ExitStack() as stack:

        def world(*what: Any) -> World:
            made = World(config, place, *what)
            stack.callback(made.close)
            return made

        model = world()
        parts = model.parts
        rounds = round_index + later + 1
        if config.rounds is not None and parts.rounds < rounds:
            raise ConfigError("rounds", f"the test needs {rounds}, got {parts.rounds}")
        if parts.rounds < rounds:
            raise ConfigError(
                "total_steps",
                f"the test needs {rounds} rounds of {parts.round_steps} steps = "
                f"{rounds * parts.round_steps}, got {config.total_steps}",
            )
        crafted, null = world(CRAFTED, model), world(NULL, model)
        as_it_is = world(CRAFTED, model, False)
        for index in range(rounds):
            for one in (model, crafted, null, as_it_is):
                one.step()
            if index < round_index and crafted.differences:
                raise ConfigError(
                    "env",
                    f"two equal worlds differ in {crafted.differences[0].tensor}: something is not "
                    "determined by the seed, or outlives a run, so nothing can be compared",
                )
        for one in (model, crafted, null, as_it_is):
            one.evaluate()
    found: dict[str, Difference] = {}
    for seen in sorted(crafted.differences + null.differences, key=lambda d: d.round):
        found.setdefault(seen.path, seen)
    caveats = parts.plan.caveats
    # The status of the guarantee without the time its epsilon takes.
    noisy = parts.plan.event(0).z > 0 or parts.plan.config.mechanism == "smooth"
    after = [d for d in as_it_is.differences if d.round > round_index]
    return LeakReport(
        label=f"{config.algo.name} on {config.env.label}",
        status="none" if not noisy else "heuristic" if caveats else "formal",
        round=round_index,
        user=user,
        last=rounds - 1,
        compared=crafted.compared + null.compared,
        declared=tuple(name for name in caveats if name != NOT_PRIVATE),
        open=NOT_PRIVATE in caveats,
        found=found,
        reached=tuple(dict.fromkeys(d.tensor for d in after)),
        powerless=_powerless(model, crafted),
    )


def _powerless(model: World, crafted: World) -> tuple[str, ...]:
    """Why the worlds may agree although there is a path."""
    reasons = []
    if not model.own_valid:
        reasons.append("the user is invalid in the world that nobody touched")
    if not any(bool(x.any()) for x in model.own_row.values()):
        reasons.append("the user's row is zero, so a null user changes nothing")
    there = crafted.own_row
    if all(distance(x, there[name]) is None for name, x in model.own_row.items()):
        reasons.append("the crafted user's row is the same as the one she replaces")
    return tuple(reasons)


def shrink(
    config: RunConfig,
    given: frozenset[str] = frozenset(),
    rounds: int = LATER + 2,
    users: int = _USERS,
    user: int = 0,
) -> tuple[RunConfig, list[str]]:
    """The configuration with sizes at which the test takes seconds.

    Args:
        config: one run.
        given: keys that were asked for and stay as they are.
        rounds: rounds that have to fit.
        users: users of a round.
        user: who is to be another, where people come one after the other.

    Returns: the configuration, and what was cut: `env.user_steps 2048 -> 64`.
    """
    cuts: list[str] = []

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
    if config.algo.evaluates:
        config = cut(config, "privacy", population=_PEOPLE)
        config = cut(config, "algo", reference=_PEOPLE)
    takes = config.algo.offline or config.algo.keeps or config.algo.evaluates
    if takes and not config.algo.everybody and "rounds" not in given:
        config, cuts = replace(config, rounds=rounds), [*cuts, f"rounds -> {rounds}"]
    if config.algo.offline or config.data.id is not None:
        return config, cuts
    if config.env.kind == "text":
        config = cut(config, "algo", baseline_prompts=users)
        need = rounds * config.privacy.users_per_round * config.env.text.new_tokens
        if config.total_steps > need and not {"total_steps", "rounds"} & given:
            cuts.append(f"total_steps {config.total_steps} -> {need}")
            config = replace(config, total_steps=need)
        return config, cuts
    if config.algo.keeps:  # few people, so that she joins soon
        config = cut(config, "algo", act_every=1, new_users=user + 1)
        coming = config.algo.people(config.rounds or rounds)
        config = cut(config, "privacy", users_per_round=coming - 1, population=coming)
    # T, in the key that it comes from; a minibatch needs a step.
    steps = user_steps(config.env, env_spec(config.env))
    key = "max_episode_steps" if config.env.user == "episode" else "user_steps"
    explicit: Any = {key: steps}
    config = replace(config, env=replace(config.env, **explicit))
    config = cut(config, "env", **{key: max(_STEPS, getattr(config.algo, "minibatches", 1))})
    need = rounds * config.privacy.users_per_round * getattr(config.env, key)
    if config.total_steps < need and "total_steps" not in given:
        cuts.append(f"total_steps {config.total_steps} -> {need}")
        config = replace(config, total_steps=need)
    return config, cuts


class _Parser(argparse.ArgumentParser):
    """Says what is wrong as a `ConfigError`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("", f"{message}; see privrl-audit leaks --help")


def main(argv: list[str]) -> int:
    """The command; returns its exit code.

    Raises:
        ConfigError: bad input.
    """
    parser = _Parser(prog="privrl-audit leaks", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--round", type=int, default=1)
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args(argv)
    if args.help:
        print(USAGE)
        return 0
    for flag in ("round", "user"):
        if getattr(args, flag) < 0:
            raise ConfigError(f"--{flag}", f"must be >= 0, got {getattr(args, flag)}")
    config = compose(args.overrides)
    check_hardware(config)
    use_threads(config.hardware.threads)
    given = frozenset(word.partition("=")[0].lstrip("+~") for word in args.overrides)
    config, cuts = shrink(
        config, given, args.round + LATER + 1, max(_USERS, args.user + 1), args.user
    )
    try:
        report = find_leaks(config, args.round, args.user)
    except EnvironmentFailure as error:
        raise ConfigError("env", str(error)) from error
    except PrivacyError as error:
        print(f"verdict  the gate refused: {error}")
        return 1
    first, *rest = report.lines()
    print(first)
    if cuts:
        print(f"  cut     {', '.join(cuts)}")
    print("\n".join(rest), flush=True)
    if args.json is not None:
        try:
            args.json.write_text(json.dumps(report.to_dict() | {"cut": cuts}, indent=2) + "\n")
        except OSError as error:
            raise ConfigError("--json", f"cannot write {args.json}: {error.strerror}") from None
    return 0 if report.ok else 1
