"""The leak test on every shipped algorithm: what is found is what is declared."""

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from walk_logs import config_of as logged
from walk_logs import walk_logs

from privrl_bench.algorithms.base import Schedule
from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.algorithms.value.dqn import Dqn
from privrl_bench.audit.compare import distance
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.cli import audit as cli
from privrl_bench.cli.audit import leaks as main
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_compose import algo_schema, choices
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.traits import Actions, Data
from privrl_bench.envs.slots import StepResult
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.ope.output_perturbation import DpLsw
from privrl_bench.training.plan import make_plan
from privrl_bench.users.collectors.substitutes import CRAFTED, NULL, SubstituteUser

CRITIC, CARRIED = "shared critic", "carried-over environment"
OBS, REWARD = "running observation statistics", "running reward statistics"
SMALL = (
    *("algo.hidden=[8]", "privacy.users_per_round=3", "eval.episodes=1"),
    "env.max_episode_steps=40",
)
STEPS = "env.user_steps=16"  # of users who are not whole episodes
# Without values of their own; and balance is swingup from another start.
GENERIC = {"gym", "dmc", "cartpole_balance"}
POISSON = ("privacy=poisson", "privacy.population=40")


def small(*words):
    """Words of a small run; those given replace the usual ones."""
    keys = {word.partition("=")[0] for word in words}
    return [*(word for word in SMALL if word.partition("=")[0] not in keys), *words]


@cache
def base(*words):
    """One small composed run."""
    run = compose(small(*words))
    return shrink(replace(run, env=replace(run.env, user_steps=16)))[0]


def changed(*words, algo=None, env=None, privacy=None):
    """The run of `words` with other values; the paper's shared critic and segments if not said."""
    config = base(*words)
    paper = {"critic": "shared"} if hasattr(config.algo, "critic") else {}
    return replace(
        config,
        algo=replace(config.algo, **(paper | (algo or {}))),
        env=replace(config.env, **({"user": "segment"} | (env or {}))),
        privacy=replace(config.privacy, **(privacy or {})),
    )


def formal_small():
    """DPPG without caveats, small."""
    return changed(algo={"critic": "none"}, env={"user": "fresh"})


def assert_as_declared(config, user=0):
    """Found is declared is what `build` says; nothing else; the test had power."""
    report = find_leaks(config, user=user, late=False)
    plan = make_plan([config]).gate
    assert not report.no_test_power
    assert set(report.found) == set(report.declared) == set(plan.caveats), report.verdict()
    assert report.status == plan.guarantee(0).status
    assert report.ok
    assert report.compared > 100
    return report


def spread(every, *choices):
    """All combinations; each `every`-th is in the fast suite, with every choice in one of them."""
    return [
        pytest.param(*one, marks=() if sum(at) % every == 0 else pytest.mark.slow)
        for at, one in (
            (tuple(values.index(x) for values, x in zip(choices, one, strict=True)), one)
            for one in product(*choices)
        )
    ]


def rest_slow(names, *fast):
    """Parameters of which only `fast` are in the fast suite."""
    assert set(fast) <= set(names)
    return [pytest.param(x, marks=() if x in fast else pytest.mark.slow) for x in names]


CRITICS, USERS = ("shared", "private", "none"), ("segment", "fresh", "episode")


@pytest.mark.parametrize(
    ("critic", "user", "scaling"),
    spread(12, CRITICS, USERS, ("public", "private", "running", "none")),
)
def test_what_is_found_is_what_is_declared(critic, user, scaling):
    env = {"user": user, "obs_scaling": scaling, "reward_scaling": scaling}
    report = assert_as_declared(changed(algo={"critic": critic}, env=env))
    expected = {
        CRITIC: critic == "shared",
        CARRIED: user == "segment",
        OBS: scaling == "running",
        REWARD: scaling == "running",
    }
    assert set(report.found) == {name for name, leaks in expected.items() if leaks}
    assert report.status == ("heuristic" if report.found else "formal")


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("critic", "scope", "adam"), spread(3, CRITICS, ("user", "minibatch"), ("reset", "seeded"))
)
def test_options_of_local_training_open_no_path(critic, scope, adam):
    algo = {"critic": critic, "advantage_scope": scope, "user_adam": adam, "ratio_clip": 0.2}
    config = changed(algo=algo, env={"user": "fresh"})
    report = assert_as_declared(config)
    assert set(report.found) == ({CRITIC} if critic == "shared" else set())


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(("critic", "metric"), spread(3, CRITICS, ("euclidean", "fisher")))
def test_one_gradient_and_an_averaged_policy_open_no_path(critic, metric):
    algo = {"critic": critic, "user_update": "gradient", "averaging": 4.0, "metric": metric}
    algo["clipped_share"] = 0.5 if metric == "fisher" else 1.0
    report = assert_as_declared(changed(algo=algo, env={"user": "fresh"}))
    assert set(report.found) == ({CRITIC} if critic == "shared" else set())


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("one", [("running", "public"), ("public", "running")])
def test_observation_and_reward_statistics_are_told_apart(one):
    scaling = {"obs_scaling": one[0], "reward_scaling": one[1]}
    report = assert_as_declared(changed(algo={"critic": "none"}, env={"user": "fresh", **scaling}))
    assert set(report.found) == {OBS if one[0] == "running" else REWARD}


