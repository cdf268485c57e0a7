"""`privrl-audit leaks`: what one user changes later although everybody sees the same released values.

Two worlds run the real training code with the same seed. In some rounds another user takes the place of one in
the second world. From then on both get the same released values, so everything that later rounds compute, and
everything that may leave the run, must be the same, bit for bit; a difference is a path around the gate. It
must be a declared caveat.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from privrl_bench.audit.compare import Difference, distance
from privrl_bench.audit.counterfactual import CounterfactualRun
from privrl_bench.audit.leak_report import LeakReport
from privrl_bench.audit.replacement_data import CRAFTED, NULL
from privrl_bench.audit.shrink import LATER, USERS, shrink
from privrl_bench.audit.visits import WINDOW, Visit, visits_after
from privrl_bench.collectors.prompts import PromptCollector
from privrl_bench.collectors.returning_users import ReturningUsers
from privrl_bench.config.compose import compose
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, EnvironmentFailure, PrivacyError
from privrl_bench.experiment.builder import RunComponents, build
from privrl_bench.experiment.guarantee_terms import NOT_PRIVATE
from privrl_bench.experiment.plugin_review import outside, write
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.experiment.writable import check_file
from privrl_bench.kernels.machine import check_hardware, use_threads
from privrl_bench.privacy.guarantee import UNREVIEWED

USAGE = """privrl-audit leaks: what gets past the gate, bit for bit

  privrl-audit leaks [group=choice ...] [key=value ...] [--config-dir DIR] [--round I] [--user U] [--json FILE]

Runs the real training code in two worlds that differ in one user: once the user contributes nothing (null),
once the user is another one with extreme data (crafted). Both worlds get the same released values. Everything
that later rounds compute is then compared, and what may leave the run: released metrics, policy.pt, exported
files, evaluation. What differs went around the gate and must be a caveat of the configuration. The test
compares the first rounds, the last planned ones, and late ones around multiples of every period up to 100 and
of the configured periods. Two runs with other seeds are trained together: the second must not differ.

`found` says where a path begins, `reaches` what later rounds compute otherwise when all paths are left as they
are, `not covered` what the test does not see. With privacy=local the user has other observations (and noised
rewards), the device shows the same, and nothing at all may differ. Sizes that cost time only are cut unless
they are given; the output says which. When an algorithm from outside the package passes, the result is recorded
in outputs/reviews, and runs of this configuration and version are no longer `unreviewed`.

  --config-dir DIR  a folder with more YAML files, as for privrl-bench
  --round I         the user's round, from 0 (default 1), within the plan
  --user U          the user in it, from 0 (default 0)
  --json FILE       write the report as JSON, too

