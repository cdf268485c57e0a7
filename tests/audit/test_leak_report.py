"""The words of the leak test's report."""

from dataclasses import replace

from privrl_bench.audit.leaks import LeakReport
from privrl_bench.audit.visits import visits_after
from privrl_bench.config.schema import EnvConfig, RunConfig

REPORT = LeakReport(
    *("mine on cartpole", "unreviewed", 1, 0, 3),
    visits=(),
    replicas=1,
    compared=8,
    declared=(),
    open=False,
    found={},
    no_test_power=(),
    not_covered=(),
)


def test_a_passed_test_does_not_end_with_the_word_unreviewed():
    assert REPORT.ok
    assert REPORT.verdict() == "passed: no path around the gate"
    assert replace(REPORT, status="formal").verdict() == "formal: no path around the gate"


def test_the_hint_names_what_changes_the_rounds_without_power():
    """`--round` was named for rounds that it does not choose."""
    first, later = "the user's row is zero", "in rounds 10 to 11: the user's row is zero"

    def hint(*reasons):
        return replace(REPORT, no_test_power=reasons).verdict().partition(" (")[2]

    assert "--round" in hint(first)
    assert "seed=" not in hint(first)
    assert "seed=" in hint(later)
    assert "--round" not in hint(later)
    assert "--round" in hint(first, later)
    assert "seed=" in hint(first, later)


def test_late_rounds_are_explained():
    """The numbers were printed as ranges of 15 digits, without what they are for."""
    visits = visits_after(RunConfig(env=EnvConfig(id="x")), 0, 4)
    last, late = [
        line.strip() for line in replace(REPORT, visits=tuple(visits)).lines() if "  also" in line
    ]
    assert last.startswith("also    rounds 10 to 11 of a run of 12: the last planned ones")
    assert "late rounds, to find code that acts in every k-th round only" in late
    numbers = late.partition("just before ")[2].partition(";")[0].split(" or ")
    found = [int(number.replace(",", "")) for number in numbers]
    assert all(any(number % k == 0 for number in found) for k in range(2, 101))
