"""The loop: same bytes after any interruption, ledger before noise, failures keep everything."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import (
    A2cConfig,
    DppgConfig,
    PpoConfig,
)
from privrl_bench.api.explaining import explain
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.schema import EnvConfig, EvalConfig, LogConfig, PrivacyConfig, RunConfig
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.evaluation import evaluator as evaluate
from privrl_bench.evaluation import returns
from privrl_bench.kernels import machine
from privrl_bench.training import loop as training
from privrl_bench.training.folder import read_lines
from privrl_bench.training.runner import run, run_each

QUIET = LogConfig(wandb="none", plot=False, progress=False)


def cartpole(**changes):
    env = EnvConfig(
        name="cartpole",
        id="CartPole-v1",
        user="segment",
        user_steps=64,
        obs_mean=[0.0] * 4,
        obs_std=[1.0, 1.0, 0.1, 1.0],
        reward_scale=0.05,
    )
    base = RunConfig(
        algo=DppgConfig(lr=7.26e-4, entropy_coef=0.36, critic="shared", gae_lambda=0.85, epochs=2),
        env=env,
        privacy=PrivacyConfig(z=1.0, clip=0.05),
        eval=EvalConfig(episodes=2, every=2048),
        log=QUIET,
        total_steps=512 * 12,
    )
    return replace(base, **changes)


def train(config, folder, overrides=("x=1",)):
    return run([config], [folder], [list(overrides)])[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """How `cartpole()` ended in a folder that no test changes; `copied` is for those that do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cores", lambda: 1)
        return train(cartpole(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def copied(finished, tmp_path):
    """The folder of `finished`, to change."""
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


def essence(folder):
    """What must not depend on interruptions."""
    policy = torch.load(folder / "policy.pt", weights_only=True)["actor"]
    return ((folder / "metrics.jsonl").read_bytes(), (folder / "ledger.jsonl").read_bytes(), policy)


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1] == other[1]
    assert torch.equal(one[2], other[2])


def test_a_run_leaves_the_fixed_files_and_fields(finished):
    assert finished.status == "done"
    assert finished.exit_code == 0
    folder = Path(finished.folder)
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        *("config.yaml", "overrides.txt", "provenance.json", "plan.json", "status.json"),
        *("metrics.jsonl", "timing.jsonl", "ledger.jsonl", "summary.json", "checkpoint.pt"),
        "policy.pt",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) >= {
        *("status", "return", "epsilon", "epsilon_paper", "delta", "guarantee"),
        *("steps", "wall_seconds", "steps_per_second"),
    }
    assert set(summary["return"]) >= {"mean", "ci95", "definition"}
    assert set(summary["guarantee"]) >= {"status", "unit", "notion", "adjacency", "caveats"}
    assert summary["steps"] == 512 * 12
    assert summary["status"] == "done"
    rows = read_lines(folder / "metrics.jsonl")
    last = [
        row["eval/return_mean"]
        for row in rows
        if "eval/return_mean" in row and row["steps"] > 0.8 * 512 * 12
    ]
    assert summary["return"]["last_fifth"] == {
        "mean": pytest.approx(sum(last) / len(last)),
        "evaluations": len(last),
    }
    assert summary["guarantee"]["status"] == "heuristic"
    assert any(c.startswith("shared critic") for c in summary["guarantee"]["caveats"])


def test_epsilon_of_segments_counts_the_releases_one_episode_enters(finished):
    folder, summary = Path(finished.folder), finished.summary
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["releases_per_user"] == 9
    exact = 16.6755  # Gaussian with z = 1/3 at delta 1e-5
    assert summary["epsilon"] == pytest.approx(exact, abs=1e-3)
    assert plan["epsilon"] == summary["epsilon"]
    assert summary["epsilon_paper"] == pytest.approx(5.0004, abs=1e-4)
    spent = [row["privacy/epsilon"] for row in read_lines(folder / "metrics.jsonl")]
    assert spent[0] == 0.0  # before any data
    assert spent[1] == pytest.approx(4.3772, abs=1e-4)
    assert spent == sorted(spent)