Exit codes: 0 what was found is what is declared; 1 it is not, or the test has no power; 2 bad input."""


@dataclass(frozen=True)
class _Seen:
    """What one visit showed."""

    visit: Visit
    differences: list[Difference]
    compared: int
    reached: tuple[str, ...]
    no_test_power: tuple[str, ...]


def find_leaks(
    config: RunConfig, round_index: int = 1, user: int = 0, later: int = LATER, late: bool = True
) -> LeakReport:
    """Run the leak test.

    Args:
        config: one run, at its own size; `shrink` makes it small.
        round_index: the user's round in the first visit, from 0.
        user: the user in it, from 0.
        later: rounds after it that are compared.
        late: visit the last planned and late rounds and compiled episodes, too.

    Raises:
        ConfigError: the run is too short, the user is not in the round, or two equal worlds differ.
        EnvironmentFailure: an environment raised.
        PrivacyError: the gate itself refused what the algorithm sent.
    """
    if config.algo.full_batch:  # one round, and what is evaluated after it
        round_index, later = 0, 0
    first = Visit(round_index, user, round_index, round_index + later + 1)
    with ExitStack() as stack:
        model = _world(stack, config, first)
        parts, rollout = model.parts, model.session.rollout
        _check_length(config, parts, first.end)
        seen = [_compare(stack, config, first, model)]
        compiled = model.compiles
    visits = []
    late = (
        late and NOT_PRIVATE not in parts.gate.caveats
    )  # where there is no gate, none has to be late
    if late and compiled and parts.gate.local is None:
        visits.append(replace(first, compiled=True))
    if late:
        used_up = (
            isinstance(rollout, ReturningUsers | PromptCollector) or parts.spec.users is not None
        )
        visits += visits_after(config, user, parts.rounds if used_up else WINDOW)
    for visit in visits:
        with ExitStack() as stack:
            seen.append(_compare(stack, config, visit, _world(stack, config, visit)))
    found: dict[str, Difference] = {}
    for difference in (d for one in seen for d in sorted(one.differences, key=lambda d: d.round)):
        found.setdefault(difference.path, difference)
    caveats = parts.gate.caveats
    return LeakReport(
        label=f"{config.algo.name} on {config.env.label}",
        status=_status(parts),
        round=round_index,
        user=user,
        last=first.end - 1,
        visits=tuple(visits),
        replicas=len(parts.configs),
        compared=sum(one.compared for one in seen),
        declared=tuple(name for name in caveats if name != NOT_PRIVATE),
        open=NOT_PRIVATE in caveats,
        found=found,
        reached=seen[0].reached,
        no_test_power=tuple(dict.fromkeys(why for one in seen for why in one.no_test_power)),
        not_covered=_not_covered(parts, model.session, compiled, late),
    )


def _world(stack: ExitStack, *what: Any) -> CounterfactualRun:
    made = CounterfactualRun(*what)
    stack.callback(made.close)
    return made


def _check_length(config: RunConfig, parts: RunComponents, rounds: int) -> None:
    """Raise ConfigError: the run has fewer rounds."""
    if config.rounds is not None and parts.rounds < rounds:
        raise ConfigError("rounds", f"the test needs {rounds}, got {parts.rounds}")
    if parts.rounds < rounds:
        raise ConfigError(
            "total_steps",
            f"the test needs {rounds} rounds of {parts.round_steps} steps = "
            f"{rounds * parts.round_steps}, got {config.total_steps}",
        )


def _compare(stack: ExitStack, config: RunConfig, visit: Visit, model: CounterfactualRun) -> _Seen:
    """One visit: the worlds side by side, and what differs."""
    crafted = _world(stack, config, visit, CRAFTED, model)
    null = _world(stack, config, visit, NULL, model)
    worlds = [model, crafted, null]
    usual = visit.planned is None and not visit.compiled
    if usual:
        worlds.append(_world(stack, config, visit, CRAFTED, model, False))
    while model.session.round < visit.end and not model.session.over:
        index = model.session.round
        for one in worlds:
            one.step()
        if index < visit.first and crafted.stages.differences:
            raise ConfigError(
                "env",
                f"two equal worlds differ in {crafted.stages.differences[0].tensor}: something is not "
                "determined by the seed, or outlives a run, so nothing can be compared",
            )
    if usual:
        for one in worlds:
            one.evaluate()
    after = [d for d in worlds[-1].stages.differences if d.round > visit.last] if usual else []
    return _Seen(
        visit,
        crafted.stages.differences + null.stages.differences,
        crafted.stages.compared + null.stages.compared,
        tuple(dict.fromkeys(d.tensor for d in after)),
        _no_test_power(visit, model, crafted),
    )


def _no_test_power(
    visit: Visit, model: CounterfactualRun, crafted: CounterfactualRun
) -> tuple[str, ...]:
    """Why the worlds may agree although there is a path."""
    reasons = []
    if not model.own_valid:
        reasons.append("the user is invalid in the world that nobody touched")
    if not any(bool(x.any()) for own in model.own_rows for x in own.values()):
        reasons.append("the user's row is zero, so a null user changes nothing")
    both = zip(model.own_rows, crafted.own_rows, strict=False)
    if all(distance(x, there[name]) is None for own, there in both for name, x in own.items()):
        reasons.append("the crafted user's row is the same as the one it replaces")
    where = f"in rounds {visit.first} to {visit.last}: " if visit.moved else ""
    return tuple(where + reason for reason in reasons)


def _status(parts: RunComponents) -> str:
    """The status of the guarantee, without the time that its epsilon takes."""
    plan = parts.gate
    if not (plan.event(0).z > 0 or plan.mechanism.one_release):
        return "none"
    if plan.caveats:
        return "heuristic"
    return UNREVIEWED if UNREVIEWED in plan.notes else "formal"


def _not_covered(
    parts: RunComponents, session: Trainer, compiled: bool, late: bool
) -> tuple[str, ...]:
    """What this test does not see, in words."""
    config = parts.config
    lines = [
        "time, memory and the private files of the run folder (checkpoint, ledger, local log)",
        "the accounting, the noise and the secrecy of sampling (privrl-audit epsilon)",
        "what shows only after more than two rounds, or in a state that many rounds have changed",
    ]
    if not late:
        lines.append("late rounds and the last planned ones")
    if len(parts.configs) == 1:
        lines.append("runs that are trained together (this algorithm trains one at a time)")
    if compiled and parts.gate.local is not None:
        lines.append("compiled episodes with noise on devices (they are stepped here)")
    if config.data.id is not None:
        lines.append("how the dataset is loaded and split (the user is replaced after it)")
    if config.env.kind == "text":
        lines.append(
            "how texts are loaded, cut to prompts and split (the prompt is replaced after it)"
        )
    if parts.spec.users is not None:
        lines.append("what the environment does for a declared user (simulations are played)")
    if config.hardware.env_workers or config.hardware.eval_process:
        lines.append("environments and evaluation in other processes")
    if config.hardware.device != "cpu":
        lines.append("the memory of the device")
    return tuple(lines)


def _round(config: RunConfig, asked: int | None) -> int:
    """The user's round. Raises ConfigError for one that the configuration, at its own size, does not have."""
    if asked is None:
        return 1
    rounds = build([config], [None]).rounds
    if asked >= rounds:
        raise ConfigError(
            "--round", f"the plan has {rounds} rounds, so the last is {rounds - 1}, got {asked}"
        )
    return asked


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
    parser.add_argument("--round", type=int)
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--config-dir")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args(argv)
    if args.help:
        print(USAGE)
        return 0
    for flag in ("round", "user"):
        if (getattr(args, flag) or 0) < 0:
            raise ConfigError(f"--{flag}", f"must be >= 0, got {getattr(args, flag)}")
    if args.json is not None:
        check_file("--json", args.json)
    config = compose(args.overrides, args.config_dir)
    check_hardware(config)
    args.round = _round(config, args.round)
    use_threads(config.hardware.threads)
    given = frozenset(word.partition("=")[0].lstrip("+~") for word in args.overrides)
    small, cuts = shrink(
        config, given, args.round + LATER + 1, max(USERS, args.user + 1), args.user
    )
    try:
        report = find_leaks(small, args.round, args.user)
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
    if report.ok and outside(config):
        path = write(config, report.verdict(), report.lines())
        where = f"recorded in {path}" if path else "not recorded: its source cannot be read"
        print(f"review   {where}", flush=True)
    return 0 if report.ok else 1
