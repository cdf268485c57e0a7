"""The command `privrl budget` and its functions: one budget for everything that is released about a dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from privrl_bench.cli.parsing import Command, Parser, dispatch
from privrl_bench.errors import ConfigError, PrivacyError, no_run, require, require_choice
from privrl_bench.metrics import shown_epsilon
from privrl_bench.packs.offline.datasets.minari_files import datasets_root, open_dataset
from privrl_bench.packs.offline.datasets.trajectories import split_users
from privrl_bench.privacy.accounting.filters import ADJACENCIES, PrivacyFilter, best_order
from privrl_bench.privacy.budget import Budget, BudgetTerms, Entry, new_id, temporary_of
from privrl_bench.training.charging import registered, verified
from privrl_bench.training.folder import BUDGET, RunDir, write_json
from privrl_bench.users.facts import People

ABOUT = """One budget for all runs about the same people: what they release together stays within its epsilon.

  privrl budget create clinic.budget --population clinic/logs-v1 --epsilon 4 --delta 1e-6 --public 0.05
  privrl-bench algo=dp_lspi env=logs data.id=clinic/logs-v1 data.public=0.05 budget=clinic.budget
  privrl budget show clinic.budget

A run is charged before its first release, and refused if it does not fit. See docs/guides/budget.md."""
_HERE = __name__
_WIDTH = 40  # of a full bar
COMMANDS = {
    "create": Command(f"{_HERE}:create", "make a budget, and name it in the dataset"),
    "show": Command(f"{_HERE}:show", "what is charged, by run"),
    "log": Command(f"{_HERE}:log", "every change"),
    "verify": Command(f"{_HERE}:verify", "look for damage, copies and older files"),
}


def main(words: Sequence[str], prog: str = "privrl budget") -> int:
    """Run the command and return its exit code. Raises `ConfigError`."""
    return dispatch(prog, ABOUT, COMMANDS, words)


def create(words: Sequence[str], prog: str) -> int:
    """`privrl budget create`."""
    parser = Parser(prog, "Make a budget for the users of a dataset, which names it from then on.")
    parser.add_argument("file", metavar="FILE", help="to make")
    parser.add_argument("--population", required=True, metavar="ID", help="of the dataset")
    parser.add_argument("--epsilon", required=True, type=float, help="of everything together")
    parser.add_argument("--delta", required=True, type=float)
    text = f"{', '.join(ADJACENCIES)}; of all runs (zero_out)"
    parser.add_argument("--adjacency", default="zero_out", help=text)
    parser.add_argument("--unit", default="one user", help="what one user is, in words (one user)")
    text = "renyi (default), or gaussian: tighter, but takes no sampled cohorts"
    parser.add_argument("--filter", default="renyi", help=text)
    parser.add_argument("--order", type=float, help="of renyi; the one at which most fits")
    text = "share of the users that runs may take as public, at most (0.01)"
    parser.add_argument("--public", type=float, default=0.01, help=text)
    options = vars(parser.read(words))
    made = create_budget(options.pop("file"), **options)
    print("\n".join(lines_of(made)))
    return 0


def show(words: Sequence[str], prog: str) -> int:
    """`privrl budget show`."""
    budget, as_json = _read(words, prog, "What is charged to a budget, by run.")
    print(json.dumps(facts_of(budget), indent=2) if as_json else "\n".join(lines_of(budget)))
    return 0


def log(words: Sequence[str], prog: str) -> int:
    """`privrl budget log`."""
    budget, as_json = _read(words, prog, "Every change of a budget, oldest first.")
    rows, whole = budget.log(), budget.terms.filter.capacity
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        part = f"{row['charged'] / whole:.2%}"
        print(f"{row['number']:>4}  {row['time']}  {row['action']:8} {part:>8}  {row['note']}")
    return 0


def verify(words: Sequence[str], prog: str) -> int:
    """`privrl budget verify`: exit code 1 if something is wrong."""
    about = (
        "Look for damage in a budget, and for run folders that it does not know: an older copy of the file "
        "that was put back is found if a later run folder is given, and cannot be found otherwise."
    )
    parser = Parser(prog, about)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="run folders charged to it"
    )
    options = parser.read(words)
    found = verify_budget(options.file, options.runs)
    print("\n".join(found) or f"{options.file}: nothing is wrong with what was looked at")
    return 1 if found else 0


def _read(words: Sequence[str], prog: str, about: str) -> tuple[Budget, bool]:
    parser = Parser(prog, about)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.read(words)
    return Budget(options.file), options.json


# --- from Python


def create_budget(
    file: str | Path,
    *,
    population: str,
    epsilon: float,
    delta: float,
    adjacency: str = "zero_out",
    unit: str = "one user",
    filter: str = "renyi",
    order: float | None = None,
    public: float = 0.01,
) -> Budget:
    """Make a budget for the users of a dataset, which names it from then on.

        pb.create_budget("clinic.budget", population="clinic/logs-v1", epsilon=4, delta=1e-6)

    Guarantee: all runs that are charged to it are together (epsilon, delta)-DP for one user, however they were
    chosen, as long as they are formal; see `privacy/accounting/filters.py`.

    Args:
        file: to make; on a local disk.
        population: id of a local dataset.
        epsilon: of everything together.
        delta: the same.
        adjacency: of all runs: zero_out | replace_one.
        unit: what one user is, in words.
        filter: renyi | gaussian: tighter, but takes no sampled cohorts.
        order: of renyi, more than 1; None: that at which most fits.
        public: share of the users that runs may take as public, at most.

    Returns:
        The budget: `share`, `entries()`, `log()`, `problems()`.

    Raises:
        ConfigError: bad input, the file is there, or the dataset has a budget.
    """
    kind = _filter(filter, epsilon, delta, adjacency, order)
    require("--public", 0 < public < 1, "above 0 and below 1", public)
    data = open_dataset(population)
    key = data.user_key or ""
    split = split_users(data, public, None, population)
    folder = datasets_root() / population
    people = People(population, folder, key, data.who(), split.public_users)
    with RunDir(folder).lock():
        return _registering(file, people, unit, kind)


def _registering(file: str | Path, people: People, unit: str, kind: PrivacyFilter) -> Budget:
    """Make a budget while its dataset is locked. Raises ConfigError: it has one, or the file is there."""
    before, place, population = registered(people), Path(file).resolve(), people.name
    if before and (before["made"] or before["file"] != place):
        there = "" if before["file"].exists() else ", which is not there; put it back"
        raise ConfigError("--population", f"{population} has the budget {before['file']}{there}")
    if place.exists() and not before:
        raise ConfigError("FILE", f"{file} exists; a budget is made once")
    terms = BudgetTerms(
        new_id(), population, unit, people.user_key, people.users, people.public_users, kind
    )
    return _made(Path(file), people.folder / BUDGET, terms, before)


def _made(file: Path, marker: Path, terms: BudgetTerms, before: dict[str, Any]) -> Budget:
    """Make a budget that its dataset names first: a crash between the two refuses runs until it is made.

    Args:
        file: to make.
        marker: of the dataset.
        terms: of the budget.
        before: what an attempt that was cut off left in the dataset; {}: nothing.
    """
    if before and file.exists():
        temporary_of(file, before["budget"]).unlink(missing_ok=True)
        found = Budget(file)  # all but the last step was done
        if found.terms.id != before["budget"]:
            raise ConfigError("FILE", f"{file} exists, and is not the budget of {terms.population}")
        if found.terms != replace(terms, id=found.terms.id):
            raise ConfigError("FILE", f"{file} was made with other terms: give those again")
        terms = found.terms
    said = {"file": str(file.resolve()), "budget": terms.id, "made": False}
    try:
        write_json(marker, said)
    except OSError as error:
        raise ConfigError("--population", f"cannot write {marker}: {error.strerror}") from None
    try:
        budget = found if before and file.exists() else Budget.create(file, terms)
    except ConfigError:
        if not before and not file.exists():
            marker.unlink()
        raise
    write_json(marker, said | {"made": True})
    return budget


def _filter(
    kind: str, epsilon: float, delta: float, adjacency: str, order: float | None
) -> PrivacyFilter:
    """The filter of these options. Raises ConfigError: on one of them."""
    require_choice("--filter", kind, ("renyi", "gaussian"))
    require_choice("--adjacency", adjacency, ADJACENCIES)
    for key, value, ok, rule in (
        ("--epsilon", epsilon, 0 < epsilon <= 100, "above 0 and at most 100"),
        ("--delta", delta, 0 < delta < 0.01, "above 0 and below 0.01"),
    ):
        require(key, ok, rule, value)
    if order is not None:
        require("--order", 1 < order <= 1e4 and kind == "renyi", "above 1, of renyi", order)
    elif kind == "renyi":
        order = best_order(epsilon, delta)
    made = PrivacyFilter(kind, float(epsilon), float(delta), adjacency, order)
    try:
        require("--epsilon", made.capacity > 0, "larger for this delta", epsilon)
    except PrivacyError as error:
        raise ConfigError("--epsilon", str(error)) from None
    return made


def open_budget(file: str | Path) -> Budget:
    """The budget of a file: `share`, `entries()`, `log()`, `problems()`. Raises ConfigError: it is none."""
    return Budget(file)


def verify_budget(file: str | Path, runs: Sequence[str | Path] = ()) -> list[str]:
    """What is wrong with a budget, and with run folders that were charged to it; empty: nothing was found.

    Args:
        file: of the budget.
        runs: folders.

    Raises:
        ConfigError: it is no budget, or a folder is no run.
    """
    budget = Budget(file)
    found = budget.problems()
    for folder in map(Path, runs):
        if not (folder / "status.json").exists():
            raise no_run("RUN", folder)
        found += verified(budget, folder)
    return found


# --- what is shown


def facts_of(budget: Budget) -> dict[str, Any]:
    """Plain values of a budget and of the runs that are charged to it."""
    terms, whole = budget.terms, budget.terms.filter.capacity
    return {
        "population": terms.population,
        "unit": terms.unit,
        "epsilon": terms.filter.epsilon,
        "delta": terms.filter.delta,
        "adjacency": terms.filter.adjacency,
        "filter": terms.filter.kind,
        "order": terms.filter.order,
        "public_users": terms.public_users,
        "status": budget.status,
        "share_charged": budget.share,
        "runs": [
            {
                "run": one.run,
                "what": one.what,
                "status": one.status,
                "state": one.state,
                "part": one.part,
                "share": one.charged / whole,
                "time": one.time,
            }
            for one in budget.entries()
        ],
    }


def lines_of(budget: Budget) -> list[str]:
    """The terms, a bar, and a row for each run, for the terminal."""
    terms, kind, share = budget.terms, budget.terms.filter, budget.share
    order = f" of order {kind.order:g}" if kind.order else ""
    key = f"users named by {terms.user_key!r}" if terms.user_key else "each episode is a user"
    full = min(round(_WIDTH * share), _WIDTH)
    return [
        f"{budget.path}: epsilon {shown_epsilon(kind.epsilon)} at delta {kind.delta:g} about "
        f"{terms.population}",
        f"  unit       {terms.unit} ({key}); at most {terms.public_users:,} public users",
        f"  filter     {kind.kind}{order}, {kind.adjacency}",
        f"  charged    [{'#' * full}{'.' * (_WIDTH - full)}] {share:.1%}",
        f"  guarantee  {budget.cap()}",
        *(_row(one, kind.capacity) for one in budget.entries()),
    ]


def _row(one: Entry, whole: float) -> str:
    part = f"{one.charged / whole:.1%}" if one.bounded else one.status
    return f"  {part:>9}  {one.state:8}  {one.what}  {one.run}"
