"""privrl plan: its numbers by hand, what limits the rounds, and the nearest measured results."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers import Terminal

from privrl_bench.cli.main import main
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.reporting.run_loader import COLUMNS
from privrl_bench.training import describe, progress
from privrl_bench.training.describe import report_of
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

TINY = (
    *("algo=dppg", "algo.hidden=[4]", "algo.epochs=1", "algo.minibatches=2", "env.user_steps=6"),
    *("privacy.users_per_round=4", "eval.episodes=2", "eval.every=0", "log=none", "log.plot=false"),
)


def planned(*words, results=None):
    return report_of(make_plan([compose(words)]), results=results)


@pytest.fixture
def store(tmp_path):
    """A results store of dppg on cartpole."""
    made = {
        ("dppg", "fig2"): [("z=3", 1.27, "formal", value) for value in (500, 480, 499)]
        + [("z=12", 0.28, "formal", value) for value in (300, 100, 200)],
        ("dppg", "leaks"): [("paper", 1.9, "heuristic", 500)] * 3,
        ("dppg", "tuning"): [("z=2", 1.99, "formal", 7), *[("poisson", 1.9, "formal", 9)] * 3],
    }
    for parts, rows in made.items():
        folder = tmp_path.joinpath(*parts)
        folder.mkdir(parents=True)
        with (folder / "runs.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            for words, epsilon, status, value in rows:
                one = {"algo": "dppg", "env": "cartpole", "overrides": words, "settings": "{}"}
                neighbours = "add-or-remove" if words == "poisson" else "zero-out"
                one |= {"objective": "return", "adjacency": neighbours, "delta": "1e-05"}
                writer.writerow(one | {"epsilon": epsilon, "status": status, "value": value})
    return tmp_path


def test_noise_of_a_round_against_the_clip_is_what_one_computes_by_hand():
    words = ("privacy=fixed", "privacy.z=2", "algo.critic=none", "env.user=fresh")
    plan = planned(*words)
    (actor,) = plan.facts["noise"]
    numbers = [plan.facts[name] for name in ("users_per_round", "rounds", "users", "z")]
    assert numbers == [64, 146, 64 * 146, 2.0]
    assert actor.std == pytest.approx(2.0 * actor.clip / 64)
    assert actor.norm == pytest.approx(actor.std * math.sqrt(actor.parameters), rel=1e-3)


def test_correlated_noise_of_one_round_is_larger_than_independent_noise():
    one = planned("privacy=fixed", "privacy.z=2").facts["noise"][0]
    other = planned("privacy=correlated", "privacy.z=2").facts["noise"][0]
    assert 1.0 < other.std / one.std < 3.0


def test_epsilon_under_both_adjacencies():
    plan = planned("privacy=fixed", "privacy.epsilon=2")
    assert list(plan.facts["epsilons"]) == ["zero_out", "replace_one"]
    assert (
        plan.facts["epsilons"]["replace_one"]
        == planned("privacy=fixed", f"privacy.z={plan.facts['z'] / 2}").facts["epsilons"][
            "zero_out"
        ]
    )
    other = planned(
        "privacy=fixed", f"privacy.z={plan.facts['z']}", "privacy.adjacency=replace_one"
    )
    assert list(other.facts["epsilons"].items()) == list(reversed(plan.facts["epsilons"].items()))
    drawn = planned("privacy=poisson", "privacy.population=900", "privacy.z=2", "rounds=5")
    assert set(drawn.facts["epsilons"]) == {"add_or_remove", "zero_out"}
    local = planned("algo=ppo", "privacy=local", "privacy.epsilon=10", "rounds=5")
    assert set(local.facts["epsilons"]) == {"any_trajectory_pair"}
    assert not local.facts["noise"]


def test_a_population_limits_the_rounds_and_the_plan_says_so():
    plan = planned("privacy.epsilon=2", "privacy.population=5000")
    assert (plan.facts["rounds"], plan.facts["rounds_asked"], plan.facts["users"]) == (
        78,
        146,
        4992,
    )
    assert any("78 of 146, limited by the population of 5,000" in line for line in plan.lines())
    enough = planned("privacy.epsilon=2", "privacy.population=10_000")
    assert (enough.facts["rounds"], enough.facts["rounds_asked"]) == (146, 146)
    with pytest.raises(ConfigError, match=r"9344 users.*says 5000: at most 78 rounds, total_steps"):
        planned("privacy.population=5000", "total_steps=600_000")
    with pytest.raises(ConfigError, match=r"rounds: 79 rounds of 64 users need 5056 users"):
        planned("privacy.population=5000", "rounds=79")
    with pytest.raises(ConfigError, match="not enough for one round"):
        planned("privacy.population=63")
    with pytest.raises(ConfigError, match="fit_population: needs the number of users"):
        planned("fit_population=true")


def test_an_epsilon_that_excludes_almost_nothing_has_a_warning():
    large = planned("privacy.epsilon=1000000", "privacy.population=10_000").lines()
    assert [x for x in large if "warning" in x and "is above 20" in x]
    small = planned("privacy.epsilon=2", "privacy.population=10_000").lines()
    assert not [x for x in small if "warning" in x]
    assert not [x for x in planned("algo=ppo").lines() if "warning" in x]  # not private anyway


def test_a_budget_limits_the_rounds_and_the_plan_says_so():
    words = ("privacy=poisson", "privacy.population=200", "privacy.users_per_round=4", "rounds=50")
    plan = planned(*words, "privacy.z=1", "privacy.epsilon=1")
    assert plan.facts["rounds"] < plan.facts["rounds_asked"] == 50
    assert any(
        f"{plan.facts['rounds']} of 50, limited by the budget, epsilon 1" in x for x in plan.lines()
    )


def test_the_plan_gives_its_answer_first():
    answer = "dppg on cartpole: 146 rounds of 64 users, epsilon 2 at delta 1e-05, formal"
    assert planned("privacy.epsilon=2").lines()[0] == answer


def test_lines_on_a_terminal_hang_are_not_cut_in_words_and_show_the_status(monkeypatch):
    text = "epsilon 1, formal: " + "outputs/a/long/name/without/spaces " * 5
    assert progress.folded("  privacy ", text) == f"  privacy {text}"  # of a file
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    first, *rest = progress.folded("  privacy ", text).splitlines()
    assert first.startswith("  privacy epsilon 1, formal: outputs")
    assert rest
    assert all(line.startswith(" " * 10 + "outputs") for line in rest)
    assert max(map(len, (first, *rest))) <= 80
    assert progress.coloured(first).startswith("  privacy epsilon 1, \x1b[32mformal\x1b[0m: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert progress.coloured(first) == first


def test_the_nearest_results_are_formal_and_of_several_seeds(store):
    near = planned("privacy.epsilon=2", results=store).facts["nearest"]
    assert [one.words for one in near] == ["z=3", "z=12", "z=2"]
    assert (near[0].item, near[0].runs, near[0].low, near[0].high) == ("dppg/fig2", 3, 480, 500)
    lines = planned("privacy.epsilon=2", results=store).lines()
    assert "      dppg/fig2: z=12" in lines
    result = " steps, epsilon 1.27 (zero-out, delta 1e-05): mean return 493.0"
    assert any(line.startswith("  cartpole, 3 seeds, ") and result in line for line in lines)
    assert planned("privacy.epsilon=0.3", results=store).facts["nearest"][0].words == "z=12"
    other = planned("env=acrobot", "privacy.epsilon=2", results=store)
    assert other.lines()[-1] == "measured: no formal result of dppg on acrobot in the results store"


def test_without_a_store_the_plan_says_so(monkeypatch):
    monkeypatch.setattr(describe, "store", lambda: None)
    plan = planned("privacy.epsilon=2")
    assert plan.facts["nearest"] is None
    assert plan.lines()[-1].startswith("measured: nothing, because there are no results")
    assert "--results DIR" in plan.lines()[-1]


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "line",
    [
        "algo=ppo",
        "privacy.z=0",
        "algo=ucbvi env=riverswim",
        "algo=ucbvi env=riverswim privacy=fresh_noise_per_round",
        "algo=gpope env=chain data.policy=uniform privacy.population=50 rounds=5",
        "algo=dp_lsw env=chain data.policy=uniform privacy.population=50 privacy.epsilon=0.5",
        "+paper=dppg",
    ],
)
def test_every_kind_of_run_has_a_plan_in_words_and_in_json(line):
    plan = planned(*line.split())
    assert json.loads(json.dumps(plan.to_dict(), allow_nan=False))["rounds"] == plan.facts["rounds"]
    assert all(line.strip() for line in plan.lines())


def test_the_command_prints_the_table_or_json_and_refuses_bad_input(capsys):
    assert main(["plan", "privacy.epsilon=2", "privacy.population=10_000", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert 0.999 * 2 <= plan["epsilons"]["zero_out"] <= 2
    assert (plan["users"], plan["population"], plan["guarantee"]["status"]) == (
        9344,
        10_000,
        "formal",
    )
    assert main(["plan", "privacy.epsilon=2"]) == 0
    assert "epsilon, replace-one" in capsys.readouterr().out
    for words in (["privacy.epsilo=2"], ["--results", "nowhere"], ["privacy.epsilon=1,2"]):
        assert main(["plan", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_a_plan_of_fixed_cohorts_imports_no_accountant():
    """Importing dp-accounting takes over half a second."""
    code = (
        "import sys; from privrl_bench.cli.main import main; "
        "assert main(['plan', 'privacy.epsilon=2', 'privacy.population=10_000']) == 0; "
        "assert not {'dp_accounting', 'scipy.stats', 'scipy.signal'} & set(sys.modules)"
    )
    root = Path(describe.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, capture_output=True)


def test_a_run_with_a_target_keeps_the_number_and_can_be_rerun(tmp_path):
    words = [*TINY, "privacy.epsilon=2", "privacy.population=10"]
    configs = [compose([*words, f"seed={seed}"]) for seed in (0, 1)]
    folders = [tmp_path / str(seed) for seed in (0, 1)]
    first = run(configs, folders, [words, words])
    assert [one.status for one in first] == ["done", "done"]
    kept = yaml.safe_load((folders[0] / "config.yaml").read_text())
    assert kept["privacy"]["z"] == pytest.approx(1.994, abs=1e-3)
    assert (kept["rounds"], kept["fit_population"]) == (2, False)
    assert 1.998 <= first[0].summary["epsilon"] <= 2.0
    assert [one.status for one in run(configs, folders, [words, words])] == ["skipped", "skipped"]
    own = [*TINY, "privacy.epsilon=2", "privacy.population=10", "rounds=2"]
    z = kept["privacy"]["z"]
    (again,) = run([compose([*own, f"privacy.z={z}"])], [folders[0]], [own])
    assert again.status == "skipped"  # the same run
