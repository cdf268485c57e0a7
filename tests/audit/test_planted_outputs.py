"""Defects planted in everything that leaves a run, for every kind of users: each is found.

The first three passed the test before it compared results, the end of training and a row of zeros.
"""

from dataclasses import replace

import pytest
import torch
from test_leaks import OFFLINE, POISSON, base, chained, formal_small, small, swim
from test_planted_paths import assert_caught, mean_reward, remembering, serving

from privrl_bench.algorithms.loglinear.dppg_l2 import DppgL2
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.value.dqn import Dqn
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.composition.compose import compose
from privrl_bench.metrics import METRICS
from privrl_bench.packs.offline.model_based.primorl import Primorl
from privrl_bench.packs.offline.ope.linear_evaluation import Gpope
from privrl_bench.packs.text.dppg_text import DppgText
from privrl_bench.privacy.gate import Gate
from privrl_bench.training import loop, results
from privrl_bench.training.wandb_logger import WandbLogger
from privrl_bench.training.workers import ShardWork
from privrl_bench.users.collectors.substitutes import ABSENT

FORMAL = ("algo.critic=none", "env.user=fresh")
KINDS = {"algo=dppg_l2": DppgL2}


def private(trainer, r):
    """A private number of the last round."""
    return trainer.diagnostics[r].get("train/return_mean", 0.0) or 0.0


def patched(monkeypatch, where, name, change):
    """`change(real, *args, **kwargs)` in place of a function or method."""
    real = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *args, **kwargs: change(real, *args, **kwargs))


def reporting(monkeypatch, kind, name):
    """What is left behind is among the numbers that the run is made for."""

    def metrics(self, state, real=kind.metrics):
        more = [{f"release/{name}": float(x)} for x in self.left]
        rows = real(self, state) or [{} for _ in more]
        return [row | one for row, one in zip(rows, more, strict=True)]

    monkeypatch.setitem(METRICS, f"release/{name}", METRICS["release/mean_return"])
    monkeypatch.setattr(kind, "metrics", metrics)


def ending(monkeypatch, stop):
    """DPPG ends as soon as `stop(self, state)`."""
    real = Dppg.progress
    monkeypatch.setattr(
        Dppg,
        "progress",
        lambda self, state: replace(real(self, state), finished=stop(self, state)),
    )


# --- the three that passed


@pytest.mark.slow
def test_rewards_in_the_results(monkeypatch):
    remembering(monkeypatch, Dppg, mean_reward)
    reporting(monkeypatch, Dppg, "mean_reward")
    report = assert_caught(
        formal_small(), "summary.json released", "W&B when done summary released"
    )
    assert "printed when done lines" in report.undeclared


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["self", "state"])
def test_an_end_when_users_fall_rarely(monkeypatch, kept):
    falls = lambda users: users.terminated.float().mean((1, 2))  # noqa: E731
    remembering(monkeypatch, Dppg, falls)
    if kept == "state":
        serving(monkeypatch, Dppg, lambda self, before, after: {"falls": self.left[:, None]})
        stop = lambda self, state: bool((state.tensors.get("falls", torch.ones(1)) < 1e-4).all())  # noqa: E731
    else:
        stop = lambda self, state: bool((getattr(self, "left", torch.ones(1)) < 1e-4).all())  # noqa: E731
    ending(monkeypatch, stop)
    assert_caught(formal_small(), "state falls" if kept == "state" else "memory left")