@pytest.mark.fast_every(6)
@pytest.mark.parametrize(("critic", "user"), spread(2, CRITICS, ("fresh", "episode")))
def test_poisson_cohorts(critic, user):
    config = changed(*POISSON, "seed=1", algo={"critic": critic}, env={"user": user})
    report = assert_as_declared(config)  # cohorts differ in size; user 0 is there in nearly all
    assert set(report.found) == ({CRITIC} if critic == "shared" else set())


@pytest.mark.fast_every(12)
@pytest.mark.parametrize(
    ("user", "rewards", "critic"), spread(2, USERS, ("public", "noised"), ("shared", "private"))
)
def test_what_devices_show_is_all_that_leaves_a_user(user, rewards, critic):
    """Whatever scaling and critic do comes after the noise, and carried-over slots as well."""
    words = ("privacy=local", f"privacy.rewards={rewards}", "env.obs_scaling=running")
    algo, env = {"critic": critic}, {"user": user, "reward_scaling": "running"}
    report = assert_as_declared(changed(*words, algo=algo, env=env))
    assert report.verdict() == "formal: no path around the gate"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    rest_slow(
        [
            ("algo=ppo", "env.user=segment"),
            ("algo=a2c", "privacy.noise=secure"),
            ("algo=ppo", "env=pendulum", "algo.epochs=1"),
            ("algo=sac", "env=pendulum", "algo.batch=8", "algo.updates=0.1"),
            (
                "env=gym",
                "env.id=my_pkg:MyEnv-v0",
                "env.obs_low=[0,0,0,0,0]",
                "env.obs_high=[1,1,1,1,1]",
            ),
        ],
        ("algo=ppo", "env.user=segment"),
    ),
    ids=str,
)
def test_device_noise_makes_pooled_training_private(words):
    report = assert_as_declared(base(*words, "privacy=local"), user=1)
    assert not report.open


POLICY = Path(__file__).parents[1] / "golden" / "policy.pt"
TABULAR = ("dppg_l2", "dppg_kl", "ucbvi")  # for RiverSwim, whole episodes, without networks


@cache
def swim(*words):
    """One small run on RiverSwim."""
    few = ("privacy.users_per_round=3", "eval.episodes=1", "total_steps=600")
    return shrink(compose(later_wins([*words, "env=riverswim", *few])))[0]


@cache
def chained(*words, env="chain"):
    """One small run that evaluates the uniform policy."""
    few = (f"env={env}", "data.policy=uniform", "privacy.population=6")
    return shrink(compose(later_wins([*words, *few])))[0]


