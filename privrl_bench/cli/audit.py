"""The command `privrl audit`: tests the privacy of a configuration."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privrl_bench.audit.options import Options, check_options
from privrl_bench.cli.parsing import (
    CONFIG_DIR,
    OVERRIDES,
    Command,
    Parser,
    add_working_directory,
    check_at_least,
    dispatch,
    given,
)
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.training.crash import guarded
from privrl_bench.training.writable import check_file, check_folder

if TYPE_CHECKING:
    from privrl_bench.api.auditing import EpsilonAudit, LeakAudit

ABOUT = "Test the privacy of a configuration on the real training code."
COMMANDS = {
    "leaks": Command(
        "privrl_bench.cli.audit:leaks", "find what bypasses the gate, bit for bit, in seconds"
    ),
    "epsilon": Command(
        "privrl_bench.cli.audit:epsilon", "measure a lower bound on epsilon with attacks"
    ),
}
EXIT_CODES = "Exit codes: 0 nothing contradicts the guarantee; {};\n2 bad input; 130 interrupted."

LEAKS = """Find what bypasses the gate, bit for bit.

Runs the real training code several times, with datasets that differ in one user. The user contributes nothing
(null), has extreme data (crafted), a row of zeros (zero) or a row on the other side of the clip bound (short),
or is missing from a random cohort (absent). All runs get the same released values. Then everything that later
rounds compute is compared, and everything that leaves the run: the files of the run folder but the private
ones, printed lines, what W&B gets, what the algorithm's object keeps, when training ends. A difference bypassed
the gate and must be a caveat of the configuration. The test compares the first rounds, the last planned ones,
late ones around multiples of every period up to 100 and of the configured periods, and cohorts of one user and
of the largest size. Two runs with other seeds are trained together: the second must not differ.

`found` names where a path begins, `not covered` what the test does not see. With privacy=local the user has
other observations (and noised rewards), the device shows the same, and nothing may differ. Sizes that only
cost time are reduced unless they are given; the output lists them. When an algorithm from outside the package
passes, the result is recorded in outputs/reviews, and runs of this configuration and version are no longer
`unreviewed`. With a mechanism from outside the package they need `privrl audit epsilon`, too."""

EPSILON = """Measure lower bounds on epsilon with attacks on the real training code.

The bounds are printed beside the claimed epsilon. A bound above the claim is a defect of the code, of the
accounting or of a caveat. A bound below the claim proves nothing. A mechanism from outside the package stays
`unreviewed` until this audit, with the canary attack, and the leak test have passed.