def test_an_end_that_a_user_decides(monkeypatch):
    """Nothing is kept but the decision."""
    ended = lambda users: (users.done.sum(-1) > 1).any(1)  # noqa: E731
    remembering(monkeypatch, Dppg, ended)
    ending(monkeypatch, lambda self, state: bool(getattr(self, "left", [0])[0]))
    assert_caught(formal_small(), "schedule end")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("algo.user_update=gradient",),
        pytest.param(("env=hopper",), marks=pytest.mark.slow),
        pytest.param(("algo=dppg_l2",), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_step_that_the_share_of_clipped_users_scales(monkeypatch, words):
    """All rows of these algorithms are at the clip bound, so that only a shorter row moves the share."""
    shares = []

    def released(real, self, index):
        found = real(self, index)
        shares[:] = [one["clipped_fraction"] for one in self.diagnostics]
        return found

    def step(self, state, after):
        before = state.tensors["actor"]
        factor = 0.5 + 0.5 * torch.tensor(shares)[:, None]
        return {"actor": before + factor * (after["actor"] - before)}

    patched(monkeypatch, Gate, "release", released)
    serving(monkeypatch, KINDS.get(next(iter(words), ""), Dppg), step)
    config = swim(*words) if words == ("algo=dppg_l2",) else base(*FORMAL, *words)
    assert_caught(config, "state actor", "policy parameters")


# --- files, lines and records


def test_a_field_of_the_summary(monkeypatch):
    def with_return(real, trainer, rows, rundir, r, *args):
        return real(trainer, rows, rundir, r, *args) | {"z": private(trainer, r)}

    patched(monkeypatch, loop, "summary_of", with_return)
    assert_caught(formal_small(), "summary.json z", "W&B when done summary z")


def test_a_field_that_is_not_declared_is_refused(monkeypatch):
    def with_return(real, trainer, rows, rundir, r, *args):
        return real(trainer, rows, rundir, r, *args) | {"users_return": private(trainer, r)}

    patched(monkeypatch, loop, "summary_of", with_return)
    with pytest.raises(KeyError, match=r"undeclared fields \['users_return'\]"):
        find_leaks(formal_small(), late=False)


@pytest.mark.slow
def test_the_reason_of_an_interruption(monkeypatch):
    def ended(real, self, r, mirror, status, reason, code, **more):
        reason = f"{reason}; users had {private(self.trainer, r)}"
        return real(self, r, mirror, status, reason, code, **more)

    patched(monkeypatch, loop.Experiment, "end_early", ended)
    report = assert_caught(formal_small(), "status.json reason")
    assert "printed when interrupted lines" in report.undeclared


def test_the_words_of_done(monkeypatch):
    def text(real, summary, folder, files, from_data=False):
        rows = (folder / "metrics.jsonl").read_text().splitlines()
        return real(summary, folder, files, from_data) + rows[-1]

    patched(monkeypatch, loop, "result_text", text)
    report = assert_caught(formal_small(), "printed when done lines")
    assert set(report.undeclared) == {"printed when done lines"}


def test_the_guarantee_in_the_policys_file(monkeypatch):
    def saved(real, trainer, r, rundir):
        path = real(trainer, r, rundir)
        content = torch.load(path, weights_only=True)
        content["guarantee"]["notes"].append(f"return: {private(trainer, r)}")
        torch.save(content, path)
        return path

    patched(monkeypatch, results, "save_policy", saved)
    report = assert_caught(formal_small(), "policy.pt guarantee")
    assert all("guarantee" in name or "artifact" in name for name in report.undeclared)


@pytest.mark.slow
def test_a_picture_of_private_returns(monkeypatch):
    def drawn(real, rundir):
        from privrl_bench.reporting.runs import Run

        curve = Run.curve
        with monkeypatch.context() as patch:
            patch.setattr(Run, "curve", lambda self, name="train/return_mean": curve(self, name))
            return real(rundir)

    patched(monkeypatch, results, "draw", drawn)
    monkeypatch.setattr("privrl_bench.audit.outputs.draw", results.draw)
    assert_caught(formal_small(), "file curve.png", late=True)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("method", ["log", "finish"])
def test_a_record_of_wandb(monkeypatch, method):
    """A private metric under the name of a released one, or in the summary."""

    def sent(real, self, row, *args, **more):
        if method == "log" and "train/return_mean" in row:
            row = {**row, "policy/norm": row["train/return_mean"]}
        elif method == "finish":
            rows = (self._folder / "metrics.jsonl").read_text().splitlines()
            row = {**row, "measure": rows[-1]}
        return real(self, row, *args, **more)

    patched(monkeypatch, WandbLogger, method, sent)
    name = "W&B policy/norm" if method == "log" else "W&B when done summary measure"
    assert_caught(formal_small(), name)


def test_progress(monkeypatch):
    real = loop.Experiment.after_round

    def after_round(self, progress):
        real(self, progress)
        progress.update(self.trainer.round, return_mean=private(self.trainer, 0))

    monkeypatch.setattr(loop.Experiment, "after_round", after_round)
    report = assert_caught(formal_small(), "printed progress")
    assert set(report.undeclared) == {"printed progress"}


def test_a_line_that_an_algorithm_prints(monkeypatch):
    def printing(self, state, released, real=Dppg.server):
        print(f"mean reward {self.left[0]:.3f}")
        return real(self, state, released)

    remembering(monkeypatch, Dppg, mean_reward)
    monkeypatch.setattr(Dppg, "server", printing)
    assert_caught(formal_small(), "printed others")


def test_runs_that_are_solved_by_private_returns(monkeypatch):
    def left(real, self):
        if private(self.trainer, 0) > 50:
            self.alive.remove(0)
        return real(self)

    patched(monkeypatch, loop.Experiment, "_leave_solved", left)
    config = formal_small()
    config = replace(config, eval=replace(config.eval, solved=1e6))
    assert_caught(config, "schedule runs in training")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("where", ["loop", "trainer", "solved"])
def test_patience_with_private_returns(monkeypatch, where):
    """Its effect comes after more rounds than are compared; what it remembers does not."""

    def after(real, self, progress):
        seen = private(self.trainer, 0)
        if where == "solved":
            self._solved.add(0, seen)
        else:
            keeper = self if where == "loop" else self.trainer
            keeper.best = max(getattr(keeper, "best", -1e9), seen)
        return real(self, progress)

    patched(monkeypatch, loop.Experiment, "after_round", after)
    name = {"loop": "Experiment.best", "trainer": "Trainer.best", "solved": "SolvedCheck._recent"}
    assert any(
        path.startswith(f"memory {name[where]}")
        for path in assert_caught(formal_small()).undeclared
    )


def scaled_by_the_first(self, users):
    """Calibrated once, before any noise."""
    if not hasattr(self, "scale"):
        self.scale = users.rewards.nan_to_num().std((1, 2), keepdim=True) + 1e-3
    return self.scale


def alone(self, users):
    """The mean over users, in a run without others beside it."""
    return users.rewards.mean((1, 2), keepdim=True) if len(users.rewards) == 1 else 0.0


def of_the_last(self, users):
    """The last user's rewards."""
    return 0.5 * users.rewards[:, -1:].mean(-1, keepdim=True)


def of_the_batch_before(self, users):
    """Of other users of the same round, where their rows are computed in several batches."""
    before = getattr(self, "before", 0.0)
    self.before = users.rewards.mean((1, 2), keepdim=True)
    return before


def of_the_process(self, users):
    """Of the round before, in a table that all runs of a process share."""
    self.shared[self.index] = float(users.rewards.nan_to_num()[0].mean())
    return self.shared.get(self.index - 1, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "baseline",
    [
        scaled_by_the_first,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (alone, of_the_last, of_the_batch_before, of_the_process)
        ),
    ],
)
def test_baselines_that_only_some_circumstances_show(monkeypatch, baseline):
    real = Dppg.user_update

    def user_update(self, state, users, streams):
        self.index = state.round
        less = users.rewards - baseline(self, users)
        return real(self, state, replace(users, rewards=less), streams)

    monkeypatch.setattr(Dppg, "user_update", user_update)
    monkeypatch.setattr(Dppg, "shared", {}, raising=False)
    report = find_leaks(formal_small())
    assert not report.ok
    assert report.undeclared, report.lines()