@pytest.mark.fast_every(6)
@pytest.mark.parametrize(
    "words",
    [
        ("algo=gpope", "algo.weighting=step", "algo.step=diminishing"),
        ("algo=gpope", "privacy.noise=secure"),
        ("algo=dp_lsw", "algo.features=linear", "privacy.noise=secure"),
        ("algo=dp_lsl", "algo.return_high=1"),
    ],
    ids=str,
)
def test_evaluating_a_policy_opens_no_path(words):
    report = find_leaks(chained(*words), late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()
    assert report.compared > 10


class Counted(DpLsw):
    """Wrong: weights from visit counts, which the state keeps."""

    def user_update(self, state, shards, streams):
        """Leaves the counts behind."""
        shards = list(shards)
        self.left = self.total_visits(shards, len(streams)).total.float()
        return super().user_update(state, shards, streams)

    def server(self, state, released):
        """With what was left."""
        after = super().server(state, released)
        after.tensors["counts"] = self.left
        return after


def test_counts_that_stay_behind_are_found(monkeypatch):
    monkeypatch.setattr("privrl_bench.packs.offline.ope.output_perturbation.DpLsw", Counted)
    report = find_leaks(chained("algo=dp_lsw"), late=False)
    assert "state counts" in report.undeclared


@cache
def walks():
    """A dataset beside that of the session, with discrete actions."""
    return walk_logs("walks/leaks-v0", users=40)


def as_shipped(algo, sets, texts):
    """One small run with an algorithm's own values."""
    if algo == "mean_return":
        few = ("env=cartpole", "env.max_episode_steps=30", "privacy.users_per_round=3")
        return compose([f"algo={algo}", *few, f"algo.policy={POLICY}", "rounds=8"])
    if algo in TABULAR:
        return swim(f"algo={algo}")
    traits = algo_schema(algo).traits
    if traits.data == (Data.RECORDED,) and traits.actions is Actions.DISCRETE:
        few = [] if traits.one_cohort else ["privacy.users_per_round=10"]
        few += ["algo.target=uniform"] if traits.releases == "estimate" else []
        return logged(algo, walks(), *few)
    if traits.releases in ("values", "estimate"):
        return chained(f"algo={algo}")
    if Data.TEXTS in algo_schema(algo).traits.data:
        few = ("env.text.min_characters=0", "env.text.holdout=8", "env.text.new_tokens=6")
        few = (*few, "privacy.users_per_round=3", "eval.episodes=1", "env.text.prompt_tokens=[1,4]")
        one = ("algo.baseline_prompts=3",) if algo == "dppg_text" else ()
        return shrink(
            compose(later_wins([f"algo={algo}", "env=sentiment_small", *texts, *few, *one]))
        )[0]
    if Data.RECORDED in algo_schema(algo).traits.data:
        return base(f"algo={algo}", "env=pendulum", f"data.id={sets}", "data.public=0.1")
    env = "pendulum" if algo_schema(algo).traits.actions is Actions.BOX else "cartpole"
    return base(f"algo={algo}", f"env={env}")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("algo", choices("algo"))
def test_what_an_algorithm_declares_depends_on_neither_rounds_nor_z(sets, texts, algo, monkeypatch):
    monkeypatch.setattr(Schedule, "__setattr__", lambda self, name, value: None)
    assert make_plan([as_shipped(algo, sets, texts)]).algo.blocks()
    with pytest.raises(AttributeError, match="rounds from `init` on"):
        Schedule().rounds  # noqa: B018


@pytest.mark.parametrize("algo", rest_slow(choices("algo"), "dppg"))
def test_every_algorithm_as_it_is_shipped(sets, texts, algo):
    config = as_shipped(algo, sets, texts)
    report = find_leaks(config, late=Data.TEXTS not in algo_schema(algo).traits.data)
    assert report.ok, report.lines()
    assert set(report.found) >= set(report.declared)
    assert report.open == (report.status == "none")


@pytest.mark.fast_every(5)
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("algo=dppg_l2", "algo.score=true", "algo.features=pairs"), set()),
        (("algo=dppg_l2", "algo.baseline=shared"), {"shared baseline"}),
        (("algo=dppg_kl", "algo.fisher=public", "algo.fisher_episodes=4"), set()),
        (("algo=dppg_kl", "algo.fisher=private"), set()),
        (("algo=dppg_kl", "algo.fisher=private", "algo.baseline=shared"), {"shared baseline"}),
    ],
    ids=str,
)
def test_options_of_log_linear_policies(words, found):
    assert set(assert_as_declared(swim(*words)).found) == found


@pytest.mark.parametrize(
    "words",
    rest_slow(
        [
            (),
            ("algo.clipping=tensor", "algo.signal=total", "algo.dropout=0.2"),
            ("+paper=reinforce",),
            (*POISSON, "seed=1"),  # round 1 has a user
            ("privacy.users_per_round=1",),  # the only one is taken away
        ],
        (),
    ),
    ids=["shipped", "options", "paper", "poisson", "alone"],
)
def test_reinforce_opens_no_path(words):
    report = assert_as_declared(base("algo=reinforce", "env=cartpole", *words, "env.user=episode"))
    assert report.verdict() == "formal: no path around the gate"