@pytest.mark.parametrize("user", ["fresh", "episode"])
def test_private_critic_with_users_from_a_reset_is_formal(tmp_path, user):
    config = cartpole(
        algo=DppgConfig(critic="private", epochs=1, lr=7e-4, critic_features=16),
        env=replace(cartpole().env, user=user),
        total_steps=8000,
    )
    summary = train(config, tmp_path / "run").summary
    assert summary["guarantee"]["status"] == "formal"
    assert summary["epsilon"] == pytest.approx(4.3772, abs=1e-4)


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algo": DppgConfig(epochs=1, user_adam="seeded")},
        {"env": replace(cartpole().env, obs_scaling="running", reward_scaling="running")},
        {"env": replace(cartpole().env, user="fresh")},
        {
            "algo": PpoConfig(minibatches=4, epochs=2),
            "privacy": PrivacyConfig(mechanism="none", z=0.0, users_per_round=8),
        },
        {"algo": A2cConfig(), "privacy": PrivacyConfig(mechanism="none", z=0.0, users_per_round=8)},
    ],
    ids=["dppg", "seeded-adam", "running", "fresh", "ppo", "a2c"],
)
def test_a_run_cut_in_two_equals_an_uninterrupted_one(tmp_path, changes, monkeypatch, finished):
    config = cartpole(**changes)
    whole = train(config, tmp_path / "whole") if changes else finished

    step = training.Trainer.step

    def interrupted(session):
        if session.round == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        step(session)

    monkeypatch.setattr(training.Trainer, "step", interrupted)
    first = train(config, tmp_path / "cut")
    assert first.status == "interrupted"
    assert first.exit_code == 128 + signal.SIGTERM
    status = json.loads((tmp_path / "cut" / "status.json").read_text())
    assert status["status"] == "interrupted"
    monkeypatch.setattr(training.Trainer, "step", step)
    assert train(config, tmp_path / "cut").status == "done"
    assert_same(essence(Path(whole.folder)), essence(tmp_path / "cut"))


DRIVER = """
import sys
from pathlib import Path
import privrl_bench.training.runner as run_module
import privrl_bench.training.loop
privrl_bench.training.loop.CHECKPOINT_SECONDS = 0.15
sys.path[:0] = {tests!r}
from test_runner import cartpole
result = run_module.run([cartpole(total_steps=512 * 60)], [Path({folder!r})], [["x=1"]])[0]
sys.exit(result.exit_code)
"""


@pytest.mark.slow
def test_kill_nine_at_random_moments_then_resume_gives_the_same_bytes(tmp_path):
    def start(folder):
        code = DRIVER.format(
            tests=[str(Path(__file__).parents[0]), str(Path(__file__).parents[1])],
            folder=str(folder),
        )
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole).wait(timeout=120) == 0
    killed = 0
    for lines in (3, 40):  # wait for that many ledger lines, then kill at once
        process = start(cut)
        ledger = cut / "ledger.jsonl"
        while process.poll() is None:
            if ledger.exists() and ledger.read_bytes().count(b"\n") >= lines:
                process.send_signal(signal.SIGKILL)
                killed += process.wait() == -signal.SIGKILL
                break
            time.sleep(0.002)
    assert killed, "the run was too fast to be killed"
    assert start(cut).wait(timeout=120) == 0
    assert_same(essence(whole), essence(cut))
    assert json.loads((cut / "summary.json").read_text())["ledger"]["repeated"] == 0


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_what_is_read_of_a_resumed_run_covers_all_that_it_releases(noise, tmp_path, monkeypatch):
    privacy = PrivacyConfig(z=1.0, clip=0.05, noise=noise)
    config = cartpole(privacy=privacy, env=replace(cartpole().env, user="fresh"))
    real, folder, seen = training.Trainer.step, tmp_path / "run", []

    def stopped(session):
        real(session)
        if session.round == 5:
            raise KeyboardInterrupt  # after a release, before its checkpoint

    def read(session):
        real(session)
        plan = json.loads((folder / "plan.json").read_text())["guarantee"]
        seen.append((plan["epsilon"], "planned for all rounds" in str(explain(folder))))

    monkeypatch.setattr(training.Trainer, "step", stopped)
    assert train(config, folder).status == "interrupted"
    assert "of the releases that were made" in str(explain(folder))
    monkeypatch.setattr(training.Trainer, "step", read)
    summary, repeated = train(config, folder).summary, int(noise == "secure")
    assert summary["ledger"] == {"lines": 12 + repeated, "rounds": 12, "repeated": repeated}
    assert (summary["epsilon"] > summary["epsilon_planned"]) == bool(repeated)
    assert seen == [(pytest.approx(summary["epsilon"]), True)] * 8


