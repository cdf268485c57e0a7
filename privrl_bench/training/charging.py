"""Which budget a run is charged to, what it costs, and what is said of all runs about the same people."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.budget import KEY, Budget, DoesNotFit, Entry, new_id
from privrl_bench.privacy.guarantee import CHARGED, PART_OF_SEARCH, SEEDED
from privrl_bench.privacy.ledger import Mark, read_chain, require_reaches
from privrl_bench.privacy.rules import rules
from privrl_bench.training.folder import BUDGET, RunDir, write_json
from privrl_bench.users.facts import People

if TYPE_CHECKING:
    from privrl_bench.users.users import Users

_FINEST = 1e-3  # relative, of the z that would fit


def registered(people: People) -> dict[str, Any]:
    """What a dataset says of its budget: `file`, `budget` (its id) and `made`; {} for none.

    Raises:
        ConfigError: it cannot be read.
    """
    path = people.folder / BUDGET
    if not path.exists():
        return {}
    try:
        found = dict(json.loads(path.read_text()))
        return {
            "file": Path(found["file"]),
            "budget": str(found["budget"]),
            "made": bool(found["made"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(KEY, f"{path} is damaged: it names the budget of {people.name}") from None


def budget_of(config: RunConfig, users: Users) -> Budget | None:
    """The budget of a run, which fits its users; None: the run has none.

    Raises:
        ConfigError: on `budget`: it is for other people, their dataset has one that is not given, or the run
            has users who are new in every run.
    """
    given, people = config.budget.file, users.terms().people
    if people is None:
        if given is not None:
            raise ConfigError(
                KEY,
                "is for users of a dataset; simulated users are new people in every run",
            )
        return None
    named = registered(people)
    own = named.get("file")
    if given is None:
        if own is not None:
            raise ConfigError(KEY, f"{people.name} has a budget: add budget={own}")
        return None
    if own is not None and not named["made"]:
        raise ConfigError(KEY, f"{own} is not complete: give its privrl budget create again")
    budget = Budget(given)
    terms = budget.terms
    if terms.population != people.name:
        raise ConfigError(KEY, f"{given} is for {terms.population}, not for {people.name}")
    if own is None or not (own.exists() and own.samefile(given)):
        says = f"names the budget {own}" if own else "names no budget"
        raise ConfigError(KEY, f"{people.name} {says}, and {given} is another file")
    if named["budget"] != terms.id:
        raise ConfigError(
            KEY, f"{given} is not the file that was made for {people.name}: put it back"
        )
    seeded = config.privacy.noise == "seeded" and rules(config.privacy).mechanism.private
    if seeded and config.budget.allow == "formal":
        raise ConfigError(
            "privacy.noise",
            "seeded noise can be the same in two runs, so that their costs do not add up: use secure",
        )
    if terms.user_key != people.user_key:
        of = {"": "each episode is a user"}
        raise ConfigError(
            KEY,
            f"the unit differs: in {given} {of.get(terms.user_key, f'{terms.user_key!r} names a user')}, here "
            f"{of.get(people.user_key, f'{people.user_key!r} names a user')} (data.user_key)",
        )
    if people.users != terms.users:
        raise ConfigError(
            KEY,
            f"{people.name} has changed since {given} was made: who its users are, their order, or how long "
            "their episodes are",
        )
    if people.public_users > terms.public_users:
        raise ConfigError(
            "data.public",
            f"takes {people.public_users} users as public, of whom {given} protects all but "
            f"{terms.public_users}; lower it",
        )
    return budget


@dataclass(frozen=True)
class Charge:
    """Runs that are trained together, and the budget that they are charged to."""

    budget: Budget
    part: str = ""

    def entry(self, gate: Account, r: int, round_index: int | None, what: str) -> Entry:
        """What replica r costs: continued from a round to its end, or, with None, what its ledger has.

        Raises:
            ConfigError: on `budget`: there is no bound in its filter.
        """
        status = status_of(gate, r, round_index)
        cost = math.inf
        try:
            alternatives = releases_of(gate, r, round_index)
            cost = max((self.budget.terms.filter.cost(x) for x in alternatives), default=0.0)
        except PrivacyError as error:
            if status == "formal":
                raise ConfigError(KEY, f"{what}: {error}") from None
        ledger = gate.ledgers[r]
        slack = gate.mechanism.slack(r)
        what += f", part {self.part}" if self.part else ""
        return Entry("", "", 0, what, status, "reserved", cost, slack, ledger.mark, part=self.part)

    def reserve(self, plan: Any, dirs: Sequence[RunDir], rounds: Sequence[int]) -> None:
        """Charge runs before they begin or resume, and write who holds the reservation into their folders.

        Args:
            plan: with the ledgers of the folders.
            dirs: run folder of each.
            rounds: from which each continues.

        Raises:
            ConfigError: on `budget`: they do not fit, and what would; or see `Budget.reserve`.
        """
        entries, made = [], []
        for r, (rundir, index) in enumerate(zip(dirs, rounds, strict=True)):
            plan.gate.ledgers[r].sync()  # the budget remembers how far it has come
            planned = self.entry(plan.gate, r, index, _what(plan, r))
            rundir.path.mkdir(parents=True, exist_ok=True)
            made += [] if (rundir / BUDGET).exists() else [rundir]
            entries.append(self._held(rundir, planned))
        try:
            self.budget.reserve(entries, heuristic=plan.config.budget.allow == "heuristic")
        except ConfigError as error:
            for rundir in made:
                (rundir / BUDGET).unlink(missing_ok=True)
                with suppress(OSError):  # it has something else
                    rundir.path.rmdir()
            if isinstance(error, DoesNotFit):
                costs = sum(one.charged for one in entries)
                raise ConfigError(
                    KEY, self._refusal(plan, costs, error.left, any(rounds))
                ) from None
            raise
        plan.gate.notes.pop("runs", None)
        plan.gate.notes[CHARGED] = self.note()

    def settle(self, plan: Any, dirs: Sequence[RunDir]) -> None:
        """Charge runs that have ended what their ledgers have."""
        entries = []
        for r, rundir in enumerate(dirs):
            found = self.entry(plan.gate, r, None, _what(plan, r))
            entries.append(self._held(rundir, found))
        self.budget.settle(entries)

    def note(self) -> str:
        """What the guarantee of a run says of the others: fixed, so that a resumed run says the same."""
        terms, path = self.budget.terms, self.budget.path
        return (
            f"given what was released before; charged to {path.name}, which keeps everything about "
            f"{terms.population} within epsilon {shown_epsilon(terms.filter.epsilon)} at delta "
            f"{terms.filter.delta:g}, if all that is charged there is formal (privrl budget show)"
        )

    def line(self) -> str:
        """For the terminal, after a run."""
        share = self.budget.share
        return f"{share:.0%} of {self.budget.path} is charged; {self.budget.cap()}"

    def rows(self, plan: Any, r: int) -> list[tuple[str, str]]:
        """Rows of the plan of a run that has not begun."""
        costs = self.entry(plan.gate, r, 0, _what(plan, r)).charged
        left, whole = self.budget.left(self.part), self.budget.terms.filter.capacity
        charged = f"{(whole - left) / whole:.1%} is charged"
        rows = [("budget", f"a new run takes {costs / whole:.1%} of {self.budget.path}; {charged}")]
        if math.isfinite(costs) and not self.budget.terms.filter.fits(whole - left, costs):
            rows.append(("warning", f"{KEY}: {self._refusal(plan, costs, left)}"))
        return rows

    def _held(self, rundir: RunDir, entry: Entry) -> Entry:
        """The entry of a run folder, with the reservation that it holds; a new one if it holds none.

        The folder gets a new token before the file does, and keeps the last one: one of the two is the file's
        in the folder that was charged last, and not in an earlier copy of it.
        """
        held = _marker(rundir.path)
        if held and held.get("budget") != self.budget.terms.id:
            raise ConfigError(
                KEY,
                f"{rundir.path} was charged to another budget; use resume=restart, which reserves anew",
            )
        before = {one.id: one for one in self.budget.entries()}.get(held.get("entry", ""))
        if before is None and entry.mark.lines:
            why = f"{self.budget.path} knows nothing of it: an older copy of the file was put back"
            why = why if held else "without a budget, and would not be charged for what it released"
            raise ConfigError(KEY, f"{rundir.path} has released before, {why}")
        if before is not None:
            _check_holder(rundir.path, before, held)
        token, last = new_id(), before.token if before else ""
        name = held.get("entry") or new_id()
        own = {"budget": self.budget.terms.id, "entry": name, "tokens": [last, token]}
        write_json(rundir / BUDGET, own)
        place = str(rundir.path.resolve())
        return replace(entry, id=name, run=place, inode=_inode(rundir.path), token=token)

    def _refusal(self, plan: Any, costs: float, left: float, begun: bool = False) -> str:
        """Why a run does not fit, and, where it has not begun, what would."""
        whole = self.budget.terms.filter.capacity
        text = f"the run takes {costs / whole:.1%} of {self.budget.path}, of which {left / whole:.1%} is left"
        fits = [] if begun else _fitting(plan, self.budget, left / len(plan.configs))
        return f"{text}; {' or '.join(fits)} would fit" if fits else text


def _fitting(plan: Any, budget: Budget, left: float) -> list[str]:
    """Settings of one run that cost at most so much."""
    gate = plan.gate
    event, count = gate.mechanism.planned_releases(0, gate.participation)
    found = []

    def costs(scale: float, number: int) -> float:
        return budget.terms.filter.cost({replace(event, z=scale * event.z): number})

    try:
        scale = _least(lambda s: costs(s, count) <= left)
        if math.isfinite(scale):
            z = gate.configs[0].noise_multiplier * scale
            unit = 10.0 ** (math.floor(math.log10(z)) - 2)
            found.append(f"privacy.z={math.ceil(z / unit) * unit:.3g}")
        if count > 1 and (number := _most(lambda n: costs(1.0, n) <= left, count)):
            found.append(f"{number} of {plan.rounds} rounds")
    except PrivacyError:
        pass
    return found


def _least(fits: Callable[[float], bool]) -> float:
    """The least scale >= 1 that fits; infinite: none up to a million does."""
    low, high = 1.0, 2.0
    while not fits(high):
        low, high = high, 2.0 * high
        if high > 1e6:
            return math.inf
    while high / low > 1.0 + _FINEST:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _most(fits: Callable[[int], bool], count: int) -> int:
    """The largest number below `count` that fits."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def releases_of(gate: Account, r: int, round_index: int | None) -> list[Mapping[ReleaseEvent, int]]:
    """What a run will have released about one user if it continues from a round to its end; of several, each.

    None: what its ledger has now.

    Raises:
        PrivacyError: nothing is bounded.
    """
    ledger, mechanism = gate.ledgers[r], gate.mechanism
    found: list[Mapping[ReleaseEvent, int]] = []
    if round_index is not None:
        event, count = mechanism.planned_releases(r, gate.participation)
        found.append(Counter({event: count}))
        ledger = gate.continued_ledger(r, round_index)
    if gate.is_preview or mechanism.too_many(ledger, None):
        raise PrivacyError("nothing is bounded")
    return [*found, *mechanism.spent(r, ledger, gate.participation, None)]


