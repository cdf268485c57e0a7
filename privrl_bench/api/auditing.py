"""Audits from Python: the leak test, and measured lower bounds on epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privrl_bench.api.training import Words, words_of
from privrl_bench.audit import lower_bound
from privrl_bench.audit.finding import Finding
from privrl_bench.audit.leak_report import LeakReport, SearchLeaks
from privrl_bench.audit.leaks import audit_leaks as run_leak_test
from privrl_bench.audit.options import Options as AuditOptions
from privrl_bench.audit.options import check_options
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import explicit_keys, own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.kernels.machine import check_hardware, one_thread
from privrl_bench.metrics import shown_measured
from privrl_bench.packs.tuning import search_audit
from privrl_bench.packs.tuning.search_leaks import find_search_leaks
from privrl_bench.packs.tuning.search_plan import plan_search
from privrl_bench.packs.tuning.settings import is_search, read_search
from privrl_bench.privacy.accounting.best_of_runs import RunCount
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.run.plan import make_plan
from privrl_bench.run.plugin_review import FOLDER, audits, effect, write
from privrl_bench.run.writable import check_folder

__all__ = [
    "AuditOptions",
    "EpsilonAudit",
    "LeakAudit",
    "Listener",
    "audit_epsilon",
    "audit_leaks",
]
VERDICT = "nothing contradicts the claim"


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


@dataclass(frozen=True)
class Listener:
    """Called while the attacks run; each does nothing unless given.

    Attributes:
        begun: with the configuration and its guarantee.
        said: with lines of progress.
        found: with each finding.
    """

    begun: Callable[[RunConfig, Guarantee], None] = field(default=lambda config, guarantee: None)
    said: Callable[[str], None] = field(default=lambda line: None)
    found: Callable[[Finding], None] = field(default=lambda finding: None)


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
        return _audit_leaks(given, round_index, user)


def _audit_leaks(given: list[str], round_index: int | None, user: int) -> LeakAudit:
    config, search = _tested(given)
    one_thread()
    keys = explicit_keys(given)
    if "leaks" in audits(config):
        check_folder("", FOLDER)
    try:
        report, cuts = run_leak_test(config, keys, round_index, user, search)
    except EnvironmentFailure as error:
        raise ConfigError("env", str(error)) from error
    review = []
    if report.ok:
        review = _review(config, "leaks", report.status, report.verdict(), report.lines())
    return LeakAudit(report, cuts, review)


def _tested(
    given: list[str],
) -> tuple[RunConfig, Callable[[frozenset[str], int], SearchLeaks] | None]:
    """The configuration that the leak test trains, and the test of the search that it is a run of."""
    if is_search(given):
        plan = plan_search(read_search(given))
        return plan.runs[0].given[0], lambda keys, user: find_search_leaks(plan, keys, user)
    config = compose(given)
    check_hardware(config)
    return make_plan([config]).given[0], None


def audit_epsilon(
    words: Words = (),
    /,
    *,
    folder: str | Path | None = None,
    config_dir: str | None = None,
    options: AuditOptions | None = None,
    listener: Listener | None = None,
    **groups: Any,
) -> EpsilonAudit:
    """Measure lower bounds on epsilon with attacks on the real training code, as `privrl audit epsilon` does.

    Args:
        words: as for `run`.
        folder: for audit.json and audit.png; None: outputs/audit/<algo>_<env>/<overrides>,seed=<seed>, with
            the options that are not at their defaults.
        config_dir: a folder with YAML files, which win over the package's of their names.
        options: the attack and its sizes: `pb.AuditOptions(attack="all", scores=2000)`.
        listener: called while the attacks run.
        **groups: as for `run`.

    Raises:
        ConfigError: bad input, or the configuration cannot be attacked.
    """
    chosen, told, given = options or AuditOptions(), listener or Listener(), words_of(words, groups)
    check_options(chosen)
    config, guarantee, runs = _claim(given, config_dir)
    target = Path(folder or lower_bound.default_folder(config, given, chosen))
    check_folder("--folder", target)
    if "epsilon" in audits(config):
        check_folder("", FOLDER)
    one_thread()
    sized = lower_bound.attacked_runs(config, chosen, explicit_keys(given))
    told.begun(config, guarantee)
    findings: list[Finding] = []
    for attack, (small, changes) in sized.items():
        if changes:
            told.said(f"{attack}: sizes reduced for the audit: {', '.join(changes)}")
        if runs is None:
            found = lower_bound.run_attack(attack, small, chosen, told.said)
        else:
            sizes = (chosen.scores, chosen.per_round, chosen.confidence)
            found = [search_audit.attack(small, runs, guarantee.epsilon, *sizes, told.said)]
        for finding in found:
            told.found(finding)
            findings.append(finding)
    wrong = lower_bound.verdicts(findings, guarantee)
    changed = {attack: changes for attack, (_, changes) in sized.items()}
    lower_bound.write(target, config, given, guarantee, findings, changed, chosen.confidence, wrong)
    review = []
    if not wrong:
        weak = lower_bound.weakness(chosen)
        review = _review(config, "epsilon", guarantee.status, VERDICT, _bounds(findings), weak)
    return EpsilonAudit(guarantee, findings, wrong, target, review)


def _claim(
    given: list[str], config_dir: str | None
) -> tuple[RunConfig, Guarantee, RunCount | int | None]:
    """The configuration of the attacked runs, the guarantee, and the number of runs if they are a search's."""
    if is_search(given):
        plan = plan_search(read_search(given), config_dir)
        runs = None if plan.search.tune.public is not None else plan.search.runs
        lower_bound.check_auditable(plan.runs[0].config)
        return plan.runs[0].config, plan.guarantee, runs
    config = compose(given, config_dir)
    check_hardware(config)
    lower_bound.check_simulated(config)  # before sizes and noise
    run = make_plan([config])
    lower_bound.check_auditable(run.given[0])
    return run.given[0], run.gate.guarantee(0), None


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