def test_a_kill_between_the_last_checkpoint_and_the_end_is_finished(
    tmp_path, monkeypatch, finished
):
    real = training.Experiment._finish

    def killed(_self, r):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Experiment, "_finish", killed)
    assert train(cartpole(), tmp_path / "run").status == "interrupted"
    monkeypatch.setattr(training.Experiment, "_finish", real)
    # The interruption put the run one round back, so that it is trained and evaluated again.
    assert train(cartpole(), tmp_path / "run").status == "done"
    assert_same(essence(Path(finished.folder)), essence(tmp_path / "run"))
    checkpoint = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    (tmp_path / "run" / "status.json").write_text('{"status": "running", "reason": ""}')
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["round"] == 12
    again = train(cartpole(), tmp_path / "run")
    assert again.status == "done"
    assert again.summary["return"]["mean"] is not None
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == checkpoint


def test_two_processes_cannot_share_a_folder(tmp_path):
    from privrl_bench.training.folder import RunDir

    with RunDir(tmp_path / "run").lock(), pytest.raises(ConfigError, match="in use by another"):
        train(cartpole(), tmp_path / "run")


def secure(**changes):
    """Six rounds of secure noise, where every attempt costs; a row for every round."""
    return cartpole(
        privacy=PrivacyConfig(z=1.0, clip=0.05, noise="secure", users_per_round=2),
        env=replace(cartpole().env, user="fresh", user_steps=8),
        eval=EvalConfig(episodes=1, every=0),
        total_steps=16 * 6,
        log=replace(QUIET, lines=6),
        **changes,
    )


def killed_at(round_index, monkeypatch, folder, saved=3, config=None):
    """As kill -9 leaves it: rows and lines up to a round, the checkpoint of an earlier one."""
    step, after_round = training.Trainer.step, training.Experiment.after_round

    def stopping(session):
        if session.round == round_index:
            raise SystemExit
        step(session)

    def after(self, progress):
        after_round(self, progress)
        if self.trainer.round == saved:
            self._checkpoint()

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "step", stopping)
        patch.setattr(training.Experiment, "after_round", after)
        with pytest.raises(SystemExit):
            train(config or secure(), folder)
    return folder / "ledger.jsonl"


def cut_lines(path, kept):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (0, "ledger.jsonl has 0 lines, but the checkpoint has seen 6"),
        (5, "ledger.jsonl has 5 lines, but the checkpoint has seen 6"),
        (6, "ledger.jsonl has 6 lines, but the row of round 4 has seen 8"),
        (9, "ledger.jsonl has 9 lines, but the row of round 5 has seen 10"),
    ],
)
def test_a_ledger_that_lost_its_tail_is_refused(tmp_path, monkeypatch, kept, message):
    """Its epsilon would be 4.377; see the next test."""
    ledger = killed_at(5, monkeypatch, tmp_path / "run")
    assert ledger.read_bytes().count(b"\n") == 10
    cut_lines(ledger, kept)
    with pytest.raises(ConfigError, match=message) as caught:
        train(secure(), tmp_path / "run")
    assert "epsilon is unknown; use resume=restart" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert train(secure(resume="restart"), tmp_path / "run").status == "done"


def test_lines_beyond_the_checkpoint_are_counted(tmp_path, monkeypatch):
    ledger = killed_at(5, monkeypatch, tmp_path / "run")
    with ledger.open("ab") as file:
        file.write(b'{"round": 5, "att')  # nothing depends on a torn line
    summary = train(secure(), tmp_path / "run").summary
    assert summary["ledger"] == {"lines": 8, "rounds": 6, "repeated": 2}
    assert summary["epsilon"] == pytest.approx(6.5726, abs=1e-3)


