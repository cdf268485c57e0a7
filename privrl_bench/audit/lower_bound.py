"""Lower bounds on epsilon, measured by attacks on the real code, compared with the claimed epsilon.

A lower bound above the claim is a defect of the code, of the accounting or of a caveat. A bound below the
claim is no proof; the distance between the two shows how large a defect must be to be detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privrl_bench.audit import canary, end_to_end, one_run
from privrl_bench.audit.finding import Finding, Say
from privrl_bench.audit.options import ATTACKS, Options
from privrl_bench.audit.shrink import Cuts
from privrl_bench.config.folder_names import folder_name
from privrl_bench.config.overrides import plain_groups
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.metrics import shown_epsilon, shown_measured
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.privacy.rules import rules
from privrl_bench.training.charging import refuse_charged
from privrl_bench.training.folder import write_json
from privrl_bench.training.provenance import provenance
from privrl_bench.users import kind_of

REVIEW_SCORES = 20_000  # of canaries, at least, in an audit that counts as a review of a mechanism


class Sizes(NamedTuple):
    """Sizes that an audit reduces to be fast; none of them enters the formula of epsilon."""

    user_steps: int
    users: int
    user_passes: int | None
    hidden: list[int] | None


SMALL = {
    "canary": Sizes(8, 8, 1, None),
    "one-run": Sizes(8, 16, 1, None),
    "end-to-end": Sizes(16, 4, None, [16]),
}


def check_simulated(config: RunConfig) -> None:
    """Raise `ConfigError` if users would be real."""
    refuse_charged(config)
    users = kind_of(config).spec_of(config).users
    if users is not None:
        raise ConfigError(
            "env",
            f"{config.env.label} declares {users} users, and an attack would play them; attack simulated ones "
            "(env.kwargs.users=null, where the environment has this argument), or use the leak test",
        )


def weakness(options: Options) -> str:
    """Why an audit with these options is too weak for a review of a mechanism; empty: it is not."""
    if options.attack not in ("canary", "all"):
        return "a review needs --attack canary"
    if options.scores < REVIEW_SCORES or options.confidence > 0.999:
        return f"a review needs --scores {REVIEW_SCORES} or more, and --confidence 0.999 or less"
    return ""


def attacked_runs(
    config: RunConfig, options: Options, given: set[str]
) -> dict[str, tuple[RunConfig, list[str]]]:
    """Return the attacks to run, each with the configuration of its runs and the sizes that were reduced.

    Args:
        config: as claimed.
        options: the attack, and whether sizes are kept.
        given: keys on the command line; their sizes are kept.
    """
    found = {}
    # The attack chooses the number of rounds. A budget and a bound on the users are those of the planned run.
    unbounded = replace(config.privacy, epsilon=None)
    kind = kind_of(config)
    if not (kind.in_order(config) or rules(config.privacy).sampler.every_round):
        unbounded = replace(unbounded, population=None)
    config = replace(config, privacy=unbounded)
    for attack in _attacks(options.attack, config):
        run, changes = (config, []) if options.full_size else shrunk(config, attack, given)
        if kind.in_order(run) and not run.algo.traits.one_cohort:
            run = kind.with_users(replace(run, rounds=1), run.privacy.users_per_round)
        found[attack] = run, changes
    return found


def run_attack(attack: str, config: RunConfig, options: Options, say: Say) -> list[Finding]:
    """Run one attack of `ATTACKS` and return its findings; `say` receives lines of progress."""
    confidence = options.confidence
    if attack == "canary":
        return [canary.attack(config, options.scores, options.per_round, confidence, say)]
    if attack == "one-run":
        return [one_run.attack(config, options.canaries, confidence, say)]
    return end_to_end.attack(config, options.replicas, options.later_rounds, confidence, say)


def _attacks(name: str, config: RunConfig) -> tuple[str, ...]:
    """Return the attacks to run; `all` omits those that Poisson sampling, texts or lists of users rule out."""
    if name != "all":
        return (name,)
    if rules(config.privacy).sampler.independent:
        return ("canary",)
    live = kind_of(config).in_environments and not kind_of(config).from_data
    return tuple(a for a in ATTACKS if live or a != "end-to-end")


def default_folder(config: RunConfig, words: Sequence[str], options: Options) -> Path:
    """outputs/audit/, then the name of a run folder, with the options that are not at their defaults.

    Args:
        config: as claimed.
        words: of the command line.
        options: of the audit.
    """
    split = (word.lstrip("+~").partition("=") for word in plain_groups(words))
    given = [(key, value) for key, _, value in split]
    usual = vars(Options())
    given += [(name, str(x)) for name, x in vars(options).items() if x != usual[name]]
    return Path("outputs/audit", folder_name(config.algo.name, config.env.name, given, config.seed))


def shrunk(config: RunConfig, attack: str, given: set[str]) -> tuple[RunConfig, list[str]]:
    """Return the configuration of the audited runs, and the sizes that were changed.

    Sizes that the command line gives are kept, and so are z, clip, delta, adjacency, sampling, blocks and the
    number of releases that one unit can enter.

    Args:
        config: as claimed.
        attack: one of `ATTACKS`.
        given: keys on the command line.
    """
    small, kind, cuts = SMALL[attack], kind_of(config), Cuts(config, frozenset(given))
    # Of few users, the canaries of a round are all.
    users = min(small.users, 4) if kind.scarce and attack == "canary" else small.users
    if config.algo.traits.one_cohort:
        cuts.config = replace(config, privacy=replace(config.privacy, users_per_round=1))
        if kind.in_environments:
            cuts.put("privacy", population=users)
    elif not rules(config.privacy).sampler.every_round:
        cuts.put("privacy", users_per_round=users)
    cuts.put("algo", **dict.fromkeys(kind.sized, small.users))
    if kind.simulator and config.env.user == "episode":
        cuts.put("env", max_episode_steps=small.user_steps)
    elif kind.simulator:
        cuts.put("env", user_steps=small.user_steps)
        if config.env.user == "segment" and "env.user_steps" not in given:
            # One unit has as many segments as before, of the new length.
            entered = canary.rounds_of_one_unit(canary.long_run(config))
            cuts.put("env", max_episode_steps=max(1, (entered - 1) * small.user_steps + 1))
    if small.user_passes is not None:
        cuts.put("algo", epochs=small.user_passes, minibatches=1)
    else:
        cuts.cut("algo", minibatches=small.user_steps)
    if small.hidden is not None:
        cuts.put("algo", hidden=small.hidden)
    return cuts.config, cuts.lines


def verdicts(findings: Sequence[Finding], guarantee: Guarantee) -> list[str]:
    """Return lines that contradict the claim."""
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
    words: Sequence[str],
    guarantee: Guarantee,
    findings: Sequence[Finding],
    changes: dict[str, list[str]],
    confidence: float,
    wrong: list[str],
) -> None:
    """Write audit.json and audit.png into `folder`."""
    from privrl_bench.audit.plot import audit_figure

    content = {
        "overrides": list(words),
        "algo": config.algo.name,
        "env": config.env.label,
        "z": config.privacy.noise_multiplier,
        "seed": config.seed,
        "claimed": guarantee.to_dict(),
        "confidence": confidence,
        "made_small": changes,
        "findings": [_plain(finding) for finding in findings],
        "contradictions": wrong,
        "provenance": provenance(config),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "audit.json", content)
    title = (
        f"{config.env.label}, {config.algo.name}, z = {config.privacy.noise_multiplier:g}, seed {config.seed}: "
        f"epsilon {shown_epsilon(guarantee.epsilon)} at delta {guarantee.delta:g} claimed "
        f"({guarantee.status})\n"
        f"lower bounds at {100 * confidence:g} % confidence"
    )
    audit_figure(findings, title, folder / "audit.png")


def _plain(finding: Finding) -> dict[str, Any]:
    def moments(x: np.ndarray) -> dict[str, float]:
        return {"count": len(x), "mean": float(x.mean()), "std": float(x.std())}

    return {
        "attack": finding.attack,
        "claim": finding.claim,
        "claim_of": finding.claim_of,
        "bounds": [asdict(bound) for bound in finding.bounds],
        "ratio": finding.best.epsilon / finding.claim if finding.claim else None,
        "scores": {"with": moments(finding.inside), "without": moments(finding.outside)},
        "mu_claimed": finding.mu,
        "problems": finding.problems,
        "notes": finding.notes,
        "seconds": round(finding.seconds, 1),
    }
