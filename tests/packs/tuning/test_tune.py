"""Searches on CartPole: what is drawn, trained, kept, released and claimed."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import text_runs
import torch

import privrl_bench as pb
from privrl_bench.cli.main import main
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.packs.tuning import trials, tune_runs
from privrl_bench.packs.tuning.best_of_runs import RunCount, draw_search, profile_epsilon
from privrl_bench.packs.tuning.search_plan import (
    epsilon_by_delta,
    plan_search,
    score_config,
    search_epsilon,
)
from privrl_bench.packs.tuning.settings import read_search
from privrl_bench.packs.tuning.trials import score_job
from privrl_bench.packs.tuning.tune_runs import best_of
from privrl_bench.privacy.accounting.exact_gaussian import epsilon_at
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.training.plan import make_plan
from privrl_bench.training.sweep import Job, Outcome

SMALL = [
    *("algo=dppg", "env=cartpole", "algo.hidden=[4]", "privacy.users_per_round=4", "log=none"),
    *("env.user_steps=16", "env.max_episode_steps=30", "total_steps=256"),
    *("eval.episodes=2", "eval.every=0"),
]
LR = "algo.lr=loguniform(1e-3,1e-2)"
SCORE = ["tune.score_range=[0,30]", "tune.score_users=20"]
PUBLIC = "tune.score=public"


def planned(*words):
    return plan_search(read_search(later_wins(SMALL, words)))


def searched(folder, *words, **more):
    return pb.tune([*later_wins(SMALL, words), f"hydra.run.dir={folder}"], quiet=True, **more)


# --- what is claimed


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("z", [1.0, 3.0])
def test_epsilon_is_that_of_the_theorem(z):
    plan = planned(LR, *SCORE, f"privacy.z={z}")
    answer = profile_epsilon(lambda d: epsilon_at(z, d), RunCount(8.0, math.inf), 1e-5)
    assert plan.guarantee.epsilon == pytest.approx(answer, rel=1e-6)
    assert plan.alone == pytest.approx(epsilon_at(z, 1e-5))
    assert plan.guarantee.status == "formal"
    # Users who score lose at most as much.
    assert plan.score.config.z == pytest.approx(z, rel=1e-3)
    assert plan.score.config.z >= z


def test_a_target_covers_the_search():
    plan = planned(LR, *SCORE, "privacy.epsilon=4", "tune.runs=logarithmic(8)")
    assert 0.999 * 4 <= plan.guarantee.epsilon <= 4
    assert plan.alone < 2.6


def test_fixed_runs_are_composed():
    plan = planned(LR, PUBLIC, "privacy.z=2", "tune.runs=fixed(8)")
    assert plan.guarantee.epsilon == pytest.approx(epsilon_at(2 / math.sqrt(8), 1e-5))
    both = planned("algo.lr=choice(1e-3,1e-2)", PUBLIC, "privacy.z=2", "tune.runs=grid")
    assert both.guarantee.epsilon == pytest.approx(epsilon_at(2 / math.sqrt(2), 1e-5))


def test_the_largest_cost_counts():
    plan = planned(LR, PUBLIC, "privacy.z=choice(1,2)")
    worst = planned(LR, PUBLIC, "privacy.z=1")
    assert plan.guarantee.epsilon == worst.guarantee.epsilon


def test_noise_of_a_score_is_what_was_asked_for():
    plan = planned(LR, *SCORE, "privacy.z=2", "tune.score_z=0.5")
    worse = profile_epsilon(lambda d: epsilon_at(0.5, d), RunCount(8.0, math.inf), 1e-5)
    assert plan.guarantee.epsilon == pytest.approx(worse, rel=1e-6)


def test_without_noise_there_is_no_guarantee():
    plan = planned(LR, *SCORE, "privacy.z=0")
    assert plan.guarantee.status == "none"


def test_plan_command(capsys):
    words = [*SMALL, LR, *SCORE, "privacy.z=2", "privacy.population=1000"]
    assert main(["tune", "--plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "8 runs in the mean (poisson(8)) on private users; scored by 20 users" in shown
    assert "epsilon 3.623 with tuning, 1.994 without" in shown
    assert pb.tune_plan(words).lines() == shown.splitlines()


# --- what is drawn


def test_draws_depend_on_everything_that_was_asked_for():
    runs = RunCount(8.0, math.inf)
    first, again, other = (draw_search("seeded", 0, identity, runs, 2) for identity in (1, 1, 2))
    assert first.count == again.count
    assert first.seeds == again.seeds != other.seeds
    assert len({*first.seeds}) == first.count
    assert first.settings.shape == (first.count, 2)
    secure = [draw_search("secure", 0, 1, 5, 1).ties for _ in range(2)]
    assert secure[0] != secure[1]


def test_the_best_is_kept_and_ties_are_drawn():
    assert best_of([1.0, 5.0, 2.0], [0, 0, 0]) == 1
    assert best_of([5.0, 5.0], [0.1, 0.9]) == 1
    assert best_of([math.nan, -1.0], [0.9, 0.1]) == 1
    assert best_of([], []) is None


# --- what is trained, kept and released


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """A finished search with private scores."""
    folder = tmp_path_factory.mktemp("search") / "s"
    searched(folder, LR, *SCORE, "tune.runs=geometric(3)", "privacy.z=2")
    return folder


@pytest.mark.slow
def test_the_run_with_the_best_noised_score_is_kept(done):
    summary = json.loads((done / "summary.json").read_text())
    state = json.loads((done / "search.json").read_text())
    scores = []
    for i in range(state["count"]):
        rows = (done / "trials" / f"{i:03d}" / "score" / "metrics.jsonl").read_text().splitlines()
        scores.append(json.loads(rows[-1])["release/mean_return"])
    best = max(range(len(scores)), key=lambda i: (scores[i], state["ties"][i]))
    assert summary["search"]["score"] == scores[best]
    assert summary["search"]["kept"] == state["settings"][best]
    assert state["kept"] == best
    own = torch.load(done / "trials" / f"{best:03d}" / "policy.pt", weights_only=True)
    kept = torch.load(done / "policy.pt", weights_only=True)
    assert torch.equal(own["actor"], kept["actor"])


@pytest.mark.slow
def test_what_is_released_has_the_guarantee_of_the_search(done):
    summary = json.loads((done / "summary.json").read_text())
    plan = planned(LR, *SCORE, "tune.runs=geometric(3)", "privacy.z=2")
    assert summary["epsilon"] == plan.guarantee.epsilon
    assert summary["guarantee"]["status"] == "formal"
    assert summary["search"]["epsilon_without_tuning"] < summary["epsilon"]
    policy = pb.load_policy(done)
    assert policy.epsilon == summary["epsilon"]
    assert policy.guarantee["status"] == "formal"
    assert not (done / "metrics.jsonl").exists()
    for name in ("summary.json", "config.yaml", "policy.pt", "provenance.json"):
        # Which run it was bounds their number, which is secret.
        assert b"trials" not in (done / name).read_bytes()
    shown = "\n".join(pb.explain(done).lines(100))
    assert "beyond this search" in shown
    assert "the best of a random number of runs" in shown.replace("\n    ", " ")


@pytest.mark.slow
def test_a_single_run_is_not_to_be_quoted(done):
    for folder in (done / "trials" / "000", done / "trials" / "000" / "score"):
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["guarantee"]["status"] == "heuristic"
        (caveat,) = summary["guarantee"]["caveats"]
        place = caveat.split()[-1]
        assert (folder / place).resolve() == done.resolve()


@pytest.mark.slow
def test_every_run_has_a_line_before_it_starts(done):
    lines = [json.loads(line) for line in (done / "search.jsonl").read_text().splitlines()]
    state = json.loads((done / "search.json").read_text())
    assert [line["settings"] for line in lines] == state["settings"]
    assert all("previous" in line for line in lines)


@pytest.mark.slow
def test_a_finished_search_is_loaded_and_an_edited_one_refused(done):
    words = [LR, *SCORE, "tune.runs=geometric(3)", "privacy.z=2"]
    before = (done / "policy.pt").stat().st_mtime_ns
    assert searched(done, *words).epsilon == pb.load_run(done).epsilon
    assert (done / "policy.pt").stat().st_mtime_ns == before
    for edited in (
        ["algo.lr=loguniform(1e-3,2e-2)", *words[1:]],
        [*words[:-1], "privacy.z=1"],
        [*words, "tune.score_z=3"],
        [*words, "seed=4"],
    ):
        with pytest.raises(ConfigError, match="has another search"):
            searched(done, *edited)


def test_a_killed_search_resumes_to_the_same_result(tmp_path, monkeypatch):
    """In the same folder: the seeded noise of a score depends on the path of the policy that it scores."""
    words = [LR, *SCORE, "tune.runs=geometric(3)", "privacy.z=2"]
    expected = searched(tmp_path / "s", *words)
    actor = torch.load(tmp_path / "s" / "policy.pt", weights_only=True)["actor"]
    shutil.rmtree(tmp_path / "s")
    whole = trials.run_jobs

    def cut(jobs):
        found = whole(jobs[:1])
        return found + [
            Outcome("interrupted", exit_code=130, number=job.number) for job in jobs[1:]
        ]

    with monkeypatch.context() as patch:
        patch.setattr(trials, "run_jobs", cut)
        with pytest.raises(pb.RunInterrupted):
            searched(tmp_path / "s", *words)
    lines = (tmp_path / "s" / "search.jsonl").read_text()
    result = searched(tmp_path / "s", *words)
    assert (tmp_path / "s" / "search.jsonl").read_text() == lines
    kept = torch.load(tmp_path / "s" / "policy.pt", weights_only=True)["actor"]
    assert torch.equal(kept, actor)
    assert result.epsilon == expected.epsilon


def test_a_repeated_round_costs_more(tmp_path):
    """A run whose ledger has one release twice: the search says what both cost."""
    plan = planned(LR, PUBLIC, "privacy=fixed", "privacy.z=2")
    config, path = plan.runs[0].config, tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    gate = make_plan([config]).gate
    for _ in range(2):
        details = {"noise": "secure", **gate.mechanism.details(0, 0, ledger)}
        ledger.intend(0, gate.event(0), details, repeatable=False)
    ledger.sync()
    again = make_plan([config]).opened([path]).gate
    answer = profile_epsilon(
        lambda d: epsilon_at(2 / math.sqrt(2), d), RunCount(8.0, math.inf), 1e-5
    )
    assert search_epsilon([again], plan.search.runs, 1e-5) == pytest.approx(answer, rel=1e-6)


def test_no_run_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(RunCount, "draw", lambda self, uniform: 0)
    with pytest.raises(pb.RunFailed, match=r"poisson\(8\) drew no run, so nothing is released"):
        searched(tmp_path / "s", LR, PUBLIC, "privacy.z=2")
    assert not (tmp_path / "s" / "policy.pt").exists()


def test_a_failed_run_has_the_worst_score(tmp_path, monkeypatch):
    whole = trials.run_jobs

    def broken(jobs):
        found = whole(jobs[1:])
        return [Outcome("failed", "broken", number=jobs[0].number), *found]

    monkeypatch.setattr(trials, "run_jobs", broken)
    result = searched(tmp_path / "s", LR, PUBLIC, "privacy.z=2", "tune.runs=fixed(2)")
    state = json.loads((tmp_path / "s" / "search.json").read_text())
    assert result.summary["search"]["kept"] == state["settings"][1]


# --- what a review found: each of these gave a formal guarantee that did not hold


@pytest.mark.parametrize(
    "words",
    [
        ["env=gym", "env.id=my_pkg:Clinic-v0", *SCORE],
        ["env=gym", "env.id=my_pkg:Clinic-v0", PUBLIC, "tune.users=0.5", "privacy.population=100"],
    ],
)
def test_numbered_users_cannot_be_in_two_parts(words):
    """Fixed cohorts begin at user 0 in every part."""
    small = ["algo=dppg", "privacy.users_per_round=4", "total_steps=192", "privacy.z=1"]
    small.append("privacy.noise=secure")
    with pytest.raises(ConfigError, match=r"^tune\.(score|users): the users are numbered"):
        planned(LR, *words, *small)


def test_users_of_a_dataset_cannot_be_in_two_parts(sets):
    words = ["algo=primorl", "env=pendulum", f"data.id={sets}", "env.max_episode_steps=200"]
    words.append("total_steps=8000")
    with pytest.raises(ConfigError, match=r"^tune\.users: the users are numbered"):
        planned(
            "algo.gamma=choice(0.9,0.99)",
            PUBLIC,
            "tune.users=0.5",
            "privacy.population=200",
            *words,
        )


def test_prompts_cannot_be_in_two_parts(texts):
    """They come in one order, from the first one on, in every run."""
    words = ["algo=dppg_text", *text_runs.SMALL, *texts, "privacy.population=100", PUBLIC]
    words.append("algo.baseline_prompts=8")
    with pytest.raises(ConfigError, match=r"^tune\.users: the users are numbered"):
        plan_search(read_search([*words, "privacy.z=2", "algo.lr=choice(1,9)", "tune.users=0.5"]))
    with pytest.raises(ConfigError, match=r"^env\.text\.seed: is the same in all runs"):
        read_search([*words, "env.text.seed=choice(0,1)"])


def test_a_search_that_a_budget_cuts_releases_nothing(tmp_path, monkeypatch):
    """The best of the runs that fit is not the best of the number of runs that was drawn."""
    whole = trials.run_jobs

    def cut(jobs):
        refused = Outcome("failed", "budget: has no room", bad_input=True, number=jobs[-1].number)
        return [*whole(jobs[:-1]), refused]

    monkeypatch.setattr(trials, "run_jobs", cut)
    monkeypatch.setattr(RunCount, "draw", lambda self, uniform: 2)
    with pytest.raises(pb.RunFailed, match="a run was refused, so nothing is released: budget"):
        searched(tmp_path / "s", LR, PUBLIC, "privacy.z=2")
    assert not (tmp_path / "s" / "policy.pt").exists()


def test_who_scores_is_simulated_apart_from_who_trained():
    plan = planned(LR, *SCORE, "privacy.z=2")
    config = plan.runs[0].config
    assert score_config(plan.search, config, 10, 1.0, None).seed != config.seed


def test_who_scores_acts_on_the_cpu():
    plan = planned(LR, *SCORE)
    config = plan.runs[0].config
    trained = replace(config, hardware=replace(config.hardware, device="cuda"))
    assert score_config(plan.search, trained, 10, 1.0, None).hardware.device == "cpu"


@pytest.mark.slow
def test_the_run_with_the_kept_settings_has_the_largest_cost_of_all_choices(tmp_path):
    """The first value is the cheapest."""
    words = ["privacy.z=choice(4,0.5)", PUBLIC, "tune.public=env.max_episode_steps=9"]
    plan = planned(*words, "tune.runs=grid")
    assert plan.guarantee.epsilon == plan.alone == pytest.approx(epsilon_at(0.5, 1e-5), rel=1e-6)
    users = ["privacy.z=choice(4,0.5)", PUBLIC, "tune.users=0.9", "privacy.population=400"]
    assert planned(*users).guarantee.epsilon >= epsilon_at(0.5, 1e-5)


@pytest.mark.parametrize("order", ["none,running", "running,none"])
def test_caveats_of_every_choice_count(order):
    plan = planned(f"env.obs_scaling=choice({order})", PUBLIC, "privacy.z=2")
    assert plan.guarantee.status == "heuristic"
    assert plan.guarantee.caveats


@pytest.mark.parametrize("words", ["env.user_steps=choice(30,8)", "env.user=choice(fresh,segment)"])
def test_choices_that_change_what_a_user_is_are_refused(words):
    with pytest.raises(ConfigError, match="changes what one user is"):
        planned(words, PUBLIC, "privacy.z=2")


@pytest.mark.slow
def test_repeated_rounds_of_scores_and_of_the_last_run_count(done, tmp_path):
    """A ledger has a release twice."""
    folder = shutil.copytree(done, tmp_path / "s")
    plan = planned(LR, *SCORE, "tune.runs=geometric(3)", "privacy.z=2")
    state = trials.SearchState(
        **{
            k: v
            for k, v in json.loads((folder / "search.json").read_text()).items()
            if k != "version"
        }
    )
    jobs = [trial.job for trial in trials.trials_of(plan, state, folder)]
    assert tune_runs._after(plan, jobs) == plan.guarantee
    score = score_job(plan, jobs[0])
    ledger = Ledger(score.folder / "ledger.jsonl")
    for _ in range(3):
        ledger.again(0)
    more = tune_runs._after(plan, jobs).epsilon
    assert more > plan.guarantee.epsilon * 1.2
    gate = tune_runs._gate_of(score.config, score.folder)
    assert more == search_epsilon([plan.score, gate], plan.search.runs, 1e-5)
    small = replace(plan.guarantee, epsilon=0.1)
    own = gate.guarantee(0)
    assert tune_runs._at_least(small, own).epsilon == own.epsilon > 0.1


@pytest.mark.slow
def test_too_many_repeats_and_caveats_of_repeats_are_those_of_a_run(tmp_path):
    plan = planned(LR, PUBLIC, "privacy=fixed", "privacy.z=9")
    job = Job(0, plan.runs[0].config, tmp_path / "000", [])
    job.folder.mkdir()
    repeat(job.config, job.folder / "ledger.jsonl", 200)
    assert tune_runs._after(plan, [job]).epsilon == math.inf
    plan = planned(LR, PUBLIC, "privacy=poisson", "privacy.population=50", "privacy.z=9")
    job = Job(0, plan.runs[0].config, tmp_path / "001", [])
    job.folder.mkdir()
    repeat(job.config, job.folder / "ledger.jsonl", 2)
    assert "repeated rounds" in tune_runs._after(plan, [job]).caveats


def repeat(config, path, times):
    """A ledger whose first round was attempted so often."""
    ledger = Ledger(path)
    gate = make_plan([config]).gate
    for _ in range(times):
        details = {"noise": "secure", **gate.mechanism.details(0, 0, ledger)}
        ledger.intend(0, gate.event(0), details, repeatable=False)
    ledger.sync()


def test_a_preview_has_no_guarantee():
    plan = planned(LR, PUBLIC, "privacy.noise_cohort=4000", "privacy.z=1")
    assert plan.guarantee.epsilon == math.inf
    assert plan.guarantee.status == "none"


CROSSING = [PUBLIC, "privacy=poisson", "privacy.population=64", "privacy.z=0.5", "total_steps=1920"]
SIZES = "privacy.users_per_round=choice(2,60)"


@pytest.mark.slow
def test_costs_that_cross_are_bounded_together():
    """Neither cohort size is the worse at every delta: at least the larger of the two alone."""
    law = "tune.runs=geometric(8)"
    each = [planned(LR, *CROSSING, law, f"privacy.users_per_round={u}") for u in (2, 60)]
    both = planned(*CROSSING, law, SIZES).guarantee.epsilon
    assert both >= max(one.guarantee.epsilon for one in each)


def test_a_fixed_number_of_runs_of_costs_that_cross():
    plan = planned(*CROSSING, "tune.runs=fixed(2)", SIZES)
    costs = [epsilon_by_delta(one.gate) for one in plan.runs]
    assert len(costs) == 2
    assert plan.guarantee.epsilon == 2 * max(cost(plan.guarantee.delta / 2) for cost in costs)


def test_an_edited_draw_is_found(tmp_path, monkeypatch):
    """search.json is read again after a kill; its ledger has a fingerprint of what was drawn."""
    words = [LR, PUBLIC, "tune.runs=fixed(2)", "privacy.z=2"]

    def cut(jobs):
        return [Outcome("interrupted", exit_code=130, number=job.number) for job in jobs]

    with monkeypatch.context() as patch:
        patch.setattr(trials, "run_jobs", cut)
        with pytest.raises(pb.RunInterrupted):
            searched(tmp_path / "s", *words)
    path = tmp_path / "s" / "search.json"
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "s" / "trials").stat().st_mode & 0o077 == 0
    state = json.loads(path.read_text())
    state["seeds"][1] += 1
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="drawn otherwise"):
        searched(tmp_path / "s", *words)


@pytest.mark.slow
def test_what_is_released_does_not_depend_on_the_number_of_runs(tmp_path, monkeypatch):
    """The kept run is the same: of two searches, one with a further run that failed."""
    found = []
    for count in (1, 4):
        with monkeypatch.context() as patch:
            patch.setattr(RunCount, "draw", lambda self, uniform, count=count: count)
            folder = tmp_path / str(count)
            searched(folder, LR, PUBLIC, "privacy.z=2", "seed=3")
        files = sorted(p.name for p in folder.iterdir() if p.is_file())
        texts = [(folder / name).read_text() for name in ("provenance.json",)]
        summary = json.loads((folder / "summary.json").read_text())
        found.append((files, texts, sorted(summary)))
    assert found[0] == found[1]
    assert not {"wall_seconds", "steps_per_second", "ledger"} & set(found[0][2])


# --- the two ways around


@pytest.mark.slow
def test_a_disjoint_share_of_the_users(tmp_path):
    words = [LR, *SCORE, "privacy.epsilon=4", "privacy.population=200", "tune.users=0.3"]
    plan = planned(*words, "tune.runs=geometric(2)")
    assert plan.runs[0].config.privacy.population == 60 - 20
    assert "privacy.population=140" in plan.final_words
    assert plan.alone == pytest.approx(4, rel=1e-3)
    assert plan.guarantee.epsilon == pytest.approx(4, rel=1e-3)
    result = searched(tmp_path / "s", *words, "tune.runs=geometric(2)")
    assert result.epsilon == plan.guarantee.epsilon
    final = pb.load_run(tmp_path / "s" / "final")
    assert final.guarantee_status == "formal"
    own, kept = (
        torch.load(tmp_path / "s" / f / "policy.pt", weights_only=True)["actor"]
        for f in ("final", ".")
    )
    assert torch.equal(own, kept)


@pytest.mark.slow
def test_a_public_simulator_costs_nothing(tmp_path):
    words = ["env=pendulum", "env.max_episode_steps=20", "env.user_steps=20", "privacy.epsilon=2"]
    public = [PUBLIC, "tune.public=env.kwargs={g:9}", "tune.runs=fixed(2)"]
    result = searched(tmp_path / "s", LR, *words, *public)
    assert result.epsilon == pytest.approx(2, rel=1e-3)
    assert result.guarantee_status == "formal"
    state = json.loads((tmp_path / "s" / "search.json").read_text())
    assert len(state["settings"]) == 2
    searched_in = json.loads((tmp_path / "s" / "trials" / "001" / "summary.json").read_text())
    assert searched_in["epsilon"] == pytest.approx(2, rel=1e-3)
    assert "g: 9" in (tmp_path / "s" / "trials" / "001" / "config.yaml").read_text()
    assert "g: 9" not in (tmp_path / "s" / "final" / "config.yaml").read_text()


# --- bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([PUBLIC], "nothing to search"),
        ([LR], "tune.score_range: tune.score=private needs the range"),
        ([LR, "tune.scor=public"], r"tune.scor: no such key \(did you mean tune.score\?\)"),
        ([LR, PUBLIC, "tune.runs=poison(8)"], r"tune.runs: must be one of .*did you mean poisson"),
        ([LR, PUBLIC, "tune.runs=poisson(0.5)"], "tune.runs: poisson takes a mean above 1"),
        ([LR, PUBLIC, "tune.runs=fixed(2.5)"], "tune.runs: fixed takes one integer"),
        ([LR, PUBLIC, "tune.runs=geometric(2,3)"], "tune.runs: geometric takes a mean"),
        ([LR, PUBLIC, "tune.runs=grid"], "algo.lr: loguniform is no grid"),
        ([LR, PUBLIC, "privacy.clip=0.1,0.2"], "privacy.clip: 0.1,0.2 is a grid"),
        ([LR, PUBLIC, "tune.public=env.kwargs={g:9}"], "tune.runs: a search on a public simulator"),
        ([LR, *SCORE, "tune.public=x=1", "tune.runs=fixed(2)"], "tune.score: a search on a public"),
        ([LR, PUBLIC, "tune.users=0.2"], "tune.users: needs the number of users"),
        ([LR, PUBLIC, "tune.users=2"], "tune.users: must be null or between 0 and 1"),
        ([LR, *SCORE, "tune.score_users=many"], "tune.score_users: must be null or an integer"),
        ([LR, "tune.score_range=[3,1]"], "tune.score_range: must be null or"),
        ([LR, "tune.score_range=[0,nan]"], "tune.score_range: must be finite"),
        ([LR, "tune.score_range=[0,.inf]"], "tune.score_range: must be null or a list of numbers"),
        ([LR, "tune.score_range=[a,b]"], "tune.score_range: must be null or a list of numbers"),
        ([LR, PUBLIC, "seed=choice(1,2)"], "seed: is the same in all runs"),
        ([LR, PUBLIC, "privacy.delta=choice(1e-5,1e-6)"], "privacy.delta: is the same"),
        ([PUBLIC, "algo.lrr=uniform(1,2)"], r"algo.lrr: .*did you mean algo.lr"),
        (
            [PUBLIC, "privacy.z=choice(1,2)", "privacy.epsilon=2"],
            "privacy.epsilon: and a distribution",
        ),
        ([LR, PUBLIC, "privacy.z=1", "privacy.epsilon=2"], "the search costs 7.673, more than 2"),
        ([LR, *SCORE, "privacy.population=15"], "tune.score_users: must be less than the 15 users"),
        ([LR, *SCORE, "env.obs_scaling=running"], "tune.score: private needs env.obs_scaling"),
        ([LR, *SCORE, "privacy=local"], "tune.score: private is central"),
    ],
)
def test_bad_input_is_one_line(words, message):
    with pytest.raises(ConfigError, match=message):
        planned(*words)


def test_bad_input_leaves_no_folder(tmp_path, capsys):
    words = later_wins(SMALL, [LR, *SCORE, "privacy.users_per_round=oops"])
    assert main(["tune", *words, f"hydra.run.dir={tmp_path}/s"]) == 2
    assert not (tmp_path / "s").exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_sweep_draws_from_no_interval(capsys):
    from privrl_bench.cli.train import main as train

    with pytest.raises(SystemExit) as end:
        train(["-m", *SMALL, "algo.lr=interval(1e-3,1e-2)"])
    assert end.value.code == 2
    assert "privrl tune" in capsys.readouterr().err


def test_a_drawn_key_that_changes_the_cost_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"privacy.z: .*draw such a key from choice"):
        searched(tmp_path / "s", "privacy.z=uniform(1,2)", PUBLIC, "tune.runs=fixed(2)")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("where", ["users", "data", "drawn"])
def test_a_public_simulator_has_no_users(sets, where):
    """Words that still lead to users' data would make a search of them look free."""
    asked = [PUBLIC, "tune.public=seed=7", "tune.runs=fixed(3)", LR]
    clinic = ["algo=dppg", "env=gym", "env.id=my_pkg:Clinic-v0", "env.user=episode", "rounds=2"]
    clinic += ["privacy.users_per_round=4", "privacy.noise=secure"]
    words, message = clinic, "tune.public: .* declares users"
    if where == "data":
        words = ["algo=primorl", "env=pendulum", "env.max_episode_steps=40", f"data.id={sets}"]
        words.append("privacy.users_per_round=4")
        message = "tune.public: .* data.id names a dataset"
    if where == "drawn":  # only the second choice leads to users
        ids = "env.id=choice(my_pkg:Clock-v0,my_pkg:Clinic-v0)"
        words = [word for word in words if not word.startswith("env.id=")]
        words, message = [*words, ids], "env.id: .* changes what one user is"
    with pytest.raises(ConfigError, match=message):
        plan_search(read_search([*words, "log=none", *asked]))


