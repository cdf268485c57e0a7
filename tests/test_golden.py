"""Today's code repeats the golden runs: to the last bit on the machine where they were recorded."""

import copy
from pathlib import Path

import golden_runs as golden
import pytest

CONF = Path(__file__).parent.parent / "conf"
RECORDED = golden.load()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return golden.make(tmp_path_factory.mktemp("made"))


@pytest.mark.fast_every(6)
@pytest.mark.parametrize("name", golden.cases())
def test_a_case_is_repeated(name, made):
    exact = RECORDED["machine"] == golden.fingerprint()
    now = golden.normal(golden.run(name, made))
    found = golden.differences(RECORDED["cases"][name], now, exact=exact)
    assert not found, "\n".join(found[:20])


def covered(setting):
    """The values of a setting that occur in a recorded run."""
    runs = [run for case in RECORDED["cases"].values() for run in case.values()]
    return {run["settings"][setting] for run in runs}


def test_every_algorithm_mechanism_and_sampling_is_in_some_case():
    assert set(RECORDED["cases"]) == set(golden.cases())
    assert {path.stem for path in (CONF / "algo").glob("*.yaml")} <= covered("algo")
    # Those of the tree that was recorded; later ones have tests of their own.
    recorded = {"gaussian", "tree", "fresh_noise_per_round", "per_transition", "local", "smooth"}
    assert recorded | {"none"} <= covered("mechanism")
    assert {"fixed", "poisson", "uniform_single_user", "full_batch"} <= covered("sampling")
    assert {"zero_out", "replace_one", "add_or_remove", "any_trajectory_pair"} == covered(
        "adjacency"
    )
    assert covered("accountant") == {"pld", "rdp", "gaussian"}
    assert covered("user") == {"fresh", "episode", "segment"}


def one():
    return copy.deepcopy(RECORDED["cases"]["dppg_private_critic"])


@pytest.mark.parametrize("exact", [True, False])
def test_equal_records_have_no_differences(exact):
    for case in RECORDED["cases"].values():
        assert golden.differences(case, copy.deepcopy(case), exact=exact) == []


@pytest.mark.parametrize(
    ("path", "factor", "exactly", "tolerantly"),
    [
        (("policy", "actor", "sum"), 1 + 1e-12, True, False),
        (("policy", "actor", "first", 0), 1.01, True, True),
        (("plan", "epsilon"), 1 + 1e-8, True, True),
        (("plan", "epsilon"), 1 + 1e-12, True, False),
        (("ledger", 0, "z"), 1 + 1e-12, True, True),
        (("metrics", 1, "release/norm"), 1 + 1e-6, True, False),
        (("metrics", 1, "release/norm"), 1.001, True, True),
    ],
)
def test_a_changed_number_is_found(path, factor, exactly, tolerantly):
    now = one()
    place = now["0"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] *= factor
    assert bool(golden.differences(one(), now, exact=True)) == exactly
    assert bool(golden.differences(one(), now, exact=False)) == tolerantly


def test_hashes_count_in_the_exact_comparison_only():
    now = one()
    now["0"]["policy"]["actor"]["sha256"] = now["0"]["ledger"][1]["digest"] = "other"
    assert len(golden.differences(one(), now, exact=True)) == 2
    assert golden.differences(one(), now, exact=False) == []


def test_what_is_missing_or_new_is_found():
    now = one()
    del now["0"]["metrics"][1]["lr"]
    now["0"]["plan"]["more"] = 1
    now["0"]["ledger"].pop()
    found = golden.differences(one(), now, exact=False)
    assert [line.partition(":")[0] for line in found] == [
        "0.ledger",
        "0.plan.more",
        "0.metrics.1.lr",
    ]


def test_an_ignored_field_is_not_compared(monkeypatch):
    now = one()
    now["0"]["plan"]["epsilon"] = 0.0
    monkeypatch.setattr(golden, "IGNORED", {"plan.epsilon": "for this test"})
    assert golden.differences(one(), now, exact=True) == []
