"""The guarantee of a run folder in full, in words."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrl_bench.config.overrides import explicit_keys
from privrl_bench.errors import ConfigError, no_run
from privrl_bench.metrics import again, shown_epsilon
from privrl_bench.privacy.guarantee import CHARGED, SEEDED, meaning, too_large

STATUSES = {
    "formal": "a theorem covers everything that the run releases, given the assumptions below",
    "unreviewed": "something from outside the package that no audit has passed in this version; "
    "epsilon holds if its code keeps to the interface",
    "heuristic": "epsilon is the accountant's number, and the caveats below name data that go around it",
    "none": "there is no bound: the run is not private",
}
NOTIONS = {
    "central": "the server sees the users' data; what it releases is private",
    "joint": "what all other users receive is private towards a user, their own answers are not",
    "local": "the users' devices add the noise; the server sees noised data only",
}
ADJACENCIES = {
    "zero-out": "neighbouring datasets differ in one unit, whose contribution is replaced by zero",
    "replace-one": "neighbouring datasets differ in one unit, which has other data",
    "add-or-remove": "neighbouring datasets differ in one unit, which is in one of them only",
    "any-trajectory-pair": "any two trajectories of a user are neighbours",
}
RELEASED = (
    "what may leave the run folder: policy.pt, the file to give to others, metrics but train/..., "
    "simulated evaluations, curve.png, and what W&B gets"
)
TUNING = "tuning: hyperparameters, seeds or runs that were chosen by looking at results on the same users"
SEARCHED = "other tuning: choices by looking at results on the same users, beyond this search"
OTHERS = "other runs on the same users: each has its own epsilon, and they add up"
UNCHARGED = (
    "uncharged runs: those on the same users that the budget lacks, and choices by their results"
)
OUTSIDE = (
    "private files: train/... metrics, times and checkpoint.pt must stay in the run folder",
    TUNING,
    "timing: how long the machine takes, and what can be seen of its memory",
    OTHERS,
    "several pieces of one person: who is in the data as several units counts as several users, and "
    "epsilon is for one of them",
)
SEED = (
    "the seed: whoever knows it (privacy.noise=seeded) can compute the noise and subtract it; use "
    "privacy.noise=secure for real data"
)


@dataclass(frozen=True)
class Explanation:
    """The guarantee of a run in words.

    Attributes:
        title: the run and its state.
        sections: title -> paragraphs.
    """

    title: str
    sections: dict[str, list[str]]

    def lines(self, width: int = 100) -> list[str]:
        """All of it, in lines of at most `width` characters."""
        lines = [self.title]
        for title, paragraphs in self.sections.items():
            lines += ["", title]
            for paragraph in paragraphs:
                lines += textwrap.wrap(
                    paragraph,
                    width,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,
                )
        return lines


def explain(folder: str | Path) -> Explanation:
    """Explain the guarantee of a run: what epsilon is of, every caveat, note and assumption.

        found = pb.explain("outputs/dppg/cartpole/epsilon=1,seed=0")
        for line in found.lines(width=80):
            print(line)

    Args:
        folder: a run folder, finished or not.

    Raises:
        ConfigError: the folder has no readable plan or summary.
    """
    folder = Path(folder)
    plan = _read(folder, "plan.json")
    summary = _read(folder, "summary.json")
    state = _read(folder, "status.json").get("status", "?")
    known = summary or plan
    if not known:
        raise no_run("RUN", folder)
    guarantee = _guarantee(folder / ("summary.json" if summary or state == "done" else "plan.json"))
    z = known.get("z")
    noise = "" if z is None else f", z={z:g}"
    title = f"{known['algo']} on {known['env']}{noise}, seed {known['seed']}: {state}"
    repeated = (summary.get("ledger") or {}).get("repeated")
    more = [*_broken_ledger(folder), *([again(repeated)] if repeated else [])]
    more += _delta(folder, plan, guarantee)
    return Explanation(title, dict(_sections(plan, summary, guarantee, more)))


def _sections(
    plan: Mapping[str, Any],
    summary: Mapping[str, Any],
    guarantee: Mapping[str, Any],
    more: Sequence[str] = (),
) -> list[tuple[str, list[str]]]:
    """Return titles and paragraphs."""
    status, notion, adjacency = (str(guarantee[key]) for key in ("status", "notion", "adjacency"))
    number = float(guarantee["epsilon"])
    epsilon = f"epsilon {shown_epsilon(number)} at delta {guarantee['delta']:g}, {adjacency}"
    when = "of the releases that were made" if summary else "planned for all rounds"
    head = [f"{epsilon}, {when}", f"status {status}: {STATUSES.get(status, '')}", *more]
    paper = float((summary or plan).get("epsilon_paper") or "inf")
    if paper < float("inf"):
        head.append(f"by the formula of the method's paper: {shown_epsilon(paper)}")
    head += _other_adjacencies(plan, guarantee)
    head.append(f"noise: {plan['mechanism']}" if plan.get("mechanism") else "")
    what = [f"unit: {guarantee['unit']}"]
    if status != "none":
        what.append(f"notion {notion}: {NOTIONS.get(notion, '')}")
        what.append(f"adjacency {adjacency}: {ADJACENCIES.get(adjacency, '')}")
    caveats = [str(line) for line in guarantee.get("caveats", [])]
    outside = [*(f"caveat {line}" for line in caveats), *_outside(guarantee)]
    names = ", ".join(line.partition(":")[0] for line in outside)
    large = too_large(number)
    bound = meaning(number, float(guarantee["delta"]), adjacency)
    return [
        (
            "In short",
            [
                f"protected: {'nobody' if status == 'none' else guarantee['unit']}",
                f"from whom: {'nobody' if status == 'none' else NOTIONS.get(notion, notion)}",
                f"how well: {status}, {bound}{'; ' if large else ''}{large}",
                f"not covered: {names}",
            ],
        ),
        ("Guarantee", [line for line in head if line]),
        ("What it protects", what + _participation(plan)),
        ("Covered by epsilon", ["nothing" if status == "none" else RELEASED]),
        ("Not covered by epsilon", outside),
        ("Assumptions and notes", [str(line) for line in guarantee.get("notes", [])] or ["none"]),
    ]


def _other_adjacencies(plan: Mapping[str, Any], guarantee: Mapping[str, Any]) -> list[str]:
    """Return epsilon under the other adjacencies; none where more was released than was planned."""
    known = {name.replace("_", "-"): float(x) for name, x in plan.get("epsilons", {}).items()}
    known.pop(str(guarantee["adjacency"]), None)
    if not float(guarantee["epsilon"]) <= float(plan.get("epsilon", "nan")):
        return []
    return [
        f"epsilon {shown_epsilon(value)} for adjacency {name}: {ADJACENCIES.get(name, '')}"
        for name, value in known.items()
    ]


def _outside(guarantee: Mapping[str, Any]) -> list[str]:
    """Return what no epsilon covers; of a run that is not private: everything."""
    if guarantee["status"] == "none":
        return ["everything: the run is not private"]
    notes = {str(line).partition(":")[0] for line in guarantee.get("notes", [])}
    changed = {TUNING: SEARCHED} if "search" in notes else {}
    changed |= {TUNING: UNCHARGED, OTHERS: UNCHARGED} if CHARGED in notes else {}
    outside = dict.fromkeys(changed.get(line, line) for line in OUTSIDE)
    return [*outside, *([SEED] if SEEDED in notes else [])]


def _delta(folder: Path, plan: Mapping[str, Any], guarantee: Mapping[str, Any]) -> list[str]:
    """Return where delta comes from, beside 1 / users; nothing of a run without a bound."""
    path = folder / "overrides.txt"
    if not float(guarantee["epsilon"]) < float("inf") or not path.is_file():
        return []
    given = "privacy.delta" in explicit_keys(path.read_text(encoding="utf-8").splitlines())
    users = _read(folder, "identity.json").get("privacy.population") or plan.get("users")
    beside = f"; 1 / users is {1 / users:.2g}" if users else ""
    how = "given" if given else "default of the YAML files, the same for every number of users"
    return [f"delta={guarantee['delta']:g} ({how}){beside}"]


def _broken_ledger(folder: Path) -> list[str]:
    """Return why epsilon is unknown where the ledger is damaged; nothing of a folder without its records."""
    if not (folder / "ledger.jsonl").exists() and not (folder / "timing.jsonl").exists():
        return []
    from privrl_bench.training.folder import RunDir

    try:
        RunDir(folder).verify_ledger(None)
    except ValueError as error:
        return [f"the ledger does not verify, so this epsilon and status may be wrong: {error}"]
    return []


def _participation(plan: Mapping[str, Any]) -> list[str]:
    """Return how often a unit takes part, where the plan is known."""
    if "rounds" not in plan:
        return []
    each = plan.get("releases_per_user", plan["rounds"])
    users = "" if plan.get("users") is None else f"; {_count(plan['users'], 'user')} in all"
    return [
        f"participation: {_count(plan['rounds'], 'release')} of {_count(plan['users_per_round'], 'user')}, "
        f"at most {each} of them with one unit{users}"
    ]


def _guarantee(path: Path) -> dict[str, Any]:
    """Return the guarantee of a summary or of a plan. Raises `ConfigError`: it is missing or damaged."""
    found = _read(path.parent, path.name).get("guarantee")
    try:
        if isinstance(found, dict) and not any(
            math.isnan(float(found[key])) for key in ("epsilon", "delta")
        ):
            return found
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError("RUN", f"{path} is damaged: it has no guarantee with epsilon and delta")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON object; {} if the file does not exist. Raises `ConfigError`."""
    path = folder / name
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("RUN", f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("RUN", f"{path} is damaged: it holds no object")
    return found
