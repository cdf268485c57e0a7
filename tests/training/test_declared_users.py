"""Environments that declare real users: who is played, how often, with what randomness, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch
from helpers import members_of, own, rollout_of, tensors
from my_pkg import clinic_log

from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.sampling.fixed import Fixed
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run
from privrl_bench.training.trainer import Trainer

NOBODY = {"user": None, "evaluation": True}
SMALL = (
    *("algo=dppg", "algo.hidden=[4]", "algo.epochs=1", "algo.minibatches=2", "privacy.z=1"),
    *("env.obs_scaling=none", "env.reward_scaling=none", "env.user_steps=6", "log=none"),
    *("privacy.users_per_round=4", "rounds=3", "eval.episodes=2", "eval.every=0", "log.plot=false"),
    "privacy.noise=secure",  # seeded noise is refused for users who are real
)
POISSON = ("privacy=poisson", "privacy.z=1", "privacy.users_per_round=4")
REPEATABLE = ("privacy.z=0", "privacy.noise=seeded")  # which cohorts and results may be compared


def clinic(*words, name="Clinic"):
    return compose(later_wins(["env=gym", f"env.id=my_pkg:{name}-v0"], SMALL, words))


def session_of(*words, seeds=(0,), name="Clinic"):
    configs = [clinic(*words, f"seed={seed}", name=name) for seed in seeds]
    return Trainer(make_plan(configs))


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "resets.jsonl"
    monkeypatch.setenv("CLINIC_LOG", str(path))
    return path


def played(log, since=0):
    """Whom the resets from the `since`-th on were for."""
    return [options["user"] for options, _, _ in clinic_log(log)[since:]]


def watch(session, log, evaluate=True):
    """Train to the end: per round, who was reset and the batch of users."""
    seen, real = [], session.collector.shards

    def shards(actor, index, cohort):
        before = len(clinic_log(log))
        (users,) = real(actor, index, cohort)
        seen.append((played(log, before), users))
        return iter([users])

    session.collector.shards = shards
    while not session.over:
        session.step()
    if evaluate:
        session.evaluate()
    session.close()
    return seen


# -- who is played ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Clinic", "SpecClinic"])
def test_fixed_cohorts_play_every_user_once_in_order(log, name) -> None:
    seen = watch(session_of(name=name), log)
    for index, (who, users) in enumerate(seen):
        expected = range(4 * index, 4 * index + 4)
        assert who[:4] == list(expected)
        assert set(who) == set(expected)
        assert users.numbers.tolist() == [list(expected)]
        # The environment was told the same user at every restart, and not once more than it was needed.
        starts = 1 + users.done[0, :, :-1].sum(-1)
        assert Counter(who) == dict(zip(expected, starts.tolist(), strict=True))
        assert len(who) > 4
        assert (users.obs[0, :, :, 1] == torch.tensor(expected)[:, None]).all()
        assert users.valid.all()


def test_training_and_evaluation_get_these_options_and_no_others(log) -> None:
    session = session_of()
    assert [x[0] for x in clinic_log(log)] == [NOBODY]  # the check before training
    watch(session, log)
    batch = [x[0] for x in clinic_log(log)]
    assert batch[-2:] == [NOBODY] * 2
    assert all(options == {"user": options["user"]} for options in batch[1:-2])
    assert {options["user"] for options in batch[1:-2]} == set(range(12))


@pytest.mark.parametrize("noise", [REPEATABLE, ("privacy.noise=secure",)])
def test_poisson_cohorts_are_those_that_the_sampler_drew(log, noise) -> None:
    session = session_of(*POISSON, "privacy.population=30", *noise)
    sampler, drawn = session.parts.gate.sampler, []
    real = sampler.members
    sampler.members = lambda *words: drawn.append(real(*words)) or drawn[-1]
    seen = watch(session, log)
    assert len(drawn) == 3  # once a round
    for (members,), (who, users) in zip(drawn, seen, strict=True):
        assert set(who) == {k for k in members.tolist() if k < 12}  # the others are absent
        assert users.valid[0, : len(members)].tolist() == (members < 12).tolist()
        assert not users.valid[0, len(members) :].any()
        assert not users.mask[~users.valid].any()
        there = users.valid[0].nonzero().flatten()
        assert (users.obs[0, there, 0, 1] == users.numbers[0, there]).all()


def test_the_population_is_what_the_environment_declares_unless_it_is_larger() -> None:
    assert session_of(*POISSON).parts.config.privacy.population == 12
    assert session_of(*POISSON).parts.gate.event(0).population == 12
    assert session_of(*POISSON, "privacy.population=40").parts.gate.event(0).population == 40


def test_a_second_draw_of_a_round_is_the_first() -> None:
    plan = session_of(*POISSON, "privacy.noise=secure", "privacy.population=1000").parts.gate
    first, again = plan.draw(0, 12, False).numbers()[0], plan.draw(0, 12, False).numbers()[0]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, plan.draw(1, 12, False).numbers()[0])


@pytest.mark.slow
def test_replicas_and_workers_play_the_same_users(log) -> None:
    found = {}
    for workers in (1, 2):
        log.unlink(missing_ok=True)
        session = session_of(f"hardware.workers={workers}", "rounds=2", *REPEATABLE, seeds=(0, 1))
        while not session.over:
            session.step()
        found[workers] = sorted(k for k in played(log) if k is not None), session.state.tensors
        session.close()
        real = {pid for options, _, pid in clinic_log(log) if options["user"] is not None}
        assert len(real) == workers
    assert set(found[1][0]) == set(range(8))
    assert found[1][0] == found[2][0]
    assert all(torch.equal(x, found[2][1][name]) for name, x in found[1][1].items())


@pytest.mark.slow
def test_an_evaluation_in_a_process_of_its_own_plays_simulations(log, monkeypatch) -> None:
    monkeypatch.setattr("privrl_bench.evaluation.evaluator._WORTH_A_PROCESS", -1.0)
    monkeypatch.setattr("privrl_bench.evaluation.returns.workers_of", lambda config: 2)
    session = session_of("rounds=1")
    watch(session, log)
    elsewhere = [x for x in clinic_log(log) if x[2] != clinic_log(log)[0][2]]
    assert [options for options, *_ in elsewhere] == [NOBODY] * 2


@pytest.mark.parametrize("words", [(), (*POISSON, "privacy.population=20", *REPEATABLE)])
def test_a_repeated_round_plays_the_same_users(log, tmp_path, monkeypatch, words) -> None:
    real = Trainer.step

    def interrupted(session):
        real(session)
        if session.round == 2:
            raise KeyboardInterrupt

    config, folder = clinic(*words), [tmp_path / "run"]
    monkeypatch.setattr(Trainer, "step", interrupted)
    run([config], folder, [[]])
    first = [k for k in played(log) if k is not None]
    monkeypatch.setattr(Trainer, "step", real)
    log.unlink()
    assert run([config], folder, [[]])[0].status == "done"
    later = [k for k in played(log) if k is not None]
    log.unlink()
    run([config], [tmp_path / "whole"], [[]])
    whole = [k for k in played(log) if k is not None]
    repeated = len(first) + len(later) - len(whole)
    assert repeated > 0  # round 1 came twice
    assert first + later[repeated:] == whole
    assert first[-repeated:] == later[:repeated]


# -- their randomness -------------------------------------------------------------------------


def test_what_a_user_does_does_not_depend_on_slot_or_company() -> None:
    config = own("Clinic", user="fresh")
    rollout, actor = rollout_of(config, [3, 4], 5, 7)
    alone = rollout.collect(actor, 6, members_of([9], [2]))
    for members in ([4, 9, 0, 11, 2], [2, 1, 9], [99, 9, 2]):
        both = rollout.collect(actor, 6, members_of(members, members))
        for r, user in enumerate([9, 2]):
            slot = members.index(user)
            for name, x in tensors(both).items():
                assert torch.equal(x[r, slot], tensors(alone)[name][r, 0]), name
    later = rollout.collect(actor, 7, members_of([9], [2]))
    assert not torch.equal(later.actions[:, 0], alone.actions[:, 0])


def test_a_users_row_does_not_depend_on_slot_or_company() -> None:
    session = session_of("algo.epochs=2")
    algo, state, streams = session.parts.algo, session.state, session.parts.streams

    def rows(members):
        users = session.collector.collect(algo.actor(state), 0, members_of(members))
        return algo.user_update(state, users, streams).take()[0]

    one, other = rows([3, 7, 1, 0]), rows([10, 4, 3, 7])
    for name, x in one.items():
        # Equal but for how sums are rounded in other places of a tensor.
        torch.testing.assert_close(x[0, :2], other[name][0, 2:], rtol=1e-3, atol=1e-5, msg=name)
        assert x[0, 0].any()


# -- other users of environments --------------------------------------------------------------


def test_people_who_keep_what_they_did_come_once_each(log) -> None:
    words = (
        "algo=dqn",
        "privacy=poisson",
        "algo.hidden=[4]",
        "algo.new_users=3",
        "algo.act_every=1",
    )
    config = compose([
        "env=gym", "env.id=my_pkg:Clinic-v0", *words, "env.user=episode", "rounds=4", "log=none",
        "env.obs_scaling=none", "env.reward_scaling=none", "privacy.users_per_round=4", "algo.batch=2",
        "privacy.noise=secure",
    ])  # fmt: skip
    session = Trainer(make_plan([config]))
    seen = watch(session, log)
    assert [who for who, _ in seen] == [list(range(i, i + 3)) for i in (0, 3, 6, 9)]
    assert session.parts.gate.unit.text.startswith("one user (of 12 declared by the environment): ")


def test_collecting_plays_simulations_and_training_runs_are_refused(log, tmp_path) -> None:
    from privrl_bench.envs.registry import env_spec, make_slots
    from privrl_bench.functional.rng import Streams
    from privrl_bench.packs.offline.collect import collect, parse
    from privrl_bench.packs.offline.fixed_policies import fixed_policy
    from privrl_bench.packs.offline.playing import play

    config = own("Clinic")
    spec = env_spec(config)
    policy = fixed_policy("uniform", config, spec)
    play(make_slots(config, 3), spec, policy, Streams(0), range(3))
    assert [x[0] for x in clinic_log(log)] == [NOBODY] * 4
    words = [
        "algo=ppo",
        "env=gym",
        "env.id=my_pkg:Clinic-v0",
        "env.user=fresh",
        "runs=1",
        "steps=12",
    ]
    more = [
        "env.obs_scaling=none",
        "env.reward_scaling=none",
        "env.user_steps=6",
        "algo.minibatches=1",
    ]
    order = parse([*words, *more, "privacy.users_per_round=1", "name=clinic/ppo-v0"])
    with pytest.raises(ConfigError, match=r"^env: my_pkg:Clinic-v0 declares 12 users, who would"):
        collect(order, tmp_path)


def test_simulations_that_an_algorithm_runs_for_itself_play_nobody(log) -> None:
    from privrl_bench.training.plan import _simulated

    parts = session_of().parts
    before = len(clinic_log(log))
    simulate = _simulated(parts.config, parts.spec, parts.algo.policy, 3, parts.streams)
    users = simulate(parts.algo.actor(parts.algo.init(parts.streams)), 0)
    assert [x[0] for x in clinic_log(log)[before:]] == [NOBODY] * 3
    assert users.numbers is None


@pytest.mark.slow
def test_the_leak_test_plays_simulations(log) -> None:
    from privrl_bench.audit.leaks import find_leaks
    from privrl_bench.audit.shrink import shrink

    config, _ = shrink(clinic("total_steps=100000", "rounds=null"), frozenset(), rounds=3, users=2)
    report = find_leaks(config, round_index=1, later=1)
    assert report.ok, report.lines()
    assert set(played(log)) == {None}


# -- what is said -----------------------------------------------------------------------------


def test_guarantee_and_plan_name_the_users(tmp_path, capsys, monkeypatch) -> None:
    guarantee = session_of().parts.gate.guarantee(0)
    assert guarantee.unit == (
        "one user (of 12 declared by the environment): 6 steps from a reset, used once"
    )
    assert "'evaluation': True" in guarantee.notes["evaluation"]
    assert "in the order of their numbers" in guarantee.notes["users"]
    assert "the number of users that the env" in guarantee.notes["public information"]
    drawn = session_of(*POISSON).parts.gate.guarantee(0)
    assert drawn.unit == (
        "one user (of 12 declared by the environment) with all their rounds (each round: 6 steps "
        "from a reset)"
    )
    assert "drawn afresh and in secret" in drawn.notes["users"]
    assert "sampling" not in drawn.notes  # nothing is simulated
    with monkeypatch.context() as patched:  # a sampler that draws their order, of a plugin
        patched.setattr(Fixed, "random", True)
        notes = session_of().parts.gate.guarantee(0).notes
        assert "in an order that the sampler draws in secret" in notes["users"]
    run([clinic("plan_only=true")], [tmp_path / "a"], [[]])
    assert "3 rounds of 4 users x 6 steps = 72 steps; 12 of 12 users, each used once\n" in (
        capsys.readouterr().out
    )


def test_users_of_simulators_are_called_so() -> None:
    parts = make_plan([compose(["env=cartpole", "total_steps=100000"])])
    plan = parts.gate
    assert plan.unit.text.startswith("one simulated user: ")
    assert not {"users", "evaluation"} & set(plan.guarantee(0).notes)
    assert describe_plan(parts, 0)["users"] == parts.rounds * parts.config.privacy.users_per_round
    words = ["env=cartpole", "total_steps=100000", "privacy=poisson", "privacy.population=300"]
    plan = make_plan([compose(words)]).gate
    assert plan.unit.text.startswith("one simulated user with all their rounds")
    assert "simulated" in plan.guarantee(0).notes["sampling"]


# -- what is refused --------------------------------------------------------------------------

REFUSED = [
    (("rounds=4",), r"^rounds: 4 rounds of 4 users need 16 users, each used once; my_pkg:Clinic-v0 declares "
     r"12: at most 3 rounds, total_steps=72$"),
    (("rounds=null", "total_steps=1000"), r"^total_steps: 41 rounds of 4 users need 164 users, each"),
    (("privacy.population=9",), r"^privacy.population: must be at least the 12 users that .* declares, got 9$"),
    (("privacy.users_per_round=13",), r"^privacy.users_per_round: 3 rounds of 13 users need 39 .*one round$"),
    (("env.user=segment",), r"^env.user: my_pkg:Clinic-v0 declares 12 users, and with segment a user would be "
     r"in several rounds; use fresh or episode$"),
    (("algo=ppo", "privacy.z=0"), r"^env.user: .* in several rounds; use fresh$"),
    (("env.user=segment", "privacy.population=99"), r"^privacy.population: bounds the users of fixed"),
    ((*POISSON, "privacy.population=11"), r"^privacy.population: must be at least the 12 users that my_pkg"),
    ((*POISSON, "privacy.users_per_round=13"), r"^privacy.population: must be at least "
     r"privacy.users_per_round=13, got 12$"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_a_plan_that_the_users_do_not_allow_is_refused(words, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        session_of(*words)
    assert "\n" not in str(caught.value)


def test_a_bound_on_the_users_of_a_simulator_holds_too() -> None:
    words = ["env=cartpole", "total_steps=10000", "privacy.users_per_round=8", "env.user_steps=50"]
    parts = make_plan([compose([*words, "privacy.population=200"])])
    assert "population, a bound" in parts.gate.guarantee(0).notes["public information"]
    with pytest.raises(ConfigError, match=r"^total_steps: 25 rounds of 8 users need 200 users"):
        make_plan([compose([*words, "privacy.population=199"])])
    with pytest.raises(
        ConfigError, match=r"^privacy.population: privacy.sampling=poisson needs the number"
    ):
        make_plan([compose([*words, "privacy=poisson"])])


def test_the_gate_itself_lets_nobody_come_twice() -> None:
    plan = session_of().parts.gate
    assert plan.draw(2, 12, True).numbers()[0].tolist() == [8, 9, 10, 11]
    with pytest.raises(PrivacyError, match="round 3 would use one of 12 users again"):
        plan.draw(3, 12, True).numbers()


BAD = [
    ("DeafClinic", (), r"^env: my_pkg:DeafClinic-v0 declares 12 users, but DeafClinic.reset takes no"),
    ("RealClinic", (), r"^env: my_pkg:RealClinic-v0 declares 12 users, so reset\(.*KeyError: 'nobody'"),
    ("OddClinic", ("+env.kwargs.declared=0",), r"^env: .*metadata\[\"users\"\]=0; allowed: an integer >= 1"),
    ("OddClinic", ("+env.kwargs.declared=2.5",), r"^env: .*metadata\[\"users\"\]=2.5; allowed"),
    ("OddClinic", ("+env.kwargs.declared=true",), r"^env: .*metadata\[\"users\"\]=True; allowed"),
    ("OddClinic", ("+env.kwargs.declared=7", "+env.kwargs.users=8"), r"^env: .*=7 and is made with users=8; "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words", "message"), BAD)
def test_an_environment_that_breaks_the_contract_is_refused(name, words, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        session_of(*words, name=name)
    assert "\n" not in str(caught.value)


def test_an_environment_may_say_that_it_has_no_users() -> None:
    from privrl_bench.envs.registry import make_env
    from privrl_bench.envs.user_declaration import declared_users

    kwargs = {"declared": None, "users": 8}
    assert declared_users(make_env(own("OddClinic", kwargs=kwargs)), "x") is None


def test_a_wrapper_does_not_hide_declared_users():
    """Found by an audit: a wrapper with `metadata` of its own made real users simulated ones."""
    import gymnasium as gym
    from my_pkg import Clinic

    from privrl_bench.envs.user_declaration import declared_users

    class Quiet(gym.Wrapper):
        metadata = {"render_modes": []}  # noqa: RUF012

    class Other(gym.Wrapper):
        metadata = {"users": 11}  # noqa: RUF012

    assert declared_users(Quiet(Clinic()), "x") == 12
    with pytest.raises(ConfigError, match="disagree"):
        declared_users(Other(Clinic()), "x")


def test_declared_users_are_a_known_number_for_delta():
    """Found by an audit: 1 / 500 is exceeded, and the guarantee had a note in place of the caveat."""
    plan = session_of("privacy.delta=0.005", "+env.kwargs.users=500", name="SpecClinic").parts.gate
    assert plan.config.population == 500
    assert "weak delta" in plan.guarantee(0).caveats


@pytest.mark.slow
def test_what_an_environment_of_real_users_says_stays_in_the_run_folder(tmp_path, capsys, log):
    """Found by an audit: a reward that is a text went to the terminal, as the message of a ValueError."""
    words = ("+env.kwargs.said=user 2 is HIV positive", "log.progress=false")
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        config = clinic(*words, f"hardware.workers={workers}", name="TalkingClinic")
        (result,) = run([config], [folder], [[]])
        shown = "".join(capsys.readouterr())
        assert (result.status, result.exit_code) == ("failed", 1)
        assert "HIV" not in shown + result.reason + (folder / "status.json").read_text()
        assert "HIV" in (folder / "error.txt").read_text()


def test_devices_of_real_users_do_not_repeat_their_noise():
    """Found by an audit: a round that is repeated drew the same seeded noise on other observations."""
    words = ("privacy=local", "privacy.z=50", "env.obs_low=[0,-1]", "env.obs_high=[9,12]")
    with pytest.raises(ConfigError, match=r"^privacy.noise: .* use secure$"):
        session_of(*words, "privacy.noise=seeded")
    session_of(*words).close()


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("words", [(), POISSON, ("privacy=correlated", "privacy.z=1")])
def test_noise_whose_seed_is_published_is_refused_for_real_users(words, tmp_path, capsys):
    """The run was `formal` with a note."""
    from privrl_bench.cli.train import main

    words = later_wins(words, ["privacy.noise=seeded"])
    rule = (
        r"^privacy.noise: my_pkg:Clinic-v0 declares 12 users, and the seed of seeded noise is published "
        "with the run; use secure$"
    )
    with pytest.raises(ConfigError, match=rule):
        session_of(*words)
    session_of(*words, "privacy.z=0").close()  # no noise, and no promise
    given = [*SMALL, "env=gym", "env.id=my_pkg:Clinic-v0", *words, f"hydra.run.dir={tmp_path}/run"]
    with pytest.raises(SystemExit, match="2"):
        main(later_wins(given))
    error = capsys.readouterr().err
    assert error.startswith("error: privacy.noise: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "status.json").exists()