@pytest.mark.parametrize("noise", ["secure", "seeded"])
def test_repeated_rounds_beyond_the_target_are_announced(tmp_path, monkeypatch, capsys, noise):
    config = secure()
    config = replace(config, privacy=replace(config.privacy, epsilon=4.5, noise=noise))
    folder = tmp_path / "run"
    killed_at(5, monkeypatch, folder, config=config)
    capsys.readouterr()
    train(config, folder)
    warning = (
        f"warning  {folder}: 2 rounds are released again after an interruption, and every release counts: "
        "epsilon 6.573 after all 6 rounds, above privacy.epsilon=4.5"
    )
    again = "2 rounds are released again after an interruption, and every release counts"
    shown = capsys.readouterr().out.splitlines()
    explained = "\n".join(explain(folder).lines(200))
    found = (
        warning in shown,
        f"      more than the planned 4.378: {again}" in shown,
        again in explained,
    )
    assert found == 3 * (noise == "secure",)


def test_a_caveat_of_repeated_rounds_is_printed_when_the_run_resumes(tmp_path, monkeypatch, capsys):
    config = secure()
    poisson = PrivacyConfig(
        z=2.0, clip=0.05, noise="secure", users_per_round=2, sampling="poisson", population=100
    )
    config = replace(config, privacy=poisson)
    killed_at(5, monkeypatch, tmp_path / "run", config=config)
    capsys.readouterr()
    assert train(config, tmp_path / "run").summary["guarantee"]["status"] == "heuristic"
    shown = capsys.readouterr().out
    assert "epsilon 0.1899 at delta 1e-05, heuristic" in shown.partition("resume")[0]
    assert "not covered: shared critic, repeated rounds" in shown


@pytest.mark.parametrize("words", [("rounds=6",), ()])
def test_rounds_that_were_asked_for_are_not_limited_by_the_population(tmp_path, capsys, words):
    small = ["algo=dppg", "env=cartpole", "privacy.users_per_round=2", "privacy.population=12"]
    small += ["plan_only=true", "log=none", *words]
    run([compose(small)], [tmp_path / "run"], [small])
    assert ("limited by the population of 12" in capsys.readouterr().out) == (not words)


def test_the_first_tail_is_not_forgotten_after_a_resume(tmp_path, monkeypatch):
    """Rows of rounds 4 and 5 are cut when the run resumes: the checkpoint must remember their lines."""
    ledger = killed_at(5, monkeypatch, tmp_path / "run")
    assert killed_at(3, monkeypatch, tmp_path / "run", saved=9) == ledger
    cut_lines(ledger, 6)
    with pytest.raises(ConfigError, match="has 6 lines, but the checkpoint has seen 10"):
        train(secure(), tmp_path / "run")


def test_a_ledger_without_a_checkpoint_is_kept_too(tmp_path, monkeypatch):
    ledger = killed_at(2, monkeypatch, tmp_path / "run", saved=9)
    assert killed_at(0, monkeypatch, tmp_path / "run", saved=9) == ledger
    ledger.unlink()
    with pytest.raises(ConfigError, match="has 0 lines, but the checkpoint has seen 4"):
        train(secure(), tmp_path / "run")


def test_explain_says_that_the_ledger_of_a_finished_run_does_not_verify(tmp_path):
    folder = tmp_path / "run"
    train(secure(), folder)
    path = folder / "ledger.jsonl"
    whole = path.read_bytes()
    first, *rest = whole.splitlines(keepends=True)
    damages = {
        "edited": [first.replace(b'"z": 1.0', b'"z": 9.0'), *rest],
        "first": rest,
        "last": [first, *rest[:-1]],
        "all": [],
    }
    wrong = "the ledger does not verify"
    for damage, kept in damages.items():
        path.write_bytes(whole)
        assert wrong not in "\n".join(explain(folder).lines(200))
        path.write_bytes(b"".join(kept))
        assert wrong in "\n".join(explain(folder).lines(200)), damage