@pytest.mark.slow
def test_a_round_without_any_user_with_data(monkeypatch):
    remembering(monkeypatch, Dppg, lambda users: (~users.valid.any(1)).float())
    serving(
        monkeypatch,
        Dppg,
        lambda self, before, after: {"actor": after["actor"] * (1.0 - 0.5 * self.left[:, None])},
    )
    assert_caught(formal_small(), "state actor", late=True)


@pytest.mark.slow
def test_a_number_that_half_of_the_rounds_decides(monkeypatch):
    """In the middle of a run, whose length is not known to the test."""

    def step(self, before, after):
        if before.round != self._context.schedule.rounds // 2:
            return {}
        return {"actor": after["actor"] + 0.01 * self.left[:, None]}

    remembering(monkeypatch, Dppg, mean_reward)
    serving(monkeypatch, Dppg, step)
    assert_caught(formal_small(), "state actor", late=True)


def test_a_file_that_no_list_has(monkeypatch):
    def saved(real, trainer, r, rundir):
        (rundir.path / "users.txt").write_text(str(private(trainer, r)))
        return real(trainer, r, rundir)

    patched(monkeypatch, results, "save_policy", saved)
    assert_caught(formal_small(), "file users.txt")


@pytest.mark.slow
def test_an_interval_from_private_returns(monkeypatch):
    """In the last fifth's mean, a number of the summary that is computed from rows."""
    patched(
        monkeypatch,
        results,
        "_last_fifth",
        lambda real, rundir, metric, steps: real(rundir, "train/return_mean", steps),
    )
    assert_caught(formal_small(), "summary.json return", late=True)


