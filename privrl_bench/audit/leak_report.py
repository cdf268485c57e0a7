"""The findings of the leak test in one configuration, and its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from privrl_bench.audit.compare import Difference
from privrl_bench.audit.visits import UP_TO, Visit
from privrl_bench.privacy.guarantee import UNREVIEWED

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
        reached: tensors of later rounds that differ when the paths are left as they are.
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
    reached: tuple[str, ...]
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
        if self.reached:
            more = f" and {len(self.reached) - 6} more" if len(self.reached) > 6 else ""
            lines.append(f"  reaches {', '.join(self.reached[:6])}{more}")
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
