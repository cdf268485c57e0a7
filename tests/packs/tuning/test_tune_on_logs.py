"""Searches on a dataset: scored by an estimate on users who do not train; costs, refusals, leaks, a budget."""

import json
import math

import pytest
from walk_logs import QUIET, walk_logs

import privrl_bench as pb
from privrl_bench.errors import ConfigError
from privrl_bench.packs.tuning.search_plan import plan_search
from privrl_bench.packs.tuning.settings import read_search
from privrl_bench.privacy.accounting.exact_gaussian import epsilon_at
from privrl_bench.users.facts import People

WALK = "walks/b-v0"
HALF = ["data.part=1/2", "tune.runs=fixed(2)"]
IS = "tune.score='algo=dp_is algo.center=0.5 algo.cap=4 privacy.clip=0.5 data.part=2/2'"
FQE = "tune.score='algo=dp_fqe algo.features=4 data.part=2/2'"


@pytest.fixture(scope="module", autouse=True)
def datasets(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        walk_logs(WALK, users=1000)
        yield


def words(algo, *more):
    own = [f"algo={algo}", "env=logs", f"data.id={WALK}", "data.public=0.1", *QUIET[:3]]
    return [*own, *HALF, *more]


def cloning(*more):
    small = ["rounds=5", "privacy.users_per_round=20", "algo.hidden=[4]"]
    return words("dp_bc", *small, "algo.lr=loguniform(1e-3,1e-1)", *more)


def test_the_score_is_the_value_on_users_who_do_not_train(tmp_path):
    found = pb.tune(cloning(IS, "privacy.z=2", f"hydra.run.dir={tmp_path / 's'}"), quiet=True)
    plan = plan_search(read_search(cloning(IS, "privacy.z=2")))
    assert found.epsilon == pytest.approx(plan.guarantee.epsilon)
    # Two releases about users who score, composed, cost no more than the runs about those who train.
    z = plan.score.config.noise_multiplier
    assert epsilon_at(z / math.sqrt(2), 1e-5) == pytest.approx(found.epsilon, rel=1e-3)
    scores = []
    for trial in sorted((tmp_path / "s/trials").glob("*/score")):
        run = pb.load_run(trial)
        assert run.config["data"]["part"] == "2/2"
        assert run.config["algo"]["target"] == str(trial.parent)
        assert pb.load_run(trial.parent).config["data"]["part"] == "1/2"
        scores.append(run.final_value)
    search = json.loads((tmp_path / "s/summary.json").read_text())["search"]
    assert len(scores) == 2
    assert search["score"] == max(x for x in scores if not math.isnan(x))
    assert found.guarantee_status == "formal"


@pytest.mark.slow
def test_greedy_policies_are_scored_by_fitted_q_evaluation(tmp_path):
    own = ["algo.features=6", "algo.gamma=0.9", "algo.ridge=choice(1,1000)", FQE]
    folder = tmp_path / "it's"
    own += ["privacy.epsilon=8", "tune.score_z=1", f'hydra.run.dir="{folder}"']
    found = pb.tune(words("dp_lspi", *own), quiet=True)
    assert found.epsilon <= 8.0
    values = [pb.load_run(x).final_value for x in (folder / "trials").glob("*/score")]
    assert found.summary["search"]["score"] == max(values)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([IS.replace("2/2", "1/2")], "tune.score: would score on users who train: .*as data.part"),
        ([IS.replace(" data.part=2/2", "")], "tune.score: would score on users who train"),
        ([IS.replace("2/2", "3/4")], "tune.score: would score on users who train"),
        ([IS.replace("2/2", "2/2 data.public=0.2")], "tune.score: would score on users who train"),
        ([IS, "tune.score_range=[0,1]"], "tune.score_range: .*for tune.score=private"),
        ([IS.replace("cap=4", "cap=4 privacy.adjacency=replace_one")], "another guarantee"),
        (
            [IS.replace("cap=4", "cap=4 privacy.noise=secure")],
            "privacy.noise is that of the search",
        ),
        ([IS.replace("cap=4", "cap=4 plan_only=true")], "plan_only is that of the search"),
        ([IS, "budget=choice(a,b)"], "budget.*: is the same in all runs"),
        (["tune.score=publc"], "tune.score: must be private, public, .*did you mean public"),
        (["tune.score='algo=dp_iss data.part=2/2'"], "tune.score: .*dp_iss"),
        (["tune.score='algo=dppg data.part=2/2'"], "tune.score: "),
        ([IS.replace("cap=4", "cap=400")], "tune.score: algo.cap: 400 gives the mean ratio"),
        ([IS.replace("dp_is", "dp_is privacy.epsilon=1")], "tune.score: .*tune.score_z"),
        (["tune.score_range=[0,1]"], "tune.score: private needs users who play"),
    ],
)
def test_what_is_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        plan_search(read_search(cloning("privacy.z=2", *more)))


def test_importance_sampling_of_greedy_policies_is_refused():
    with pytest.raises(ConfigError, match=r"tune\.score: policies of algo=dp_lspi are greedy"):
        plan_search(read_search(words("dp_lspi", "algo.ridge=choice(1,9)", IS, "privacy.z=2")))


@pytest.mark.parametrize(
    ("mine", "theirs", "apart"),
    [("1/2", "2/2", True), ("1/2", "3/4", False), ("1/2", "2/4", True), ("1/3", "2/2", False)],
)
def test_parts_without_common_users(tmp_path, mine, theirs, apart):
    one, two = (People("a", tmp_path, "", "x", 3, part) for part in (mine, theirs))
    assert one.apart_from(two) is two.apart_from(one) is apart
    places = [
        {p for p in range(60) if p % int(k) == int(i) - 1}
        for i, k in (x.split("/") for x in (mine, theirs))
    ]
    assert (not places[0] & places[1]) is apart


def test_both_parts_are_charged_to_a_budget(tmp_path, monkeypatch):
    # Of its own: a dataset names its budget.
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    walk_logs(WALK, users=1000)
    pb.create_budget(tmp_path / "b", population=WALK, epsilon=8, delta=1e-4, public=0.1)
    more = [IS, "privacy.epsilon=1", "privacy.noise=secure", f"budget={tmp_path / 'b'}"]
    pb.tune(cloning(*more, f"hydra.run.dir={tmp_path / 's'}"), quiet=True)
    parts = [one.part for one in pb.open_budget(tmp_path / "b").entries()]
    assert sorted(parts) == ["1/2", "1/2", "2/2", "2/2"]


@pytest.mark.slow
def test_a_search_on_logs_opens_no_path_around_the_gate():
    report = pb.tune_leaks(cloning(IS, "privacy.z=2"))
    assert report.report.verdict() == "formal: no path around the gate", report.report.lines()