# --- cohorts


@pytest.mark.slow
def test_the_size_of_a_cohort_in_the_step(monkeypatch):
    """Only a cohort with one user less shows it."""

    def step(self, state, after):
        before = state.tensors["actor"]
        return {"actor": before + (after["actor"] - before) * 4 / max(self.seen, 1)}

    def sizes(real, self, state, actor, cohort, *args):
        Dppg.seen = cohort.sizes[0]
        return real(self, state, actor, cohort, *args)

    patched(monkeypatch, ShardWork, "run", sizes)
    monkeypatch.setattr(Dppg, "seen", 1, raising=False)
    serving(monkeypatch, Dppg, step)
    report = assert_caught(base(*POISSON, *FORMAL), "state actor")
    assert report.found["state actor"].substitute == ABSENT


@pytest.mark.slow
@pytest.mark.parametrize("edge", ["empty", "full"])
def test_what_happens_at_the_edges_of_cohorts_only(monkeypatch, edge):
    def edges(users):
        count = users.valid.sum(1)
        return (count == 0 if edge == "empty" else count == users.valid.shape[1]).float()

    def slower(self, state, after):
        before = state.tensors["actor"]
        return {"actor": before + (after["actor"] - before) / (1.0 + self.left[:, None])}

    remembering(monkeypatch, Dppg, edges)
    serving(monkeypatch, Dppg, slower)
    report = assert_caught(base(*POISSON, *FORMAL), "state actor")
    assert report.found["state actor"].substitute == ABSENT


# --- every kind of users


@pytest.mark.slow
def test_recorded_users(monkeypatch, sets):
    remembering(monkeypatch, Primorl, mean_reward)
    reporting(monkeypatch, Primorl, "reward")
    config = base("algo=primorl", f"data.id={sets}", *OFFLINE)
    assert_caught(config, "summary.json released")


@pytest.mark.slow
def test_returning_users(monkeypatch):
    remembering(monkeypatch, Dqn, mean_reward)
    reporting(monkeypatch, Dqn, "reward")
    words = small("algo=dqn", "algo.new_users=2", "privacy.users_per_round=9")
    config = shrink(compose(words), frozenset({"algo.new_users"}), rounds=6, users=9)[0]
    assert_caught(config, "summary.json released", round_index=0)


@pytest.mark.slow
def test_users_of_a_known_policy(monkeypatch):
    remembering(monkeypatch, Gpope, mean_reward)
    reporting(monkeypatch, Gpope, "reward")
    assert_caught(chained("algo=gpope"), "summary.json released")


def test_declared_users(monkeypatch):
    remembering(monkeypatch, Dppg, mean_reward)
    reporting(monkeypatch, Dppg, "reward")
    words = ("env=gym", "env.id=my_pkg:SpecClinic-v0", "privacy.noise=secure")
    config = base(*words, "algo.critic=none", "env.user=fresh")
    assert_caught(config, "summary.json released")


@pytest.mark.slow
def test_users_with_prompts(monkeypatch, texts):
    remembering(monkeypatch, DppgText, lambda users: users.scores.nan_to_num().mean(1))
    reporting(monkeypatch, DppgText, "score")
    few = ("env.text.min_characters=0", "env.text.holdout=8", "env.text.new_tokens=6")
    few = (*few, "privacy.users_per_round=3", "eval.episodes=1", "env.text.prompt_tokens=[1,4]")
    words = ("algo=dppg_text", "env=sentiment_small", *texts, *few, "algo.baseline_prompts=3")
    assert_caught(shrink(compose(words))[0], "summary.json released")
