"""Tests of the example: the model is simglucose's, users are fixed and differ, and training runs."""

import csv
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import compare
import privrl_bench as pb
from privrl_insulin import patients
from privrl_insulin.baseline import (
    MEASURES,
    RULES,
    basal_bolus,
    basal_only,
    evaluate,
    suspended,
    with_corrections,
)
from privrl_insulin.env import LARGEST, MINUTES, STEPS, Insulin, bolus_action, risk
from privrl_insulin.glucose_model import _slope, basal_state, fasting_stomach, simulate

DAY = STEPS * MINUTES
SIMULATION = {"user": None, "evaluation": True}


@pytest.fixture
def reference(monkeypatch):
    """simglucose's module with T1DPatient. Its imports of gym, pandas and pkg_resources are not used here."""
    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda *_: ""
    package = importlib.util.module_from_spec(
        importlib.util.find_spec("simglucose")
    )  # not executed
    for module in (resources, package, types.ModuleType("pandas")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield importlib.import_module("simglucose.patient.t1dpatient")
    for name in [name for name in sys.modules if name.startswith("simglucose.")]:
        del sys.modules[name]


class Row(types.SimpleNamespace):
    """A patient's parameters as simglucose reads them from its table; `iloc[2:15]` is the first state."""

    @property
    def iloc(self):
        return self

    def __getitem__(self, columns):
        assert columns == slice(2, 15)
        return self


def row(patient):
    start = basal_state(patient.parameters)
    return Row(**patient.parameters._asdict(), Name=patient.name, values=start)


def inputs(patient):
    """Insulin [U/min] and carbohydrate [g] of a day with four meals and smaller boluses than usual."""
    insulin, carbs = np.full(DAY, patient.basal), np.zeros(DAY)
    for at, grams in ((120, 45.0), (400, 70.0), (412, 12.0), (800, 80.0)):
        carbs[at] = grams
        insulin[at : at + 30] += 0.2 * grams / patient.carb_ratio / 30.0
    insulin[1100:1160] = 0.0  # the pump is off
    return insulin, carbs


@pytest.mark.parametrize("number", [0, 12, 24])
def test_a_day_is_that_of_simglucose(reference, number):
    """Glucose under the skin after every minute, for an adolescent, an adult and a child, to 0.02 %."""
    patient = patients.published()[number]
    insulin, carbs = inputs(patient)
    ours, state = np.empty(DAY), basal_state(patient.parameters)
    simulate(state, fasting_stomach(), patient.parameters, insulin, carbs, ours)
    theirs, other = np.empty(DAY), reference.T1DPatient(row(patient))
    for m in range(DAY):
        other.step(reference.Action(CHO=carbs[m], insulin=insulin[m]))
        theirs[m] = other.observation.Gsub
    assert np.ptp(theirs) > 40.0  # mg/dl
    np.testing.assert_allclose(ours, theirs, rtol=2e-4)


def test_basal_insulin_keeps_every_patient_steady():
    table = patients._table("vpatient_params.csv")
    for patient in patients.published():
        published = [float(value) for value in list(table[patient.name].values())[2:15]]
        np.testing.assert_allclose(basal_state(patient.parameters), published, rtol=1e-6)
    for patient in [*patients.published(), *map(patients.numbered, range(50))]:
        slope, p = np.empty(13), patient.parameters
        _slope(basal_state(p), p, p.u2ss, 0.0, 0.0, slope)
        np.testing.assert_allclose(slope, 0.0, atol=1e-6)


def test_users_are_fixed_and_differ():
    first, second = Insulin(users=200), Insulin(users=200)
    for user in range(20):
        for env in (first, second):
            env.reset(seed=user, options={"user": user})
        assert first.patient == second.patient == patients.numbered(user)
    seen = {patients.numbered(user) for user in range(200)}
    assert len(seen) == 200
    assert len({patient.name for patient in seen}) == 30
    with pytest.raises(ValueError, match="user 200 of 200"):
        first.reset(options={"user": 200})


def test_one_dose_acts_differently_on_users():
    """The same day and the same multiples of basal, for ten users of about the same weight."""
    finals = []
    for patient in filter(
        lambda p: 40.0 < p.parameters.BW < 60.0, map(patients.numbered, range(40))
    ):
        glucose, (insulin, carbs) = np.empty(DAY), inputs(patient)
        simulate(
            basal_state(patient.parameters),
            fasting_stomach(),
            patient.parameters,
            insulin,
            carbs,
            glucose,
        )
        finals.append(glucose.max())
    assert np.std(finals) > 15.0  # mg/dl


def test_the_evaluation_touches_no_numbered_user(monkeypatch):
    def refuse(user):
        raise AssertionError(f"user {user} was loaded")

    monkeypatch.setattr("privrl_insulin.env.numbered", refuse)
    env = Insulin(users=10)
    drawn = []
    for seed in range(5):
        env.reset(seed=seed, options=SIMULATION)
        drawn.append(env.patient)
        env.step(np.zeros(1, np.float32))
    monkeypatch.undo()
    assert not set(drawn) & set(map(patients.numbered, range(10)))
    assert len(set(drawn)) == 5


def test_gymnasium_accepts_the_environment():
    env = gym.make("privrl_insulin.env:Insulin-v0", users=10)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0, options={"user": 3})
    steps = [env.step(np.full(1, 5.0, np.float32)) for _ in range(STEPS)]
    assert [truncated for *_, truncated, _ in steps].index(True) == STEPS - 1
    assert all(-1.0 <= reward <= 0.0 for _, reward, *_ in steps)
    assert all(env.observation_space.contains(obs) for obs, *_ in steps)
    assert steps[-1][-1]["very_low"] > 0.5  # 32 times the basal rate