def test_reinforce_without_a_mechanism_is_open():
    report = find_leaks(base("algo=reinforce", "env=cartpole", "privacy=none"), late=False)
    assert report.open
    assert report.ok
    assert report.status == "none"


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_pooled_training_is_outside_the_gate(algo):
    report = find_leaks(changed(f"algo={algo}", env={"user": "fresh"}), late=False)
    assert set(report.found) == {"pooled training"}
    assert report.open
    assert report.verdict() == "none: not private, everything is outside the gate; 1 path found"


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sac", "ddpg"])
def test_a_memory_of_all_users_steps_is_outside_the_gate(algo):
    words = (f"algo={algo}", "env=pendulum", "algo.batch=8", "algo.updates=0.1")
    report = find_leaks(changed(*words, env={"user": "fresh"}), late=False)
    assert set(report.found) == {"pooled training"}
    assert report.open
    assert report.ok


OFFLINE = ("env=pendulum", "data.public=0.1", "algo.model_hidden=[6]", "algo.batch=8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        (),
        (
            *("algo.clipping=layer", "algo.model_optimizer=adam", "algo.uncertainty=ma"),
            *("algo.public_ratio=0.5", "algo.averaging=4"),
        ),
    ],
    ids=["shipped", "options"],
)
def test_training_on_a_dataset_opens_no_path(sets, words):
    report = assert_as_declared(base("algo=primorl", f"data.id={sets}", *OFFLINE, *words))
    assert report.verdict() == "formal: no path around the gate"


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (2, 0)])
def test_start_states_of_private_trajectories_are_a_path(sets, place):
    words = (f"data.id={sets}", *OFFLINE, "algo.rollout_start=private")
    config = replace(base("algo=primorl", *words), rounds=6)
    report = find_leaks(config, *place, late=False)
    assert set(report.found) == set(report.declared) == {"private start states"}
    assert report.verdict() == "heuristic: 1 path past the gate, all declared"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "place"),
    [((), (0, 0)), (("algo.batch=null",), (1, 1)), (("env.user=fresh",), (2, 0))],
    ids=str,
)
def test_people_who_keep_what_they_did_open_no_path(words, place):
    """The user is replaced from the round of arrival on, in all rounds that the user joins."""
    more = ("algo.new_users=2", "privacy.z=0.5", "privacy.users_per_round=9")
    run = compose(small("algo=dqn", *words, *more))
    config = shrink(run, frozenset({"algo.new_users"}), rounds=6, users=9)[0]
    report = find_leaks(config, *place, later=3, late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()
    assert report.compared > 100


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "words", [("env.user=segment",), ("env.user=fresh",), ("+paper=dqn", "privacy.z=0.4")], ids=str
)
def test_noise_on_transitions_is_outside_the_gate(words):
    config = base("algo=dqn_replay", "env.max_episode_steps=64", *words, "algo.batch=8")
    report = find_leaks(
        replace(config, privacy=replace(config.privacy, users_per_round=2)), late=False
    )
    assert POOLED in report.found
    assert report.ok, report.lines()
    noisy = config.privacy.mechanism == "per_transition"
    assert report.open == (not noisy)
    assert report.status == ("heuristic" if noisy else "none")


class Mixing(Dqn):
    """Wrong: every row depends on the steps of all users."""

    def user_update(self, state, users, streams):
        """Adds a fraction of all rewards to the user's own."""
        rewards = users.rewards + 1e-3 * users.rewards.sum((1, 2), keepdim=True)
        return super().user_update(state, replace(users, rewards=rewards), streams)


class Remembering(Dqn):
    """Wrong: the state keeps something of a row."""

    def server(self, state, released):
        """With the last rows' size, which `user_update` left behind."""
        after = super().server(state, released)
        after.tensors["m"] = after.tensors["m"] + self.left[:, None]
        return after

    def user_update(self, state, users, streams):
        """Leaves the mean reward behind."""
        self.left = users.rewards.mean((1, 2))
        return super().user_update(state, users, streams)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("wrong", [Mixing, Remembering])
def test_rows_that_mix_users_are_found(wrong, monkeypatch):
    monkeypatch.setattr("privrl_bench.algorithms.value.dqn.ALGORITHM", wrong)
    config = shrink(compose(later_wins([*SMALL, "algo=dqn", "algo.new_users=2"])))[0]
    report = find_leaks(config, late=False)
    assert not report.ok
    assert report.undeclared


@pytest.mark.slow
def test_pooled_training_on_a_dataset_is_outside_the_gate(sets):
    report = find_leaks(
        base("algo=mopo", f"data.id={sets}", *OFFLINE, "algo.model_batch=8"), late=False
    )
    assert set(report.found) == {"pooled training"}
    assert report.open
    assert report.ok


