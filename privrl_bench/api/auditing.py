"""Audits from Python: the leak test, and measured lower bounds on epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privrl_bench.api.training import Words, words_of
from privrl_bench.audit import lower_bound
from privrl_bench.audit.canary import refuse_unauditable
from privrl_bench.audit.finding import Finding, Say
from privrl_bench.audit.leaks import LeakReport
from privrl_bench.audit.leaks import audit_leaks as run_leak_test
from privrl_bench.audit.options import Options as AuditOptions
from privrl_bench.audit.options import check_options
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import explicit_keys, own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.kernels.machine import check_hardware, one_thread
from privrl_bench.metrics import shown_measured
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.training.plan import make_plan
from privrl_bench.training.plugin_review import EPSILON, FOLDER, LEAKS, audits, effect, write
from privrl_bench.training.writable import check_folder

__all__ = ["AuditOptions", "EpsilonAudit", "LeakAudit", "audit_epsilon", "audit_leaks", "measure"]
VERDICT = "nothing contradicts the claim"
# Attack, configuration of its runs, options, what receives lines of progress -> findings.
Attack = Callable[[str, RunConfig, AuditOptions, Say], list[Finding]]


@dataclass(frozen=True)
class LeakAudit:
    """What the leak test found.

    Attributes:
        report: `ok`, `verdict()`, `lines()`, `to_dict()`.
        cuts: sizes that were reduced.
        review: what was recorded for an algorithm or mechanism from outside the package; empty for others.
    """

    report: LeakReport
    cuts: list[str]
    review: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing bypasses the gate that is not declared."""
        return self.report.ok