def _marker(folder: Path) -> dict[str, Any]:
    """The reservation that a run folder holds; {} for none."""
    try:
        return dict(json.loads((folder / BUDGET).read_text()))
    except (OSError, ValueError):
        return {}


def _inode(folder: Path) -> int:
    """Of a folder, as SQLite holds it. Without its device, whose number may change when a machine starts."""
    return folder.stat().st_ino & (2**63 - 1)


def _holder_problem(folder: Path, entry: Entry, held: Mapping[str, Any]) -> str:
    """Why a folder is not the one that was charged, as far as it had come; empty: it is."""
    if entry.inode != _inode(folder):
        return f"is a copy of {entry.run}"
    if entry.token not in held.get("tokens", ()):
        return "and the budget do not belong together: an older copy of one of them was put back"
    try:
        require_reaches(folder / "ledger.jsonl", [("the budget", entry.mark)])
    except ValueError as error:
        return f"has lost what it released: {error}"
    return ""


def _check_holder(folder: Path, entry: Entry, held: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a folder is the one that was charged, as far as it had come."""
    if problem := _holder_problem(folder, entry, held):
        raise ConfigError(KEY, f"{folder} {problem}; use resume=restart, which reserves anew")


def refuse_charged(config: RunConfig) -> None:
    """Raise `ConfigError` if an audit would use the users of a budget, who would not be charged."""
    if config.budget.file is not None:
        raise ConfigError(
            KEY,
            "audits are not charged, and may not use people who have a budget; audit simulated users",
        )


def settle_done(config: RunConfig, rundir: RunDir, summary: Mapping[str, Any]) -> None:
    """Settle a run that is done, and was killed before it was settled: what was reserved stays charged."""
    if config.budget.file is None:
        return
    budget, held = Budget(config.budget.file), _marker(rundir.path)
    for one in budget.entries():
        if one.id == held.get("entry") and one.state == "reserved":
            _check_holder(rundir.path, one, held)
            found = read_chain(rundir / "ledger.jsonl")
            mark = Mark(len(found.lines), found.hashes[-1])
            why = [x for x in summary["guarantee"]["caveats"] if not x.startswith(PART_OF_SEARCH)]
            status = "heuristic" if why else one.status
            budget.settle([replace(one, mark=mark, status=status)])


def status_of(gate: Account, r: int, round_index: int | None) -> str:
    """The status of a run for a budget, if it continues from a round. None: now.

    That it is one of a search is no caveat, because all of them are charged. Seeded noise is one.
    """
    found = gate.guarantee(r)
    kept = {name: why for name, why in found.caveats.items() if name != PART_OF_SEARCH}
    again = round_index is not None and gate.continued_ledger(r, round_index).repeated()
    if again and gate.sampler.every_round:
        kept["repeated rounds"] = "two analyses, neither proven for both"
    kept |= {name: why for name, why in found.notes.items() if name == SEEDED}
    return replace(found, caveats=kept).status


def _what(plan: Any, r: int) -> str:
    config = plan.configs[r]
    return f"{config.algo.name} on {config.env.label}, seed {config.seed}"


def charge_of(plan: Any) -> Charge | None:
    """What the runs of a plan are charged to. Raises ConfigError: see `budget_of`."""
    budget, people = budget_of(plan.config, plan.users), plan.users.terms().people
    return None if budget is None or people is None else Charge(budget, people.part)


def verified(budget: Budget, folder: Path) -> list[str]:
    """What is wrong between a budget and a run folder: an unknown reservation, a copy, an older state.

    Args:
        budget: the budget.
        folder: of a run that says that it was charged to it.
    """
    held = _marker(folder)
    if not held:
        return [f"{folder} was charged to no budget"]
    if held.get("budget") != budget.terms.id:
        return [f"{folder} was charged to another budget"]
    entry = {one.id: one for one in budget.entries()}.get(held.get("entry", ""))
    if entry is None:
        return [f"{folder} is not known: an older copy of {budget.path} was put back"]
    problem = _holder_problem(folder, entry, held)
    return [f"{folder} {problem}"] if problem else []