def test_a_damaged_checkpoint_is_one_line(tmp_path, monkeypatch):
    """It was an UnpicklingError of torch."""
    killed_at(5, monkeypatch, tmp_path / "run")
    for content in (b"\x93no checkpoint" * 9, b"", b"PK"):
        (tmp_path / "run" / "checkpoint.pt").write_bytes(content)
        with pytest.raises(ConfigError, match=r"checkpoint\.pt is damaged; use resume=restart$"):
            train(secure(), tmp_path / "run")


@pytest.mark.parametrize("name", ["summary.json", "identity.json", "status.json"])
def test_a_damaged_file_of_a_finished_run_is_one_line(name, copied):
    """They were a JSONDecodeError, a KeyError and a FileNotFoundError."""
    for content in ("", "{", "[]"):
        (copied / name).write_text(content)
        with pytest.raises(ConfigError, match=rf"^resume: .*{name} .*use resume=restart"):
            train(cartpole(), copied)
    if name == "summary.json":
        (copied / name).unlink()
        with pytest.raises(ConfigError, match="missing or damaged; use resume=restart"):
            train(cartpole(), copied)


def test_a_run_killed_before_its_first_checkpoint_says_that_it_starts_again(
    tmp_path, monkeypatch, capsys
):
    killed_at(2, monkeypatch, tmp_path / "run", saved=9)
    assert "starts again" not in capsys.readouterr().out
    train(secure(), tmp_path / "run")
    assert "has no checkpoint: it starts from round 0" in capsys.readouterr().out


def test_an_edited_ledger_is_refused_in_one_line(tmp_path, monkeypatch):
    ledger = killed_at(5, monkeypatch, tmp_path / "run")
    ledger.write_bytes(ledger.read_bytes().replace(b'"z": 1.0', b'"z": 9.0', 1))
    with pytest.raises(ConfigError, match=r"ledger\.jsonl is damaged at line 2"):
        train(secure(), tmp_path / "run")


def test_a_finished_run_is_skipped_and_another_configuration_is_refused(copied):
    before = (copied / "metrics.jsonl").read_bytes()
    assert train(cartpole(), copied).status == "skipped"
    assert (copied / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match=r"algo\.epochs: 2 -> 8"):
        train(cartpole(algo=replace(cartpole().algo, epochs=8)), copied)
    again = train(cartpole(resume="restart"), copied)
    assert again.status == "done"
    assert (copied.with_name("run.old1") / "metrics.jsonl").read_bytes() == before


def test_a_plan_trains_nothing_and_does_not_block_the_run(tmp_path):
    planned = train(cartpole(plan_only=True), tmp_path / "run")
    assert planned.status == "planned"
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["rounds"] == plan["releases"] == 12
    done = train(cartpole(), tmp_path / "run")
    assert done.summary["epsilon"] == plan["epsilon"]


@pytest.mark.parametrize(
    ("words", "shown", "absent"),
    [
        (
            "algo=dqn env=cartpole rounds=300 privacy.epsilon=3",
            "300 rounds of 200 users; 1500 users, each comes once, for 500 steps: 750000 steps",
            "DPPG",
        ),
        (
            "algo=dppg env=cartpole rounds=1 privacy.epsilon=3",
            "plan    1 round of 64 users",
            "moments",
        ),
        ("algo=reinforce env=cartpole rounds=9 privacy.epsilon=3", "plan    9 rounds of ", "DPPG"),
    ],
)
def test_the_lines_of_a_plan_are_true(words, shown, absent, tmp_path, capsys):
    planned = compose(later_wins([*words.split(), "plan_only=true"]))
    run([planned], [tmp_path / "run"], [[]])
    said = capsys.readouterr().out
    assert shown in said
    assert absent not in said


