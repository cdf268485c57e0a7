"""Shards and workers: the same bits however a round is split, and whoever dies."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace

import golden_runs as golden
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.audit.watch import Wrapped
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError, EnvironmentFailure
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels import pipe_worker
from privrl_bench.models.policy import make_policy
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training import workers as sharing
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run
from privrl_bench.training.trainer import Trainer
from privrl_bench.training.workers import ShardWorker, one_shard, shard_users
from privrl_bench.types import EnvSpec
from privrl_bench.users.collectors.shards import GroupedSampler, microbatch, microbatches, some_of

SMALL = [
    *("algo=dppg", "env=cartpole", "log=none", "eval.every=0", "eval.episodes=1"),
    *("algo.hidden=[4]", "algo.critic_features=6", "algo.epochs=2", "env.user_steps=12"),
]


class InlineWorker:
    """A worker in this process, which may die before it answers."""

    def __init__(self, arguments, deaths):
        self._worker, self._deaths = ShardWorker(*arguments), deaths
        self.begin(None)

    def begin(self, task):
        self._first = task is None
        self._answer = self._worker.answer(pipe_worker.packed(task))

    def result(self):
        if not self._first and self._deaths and self._deaths.pop():
            raise pipe_worker.WorkerDied
        return pipe_worker.unpacked(self._answer)

    def close(self):
        pass


class InlineEngine:
    """`ProcessEngine` without processes; `deaths`: whether the next answers are lost."""

    here = True

    def __init__(self, deaths=None):
        self._deaths = deaths

    def room(self):
        return 2

    def make(self, arguments):
        return InlineWorker(arguments, self._deaths)

    def done(self, busy, block):
        return list(busy)

    def close(self):
        pass


@pytest.fixture
def inline(monkeypatch):
    deaths = []
    monkeypatch.setitem(sharing.ENGINES, "processes", lambda address: InlineEngine(deaths))
    return deaths


# -- parts ----------------------------------------------------------------------------------


@settings(max_examples=100)
@given(start=st.integers(0, 200), count=st.integers(1, 200), cut=st.integers(0, 200))
def test_random_numbers_of_a_slot_do_not_depend_on_the_shard(start, count, cut):
    def draw(slots):
        return Streams(3).per_user(
            "policy", 5, slots, None, lambda g, n: torch.rand(2, n, 3, generator=g)
        )

    middle = start + min(cut, count)
    whole = draw(range(start, start + count))
    assert whole.shape == (2, count, 3)
    if start < middle < start + count:
        parts = draw(range(start, middle)), draw(range(middle, start + count))
        assert torch.equal(torch.cat(parts, dim=1), whole)


def test_a_cohort_is_cut_by_slots():
    whole = Cohort([5, 2]).part(0, 8)
    assert (whole.sizes, whole.slots) == ([5, 2], range(8))
    assert whole.part(3, 8).sizes == [2, 0]
    assert whole.part(3, 8).part(4, 8).sizes == [1, 0]


@pytest.mark.parametrize("discrete", [True, False])
def test_actions_do_not_depend_on_how_many_act(discrete):
    box = torch.ones(3).numpy()
    spec = EnvSpec("e", 5, discrete, 3, 10, None if discrete else -box, None if discrete else box)
    policy = make_policy(spec, [64, 64])
    params = torch.stack([policy.init(Streams(s).torch("init", 0)) for s in (0, 1)])
    obs = torch.randn(2, 70, 5, generator=torch.Generator().manual_seed(0))
    noise = policy.draw(torch.Generator().manual_seed(1), 1, 2, 70)
    whole = GroupedSampler(policy, params, noise, 5, range(70))(obs, 0)
    for size in (1, 7, 16, 33):
        for at in range(70):
            part = slice(at, min(at + size, 70))
            some = GroupedSampler(policy, params, noise[:, :, part], 5, range(at, part.stop))
            some = some(obs[:, part], 0)
            assert torch.equal(some, whole[:, part])


@given(st.integers(1, 10**6), st.integers(1, 100))
def test_microbatches_depend_on_the_public_number_of_users_and_the_algorithm_alone(users, most):
    assert 1 <= microbatch(users, most) <= min(most, math.ceil(users / 4))


def test_users_keep_their_slots():
    session = Trainer(make_plan([compose([*SMALL, "privacy.users_per_round=9"])]))
    users = session.collect(session.parts.algo.actor(session.state), 0)
    assert [one.first for one in microbatches(users, 3)] == [0, 3, 6]
    assert some_of(some_of(users, 2, 8), 3, 4).first == 5
    session.close()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["env.user=segment"], "segment"),
        (["algo.critic=shared"], "shared critic"),
        (["env.obs_scaling=running"], "running"),
        (["privacy=local", "privacy.z=1"], "devices"),
        (["algo=ppo", "env.user=fresh", "env.user_steps=8"], "pooled"),
        ([], ""),
    ],
)
def test_why_a_round_has_one_shard(words, reason):
    algo = [] if "algo=ppo" in words else ["algo=dppg"]
    parts = make_plan([compose([*algo, "env=cartpole", "log=none", *words])])
    assert reason in one_shard(parts)
    assert bool(reason) == bool(one_shard(parts))
    assert shard_users(parts, 2) == parts.gate.slots / (1 if reason else 2)


# -- every family ---------------------------------------------------------------------------

MORE = (
    *("dppg_correlated", "dppg_private_scaling", "dppg_shared_critic", "dppg_segment"),
    *("dppg_episode", "dppg_l2", "reinforce", "dp_lsl"),
)
FAMILIES = (
    *("dppg_private_critic", "dppg_poisson", "dppg_declared_users", "dppg_correlated_bands"),
    *("dppg_local", "dppg_kl", "ucbvi_tree", "dqn", "primorl", "gpope", "dppg_text"),
    *(pytest.param(x, marks=pytest.mark.slow) for x in MORE),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return golden.make(tmp_path_factory.mktemp("made"))


def bits(record):
    """What must be equal: released values, ledgers and released metrics."""
    private = ("train/return_mean", "train/entropy", "train/critic_error", "train/kl")
    for one in record.values():
        one["metrics"] = [
            {k: x for k, x in row.items() if k not in private} for row in one["metrics"]
        ]
    return golden.normal(record)


@pytest.mark.fast_every(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_three_workers_and_small_shards_release_what_one_does(name, made, inline):
    """Private means over a round are added in another order, and left out."""
    alone = golden.run(name, made, "hardware.workers=1", "hardware.shard_users=4096")
    shared = golden.run(name, made, "hardware.workers=3", "hardware.shard_users=1")
    assert not golden.differences(bits(alone), bits(shared), exact=True)


def test_workers_do_work(made, inline, monkeypatch):
    """Otherwise the test above would compare a run with itself."""
    tasks = []
    real = InlineWorker.begin
    monkeypatch.setattr(
        InlineWorker, "begin", lambda self, t: (t and tasks.append(t), real(self, t))
    )
    golden.run("dppg_private_critic", made, "hardware.workers=3", "hardware.shard_users=1")
    assert len(tasks) >= 3


def test_lines_are_on_the_disk_before_a_state_goes_to_workers(made, inline, monkeypatch):
    """Also with a dataset, whose users do not act with the state."""
    seen = []
    for kind, name in ((Gate, "release"), (Gate, "sync"), (InlineWorker, "begin")):
        real = getattr(kind, name)

        def noted(self, *rest, real=real, name=name):
            found = real(self, *rest)
            if rest != (None,):  # the question whether a worker is ready
                seen.append(name)
            return found

        monkeypatch.setattr(kind, name, noted)
    golden.run("primorl", made, "hardware.workers=3", "hardware.shard_users=1")
    begun = [i for i, name in enumerate(seen) if name == "begin"]
    assert len(begun) >= 3
    for i in begun:
        assert "release" not in seen[:i][::-1][: seen[:i][::-1].index("sync")]


@pytest.mark.slow
@pytest.mark.parametrize("users", [16, 4096])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shards_of_16_and_of_4096_and_three_workers(users, workers, inline, tmp_path):
    """As a user has it: 70 users with the default network."""
    words = ["algo=dppg", "env=acrobot", "rounds=2", "privacy.users_per_round=70", *SMALL[2:5]]
    words += [f"hardware.workers={workers}", f"hardware.shard_users={users}"]
    (result,) = run([compose(words)], [tmp_path / "run"], [words])
    actor = torch.load(tmp_path / "run" / "policy.pt", weights_only=False)["actor"]
    seen = SEEN.setdefault("actor", actor)
    assert result.status == "done"
    assert torch.equal(actor, seen)


SEEN: dict[str, torch.Tensor] = {}


# -- deaths ---------------------------------------------------------------------------------


def trained(*words):
    session = Trainer(
        make_plan([compose([*SMALL, "rounds=6", "privacy.users_per_round=8", *words])])
    )
    while not session.over:
        session.step()
    session.close()
    return session.state.tensors["actor"]


def test_lost_answers_are_computed_again(inline):
    alone = trained("hardware.workers=1")
    inline += [False, True, False, True, True]
    assert torch.equal(trained("hardware.workers=3", "hardware.shard_users=2"), alone)
    assert not inline


def test_workers_that_always_die_end_the_run(inline):
    inline += [True] * 100
    with pytest.raises(EnvironmentFailure, match=r"workers died .* hardware\.workers=1"):
        trained("hardware.workers=2")


@pytest.mark.slow
def test_killed_processes_change_nothing():
    """Real processes, killed between and within rounds."""
    alone = trained("hardware.workers=1")
    words = [*SMALL, "rounds=6", "privacy.users_per_round=8", "hardware.workers=2"]
    session = Trainer(make_plan([compose(words)]))
    session.step()
    for when in ("between", "within"):
        (worker,) = session.pool._workers
        if when == "between":
            os.kill(worker.process.pid, signal.SIGKILL)
        else:
            real = worker.begin

            def begin(task, real=real, worker=worker):
                real(task)
                os.kill(worker.process.pid, signal.SIGKILL)

            worker.begin = begin
        session.step()
        while session.pool._starting:  # the new one takes seconds to start
            time.sleep(0.05)
            session.pool._look_after()
    while not session.over:
        session.step()
    assert torch.equal(session.state.tensors["actor"], alone)
    (worker,) = session.pool._workers
    session.close()
    assert not worker.process.is_alive()


def test_workers_start_late_by_default(monkeypatch, inline):
    made = []
    real = InlineEngine.make
    monkeypatch.setattr(InlineEngine, "make", lambda self, x: made.append(1) or real(self, x))
    monkeypatch.setattr(sharing, "workers_of", lambda config: 2)
    alone = trained()
    assert not made
    monkeypatch.setattr(sharing, "_STARTING", 0.0)
    assert torch.equal(trained(), alone)
    assert made


@pytest.mark.parametrize("words", [(), ("hardware.workers=2",)])
def test_a_program_whose_workers_cannot_start_goes_on_alone_unless_asked(
    monkeypatch, inline, capsys, words
):
    def fails(self):
        raise ConfigError("algo", "mine is not known here")

    monkeypatch.setattr(InlineWorker, "result", fails)
    monkeypatch.setattr(sharing, "workers_of", lambda config: 2)
    monkeypatch.setattr(sharing, "_STARTING", 0.0)
    if words:
        with pytest.raises(ConfigError, match="not known"):
            trained(*words)
    else:
        assert torch.equal(trained(), trained("privacy.noise=seeded"))
        assert "no other workers: algo: mine is not known" in capsys.readouterr().err


def test_audits_stay_in_one_process(inline):
    parts = make_plan([compose([*SMALL, "hardware.workers=2"])])
    assert Trainer(parts).pool._shares
    assert not Trainer(replace(parts, algo=Wrapped(parts.algo))).pool._shares


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["algo=dppg"],
            "workers up to 2 processes; each computes the updates of some users of a round",
        ),
        (
            ["algo=ppo", "env.user=fresh", "env.user_steps=8"],
            "workers 1: all users' data are pooled",
        ),
        (
            ["algo=gpope", "env=chain", "data.policy=uniform", "privacy.population=50"],
            "workers 1: the simulated dataset",
        ),
    ],
)
def test_the_plan_says_who_works(words, line, tmp_path, capsys):
    env = [] if "env=chain" in words else ["env=cartpole"]
    config = compose([*words, *env, "log=none", "plan_only=true", "hardware.workers=2"])
    run([config], [tmp_path / "run"], [[]])
    assert line in capsys.readouterr().out
