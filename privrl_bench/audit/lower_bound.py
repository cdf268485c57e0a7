"""`privrl-audit epsilon`: a measured lower bound on epsilon, on the real code, beside the claim.

A lower bound above the claim is a defect of the code, of the accounting or of a caveat. A bound below it
proves nothing; how close it comes says how much a defect would have to change to be seen.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from privrl_bench.audit import canary, end_to_end, one_run
from privrl_bench.audit.canary import Finding, Say, refuse_unauditable
from privrl_bench.config.compose import compose
from privrl_bench.config.diagnostics import parse
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.experiment.builder import build, env_spec
from privrl_bench.experiment.writable import check_folder
from privrl_bench.kernels.machine import check_hardware, use_threads
from privrl_bench.metrics import shown_epsilon, shown_measured
from privrl_bench.privacy.guarantee import Guarantee

ATTACKS = ("canary", "one-run", "end-to-end")

USAGE = """privrl-audit epsilon [options] [group=choice ...] [key=value ...]

Runs attacks on the real training code and prints lower bounds on epsilon beside the claimed one.

  --attack NAME       canary: worst-case rows through the gate, the tight number (default)
                      one-run: many canaries in one run, the bound of Steinke et al. 2023
                      end-to-end: a crafted user against whole runs, from what they release
                      all: the three
  --confidence 0.95   of each bound; a correct run is called wrong with chance 1 - confidence at most
  --scores 20000      canary: canary units of the run
  --per-round 4       canary: units of one round, in directions that do not meet
  --others known      canary: known | unknown, whether the adversary knows the other users' rows
  --canaries 5000     one-run: canaries of the run
  --replicas 800      end-to-end: runs with and without the crafted user, half of each
  --later-rounds 8    end-to-end: rounds watched after hers
  --full-size         keep the sizes of the configuration; without it what is not given on the command
                      line (steps of a user, users of a round, local passes, layers) is made small
  --folder DIR        where audit.json and audit.png go (outputs/audit/<algo>_<env>_z<z>)

Example: privrl-audit epsilon env=cartpole algo.critic=private env.user=fresh privacy.z=1
Exit codes: 0 no bound exceeds its claim; 1 one does, or the run contradicts it otherwise; 2 bad input."""


@dataclass(frozen=True)
class Sizes:
    """What an audit changes in a configuration to be quick; nothing of it enters epsilon's formula."""

    user_steps: int
    users: int
    local_passes: int | None
    hidden: list[int] | None


SMALL = {
    "canary": Sizes(8, 8, 1, None),
    "one-run": Sizes(8, 16, 1, None),
    "end-to-end": Sizes(16, 4, None, [16]),
}


def main(argv: list[str]) -> int:
    """Audit one configuration.

    Args:
        argv: options and overrides, without the command's name.

    Returns: the exit code, 0 or 1.

    Raises:
        ConfigError: an option or a setting is wrong, or there is nothing to measure.
    """
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE)
        return 0
    args = _arguments(argv)
    words: list[str] = args.overrides
    claimed = compose(words)
    check_hardware(claimed)
    refuse_unauditable(claimed)
    folder = Path(args.folder) if args.folder else default_folder(claimed)
    check_folder("--folder", folder)
    _refuse_declared_users(claimed)
    use_threads(claimed.hardware.threads)
    given = {override.key_or_group for override in parse(words)}
    attacks = _attacks(args.attack, claimed)
    sized = {a: (claimed, []) if args.full_size else shrunk(claimed, a, given) for a in attacks}
    parts = build([claimed], [None])
    guarantee = parts.gate.guarantee(0)
    _announce(claimed, guarantee, args.confidence)

    findings: list[Finding] = []
    changes: dict[str, list[str]] = {}
    for attack in attacks:
        config, changes[attack] = sized[attack]
        if (
            not config.privacy.rules.sampler.every_round
        ):  # simulated users, as many as the attack takes
            config = replace(config, privacy=replace(config.privacy, population=None))
        if changes[attack]:
            _say(f"{attack}: made small for the audit: {', '.join(changes[attack])}")
        found = _run(attack, config, args)
        for finding in found:
            _print(finding)
        findings += found
    wrong = verdicts(findings, guarantee)
    code = 1 if wrong else 0
    write(folder, claimed, words, guarantee, findings, changes, args.confidence, wrong)
    for line in wrong:
        print(f"CONTRADICTION  {line}")
    if wrong:
        chance = f"{1 - args.confidence:.2g}"
        print(
            f"  (each bound is wrong with chance {chance} at most; another seed, or --confidence "
            "0.999, tells chance from a defect)"
        )
    else:
        print("nothing contradicts the claim")
    print(f"look at {folder / 'audit.png'} and {folder / 'audit.json'}", flush=True)
    return code