def test_a_run_of_too_few_rounds_on_a_dataset_names_its_key(sets):
    config = replace(base("algo=primorl", f"data.id={sets}", *OFFLINE), rounds=3)
    with pytest.raises(ConfigError, match=r"^rounds: the test needs 4, got 3"):
        find_leaks(config)


@pytest.mark.parametrize(
    "env",
    rest_slow(
        sorted(
            e for e in set(choices("env")) - GENERIC - {"logs"} if not e.startswith("sentiment")
        ),
        "cartpole",
    ),
)
def test_environments(env):
    """Continuous actions, simulators with a state of their own, fixed episode lengths."""
    few = {"users_per_round": 2}  # some are slow to make
    config = changed(f"env={env}", privacy=few, algo={"critic": "private"})
    assert set(assert_as_declared(config).found) == {CARRIED}


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("noise", [{"z": 0.0}, {"noise": "secure"}, {"z": 3.0}])
def test_the_noise_does_not_matter(noise):
    report = find_leaks(changed(privacy=noise, env={"user": "fresh"}), late=False)
    assert set(report.found) == {CRITIC}
    assert report.ok
    assert report.status == ("none" if noise.get("z") == 0 else "heuristic")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(("index", "user"), [(0, 0), (0, 2), (3, 1)])
def test_any_user_of_any_round(index, user):
    config = changed(env={"obs_scaling": "running"})
    report = find_leaks(config, index, user, late=False)
    assert set(report.found) == {CRITIC, CARRIED, OBS}
    assert {seen.round for seen in report.found.values()} == {index}


@pytest.mark.slow
def test_bad_users_of_others_do_not_disturb_it():
    words = (
        "env=gym",
        "env.id=my_pkg:Clock-v0",
        "+env.kwargs.spoiled=obs",
        "env.user=fresh",
        "algo.critic=shared",
    )
    reports = [find_leaks(base(*words), user=user, late=False) for user in range(3)]
    assert all(report.undeclared == () for report in reports)
    assert any(report.ok for report in reports)


@pytest.mark.slow
def test_a_test_that_could_not_find_anything_says_so():
    """The simulator of this user fails in both runs, so that the row is zero in both."""
    words = (
        "env=gym",
        "env.id=my_pkg:Clock-v0",
        "+env.kwargs.spoiled=obs",
        "env.user=fresh",
        "algo.critic=shared",
    )
    reports = [find_leaks(base(*words), user=user, late=False) for user in range(3)]
    report = next(report for report in reports if report.no_test_power)
    assert not report.ok
    assert "no test power" in report.verdict()
    # Found is nothing, declared is nothing, and yet it must not pass.
    nothing = replace(report, found={}, declared=(), no_test_power=("no reason",))
    assert not nothing.ok


def test_missing_caveats_fail():
    report = find_leaks(changed(algo={"critic": "private"}, env={"user": "fresh"}), late=False)
    wrong = replace(report, declared=(CRITIC,))
    assert wrong.missing == (CRITIC,)
    assert not wrong.ok
    assert "declared, no difference found: shared critic" in wrong.verdict()


def test_simulators_that_the_seed_does_not_determine_are_refused():
    words = ("env=gym", "env.id=my_pkg:Clock-v0", "+env.kwargs.drift=true")
    for user in ("segment", "fresh"):
        with pytest.raises(ConfigError, match="not determined"):
            find_leaks(changed(*words, env={"user": user}), late=False)


# --- the substitute user


class Counting:
    """Two slots: observation is the step; an episode has four steps."""

    count = 2

    def __init__(self):
        self.at = np.zeros(2)

    def reset(self, indices, seeds, users=None):
        self.at[indices] = 0
        return np.stack([self.at[indices]], axis=1)

    def step(self, indices, actions):
        self.at[indices] += 1
        obs = np.stack([self.at[indices]], axis=1)
        over = self.at[indices] >= 4
        return StepResult(obs, np.ones(len(indices)), over, np.zeros_like(over))

    def close(self):
        pass


def play(kind, present=True, steps=12, max_episode_steps=20):
    both = np.arange(2)
    slots = SubstituteUser(Counting(), 1, kind, steps, max_episode_steps, resets=True)
    slots.present = present
    seen = [slots.reset(both, [0, 0])]
    ends = []
    for _ in range(steps):
        result = slots.step(both, both)
        over = result.terminated | result.truncated
        seen.append(result.obs)
        ends.append(over.tolist())
        if over.any():
            slots.reset(both[over], [0] * int(over.sum()))
    return np.stack(seen)[..., 0], np.array(ends)