def test_risk_and_bolus_are_the_published_formulas():
    np.testing.assert_allclose(risk(np.array([112.5, 20.0, 600.0])), [0.0, 100.0, 100.0], atol=0.2)
    patient = patients.published()[0]
    units = (2.0 ** bolus_action(patient, 3.0) - 1.0) * patient.basal * MINUTES
    assert units == pytest.approx(3.0)
    assert bolus_action(patient, -1.0) == 0.0
    env, total = Insulin(), 0.0
    env.reset(seed=0)
    for _ in range(STEPS):
        total += env.step(np.zeros(1))[1]
    # LBGI + HBGI of the day: means of the same quadratic below and above its zero.
    below = env.minutes < 112.5
    low, high = (np.mean(risk(env.minutes) * part) for part in (below, ~below))
    assert -100.0 / 48.0 * total == pytest.approx(low + high)


def test_boluses_are_better_than_basal_insulin_alone():
    treated, untreated = (evaluate(rule, days=60) for rule in (basal_bolus, basal_only))
    assert treated.returns.mean() > untreated.returns.mean() + 5.0
    assert treated.in_range.mean() > untreated.in_range.mean() + 0.3
    found = treated.summary()
    assert found["risk"] == pytest.approx(-100.0 / 48.0 * found["returns"])
    for name in MEASURES:
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    with_suspension = evaluate(suspended, days=60)
    assert with_suspension.below_70.mean() < treated.below_70.mean()


def test_corrections_wait_for_the_last_bolus_and_low_glucose_stops_the_pump():
    rule, never = with_corrections(4), with_corrections(4, suspends=False)
    env = types.SimpleNamespace(patient=patients.published()[0])
    env.day = types.SimpleNamespace(announced=np.zeros(STEPS))
    env.day.announced[3] = 50.0
    glucose = {0: 200.0, 1: 200.0, 3: 70.0, 4: 70.0, 6: 200.0, 7: 200.0, 8: 100.0}
    given, unstopped, at_meals = {}, {}, {}
    for env.t, value in glucose.items():
        obs = np.array([value])
        given[env.t], unstopped[env.t] = rule(env, obs), never(env, obs)
        at_meals[env.t] = suspended(env, obs)
    assert given[0] > 0.0 == given[1]  # one step after a correction
    assert given[3] > 0.0  # a meal is treated at any glucose
    assert given[4] == -LARGEST
    assert given[6] == 0.0 < given[7]  # four steps after the bolus of the meal
    assert given[8] == 0.0
    assert unstopped == given | {4: 0.0}
    assert at_meals == dict.fromkeys(glucose, 0.0) | {3: given[3], 4: -LARGEST}


def test_it_trains_with_each_user_used_once(tmp_path):
    words = "plugins=[privrl_insulin] algo=dppg env=insulin env.kwargs.users=40 rounds=3 log=none"
    words += " privacy.noise=secure privacy.users_per_round=10 eval.episodes=2 eval.every=0 log.plot=false"
    run = pb.run(f"{words} hydra.run.dir={tmp_path}", quiet=True)
    assert run.guarantee_status == "formal"
    assert "one user (of 40 declared by the environment)" in run.guarantee["unit"]
    action = pb.load_policy(run.folder).act(Insulin().reset(seed=0)[0], greedy=True)
    assert action.shape == (1,)


def test_the_comparison_writes_its_table_and_figure(tmp_path, monkeypatch):
    tiny = {"seeds": [0], "users": [32, 64], "epsilons": [2.0, 8.0], "ppo_steps": 3000, "days": 3}
    monkeypatch.setitem(compare.SCALES, "smoke", tiny)
    monkeypatch.setitem(compare.MAIN_USERS, "smoke", 64)
    words = ["compare.py", "--out", str(tmp_path), "eval.episodes=2", "log.plot=false"]
    monkeypatch.setattr(sys, "argv", words)
    compare.main()
    folder = tmp_path / "smoke"
    first = (folder / "results.csv").read_text()
    table = list(csv.DictReader(first.splitlines()))
    assert [row["controller"] for row in table] == [
        *RULES,
        *("private", "private", "private"),
        *("no noise", "poisson", "ppo"),
    ]
    for row in table:
        assert row["processor"]
        assert "simglucose 0.2.11" in row["versions"]
        assert row["days"] == "3"
        assert all(float(row[f"{name}_low"]) <= float(row[name]) for name in MEASURES)
        assert (row["controller"] in RULES) == (row["seed"] == "")
    assert {row["users"]: row["asked"] for row in table[6:9]} == {"64": "8", "32": "8"}
    assert int(table[-1]["steps"]) > 0
    assert (folder / "results.png").stat().st_size > 10_000
    assert "<svg" in (folder / "results.svg").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(compare, "row_of", None)
        compare.main()  # every row is there
        patch.setattr(sys, "argv", [*words, "algo.lr=1"])
        with pytest.raises(SystemExit):
            compare.main()
    sys.argv.append("--again")
    compare.main()
    again = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    for row, before in zip(again, table, strict=True):
        assert before | {"commit": row["commit"]} == row  # someone may commit meanwhile
    (folder / "results.csv").write_text("controller,epsilon\n")
    with pytest.raises(SystemExit, match="other columns"):
        compare.main()


def test_the_readme_has_the_table_of_the_committed_rows():
    folder = Path(compare.__file__).parent
    rows = compare.read(folder / "results" / "policies.csv").values()
    assert "\n".join(compare.markdown(rows)) in (folder / "README.md").read_text(encoding="utf-8")
