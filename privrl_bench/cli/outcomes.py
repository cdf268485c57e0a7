"""What a sweep prints at its end: a table over seeds, the jobs that failed, and the next command."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence

from privrl_bench.cli.console import print_table
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.metrics import shown_epsilon
from privrl_bench.training.crash import one_line
from privrl_bench.training.sweep import Outcome

STATUSES = ("done", "skipped", "planned", "interrupted", "failed")
DONE = ("done", "skipped")  # a skipped job was done before


def show(outcomes: Sequence[Outcome], columns: Mapping[str, Sequence[str]]) -> None:
    """Print how a sweep ended.

    Args:
        outcomes: of all jobs.
        columns: the values of each key, as the command gave them; job k has combination k.
    """
    swept = [key for key, words in columns.items() if key != "seed" and len(words) > 1]
    groups: dict[tuple[str, ...], list[Outcome]] = {}  # by the values of the swept keys
    for outcome in outcomes:
        groups.setdefault(_settings(columns, swept, outcome.number), []).append(outcome)
    print()
    if any(outcome.summary for outcome in outcomes):
        _print_groups(groups, swept)
    told = [(one.summary.get("guarantee") or {}).get("caveats", ()) for one in outcomes]
    for caveat in dict.fromkeys(caveat for caveats in told for caveat in caveats):
        print(f"not covered by epsilon: {caveat}")
    for warning in dict.fromkeys(warning for one in outcomes for warning in one.warnings):
        print(f"warning: {warning}")
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        rows = [(os.path.relpath(one.folder), one_line(one.reason)) for one in failed]
        print_table(("failed", "reason"), rows)
    done = [outcome.folder for outcome in outcomes if outcome.status in DONE]
    if done:
        print(f"report: privrl report {shlex.quote(os.path.relpath(os.path.commonpath(done)))}")
    print(last_line(outcomes), flush=True)


def last_line(outcomes: Sequence[Outcome]) -> str:
    """Return the number of jobs by status.

    >>> last_line([Outcome("done"), Outcome("interrupted"), Outcome("interrupted")])
    '3 jobs: 1 done, 2 interrupted; rerun the same command to resume'
    """
    counts = {s: sum(one.status == s for one in outcomes) for s in STATUSES}
    text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    more = "; rerun the same command to resume" if counts["interrupted"] else ""
    return f"{len(outcomes)} jobs: {text}{more}"


def _print_groups(
    groups: Mapping[tuple[str, ...], Sequence[Outcome]], swept: Sequence[str]
) -> None:
    """A row for each combination of the swept keys, the seed apart."""
    from privrl_bench.functional.statistics import FEWEST
    from privrl_bench.reporting.tables import mean_text

    rows, names, most = [], [], 0
    for settings, outcomes in groups.items():
        measure = objective_of(outcomes[0].summary)
        names.append(measure.name)
        done = [one for one in outcomes if one.status in DONE]
        found = [(one.summary.get(measure.name) or {}).get("mean") for one in done]
        values = [x for x in found if isinstance(x, float | int) and math.isfinite(x)]
        spent = [float(one.summary["epsilon"]) for one in outcomes if "epsilon" in one.summary]
        most = max(most, len(values))
        count = f"{len(values)} of {len(outcomes)}"
        mean = mean_text(measure, values) if values else "-"
        status = {
            one.summary["guarantee"]["status"] for one in outcomes if "guarantee" in one.summary
        }
        epsilon = shown_epsilon(max(spent, default=math.nan))
        rows.append((*settings, count, mean, epsilon, "/".join(sorted(status)) or "-"))
    head = [key if key == "privacy.epsilon" else key.removeprefix("privacy.") for key in swept]
    name = "/".join(dict.fromkeys(names)) + " (95 % interval over runs)" * (most >= FEWEST)
    print_table((*head, "runs", name, "epsilon", "guarantee"), rows)


def _settings(
    columns: Mapping[str, Sequence[str]], swept: Sequence[str], number: int
) -> tuple[str, ...]:
    """The values of the swept keys in combination `number`; the last key varies fastest."""
    found = {}
    for key in reversed(list(columns)):
        number, at = divmod(number, len(columns[key]))
        found[key] = columns[key][at].partition("=")[2]
    return tuple(found[key] for key in swept)