Example: {} env=cartpole algo.critic=private env.user=fresh privacy.z=1"""


# Option -> metavar, help. Defaults: `Options`.
EPSILON_OPTIONS: dict[str, tuple[str, str]] = {
    "attack": (
        "NAME",
        "canary: worst-case rows through the gate, the tight bound; one-run: many canaries in one run "
        "(Steinke et al. 2023); end-to-end: a crafted user against whole runs, from what they release; "
        "all: the three",
    ),
    "confidence": ("P", "confidence of each bound"),
    "scores": ("N", "canary: canary units of the run"),
    "per_round": ("N", "canary: units of one round, in orthogonal directions"),
    "canaries": ("N", "one-run: canaries of the run"),
    "replicas": ("N", "end-to-end: runs, half of them with the crafted user"),
    "later_rounds": ("N", "end-to-end: rounds observed after the user's round"),
}


def main(arguments: Sequence[str] | None = None, prog: str = "privrl audit") -> int:
    """Run the command and return its exit code."""
    add_working_directory()
    words = given(arguments)
    return guarded(
        lambda: dispatch(prog, ABOUT, COMMANDS, words, EXIT_CODES.format("1 something does")),
        "no results were kept; rerun the same command to start again",
    )


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="override", help=OVERRIDES)
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)


# --- leaks


def leaks(
    words: Sequence[str],
    prog: str = "privrl audit leaks",
    audit: Callable[..., LeakAudit] | None = None,
) -> int:
    """Run the leak test, print what it found, and return the exit code.

    Args:
        words: arguments of the command.
        prog: the command.
        audit: in place of `audit_leaks`, for other words than those of a run.

    Raises:
        ConfigError: bad input.
    """
    args = _leak_arguments(words, prog)
    if audit is None:
        compose(args.overrides, args.config_dir)  # bad words are refused before torch is imported
        from privrl_bench.api.auditing import audit_leaks

        audit = audit_leaks
    try:
        found = audit(
            args.overrides, round_index=args.round, user=args.user, config_dir=args.config_dir
        )
    except PrivacyError as error:
        print(f"verdict  the gate refused: {error}")
        return 1
    first, *rest = found.report.lines()
    print(first)
    if found.cuts:
        print(f"  cut     {', '.join(found.cuts)}")
    print("\n".join(rest), flush=True)
    if args.json is not None:
        content = found.report.to_dict() | {"cut": found.cuts}
        try:
            args.json.write_text(json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise ConfigError("--json", f"cannot write {args.json}: {error.strerror}") from None
    _print_review(found.review)
    return 0 if found.ok else 1


def _print_review(lines: Sequence[str]) -> None:
    """Print what was recorded about code from outside the package."""
    for name, line in zip(("review", ""), lines, strict=False):
        print(f"{name:9}{line}", flush=True)


def _leak_arguments(words: Sequence[str], prog: str) -> argparse.Namespace:
    parser = Parser(prog, LEAKS, EXIT_CODES.format("1 something does, or the test has no power"))
    _add_overrides(parser)
    parser.add_argument(
        "--round",
        type=int,
        metavar="I",
        help="the user's round, from 0 (default 1), within the plan",
    )
    parser.add_argument(
        "--user", type=int, default=0, metavar="U", help="the user in it, from 0 (default 0)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    args = parser.read(words)
    check_at_least("--round", args.round, 0)
    check_at_least("--user", args.user, 0)
    if args.json is not None:
        check_file("--json", args.json)
    return args


# --- epsilon


def epsilon(
    words: Sequence[str],
    prog: str = "privrl audit epsilon",
    audit: Callable[..., EpsilonAudit] | None = None,
) -> int:
    """Run attacks, print and write their bounds, and return the exit code.

    Args:
        words: arguments of the command.
        prog: the command.
        audit: in place of `audit_epsilon`, for other words than those of a run.

    Raises:
        ConfigError: bad input.
    """
    args, options = _epsilon_arguments(words, prog)
    if audit is None:
        compose(args.overrides, args.config_dir)  # bad words are refused before torch is imported
        from privrl_bench.api.auditing import audit_epsilon

        audit = audit_epsilon
    found = audit(
        args.overrides,
        folder=args.folder,
        config_dir=args.config_dir,
        options=options,
        say=lambda line: print(line, flush=True),
    )
    for line in found.contradictions:
        print(f"CONTRADICTION  {line}")
    if found.ok:
        print("nothing contradicts the claim")
    else:
        print(
            f"  (each bound is wrong with probability {1 - options.confidence:.2g} at most; rerun with "
            "another seed or --confidence 0.999 to distinguish chance from a defect)"
        )
    print(f"results: {found.folder} (audit.json, audit.png)", flush=True)
    _print_review(found.review)
    return 0 if found.ok else 1


def _epsilon_arguments(words: Sequence[str], prog: str) -> tuple[argparse.Namespace, Options]:
    """Parse and check the arguments. Raises `ConfigError`."""
    one = EXIT_CODES.format("1 a bound exceeds its claim, or the run contradicts it otherwise")
    parser = Parser(prog, EPSILON.format(prog), one)
    _add_overrides(parser)
    default = vars(Options())
    for name, (metavar, text) in EPSILON_OPTIONS.items():
        value = default[name]
        text = f"{text} (default {value})"
        parser.add_argument(
            _flag(name), metavar=metavar, type=type(value), default=value, help=text
        )
    parser.add_argument(
        "--full-size",
        action="store_true",
        help="keep the sizes of the configuration; otherwise sizes that are not given are reduced",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="for audit.json and audit.png (default outputs/audit/<algo>_<env>/<overrides>,seed=<seed>, with "
        "the options that are not at their defaults)",
    )
    args = parser.read(words)
    options = Options(**{name: getattr(args, name) for name in default})
    check_options(options, _flag)
    if args.folder is not None:
        check_folder("--folder", args.folder)
    return args, options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
