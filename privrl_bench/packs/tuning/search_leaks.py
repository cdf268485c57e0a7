"""The leak test of a search: what it publishes must not depend on a user, nor on the number of its runs.

A search trains its runs side by side with those of other searches, in which a substitute replaces one user
of every run (`counterfactual.py`). All get the released values of the first search, scores included. Then each
search chooses and publishes, with the code of `privrl tune`, and everything that is published must be equal.
Where the number of runs is secret, searches with fewer of these runs, but with the best, must publish the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from privrl_bench.audit.compare import Difference, distance
from privrl_bench.audit.counterfactual import CounterfactualRun
from privrl_bench.audit.leaks import LeakReport
from privrl_bench.audit.outputs import Place, as_bytes, folder_content
from privrl_bench.audit.shrink import LATER, shrink
from privrl_bench.audit.visits import Visit
from privrl_bench.config.schema import RunConfig
from privrl_bench.packs.tuning.best_of_runs import RunCount
from privrl_bench.packs.tuning.search_plan import SearchPlan
from privrl_bench.packs.tuning.trials import SearchState, open_search
from privrl_bench.packs.tuning.tune_runs import lines_of, run_search
from privrl_bench.training.crash import Outcome
from privrl_bench.training.folder import RunDir
from privrl_bench.training.sweep import Job
from privrl_bench.users.collectors.substitutes import CRAFTED, NULL, ZERO

# Further files of the folder of a search: what was drawn, its runs, and the run with the kept settings.
SEARCH_FILES = dict.fromkeys(("search.json", "search.jsonl", "trials", "final"), "private")

RUNS = 3  # of the tested search, whatever is drawn
FEWER = "fewer runs"
_KINDS = (CRAFTED, NULL, ZERO)


def with_search(
    report: LeakReport, plan: SearchPlan, given: frozenset[str], user: int
) -> LeakReport:
    """The report of the leak test of one run, with what the test of the search finds.

    Args:
        report: of a run of the search.
        plan: of the search.
        given: keys whose sizes are kept.
        user: slot of the replaced user in every run.

    Raises:
        ConfigError, EnvironmentFailure, PrivacyError: as `find_leaks`.
    """
    with tempfile.TemporaryDirectory(prefix="privrl_bench_") as name:
        searches = _Searches(Path(name), plan, given, user)
        state = searches.drawn()
        published = {"": searches.run("", state, searches.train)}
        for kind in _KINDS:
            published[kind] = searches.run(kind, state, searches.trained(kind))
        if isinstance(plan.search.runs, RunCount):
            fewer = state
            while fewer.count > 1:
                fewer = _without_one(fewer)
                kind = f"{FEWER}, {fewer.count}"
                published[kind] = searches.run(kind, fewer, searches.copied)
    differences, compared = list(searches.differences), searches.compared
    for kind in [kind for kind in published if kind]:
        for at in {**published[""], **published[kind]}:
            compared += 1
            size = distance(published[""].get(at), published[kind].get(at))
            if size is not None:
                differences.append(Difference(f"search {at}", f"search {at}", 0, size, kind))
    found = dict(report.found)
    for difference in differences:
        found.setdefault(difference.path, difference)
    also = f"a search of {state.count} runs with the user in each, and what it publishes"
    return replace(report, found=found, compared=report.compared + compared, also=(also,))


def _without_one(state: SearchState) -> SearchState:
    """The search without the first run that is not the best."""
    left = [i for i in range(state.count) if i != (1 if state.kept == 0 else 0)]
    return replace(
        state,
        count=len(left),
        ties=[state.ties[i] for i in left],
        seeds=[state.seeds[i] for i in left],
        settings=[state.settings[i] for i in left],
        kept=None,
    )


class _Searches:
    """Searches that differ in one user; a folder of each.

    Args:
        root: folder of all.
        plan: see `with_search`.
        given: see `with_search`.
        user: see `with_search`.

    Attributes:
        differences: in the runs of the searches.
        compared: pairs of tensors there.
    """

    def __init__(self, root: Path, plan: SearchPlan, given: frozenset[str], user: int):
        self._root, self._plan, self._given, self._user = root, plan, given, user
        self._ended: dict[tuple[str, str], Outcome] = {}
        self.differences: list[Difference] = []
        self.compared = 0

    def folder(self, kind: str) -> Path:
        """Of a search."""
        return self._root / (kind.replace(", ", "_").replace(" ", "_") or "model") / "search"

    def drawn(self) -> SearchState:
        """What the search draws, for `RUNS` runs."""
        search = self._plan.search
        forced = replace(self._plan, search=replace(search, runs=RUNS))
        state = open_search(forced, self.folder(""))
        state.settings = state.settings[:RUNS]
        return state

    def run(self, kind: str, state: SearchState, train: Any) -> dict[str, Tensor]:
        """Run a search and return what it publishes."""
        folder, own = self.folder(kind), replace(state) if kind in _KINDS else state
        folder.mkdir(parents=True, exist_ok=True)
        result = run_search(self._plan, own, folder, train)
        RunDir(folder).set_status(result.status, result.reason)
        found = {"printed": as_bytes(lines_of(result), folder)}
        for stage, content in folder_content(folder, folder, SEARCH_FILES).items():
            found |= {f"{stage} {name}": x for name, x in content.items()}
        provenance = folder / "provenance.json"
        if provenance.exists():
            found["provenance.json"] = as_bytes(provenance.read_bytes())
        return found

    def train(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Train runs of the first search, and those of the others side by side."""
        return [self._train(job) for job in jobs]

    def trained(self, kind: str) -> Any:
        """What gives the outcomes of another search, whose runs are trained."""

        def train(jobs: Sequence[Job]) -> list[Outcome]:
            names = (job.folder.relative_to(self.folder(kind)).as_posix() for job in jobs)
            ended = zip(jobs, names, strict=True)
            return [replace(self._ended[kind, name], number=job.number) for job, name in ended]

        return train

    def copied(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Runs of the search with fewer of them, from the first search: of the same seed."""
        found = []
        for job in jobs:
            if not job.folder.exists():  # a score is in the folder of its run
                for (kind, name), one in self._ended.items():
                    if kind == "" and one.summary["seed"] == job.config.seed:
                        shutil.copytree(self.folder("") / name, job.folder)
            found.append(Outcome("done", folder=str(job.folder), number=job.number))
        return found

    def _train(self, job: Job) -> Outcome:
        name = job.folder.relative_to(self.folder("")).as_posix()
        config, _ = shrink(job.config, self._given, user=self._user)
        config = replace(config, rounds=config.rounds or LATER + 2)
        # Settings that are found on a public simulator cost nothing: it has no private users.
        public = self._plan.search.tune.public is not None and name != "final"
        with ExitStack() as stack:
            runs: dict[str, CounterfactualRun] = {}
            for kind in ("", *_KINDS):
                place = Place(self.folder(kind) / name, self.folder(kind))
                own = self._moved(config, kind)
                RunDir(place.folder).begin(own, job.overrides)
                model, substitute = runs.get(""), None if public else kind
                run = CounterfactualRun(own, self._visit(config), substitute, model, place=place)
                stack.callback(run.close)
                runs[kind] = run
            while not runs[""].over:
                for run in runs.values():
                    run.step()
            for kind, run in runs.items():
                self._ended[kind, name] = run.finish()
                self.differences += run.stages.differences
                self.compared += run.stages.compared
        return replace(self._ended["", name], number=job.number)

    def _visit(self, config: RunConfig) -> Visit:
        """A user is replaced in every round from the second on; of a score in its only round."""
        first, end = 0 if config.algo.traits.one_round or config.rounds == 1 else 1, 10**9
        return Visit(first, self._user, end, end, evaluated=True)

    def _moved(self, config: RunConfig, kind: str) -> RunConfig:
        """The configuration of another search: a score reads the policy in its own folder, by one name."""
        link, first = self._root / "scored", str(self.folder(""))
        for name in ("policy", "target"):
            policy = str(getattr(config.algo, name, None))
            if policy.startswith(first):
                link.unlink(missing_ok=True)
                link.symlink_to(policy.replace(first, str(self.folder(kind))))
                changes: Any = {name: str(link)}
                config = replace(config, algo=replace(config.algo, **changes))
        return config
