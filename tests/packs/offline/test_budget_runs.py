"""Runs that are charged to a budget: what they cost, who is refused, crashes, copies, searches."""

import json
import re
import shutil
from pathlib import Path

import pytest
from walk_logs import walk_logs

import privrl_bench as pb
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.minari_files import datasets_root
from privrl_bench.privacy.budget import Budget, most_charged
from privrl_bench.privacy.gate import Gate
from privrl_bench.training.loop import Experiment

NAME = "walks/b-v0"
LSPI = f"algo=dp_lspi env=logs data.id={NAME} log=none data.public=0.1 privacy.noise=secure"


@pytest.fixture(autouse=True)
def people(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    walk_logs(NAME, users=200)


def create(name="a.budget", **more):
    given = {"population": NAME, "epsilon": 4, "delta": 1e-6, "public": 0.1} | more
    return pb.create_budget(name, **given)


def run(words, **groups):
    return pb.run(f"{LSPI} {words}", quiet=True, **groups)


def parts(budget):
    return [round(one.charged / budget.terms.filter.capacity, 4) for one in budget.entries()]


def test_a_run_is_charged_and_says_what_holds_for_all(capsys):
    budget = create(filter="gaussian")
    found = pb.run(f"{LSPI} privacy.z=4 budget=a.budget")
    assert parts(budget) == [round(1 / 16 / budget.terms.filter.capacity, 4)]
    assert [one.state for one in budget.entries()] == ["settled"]
    note = next(one for one in found.summary["guarantee"]["notes"] if one.startswith("budget: "))
    assert note == (
        "budget: given what was released before; charged to a.budget, which keeps everything about walks/b-v0 "
        "within epsilon 4 at delta 1e-06, if all that is charged there is formal (privrl budget show)"
    )
    assert not [one for one in found.summary["guarantee"]["notes"] if one.startswith("runs: ")]
    assert found.summary["guarantee"]["status"] == "formal"
    explained = str(pb.explain(found.folder))
    assert "uncharged runs: those on the same users that the budget lacks" in explained
    assert "each has its own epsilon" not in explained
    assert f"budget  9% of a.budget is charged; {budget.cap()}" in capsys.readouterr().out
    assert "budget" not in found.folder.name  # it changes no result
    run("privacy.z=4 budget=a.budget")  # done before: nothing is charged
    assert len(budget.entries()) == 1
    assert pb.verify_budget("a.budget", [found.folder]) == []


def test_a_dataset_names_its_budget_and_a_run_without_it_is_refused():
    create()
    with pytest.raises(
        ConfigError, match=r"^budget: walks/b-v0 has a budget: add budget=/.*a\.budget"
    ):
        run("privacy.z=4")
    with pytest.raises(ConfigError, match=r"^--population: walks/b-v0 has the budget"):
        create("b.budget")


@pytest.mark.parametrize(
    ("given", "words", "problem"),
    [
        ({}, "data.public=0.2", r"^data.public: takes 40 users as public, of whom .* all but 20"),
        (
            {},
            "privacy.adjacency=replace_one",
            r"^budget: .*is for zero_out, the run has replace_one",
        ),
        ({}, "privacy.noise=seeded", r"^privacy.noise: seeded noise can be the same in two runs"),
        ({}, "privacy.z=0", r"^budget: .* is none, .*budget.allow=heuristic"),
        ({}, "data.user_key=null", r"^budget: the unit differs: .*'user' names a user, here each"),
        (
            {},
            "privacy.z=0.5",
            r"^budget: the run takes \d\d\d\.\d% of .*; privacy.z=\d.* would fit",
        ),
        (
            {"filter": "gaussian"},
            "algo=dp_bc privacy.users_per_round=9",
            r"^budget: .*a gaussian filter has no bound",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_no_folder(given, words, problem, tmp_path):
    budget = create(**given)
    given = LSPI.replace("algo=dp_lspi", words) if "algo" in words else f"{LSPI} {words}"
    given = given.replace(" data.public=0.1", "") if "public" in words else given
    given = given.replace(" privacy.noise=secure", "") if "seeded" in words else given
    with pytest.raises(ConfigError, match=problem):
        pb.run(f"{given} budget=a.budget" + " privacy.z=4" * ("z=" not in words), quiet=True)
    assert budget.entries() == []
    assert not list((tmp_path / "outputs").rglob("status.json"))
    assert not list((tmp_path / "outputs").rglob("budget.json"))


def test_the_z_that_is_said_fits():
    budget = create()
    with pytest.raises(ConfigError) as error:
        run("privacy.z=0.5 budget=a.budget")
    z = re.search(r"privacy\.z=([\d.]+)", str(error.value))[1]
    run(f"privacy.z={z} budget=a.budget")
    assert budget.share > 0.99


def test_the_number_of_rounds_that_is_said_fits():
    budget = create()
    bc = LSPI.replace("dp_lspi", "dp_bc") + " privacy.users_per_round=20"
    words = f"{bc} eval.every=0 privacy.z=2 rounds=400 budget=a.budget algo.hidden=[]"
    planned = str(pb.plan(words))
    with pytest.raises(ConfigError) as error:
        pb.run(words, quiet=True)
    assert str(error.value).partition(" takes ")[2] in planned
    few = int(re.search(r"(\d+) of 400 rounds", str(error.value))[1])
    pb.run(words.replace("rounds=400", f"rounds={few}"), quiet=True)
    assert 0.98 < budget.share <= 1


@pytest.mark.parametrize(("users", "episodes"), [(201, 1), (100, 2)])
def test_a_dataset_that_changed_is_refused(users, episodes):
    """Public users and parts follow from the order of users, so that others would be protected."""
    create()
    marker = datasets_root() / NAME / "budget.json"
    kept = marker.read_text()
    shutil.rmtree(marker.parent)
    walk_logs(NAME, users, episodes=episodes)
    marker.write_text(kept)
    with pytest.raises(
        ConfigError, match=r"^budget: walks/b-v0 has changed since a.budget was made"
    ):
        run("privacy.z=4 budget=a.budget")


def test_simulated_users_and_other_datasets_are_refused():
    create()
    with pytest.raises(
        ConfigError,
        match=r"^budget: is for users of a dataset; simulated users",
    ):
        pb.run("env=cartpole rounds=1 budget=a.budget", quiet=True)
    walk_logs("walks/c-v0", users=200)
    with pytest.raises(ConfigError, match=r"^budget: a\.budget is for walks/b-v0, not for walks/c"):
        pb.run(LSPI.replace(NAME, "walks/c-v0") + " privacy.z=4 budget=a.budget", quiet=True)
    with pytest.raises(ConfigError, match=r"^budget: there is no file b\.budget"):
        run("privacy.z=4 budget=b.budget")


def test_a_run_without_a_guarantee_is_remembered():
    budget = create()
    run("privacy.z=0 budget=a.budget budget.allow=heuristic")
    run("privacy.z=4 budget=a.budget")
    assert "there is no bound on everything about walks/b-v0" in budget.cap()
    assert budget.status == "heuristic"


def test_disjoint_parts_compose_in_parallel_and_overlapping_ones_do_not():
    budget = create()
    found = [run(f"privacy.z=4 budget=a.budget data.part={k}/2") for k in (1, 2)]
    one, other = budget.entries()
    assert (one.part, other.part) == ("1/2", "2/2")
    assert one.charged == other.charged == most_charged(budget.entries())
    assert one.what == "dp_lspi on walks/b-v0, seed 0, part 1/2"
    run("privacy.z=4 budget=a.budget data.part=1/3")  # shares users with both
    assert most_charged(budget.entries()) == pytest.approx(2 * one.charged)
    run("privacy.z=4 budget=a.budget")
    assert budget.share == pytest.approx(3 * one.charged / budget.terms.filter.capacity)
    assert budget.left("2/3") == pytest.approx(budget.terms.filter.capacity - 2 * one.charged)
    note = next(x for x in found[0].summary["guarantee"]["notes"] if x.startswith("dataset: "))
    assert "of the private users part 1/2" in note


def test_jobs_of_a_sweep_are_charged_together_or_not_at_all():
    budget = create(filter="gaussian")
    words = f"{LSPI} privacy.z=2 seed=1,2 budget=a.budget"
    pb.multirun(words, quiet=True)
    assert parts(budget) == [round(0.25 / budget.terms.filter.capacity, 4)] * 2
    with pytest.raises(ConfigError, match=r"^budget: the run takes"):
        pb.multirun(words.replace("1,2", "3,4"), quiet=True)
    assert len(budget.entries()) == 2


# --- crashes and copies


def die(*words):
    raise SystemExit("killed")


def killed(monkeypatch, owner, name, words):
    """A run that ends where it calls this method of a class."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, die)
        with pytest.raises((SystemExit, pb.RunFailed) if owner is Gate else SystemExit):
            pb.run(words, quiet=True)


def test_a_killed_run_stays_charged_and_resumes_on_its_reservation(monkeypatch):
    budget = create()
    killed(monkeypatch, Experiment, "run", f"{LSPI} privacy.z=4 budget=a.budget")
    assert [one.state for one in budget.entries()] == ["reserved"]
    charged = parts(budget)
    run("privacy.z=4 budget=a.budget")
    assert [one.state for one in budget.entries()] == ["settled"]
    assert parts(budget) == charged


def test_a_repeated_release_tops_up_before_it_is_drawn_or_is_refused(monkeypatch):
    """With secure noise another attempt is another release."""
    budget = create(filter="gaussian")
    killed(monkeypatch, Gate, "_release_replica", f"{LSPI} privacy.z=2 budget=a.budget")
    one = parts(budget)[0]
    folder = next(Path("outputs").rglob("ledger.jsonl")).parent
    assert len((folder / "ledger.jsonl").read_text().splitlines()) == 1
    old = budget.path.read_bytes()
    run("privacy.z=2 budget=a.budget")
    assert parts(budget) == [pytest.approx(2 * one, abs=2e-4)]
    assert pb.verify_budget("a.budget", [folder]) == []
    now = budget.path.read_bytes()
    budget.path.write_bytes(old)  # of before the top up
    assert "an older copy of one of them was put back" in pb.verify_budget("a.budget", [folder])[0]
    budget.path.write_bytes(now)
    (folder / "ledger.jsonl").write_bytes((folder / "ledger.jsonl").read_bytes()[:-200])
    assert "ledger.jsonl has" in pb.verify_budget("a.budget", [folder])[0]


def test_a_top_up_that_does_not_fit_is_refused(monkeypatch):
    budget = create(filter="gaussian")
    words = "privacy.z=1.4 budget=a.budget"
    killed(monkeypatch, Gate, "_release_replica", f"{LSPI} {words}")
    before = parts(budget)
    with pytest.raises(ConfigError, match=r"^budget: the run takes 14\d"):
        run(words)
    assert parts(budget) == before
    assert list(Path("outputs").rglob("budget.json"))  # the reservation of the folder stays


def test_a_copied_folder_cannot_resume_and_restart_reserves_anew(monkeypatch):
    budget = create()
    killed(monkeypatch, Experiment, "run", f"{LSPI} privacy.z=4 budget=a.budget")
    place = next(Path("outputs").rglob("budget.json")).parent.resolve()
    folder = Path("outputs/copy")
    shutil.copytree(place, folder)
    here = {"hydra": {"run": {"dir": str(folder)}}}
    with pytest.raises(ConfigError, match=r"^budget: .* is a copy of .*use resume=restart"):
        run("privacy.z=4 budget=a.budget", **here)
    assert pb.verify_budget("a.budget", [folder]) == [f"{folder} is a copy of {place}"]
    run("privacy.z=4 budget=a.budget resume=restart", **here)
    assert len(budget.entries()) == 2


def test_an_older_file_that_was_put_back_is_found_by_a_later_run_folder(monkeypatch):
    budget = create()
    old = budget.path.read_bytes()
    found = run("privacy.z=4 budget=a.budget")
    budget.path.write_bytes(old)
    assert pb.verify_budget("a.budget") == []
    (problem,) = pb.verify_budget("a.budget", [found.folder])
    assert problem.endswith("is not known: an older copy of a.budget was put back")
    (found.folder / "status.json").write_text(json.dumps({"status": "running"}))
    with pytest.raises(ConfigError, match=r"^budget: .*has released before, .*was put back"):
        run("privacy.z=4 budget=a.budget")


def test_a_copy_of_the_file_is_refused():
    create()
    shutil.copy("a.budget", "b.budget")
    with pytest.raises(
        ConfigError, match=r"^budget: .* names the budget /.*a\.budget, and b\.budget is"
    ):
        run("privacy.z=4 budget=b.budget")
    Path("a.budget").unlink()
    with pytest.raises(ConfigError, match=r"^budget: .* names the budget"):
        run("privacy.z=4 budget=b.budget")
    with pytest.raises(ConfigError, match=r"a\.budget, which is not there; put it back"):
        create("c.budget")
    with pytest.raises(ConfigError, match=r"which is not there; put it back"):
        create(epsilon=50)  # not anew: what was charged would be forgotten
    with pytest.raises(ConfigError):
        create(epsilon=1e-3)
    with pytest.raises(ConfigError, match=r"^budget: walks/b-v0 has a budget"):
        run("privacy.z=4")


def test_a_folder_that_lost_its_ledger_or_was_restored_cannot_release_again(monkeypatch):
    budget = create()
    killed(monkeypatch, Experiment, "run", f"{LSPI} privacy.z=4 budget=a.budget")
    folder = next(Path("outputs").rglob("budget.json")).parent
    shutil.copytree(folder, "backup")
    run("privacy.z=4 budget=a.budget")
    later = Path(f"{folder}x")
    folder.rename(later)
    for one in list(later.iterdir()):  # its content is put back, its inode is the same
        if one.name not in ("budget.json",):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    later.rename(folder)
    with pytest.raises(ConfigError, match=r"^budget: .*has lost what it released"):
        run("privacy.z=4 budget=a.budget")
    shutil.copytree("backup", folder, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"^budget: .*an older copy of one of them was put back"):
        run("privacy.z=4 budget=a.budget")
    assert pb.verify_budget("a.budget", [folder])
    assert len(budget.entries()) == 1


def test_a_poisson_run_that_repeats_rounds_is_heuristic_before_it_resumes(monkeypatch):
    budget = create()
    words = LSPI.replace("dp_lspi", "dp_bc") + " privacy.users_per_round=20 rounds=3 privacy.z=5"
    killed(monkeypatch, Gate, "_release_replica", f"{words} budget=a.budget")
    with pytest.raises(ConfigError, match=r"^budget: .* is heuristic"):
        pb.run(f"{words} budget=a.budget", quiet=True)
    assert budget.status == "formal"
    before = budget.share
    pb.run(f"{words} budget=a.budget budget.allow=heuristic", quiet=True)
    assert budget.status == "heuristic"
    assert budget.share >= before > 0


def test_a_run_that_was_killed_before_it_was_settled_is_settled_when_it_is_seen_again(monkeypatch):
    from privrl_bench.training.charging import Charge

    budget = create()
    killed(monkeypatch, Charge, "settle", f"{LSPI} privacy.z=4 budget=a.budget")
    assert [one.state for one in budget.entries()] == ["reserved"]
    run("privacy.z=4 budget=a.budget")  # done before
    assert [one.state for one in budget.entries()] == ["settled"]
    assert budget.problems() == []


def test_a_budget_that_cannot_be_settled_does_not_undo_the_run(monkeypatch, capsys):
    budget = create()

    def broken(*_):
        raise ConfigError("budget", "database disk image is malformed")

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "settle", broken)
        found = pb.run(f"{LSPI} privacy.z=4 budget=a.budget")
    assert found.summary["guarantee"]["status"] == "formal"
    said = capsys.readouterr().out
    assert "warning  budget: database disk image is malformed; all that was planned stays" in said
    assert [one.state for one in budget.entries()] == ["reserved"]


def test_a_plan_warns_of_what_is_more_than_is_left_and_less_than_the_budget():
    create()
    run("privacy.z=1.6 budget=a.budget")
    assert "warning" in str(pb.plan(f"{LSPI} privacy.z=1.7 budget=a.budget seed=2"))
    assert "warning" not in str(pb.plan(f"{LSPI} privacy.z=5 budget=a.budget seed=2"))


def test_audits_are_not_charged_and_refuse_people_who_have_a_budget():
    create()
    with pytest.raises(ConfigError, match=r"^budget: audits are not charged"):
        pb.audit_leaks(f"{LSPI} privacy.z=4 budget=a.budget")
    with pytest.raises(ConfigError, match=r"^budget: audits are not charged"):
        pb.audit_epsilon(f"{LSPI} privacy.z=4 budget=a.budget")


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("before", [True, False])
def test_a_crash_while_a_budget_is_made_refuses_runs_until_it_is_made(before, monkeypatch):
    create_file = Budget.create
    with monkeypatch.context() as patch:
        patch.setattr(Budget, "create", lambda *a: die() if before else (create_file(*a), die()))
        with pytest.raises(SystemExit):
            create()
    assert Path("a.budget").exists() != before
    with pytest.raises(ConfigError, match=r"^budget: walks/b-v0 has a budget"):
        run("privacy.z=4")
    with pytest.raises(ConfigError, match=r"^budget: .*a.budget is not complete"):
        run("privacy.z=4 budget=a.budget")
    if not before:
        with pytest.raises(ConfigError, match=r"^FILE: a.budget was made with other terms"):
            create(epsilon=50)
    create()
    run("privacy.z=4 budget=a.budget")
    Path("a.budget").unlink()
    with pytest.raises(ConfigError, match=r"^--population: .* which is not there; put it back"):
        create()


def test_a_run_that_released_without_the_budget_is_refused(tmp_path):
    found = run("privacy.z=4")
    create()
    (found.folder / "status.json").write_text(json.dumps({"status": "running"}))
    with pytest.raises(ConfigError, match=r"^budget: .*without a budget, and would not be charged"):
        run("privacy.z=4 budget=a.budget")


def test_every_run_of_a_search_is_charged(tmp_path):
    budget = create()
    words = f"{LSPI} privacy.z=8 tune.runs=fixed(2) tune.score=public"
    pb.tune([*words.split(), "algo.ridge=uniform(0.5,2)", "budget=a.budget"])
    assert [one.state for one in budget.entries()] == ["settled"] * 2
    assert all(one.status == "formal" for one in budget.entries())
    assert budget.status == "formal"


# --- the command


def test_the_command_shows_what_is_charged(capsys):
    from privrl_bench.cli.main import main

    words = ["--population", NAME, "--epsilon", "4", "--delta", "1e-6", "--public", "0.1"]
    assert main(["budget", "create", "a.budget", *words]) == 0
    run("privacy.z=4 budget=a.budget")
    capsys.readouterr()
    assert main(["budget", "show", "a.budget"]) == 0
    shown = capsys.readouterr().out
    assert "renyi of order 6, zero_out" in shown
    assert re.search(r"charged    \[#+\.+\] 10\.\d%", shown)
    assert main(["budget", "show", "a.budget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["state"] == "settled"
    assert main(["budget", "log", "a.budget"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == [
        "create",
        "reserve",
        "settle",
    ]
    assert main(["budget", "log", "a.budget", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert main(["budget", "verify", "a.budget"]) == 0
    (budget,) = [pb.open_budget("a.budget")]
    budget.path.with_suffix(".other").write_text("x")
    assert main(["budget", "verify", "a.other"]) == 2


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"epsilon": 0}, "--epsilon: must be above 0"),
        ({"epsilon": 1e-3}, "--epsilon: order"),
        ({"delta": 0.5}, "--delta: must be"),
        ({"filter": "reny"}, "--filter: must be one of renyi, gaussian"),
        ({"adjacency": "zero"}, "--adjacency: must be one of"),
        ({"order": 1.0}, "--order: must be above 1"),
        ({"order": 3.0, "filter": "gaussian"}, "--order: must be above 1, of renyi"),
        ({"public": 1.0}, "--public: must be"),
        ({"population": "walks/x-v0"}, "data.id: no dataset 'walks/x-v0'"),
    ],
)
def test_wrong_terms_are_one_line_and_make_no_file(option, problem, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        create(**option)
    assert not (tmp_path / "a.budget").exists()