def test_the_number_of_rounds_is_fixed_by_the_budget(tmp_path):
    with pytest.raises(ConfigError, match="total_steps"):
        train(cartpole(total_steps=511), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_replicas_equal_lone_runs(tmp_path):
    configs = [
        cartpole(seed=0, total_steps=512 * 4),
        cartpole(seed=1, total_steps=512 * 4, privacy=PrivacyConfig(z=3.0, clip=0.05)),
    ]
    group = run(configs, [tmp_path / "a", tmp_path / "b"], [["seed=0"], ["seed=1"]])
    assert [r.status for r in group] == ["done", "done"]
    for config, name in zip(configs, "ab", strict=True):
        train(config, tmp_path / f"alone-{name}")
        together, alone = essence(tmp_path / name), essence(tmp_path / f"alone-{name}")
        for folder, size in ((name, 2), (f"alone-{name}", 1)):
            made = json.loads((tmp_path / folder / "provenance.json").read_text())
            assert (made["trained_together"], "numba" in made["versions"]) == (size, True)
        assert torch.allclose(together[2], alone[2], atol=1e-4)
    lines = read_lines(tmp_path / "b" / "ledger.jsonl")
    assert {line["z"] for line in lines if "z" in line} == {3.0}


def test_a_refused_run_of_a_group_stops_no_other(tmp_path):
    train(cartpole(total_steps=512), tmp_path / "b")
    configs = [cartpole(seed=0, total_steps=1024), cartpole(seed=1, total_steps=1024)]
    folders = [tmp_path / "a", tmp_path / "b"]
    done, refused = run_each(configs, folders, [[], []])
    assert done.status == "done"
    assert isinstance(refused, ConfigError)
    assert "seed: 0 -> 1" in str(refused)
    with pytest.raises(ConfigError, match="another configuration"):
        run(configs, folders, [[], []])


def test_time_and_progress_of_a_group(tmp_path, capsys):
    shown = replace(QUIET, progress=True)
    configs = [cartpole(seed=n, total_steps=1024, log=shown) for n in range(3)]
    run(configs, [tmp_path / str(n) for n in range(3)], [[]] * 3)
    assert "dppg cartpole, 3 runs together: 3,072 of 3,072 steps" in capsys.readouterr().err
    rates = [json.loads((tmp_path / n / "summary.json").read_text())["wall_seconds"] for n in "012"]
    assert len(set(rates)) == 1  # one clock, whoever is written first


def test_a_non_private_run_says_infinity_and_none(tmp_path):
    config = cartpole(
        algo=PpoConfig(minibatches=4, epochs=2),
        privacy=PrivacyConfig(mechanism="none", z=0.0, users_per_round=8),
        total_steps=512 * 2,
    )
    summary = train(config, tmp_path / "run").summary
    assert summary["epsilon"] == math.inf
    assert summary["guarantee"]["status"] == "none"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epsilon"] == math.inf


def test_divergence_fails_with_a_reason_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    real = training.Trainer.step

    def blow_up(session):
        real(session)
        if session.round == 4:
            session.state.tensors["actor"][0, 0] = float("nan")

    monkeypatch.setattr(training.Trainer, "step", blow_up)
    result = train(cartpole(), tmp_path / "run")
    assert result.status == "failed"
    assert result.exit_code == 1
    assert "diverged" in result.reason
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert saved["round"] == 3
    assert torch.isfinite(saved["state"]["actor"]).all()


class Late:
    """Stands for an evaluator's process: answers come `after` questions whether they are there."""

    def __init__(self, after, fails=False):
        self.asked, self.after, self.fails = 0, after, fails

    def __call__(self, make, *arguments):
        self.work = make(*arguments)
        return self

    def begin(self, task):
        self.asked = 0
        self.found = self.work.run(task)

    def ready(self):
        self.asked += 1
        return self.asked > self.after

    def result(self):
        if self.fails:
            raise EnvironmentFailure("the pump is stuck")
        return self.found

    def close(self):
        self.work.close()


@pytest.fixture
def aside(monkeypatch):
    """Evaluations in a process of their own, from the second on."""

    def begin():
        monkeypatch.setattr(returns, "workers_of", lambda config: 2)
        monkeypatch.setattr(evaluate, "_WORTH_A_PROCESS", -1.0)

    return begin


@pytest.mark.slow
def test_an_evaluation_beside_training_leaves_the_same_files(tmp_path, aside, finished):
    aside()
    assert train(cartpole(), tmp_path / "aside").status == "done"
    assert_same(essence(Path(finished.folder)), essence(tmp_path / "aside"))


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("after", [0, 1, 2, 99])
def test_rows_stay_in_order_however_late_an_evaluation_is(
    tmp_path, monkeypatch, after, aside, finished
):
    late = Late(after)
    monkeypatch.setattr(evaluate, "PipeWorker", late)
    aside()
    config = cartpole()
    assert train(config, tmp_path / "aside").status == "done"
    assert_same(essence(Path(finished.folder)), essence(tmp_path / "aside"))


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["signal", "failure"])
def test_a_run_cut_while_an_evaluation_is_under_way_loses_nothing(
    tmp_path, monkeypatch, stop, aside, finished
):
    monkeypatch.setattr(evaluate, "PipeWorker", Late(99))
    aside()
    config = cartpole()
    real = training.Trainer.step

    def step(session):
        if session.round == 6 and stop == "failure":
            raise OSError("lost")  # evaluated after round 4: that evaluation is under way
        real(session)
        if session.round == 6 and stop == "signal":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training.Trainer, "step", step)
    cut = train(config, tmp_path / "aside")
    assert cut.status == ("interrupted" if stop == "signal" else "failed")
    monkeypatch.setattr(training.Trainer, "step", real)
    assert train(config, tmp_path / "aside").status == "done"
    assert_same(essence(Path(finished.folder)), essence(tmp_path / "aside"))


