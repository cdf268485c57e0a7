"""`privrl audit leaks`: the effects of one user other than on the released values.

Several runs execute the real training code with the same seed. In some rounds of a counterfactual run a
substitute user replaces one user. From then on all get the same released values. Therefore everything
that later rounds compute, and everything that leaves the run, must be equal bit for bit. A difference
is a path around the gate, and must be a declared caveat.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from privrl_bench.audit.compare import Difference, distance
from privrl_bench.audit.counterfactual import CounterfactualRun
from privrl_bench.audit.shrink import LATER, USERS, shrink
from privrl_bench.audit.visits import UP_TO, WINDOW, Visit, visits_after
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.guarantee import UNREVIEWED
from privrl_bench.training.charging import refuse_charged
from privrl_bench.training.plan import NOT_PRIVATE, Plan, make_plan
from privrl_bench.training.workers import whole_round
from privrl_bench.users.collectors.substitutes import ABSENT, CRAFTED, NULL, SHORT, ZERO

MOVED = "in rounds "  # how a reason of rounds begins that `--round` does not choose


@dataclass(frozen=True)
class LeakReport:
    """The findings of the test in one configuration.

    Attributes:
        label: algorithm and environment.
        status: formal | unreviewed | heuristic | none, as the configuration declares it.
        round: in which the user is replaced in the first visit, from 0.
        user: slot of the replaced user, from 0.
        last: the last round that it compared.
        visits: further visits, at other rounds.
        replicas: runs that were trained together; the user is in the first.
        compared: number of comparisons of two tensors.
        declared: names of the caveats.
        open: everything is outside the gate by declaration (privacy=none).
        found: name of a path -> the first difference on it.
        no_test_power: reasons why the test could not have found anything; empty if it could.
        not_covered: what the test does not check.
        also: descriptions of what was compared beside it.
    """

    label: str
    status: str
    round: int
    user: int
    last: int
    visits: tuple[Visit, ...]
    replicas: int
    compared: int
    declared: tuple[str, ...]
    open: bool
    found: dict[str, Difference]
    no_test_power: tuple[str, ...]
    not_covered: tuple[str, ...]
    also: tuple[str, ...] = ()

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Paths that the configuration does not name."""
        return () if self.open else tuple(n for n in self.found if n not in self.declared)

    @property
    def missing(self) -> tuple[str, ...]:
        """Caveats without a difference."""
        return tuple(name for name in self.declared if name not in self.found)

    @property
    def ok(self) -> bool:
        """Whether exactly the declared paths were found."""
        return not (self.undeclared or self.missing or self.no_test_power)

    def verdict(self) -> str:
        """One line."""
        if self.no_test_power:
            late = [why.startswith(MOVED) for why in self.no_test_power]
            hints = []
            if not all(late):
                hints.append(
                    "--round or --user chooses another; round 0 has the policy before any noise"
                )
            if any(late):
                hints.append("another seed= or --user changes these later rounds")
            return f"no test power: {'; '.join(self.no_test_power)} ({'; '.join(hints)})"
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
        # `unreviewed` says that this test was missing.
        return f"{'passed' if self.status == UNREVIEWED else self.status}: no path around the gate"

    def lines(self) -> list[str]:
        """The report for a terminal."""
        lines = [
            f"leaks   {self.label}, user {self.user} of round {self.round} replaced; rounds "
            f"{self.round} to {self.last} compared bit for bit: {self.compared} pairs of tensors"
        ]
        for text in self._elsewhere():
            lines.append(f"  also    {text}")
        for name, seen in self.found.items():
            label = "declared" if name in self.declared else "covered by not private"
            label = "UNDECLARED" if name in self.undeclared else label
            what = f"{seen.tensor} ".removeprefix(f"{name} ")
            lines.append(
                f"  found   {name}: {what}in round {seen.round} differs by {seen.size:.2g} "
                f"({label}; {seen.substitute} user)"
            )
        lines += [f"  missing {name}: declared, no difference found" for name in self.missing]
        lines += [f"  not covered: {what}" for what in self.not_covered]
        return [*lines, f"verdict  {self.verdict()}"]

    def _elsewhere(self) -> list[str]:
        """Descriptions of the comparisons other than that of the first rounds."""
        found = list(self.also)
        if self.replicas > 1:
            found.append(f"{self.replicas} runs trained together, the user in the first")
        sizes = [str(visit.cohort) for visit in self.visits if visit.cohort is not None]
        if sizes:
            found.append(f"cohorts of {' and '.join(sizes)} users, with and without the user")
        if any(visit.alone for visit in self.visits):
            found.append(
                "round 0; one run alone; users whose rows are computed one by one; users who have no data "
                "beside the user"
            )
        moved = [visit for visit in self.visits if visit.moved]
        if moved:
            last, *late = moved
            numbers = " or ".join(f"{visit.start + 2:,}" for visit in late)
            found += [
                f"rounds {last.start} to {last.last} of a run of {last.planned}: the last planned ones, and "
                "what follows them",
                "late rounds, to find code that acts in every k-th round only: the round number is set to just "
                f"before {numbers}; each k from 2 to {UP_TO} divides one of them",
            ]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self) | {
            "undeclared": self.undeclared,
            "missing": self.missing,
            "ok": self.ok,
            "verdict": self.verdict(),
        }