def test_a_dataset_is_not_scored_by_users(sets):
    words = ["algo=mopo", "env=pendulum", f"data.id={sets}", "algo.lr=uniform(1e-4,1e-3)"]
    with pytest.raises(ConfigError, match=r"tune\.score: private needs users who play"):
        plan_search(read_search([*words, "tune.score_range=[0,1]"]))


@pytest.mark.slow
def test_audit_of_a_search_is_below_the_claim(tmp_path):
    words = [*SMALL, LR, PUBLIC, "privacy.z=0.7", "tune.runs=fixed(2)"]
    few = ["--scores", "300", "--folder", f"{tmp_path}/few"]
    assert main(["tune", "--audit", "epsilon", *few, *words]) == 0
    audit = pb.tune_epsilon(
        [*SMALL, LR, PUBLIC, "privacy=fixed", "privacy.z=0.7", "tune.runs=logarithmic(4)"],
        options=pb.AuditOptions(scores=6000, per_round=16),
        folder=tmp_path / "audit",
    )
    (finding,) = audit.findings
    assert audit.ok
    assert finding.claim == audit.guarantee.epsilon
    assert 0.2 * finding.claim < finding.best.epsilon < finding.claim


def test_the_scores_of_a_secure_search_have_secure_noise():
    words = ["algo=dppg", "env=cartpole", "privacy=fixed", "privacy.noise=secure", "privacy.z=9"]
    words += ["total_steps=8192", "algo.lr=loguniform(0.001,0.1)", "tune.score=private"]
    words += ["tune.score_range=[0,500]", "tune.score_users=9"]
    search = read_search(words)
    plan = plan_search(search)
    kinds = {one.config.privacy.noise for one in plan.runs}
    assert kinds | {plan.score.config.noise} == {"secure"}
    own = score_config(search, plan.runs[0].config, 9, 1.0, None)
    assert own.privacy.noise == "secure"