def test_a_failed_evaluation_beside_training_is_done_again(tmp_path, monkeypatch, aside, finished):
    monkeypatch.setattr(evaluate, "PipeWorker", Late(2, fails=True))
    aside()
    config = cartpole()
    failed = train(config, tmp_path / "aside")
    assert failed.status == "failed"
    assert "the pump is stuck" in failed.reason
    monkeypatch.setattr(evaluate, "PipeWorker", Late(2))
    assert train(config, tmp_path / "aside").status == "done"
    assert_same(essence(Path(finished.folder)), essence(tmp_path / "aside"))


def test_evaluation_moves_aside_when_it_takes_long_and_a_core_is_idle(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(evaluate, "PipeWorker", lambda *a: made.append(a) or Late(0)(*a))
    monkeypatch.setattr(returns, "workers_of", lambda config: 2)
    train(cartpole(), tmp_path / "short")
    assert not made
    monkeypatch.setattr(evaluate, "_WORTH_A_PROCESS", 0.0)
    train(cartpole(), tmp_path / "long")
    assert len(made) == 1
    assert_same(essence(tmp_path / "short"), essence(tmp_path / "long"))
    monkeypatch.setattr(returns, "workers_of", lambda config: 1)
    train(cartpole(total_steps=512 * 5), tmp_path / "busy")
    assert len(made) == 1


def test_the_checkpoint_is_plain_data_without_noise_or_secrets(finished):
    saved = torch.load(Path(finished.folder) / "checkpoint.pt", weights_only=True)
    assert set(saved) == {"version", "round", "state", "collector", "regret", "ledger"}
    policy = torch.load(Path(finished.folder) / "policy.pt", weights_only=True)
    assert set(policy) == {"format", "actor", "policy", "spec", "algo", "env", "eval", "guarantee"}


@pytest.mark.slow
def test_whether_users_had_non_finite_numbers_is_private(tmp_path, capsys):
    """Found by an audit: a line on the terminal told whether the user who sends NaN was drawn."""
    shown = {}
    for name in ("Broken", "MyEnv"):
        env = EnvConfig(
            name="gym", id=f"my_pkg:{name}-v0", obs_scaling="none", user_steps=16, check=False
        )
        train(cartpole(env=env), tmp_path / name)
        lines = "".join(capsys.readouterr()).splitlines()
        notes = [line for line in lines if line.startswith("  note")]
        shown[name] = [x for x in notes if "compiling" not in x and "evaluation episodes" not in x]
    rows = (tmp_path / "Broken" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["train/invalid_users"]
    assert shown["Broken"] == shown["MyEnv"] == []