# --- the test


@dataclass(frozen=True)
class _Seen:
    """Results of one visit."""

    visit: Visit
    differences: list[Difference]
    compared: int
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
        late: visit the last planned and late rounds, too.

    Raises:
        ConfigError: the run is too short, the user is not in the round, or two equal runs differ.
        EnvironmentFailure: an environment raised.
        PrivacyError: the gate itself refused what the algorithm sent.
    """
    refuse_charged(config)
    if config.algo.traits.one_round:  # one round, and what is evaluated after it
        round_index, later = 0, 0
    first = Visit(round_index, user, round_index, round_index + later + 1, evaluated=True)
    with ExitStack() as stack:
        model = stack.enter_context(closing(CounterfactualRun(config, first)))
        parts = model.parts
        _check_length(config, parts, first.end)
        late = late and NOT_PRIVATE not in parts.gate.caveats  # else early rounds suffice
        seen = [_compare(stack, config, first, model, late)]
        visits = _further_visits(config, first, model, late)
    for visit in visits:
        with ExitStack() as stack:
            moved = stack.enter_context(closing(CounterfactualRun(config, visit)))
            seen.append(_compare(stack, config, visit, moved))
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
        no_test_power=tuple(dict.fromkeys(why for one in seen for why in one.no_test_power)),
        not_covered=_not_covered(parts, late),
    )


def _further_visits(
    config: RunConfig, first: Visit, model: CounterfactualRun, late: bool
) -> list[Visit]:
    """The visits after the first one; `late`: see `find_leaks`."""
    gate, found = model.parts.gate, []
    if NOT_PRIVATE not in gate.caveats and gate.sampler.independent:
        for size in dict.fromkeys((1, gate.slots)):
            user = first.user if model.returns else size - 1
            edge = replace(first, user=user, last=first.first, cohort=size, evaluated=False)
            found.append(edge)
    if late:
        found += _first_rounds(config, first, model)
        used_up = model.in_order or model.session.collector.used_once
        found += visits_after(config, first.user, model.parts.rounds if used_up else WINDOW)
    return found


def _first_rounds(config: RunConfig, first: Visit, model: CounterfactualRun) -> list[Visit]:
    """Further visits to the first rounds: round 0, and other circumstances."""
    plain, gate, users = (
        replace(first, evaluated=False),
        model.parts.gate,
        config.privacy.users_per_round,
    )
    first_one, alone = replace(plain, first=0, last=0), replace(plain, alone=True)
    if not (model.returns or model.in_order):  # else, who comes in which round is fixed
        if gate.sampler.independent:
            first_one = replace(first_one, user=users - 1, cohort=users)
        else:
            alone = replace(alone, user=users - 1)
    found = [alone] if first.first == 0 else [first_one, alone]
    if gate.devices is None and not gate.mechanism.pooled and not model.in_order:
        found.append(replace(plain, others=False))
    if not whole_round(model.parts):
        found.append(replace(plain, one_by_one=True))
    return found


def _check_length(config: RunConfig, parts: Plan, rounds: int) -> None:
    """Raise ConfigError: the run has fewer rounds."""
    if config.rounds is not None and parts.rounds < rounds:
        raise ConfigError("rounds", f"the test needs {rounds}, got {parts.rounds}")
    if parts.rounds < rounds:
        raise ConfigError(
            "total_steps",
            f"the test needs {rounds} rounds of {parts.round_steps} steps = "
            f"{rounds * parts.round_steps}, got {config.total_steps}",
        )


def _compare(
    stack: ExitStack,
    config: RunConfig,
    visit: Visit,
    model: CounterfactualRun,
    picture: bool = False,
) -> _Seen:
    """One visit: the runs side by side, and what differs. `picture`: of the learning curve, too."""
    replaced = [
        stack.enter_context(closing(CounterfactualRun(config, visit, kind, model)))
        for kind in _kinds(visit, model.parts)
    ]
    crafted, runs = replaced[0], [model, *replaced]
    while model.session.round < visit.end and not model.over:
        index = model.session.round
        for one in runs:
            one.step()
        if index < visit.first and crafted.stages.differences:
            raise ConfigError(
                "env",
                f"two equal runs differ in {crafted.stages.differences[0].tensor}: something is not "
                "determined by the seed, or persists after a run, so nothing can be compared",
            )
    if visit.usual:
        for one in runs:
            one.evaluate(picture and one in (model, crafted))
    return _Seen(
        visit,
        [difference for one in replaced for difference in one.stages.differences],
        sum(one.stages.compared for one in replaced),
        _no_test_power(visit, model, crafted),
    )


def _kinds(visit: Visit, parts: Plan) -> tuple[str, ...]:
    """The substitutes of a visit, the crafted one first."""
    if visit.cohort is not None:
        return (CRAFTED, ABSENT)
    rows = parts.gate.devices is None and NOT_PRIVATE not in parts.gate.caveats
    if not rows:  # a row is no release, or has no bound
        return (CRAFTED, NULL)
    if visit.usual:
        return (CRAFTED, NULL, ZERO, SHORT)
    return (CRAFTED, NULL, ZERO) if visit.moved else (CRAFTED, NULL)


def _no_test_power(
    visit: Visit, model: CounterfactualRun, crafted: CounterfactualRun
) -> tuple[str, ...]:
    """Why the runs may agree although there is a path."""
    reasons = []
    if not model.own_valid:
        reasons.append("the user is invalid in the unchanged run")
    if not any(bool(x.any()) for own in model.own_rows for x in own.values()):
        reasons.append("the user's row is zero, so a null user changes nothing")
    both = zip(model.own_rows, crafted.own_rows, strict=False)
    if all(distance(x, there[name]) is None for own, there in both for name, x in own.items()):
        reasons.append("the crafted user's row is the same as the one it replaces")
    where = f"{MOVED}{visit.first} to {visit.last}: " if visit.moved else ""
    return tuple(where + reason for reason in reasons)


def _status(parts: Plan) -> str:
    """Status of the guarantee, without computing its epsilon."""
    plan = parts.gate
    if not (plan.event(0).z > 0 or plan.mechanism.one_release):
        return "none"
    if plan.caveats:
        return "heuristic"
    return UNREVIEWED if UNREVIEWED in plan.notes else "formal"


def _not_covered(parts: Plan, late: bool) -> tuple[str, ...]:
    """Descriptions of what this test does not check."""
    config = parts.config
    lines = [
        "time, memory and the private files of the run folder (checkpoint, ledger, private metrics)",
        "the accounting, the noise and the secrecy of sampling (privrl audit epsilon)",
        "effects that arise only after more than two rounds, in a state that many rounds have changed, or when "
        "a private number crosses a threshold that the substitutes do not reach",
        "code for larger sizes than those of this test, or for rounds that are far from multiples of a period",
        "resuming, failures, files outside the run folder, and what the algorithm itself logs or sends",
    ]
    if not late:
        lines.append("late rounds and the last planned ones")
    if len(parts.configs) == 1:
        lines.append("runs that are trained together (this algorithm trains one at a time)")
    if parts.users.untested:
        lines.append(parts.users.untested)
    if config.hardware.workers != 1:
        lines.append("other processes (hardware.workers), which run the same code")
    if config.hardware.device != "cpu":
        lines.append("the memory of the device")
    return tuple(lines)


def audit_leaks(
    config: RunConfig,
    given: Collection[str],
    round_index: int | None = None,
    user: int = 0,
) -> tuple[LeakReport, list[str]]:
    """Run the leak test on a configuration with reduced sizes.

    Args:
        config: at its own size.
        given: keys whose sizes are kept.
        round_index: the user's round, from 0; None: 1.
        user: the user in it, from 0.

    Returns:
        The report, and the sizes that were reduced.

    Raises:
        ConfigError: the plan has no such round, or as `find_leaks`.
        EnvironmentFailure: an environment raised.
        PrivacyError: the gate refused what the algorithm sent.
    """
    if round_index is not None:
        rounds = make_plan([config]).rounds
        if round_index >= rounds:
            raise ConfigError(
                "--round",
                f"the plan has {rounds} rounds, so the last is {rounds - 1}, got {round_index}",
            )
    start = 1 if round_index is None else round_index
    small, cuts = shrink(config, frozenset(given), start + LATER + 1, max(USERS, user + 1), user)
    return find_leaks(small, start, user), cuts