@dataclass(frozen=True)
class EpsilonAudit:
    """What the attacks measured.

    Attributes:
        guarantee: that was attacked.
        findings: one for each attack: `attack`, `claim`, `best.epsilon` (the lower bound), `bounds`.
        contradictions: lines; empty: nothing contradicts the guarantee.
        folder: with audit.json and audit.png.
        review: as in `LeakAudit`.
    """

    guarantee: Guarantee
    findings: list[Finding]
    contradictions: list[str]
    folder: Path
    review: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the guarantee."""
        return not self.contradictions


def audit_leaks(
    words: Words = (),
    /,
    *,
    round_index: int | None = None,
    user: int = 0,
    config_dir: str | None = None,
    **groups: Any,
) -> LeakAudit:
    """Find what bypasses the gate, bit for bit, as `privrl audit leaks` does.

        found = pb.audit_leaks("algo=dppg env=cartpole privacy.z=1")
        print(found.report.verdict())
        assert found.report.ok

    Args:
        words: as for `run`.
        round_index: the user's round, from 0; None: 1.
        user: the user in it, from 0.
        config_dir: a folder with YAML files, which win over the package's of their names.
        **groups: as for `run`.

    Raises:
        ConfigError: bad input.
        PrivacyError: the gate refused what the algorithm sent.
    """
    given = words_of(words, groups)
    for key, value in (("round_index", round_index), ("user", user)):
        if value is not None and value < 0:
            raise ConfigError(key, f"must be an integer >= 0, got {value}")
    with own_folder(config_dir):
        config = compose(given)
        check_hardware(config)
        config = make_plan([config]).given[0]
        one_thread()
        if LEAKS in audits(config):
            check_folder("", FOLDER)
        try:
            report, cuts = run_leak_test(config, explicit_keys(given), round_index, user)
        except EnvironmentFailure as error:
            raise ConfigError("env", str(error)) from error
        review = []
        if report.ok:
            review = _review(config, LEAKS, report.status, report.verdict(), report.lines())
        return LeakAudit(report, cuts, review)


def audit_epsilon(
    words: Words = (),
    /,
    *,
    folder: str | Path | None = None,
    config_dir: str | None = None,
    options: AuditOptions | None = None,
    say: Say | None = None,
    **groups: Any,
) -> EpsilonAudit:
    """Measure lower bounds on epsilon with attacks on the real training code, as `privrl audit epsilon` does.

        found = pb.audit_epsilon("algo=dppg env=cartpole privacy.z=1", say=print)
        print(found.findings[0].best.epsilon, found.contradictions)
        assert found.ok

    Args:
        words: as for `run`.
        folder: for audit.json and audit.png; None: outputs/audit/<algo>_<env>/<overrides>,seed=<seed>, with
            the options that are not at their defaults.
        config_dir: a folder with YAML files, which win over the package's of their names.
        options: the attack and its sizes: `pb.AuditOptions(attack="all", scores=2000)`.
        say: receives the lines that the command prints while the attacks run.
        **groups: as for `run`.

    Raises:
        ConfigError: bad input, or the configuration cannot be attacked.
    """
    chosen, given = options or AuditOptions(), words_of(words, groups)
    check_options(chosen)
    config = compose(given, config_dir)
    check_hardware(config)
    lower_bound.check_simulated(config)  # before sizes and noise
    run = make_plan([config])
    config = run.given[0]
    refuse_unauditable(config)
    guarantee = run.gate.guarantee(0)
    if EPSILON in audits(config):
        check_folder("", FOLDER)
    audit = measure(config, guarantee, given, folder, chosen, lower_bound.run_attack, say)
    if not audit.ok:
        return audit
    weak, found = lower_bound.weakness(chosen), _bounds(audit.findings)
    review = _review(config, EPSILON, guarantee.status, VERDICT, found, weak)
    return replace(audit, review=review)


def measure(
    config: RunConfig,
    guarantee: Guarantee,
    words: Sequence[str],
    folder: str | Path | None,
    options: AuditOptions,
    attack: Attack,
    say: Say | None,
) -> EpsilonAudit:
    """Attack a guarantee, and write what was found.

    Args:
        config: of the attacked runs, with numbers.
        guarantee: that is attacked.
        words: of the command line.
        folder: see `audit_epsilon`.
        options: see `audit_epsilon`.
        attack: runs one attack.
        say: see `audit_epsilon`.

    Raises:
        ConfigError: the folder cannot be written, or an attack does not apply.
    """
    told = say or (lambda line: None)
    target = Path(folder or lower_bound.default_folder(config, words, options))
    check_folder("--folder", target)
    one_thread()
    sized = lower_bound.attacked_runs(config, options, explicit_keys(words))
    for line in (
        f"audit of {config.algo.name} on {config.env.label}  z={config.privacy.noise_multiplier:g}",
        f"  claimed {guarantee.sentence()}",
        f"  confidence of each bound: {options.confidence:g}",
    ):
        told(line)
    findings: list[Finding] = []
    for name, (small, changes) in sized.items():
        if changes:
            told(f"  {name}: sizes reduced for the audit: {', '.join(changes)}")
        for finding in attack(name, small, options, lambda line: told(f"  {line}")):
            for line in finding.lines():
                told(line)
            findings.append(finding)
    wrong = lower_bound.verdicts(findings, guarantee)
    changed = {name: changes for name, (_, changes) in sized.items()}
    lower_bound.write(
        target, config, words, guarantee, findings, changed, options.confidence, wrong
    )
    return EpsilonAudit(guarantee, findings, wrong, target, [])


def _bounds(findings: Sequence[Finding]) -> list[str]:
    return [
        f"{one.attack}: epsilon >= {shown_measured(one.best.epsilon)} of {one.claim_of}"
        for one in findings
    ]


def _review(
    config: RunConfig, audit: str, status: str, verdict: str, lines: list[str], weak: str = ""
) -> list[str]:
    """Record a passed audit that the configuration needs, and return what this changes.

    `status`: of the guarantee before it. `weak`: why this audit does not count.
    """
    if audit not in audits(config):
        return []
    path = None if weak else write(config, verdict, lines, audit)
    if path is None:
        return [f"not recorded: {weak or 'its source cannot be read'}"]
    return [f"recorded in {path}", effect(config, status)]
