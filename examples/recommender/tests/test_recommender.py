"""Tests of the recommender: its contract for declared users, a private run of seconds, and the export."""

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
from gymnasium.utils.env_checker import check_env

import privrl_bench as pb
from privrl_recommender import PLUGIN
from privrl_recommender.env import BOREDOM, CATEGORIES, SESSION, Recommender, load_taste
from privrl_recommender.references import mean_clicks, references

EVALUATION = {"user": None, "evaluation": True}
SMALL = (
    "algo=dppg env=recommender privacy.epsilon=1 privacy.delta=1e-6 privacy.population=100_000 "
    "privacy.noise=secure log=none log.plot=false log.progress=false hardware.workers=1 "
    "rounds=3 privacy.users_per_round=20 eval.episodes=2 eval.every=0"
)


def taste(env, options, seed=0):
    """The taste in an environment after a reset: [C]."""
    env.reset(seed=seed, options=options)
    return np.array(env._taste)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A private run of three rounds, with secure noise."""
    pb.register(PLUGIN)
    folder = tmp_path_factory.mktemp("run")
    return pb.run(f"{SMALL} hydra.run.dir={folder / 'one'}", quiet=True)


def test_gymnasium_accepts_the_environment():
    env = gym.make("privrl_recommender.env:Recommender-v0")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    over = [env.step(0)[2] for _ in range(SESSION)]
    assert over == [False] * (SESSION - 1) + [True]


def test_a_user_is_the_same_every_time_and_in_every_instance():
    one, two = Recommender(), Recommender()
    first = taste(one, {"user": 7})
    taste(one, {"user": 8})
    taste(one, EVALUATION)
    assert np.array_equal(first, taste(one, {"user": 7}, seed=5))
    assert np.array_equal(first, taste(two, {"user": 7}))


def test_users_differ():
    tastes = np.array([load_taste(user) for user in range(500)])
    assert len(np.unique(tastes, axis=0)) == 500
    assert ((tastes > 0.0) & (tastes < 1.0)).all()
    assert len(set(tastes.argmax(1))) >= 5  # no category is everybody's


def test_an_evaluation_is_of_no_declared_user():
    env = Recommender()
    drawn = np.array([taste(env, EVALUATION, seed) for seed in range(50)])
    assert len(np.unique(drawn, axis=0)) == 50
    declared = np.array([load_taste(user) for user in range(2_000)])
    assert not (drawn[:, None] == declared).all(-1).any()


@pytest.mark.parametrize("user", [-1, 100_000])
def test_other_users_are_refused(user):
    with pytest.raises(ValueError, match=f"there is no user {user}"):
        Recommender().reset(seed=0, options={"user": user})
    with pytest.raises(ValueError, match="declares None"):
        Recommender(users=None).reset(seed=0, options={"user": 0})


def test_observation_and_boredom():
    env, count = Recommender(), len(CATEGORIES)
    env.reset(seed=0, options={"user": 3})
    clicks = sum(env.step(action)[1] for action in (4, 4))
    obs, reward, *_ = env.step(4)
    shown, row = obs[count : 2 * count], obs[2 * count : 3 * count]
    assert (obs[4], shown[4], row[4], obs[-1]) == (clicks + reward, 3, 3, SESSION - 3)
    obs, *_ = env.step(5)
    assert list(obs[2 * count : 3 * count].nonzero()[0]) == [5]


def test_a_repeated_category_is_clicked_less():
    """A user who clicks everything clicks a repeated category with probability BOREDOM."""
    env, later = Recommender(users=None), []
    for seed in range(2_000):
        env.reset(seed=seed)
        env._taste = [1.0] * len(CATEGORIES)
        assert env.step(0)[1] == 1.0
        later.append(env.step(0)[1])
    assert abs(np.mean(later) - BOREDOM) < 0.03


def test_references_are_ordered():
    found = references(200)
    assert found["random"] < found["best category"] < found["best pair"]
    assert mean_clicks(lambda t: t % 10, 50, 1) == mean_clicks(lambda t: t % 10, 50, 1)


def test_a_private_run_is_formal(run):
    guarantee = run.guarantee
    assert guarantee["status"] == "formal"
    assert guarantee["epsilon"] == pytest.approx(1.0, rel=1e-3)
    assert "100000 declared" in guarantee["unit"]
    assert run.config["privacy"]["noise"] == "secure"
    assert run.config["hyperparameter_source"] == "tuned/dppg_recommender"


def test_the_export_acts_as_the_policy(run):
    observations = Recommender().observation_space.sample()[None].repeat(8, 0)
    observations[:, :10] = np.random.default_rng(0).integers(0, 4, (8, 10))
    session = onnxruntime.InferenceSession(str(pb.export(run.folder)))
    (actions,) = session.run(None, {session.get_inputs()[0].name: observations})
    policy = pb.load_policy(run.folder)
    assert list(actions) == list(policy.act(observations, greedy=True))
    assert 0 <= policy.act(observations[0]) < len(CATEGORIES)