@pytest.mark.parametrize("kind", [NULL, CRAFTED])
def test_only_the_users_slot_changes_and_only_in_the_users_round(kind):
    plain, ends = play(kind, present=False)
    assert np.array_equal(plain[:, 0], plain[:, 1])
    obs, changed_ends = play(kind)
    assert np.array_equal(obs[:, 0], plain[:, 0])
    assert np.array_equal(changed_ends[:, 0], ends[:, 0])
    assert not (obs[:, 1] == plain[:, 1]).any()


def test_a_crafted_person_has_other_episodes_within_the_public_limit():
    _, ends = play(CRAFTED, steps=12)
    # Then the episode continues to the end of the round.
    assert np.flatnonzero(ends[:, 1]).tolist() == [2, 5]
    _, ends = play(CRAFTED, steps=12, max_episode_steps=4)
    assert np.flatnonzero(ends[:, 1]).tolist() == [2, 5, 9]


def test_distance():
    nan = torch.tensor([1.0, float("nan")])
    assert distance(nan, nan.clone()) is None
    assert distance(nan, torch.tensor([1.0, 2.0])) == float("inf")
    assert distance(torch.tensor([1, 5]), torch.tensor([1, 2])) == 3
    assert distance(torch.zeros(2), torch.zeros(3)) == float("inf")
    assert distance(None, torch.zeros(1)) == float("inf")
    assert distance(torch.zeros(0), torch.zeros(0)) is None


# --- the command


@pytest.mark.slow
def test_the_command_reports_and_writes_json(capsys, tmp_path):
    file = tmp_path / "leaks.json"
    words = [*SMALL, STEPS, "env.user=fresh", "algo.critic=shared"]
    assert main([*words, "--user", "2", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("leaks   dppg on cartpole, user 2 of round 1 replaced; ")
    assert "  cut     algo.epochs 8 -> 2\n" in shown
    assert "  found   shared critic: change in round 1 differs by " in shown
    assert shown.splitlines()[-1] == "verdict  heuristic: 1 path past the gate, all declared"
    report = json.loads(file.read_text())
    assert report["ok"]
    assert report["found"][CRITIC]["round"] == 1
    assert report["undeclared"] == report["missing"] == []
    assert report["replicas"] == 2
    assert len(report["visits"]) >= 4
    assert all(f"  not covered: {line}\n" in shown for line in report["not_covered"])


@pytest.mark.parametrize(
    "words",
    [["--user", "9"], ["--round", "-1"], ["--rounds", "3"], ["--user", "x"], ["z=1"], ["x"]],
)
def test_bad_words_are_one_line(words, capsys):
    assert cli.main(["leaks", *SMALL, STEPS, *words]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1


def test_too_short_a_run_is_refused_and_help_is_shown(capsys):
    with pytest.raises(ConfigError, match="4 rounds of 48 steps = 192"):
        main([*SMALL, STEPS, "total_steps=100"])
    assert cli.main(["leaks", "--help"]) == 0
    assert "--round I" in capsys.readouterr().out


def test_only_what_was_not_asked_for_is_cut():
    config, cuts = shrink(compose(["env=hopper", "env.user_steps=2048", *SMALL[:2]]), users=2)
    assert config.env.user_steps == 64
    assert "env.user_steps 2048 -> 64" in cuts
    assert "privacy.users_per_round 3 -> 2" in cuts
    kept, cuts = shrink(
        compose(["env=hopper", "env.user_steps=999", "algo.minibatches=128", "algo.epochs=3"]),
        frozenset({"algo.minibatches", "algo.epochs"}),
    )
    assert kept.env.user_steps == 128  # a minibatch needs a step
    assert kept.algo.epochs == 3
    whole, cuts = shrink(compose(["env=hopper", "env.user=episode"]))
    assert whole.env.max_episode_steps == 64
    assert "env.max_episode_steps 1000 -> 64" in cuts


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(("words", "user"), [((), 1), ((), 6), (POISSON, 1)])
def test_a_round_of_two_shards_opens_no_path(words, user):
    """What workers run, shard after shard, in this process; the user is in the first or the second one."""
    config = changed(
        "algo=dppg", "env=cartpole", *words, algo={"critic": "private"},
        env={"user": "fresh"}, privacy={"users_per_round": 8},
    )  # fmt: skip
    config = replace(config, hardware=replace(config.hardware, shard_users=4))
    report = find_leaks(config, user=user, late=False)
    assert report.ok
    assert not report.found
    assert not report.no_test_power