def _refuse_declared_users(config: RunConfig) -> None:
    """Raise `ConfigError`; before sizes are changed, which would meet the bound on rounds first."""
    users = env_spec(config.env).users
    if users is not None:
        raise ConfigError(
            "env",
            f"{config.env.label} declares {users} users, whom an attack would play; attack a simulator, or "
            "see leaks",
        )


# --- words on the command line


class _Parser(argparse.ArgumentParser):
    """Errors are ours: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError("", f"{message}; see privrl-audit epsilon --help")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--attack", default="canary")
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--scores", type=int, default=20_000)
    parser.add_argument("--per-round", type=int, default=4)
    parser.add_argument("--others", default="known")
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--replicas", type=int, default=800)
    parser.add_argument("--later-rounds", type=int, default=8)
    parser.add_argument("--full-size", action="store_true")
    parser.add_argument("--folder", default=None)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args(list(argv))
    for name, low in (
        ("scores", 20),
        ("per_round", 1),
        ("canaries", 100),
        ("replicas", 20),
        ("later_rounds", 0),
    ):
        if getattr(args, name) < low:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(flag, f"must be a whole number >= {low}, got {getattr(args, name)}")
    if not 0.5 <= args.confidence < 1.0:
        raise ConfigError("--confidence", f"must be in [0.5, 1), got {args.confidence}")
    for flag, value, allowed in (
        ("--attack", args.attack, (*ATTACKS, "all")),
        ("--others", args.others, ("known", "unknown")),
    ):
        if value not in allowed:
            raise ConfigError(
                flag,
                f"must be one of {', '.join(allowed)}, got {value!r}{suggest(value, allowed)}",
            )
    return args


def _attacks(name: str, config: RunConfig) -> tuple[str, ...]:
    """The attacks to run; `all` leaves out what Poisson sampling or texts do not allow."""
    if name != "all":
        return (name,)
    if config.privacy.rules.sampler.independent:
        return ("canary",)
    return tuple(a for a in ATTACKS if config.env.kind != "text" or a != "end-to-end")


def default_folder(config: RunConfig) -> Path:
    """outputs/audit/<algo>_<env>_z<z>."""
    name = f"{config.algo.name}_{config.env.label}_z{config.privacy.z:g}"
    return Path("outputs") / "audit" / re.sub(r"[^A-Za-z0-9_.+-]", "-", name)


def shrunk(config: RunConfig, attack: str, given: set[str]) -> tuple[RunConfig, list[str]]:
    """(configuration of the audited runs, what was changed, in words).

    Only sizes change, and none that the command line names: z, clip, delta, adjacency, sampling, blocks
    and the number of releases that one unit can enter stay.

    Args:
        config: as claimed.
        attack: one of `ATTACKS`.
        given: keys on the command line.
    """
    small = SMALL[attack]
    env, privacy, algo = config.env, config.privacy, config.algo
    changes: list[str] = []

    def change(target: Any, key: str, value: Any, section: str) -> Any:
        full = f"{section}.{key}"
        if full in given or not hasattr(target, key) or getattr(target, key) == value:
            return target
        changes.append(f"{full}={value}")
        return replace(target, **{key: value})

    # Every prompt is used once: the canaries of a round are all its users.
    users = min(small.users, 4) if env.kind == "text" and attack == "canary" else small.users
    if not privacy.rules.sampler.every_round:
        privacy = change(privacy, "users_per_round", users, "privacy")
    if env.kind == "text":
        algo = change(algo, "baseline_prompts", small.users, "algo")
    elif env.user == "episode":
        env = change(env, "max_episode_steps", small.user_steps, "env")
    else:
        before = canary.long_run(config)
        env = change(env, "user_steps", small.user_steps, "env")
        if env.user == "segment" and "env.user_steps" not in given:
            # As many segments of the shorter kind as before of the longer.
            meets = canary.rounds_of_one_unit(before)
            limit = max(1, (meets - 1) * small.user_steps + 1)
            env = change(env, "max_episode_steps", limit, "env")
    if small.local_passes is not None:
        algo = change(algo, "epochs", small.local_passes, "algo")
        algo = change(algo, "minibatches", 1, "algo")
    elif getattr(algo, "minibatches", 1) > small.user_steps:
        algo = change(algo, "minibatches", small.user_steps, "algo")
    if small.hidden is not None:
        algo = change(algo, "hidden", small.hidden, "algo")
    return replace(config, env=env, privacy=privacy, algo=algo), changes


# --- running and telling


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _run(attack: str, config: RunConfig, args: argparse.Namespace) -> list[Finding]:
    say: Say = _say
    if attack == "canary":
        known = args.others == "known"
        return [canary.attack(config, args.scores, args.per_round, known, args.confidence, say)]
    if attack == "one-run":
        return [one_run.attack(config, args.canaries, args.confidence, say)]
    return end_to_end.attack(config, args.replicas, args.later_rounds, args.confidence, say)


def _announce(config: RunConfig, guarantee: Guarantee, confidence: float) -> None:
    print(f"audit of {config.algo.name} on {config.env.label}  z={config.privacy.z:g}")
    first, *rest = guarantee.describe()
    print(f"  claimed {first}")
    for line in rest:
        print(f"          {line}")
    print(f"  bounds hold with confidence {confidence:g} each", flush=True)


def _print(finding: Finding) -> None:
    """One finding on the screen."""
    print(f"{finding.attack}  ({finding.seconds:.0f} s)")
    if finding.claim is not None:
        print(f"  claim   epsilon <= {shown_epsilon(finding.claim)} for {finding.claim_of}")
    else:
        print(f"  claim   none for {finding.claim_of}")
    for bound in finding.bounds:
        share = ""
        if finding.claim:
            share = f"  {bound.epsilon / finding.claim:.3f} of the claim"
        mu = "" if bound.mu is None else f"  (mu >= {bound.mu:.4g})"
        why = f"  if {bound.assumes}" if bound.assumes else ""
        print(f"  {bound.form:8}epsilon >= {shown_measured(bound.epsilon)}{share}{mu}{why}")
    print(f"  scores  {len(finding.inside)} with her, {len(finding.outside)} without")
    for line in finding.notes:
        print(f"  note    {line}")
    for line in finding.problems:
        print(f"  PROBLEM {line}")
    print(end="", flush=True)


def verdicts(findings: Sequence[Finding], guarantee: Guarantee) -> list[str]:
    """Lines that contradict the claim; empty when nothing does."""
    lines = []
    for finding in findings:
        for bound in finding.exceeded():
            line = (
                f"{finding.attack}: epsilon >= {shown_measured(bound.epsilon)} was measured ({bound.form}), "
                f"{shown_epsilon(finding.claim or 0.0)} is claimed for {finding.claim_of}"
            )
            if guarantee.status == "heuristic":
                line += f"; the claim is heuristic because of: {', '.join(guarantee.caveats)}"
            lines.append(line)
        lines += [f"{finding.attack}: {problem}" for problem in finding.problems]
    return lines


def write(
    folder: Path,
    config: RunConfig,
    words: list[str],
    guarantee: Guarantee,
    findings: Sequence[Finding],
    changes: dict[str, list[str]],
    confidence: float,
    wrong: list[str],
) -> None:
    """Write audit.json and audit.png into `folder`."""
    from privrl_bench.audit.plot import audit_picture

    content = {
        "overrides": words,
        "algo": config.algo.name,
        "env": config.env.label,
        "z": config.privacy.z,
        "seed": config.seed,
        "claimed": guarantee.to_dict(),
        "confidence": confidence,
        "made_small": changes,
        "findings": [_plain(finding) for finding in findings],
        "contradictions": wrong,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2, default=str, allow_nan=False)
    (folder / "audit.json").write_text(text + "\n")
    title = (
        f"{config.env.label}, {config.algo.name}, z = {config.privacy.z:g}, seed {config.seed}: "
        f"epsilon {shown_epsilon(guarantee.epsilon)} at delta {guarantee.delta:g} claimed "
        f"({guarantee.status})\n"
        f"lower bounds at {100 * confidence:g} % confidence"
    )
    audit_picture(findings, title, folder / "audit.png")


def _plain(finding: Finding) -> dict[str, Any]:
    def number(x: float) -> float | str:
        return x if math.isfinite(x) else str(x)

    def moments(x: np.ndarray) -> dict[str, float]:
        return {"count": len(x), "mean": float(x.mean()), "std": float(x.std())}

    return {
        "attack": finding.attack,
        "claim": finding.claim,
        "claim_of": finding.claim_of,
        "bounds": [{**b.to_dict(), "epsilon": number(b.epsilon)} for b in finding.bounds],
        "ratio": finding.best.epsilon / finding.claim if finding.claim else None,
        "scores": {"with": moments(finding.inside), "without": moments(finding.outside)},
        "mu_claimed": finding.mu,
        "problems": finding.problems,
        "notes": finding.notes,
        "seconds": round(finding.seconds, 1),
    }
