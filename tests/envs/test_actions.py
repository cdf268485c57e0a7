"""Actions that environments get: of their type, never outside their space, integers with equal shares."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from helpers import own
from spaces_pkg import BOXES

import privrl_bench as pb
from privrl_bench.algorithms.base import check_actions
from privrl_bench.cli.main import main
from privrl_bench.config.traits import Actions
from privrl_bench.envs.registry import SLOTS, env_spec
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.envs.spaces import ActionMap, action_box, corner_actions
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.returns import ReturnEvaluator
from privrl_bench.functional.rng import Streams
from privrl_bench.models.bounded import DeterministicPolicy, SquashedPolicy
from privrl_bench.models.policy import make_policy
from privrl_bench.models.trivial_policies import RandomPolicy, Trivial, TrivialPolicy
from privrl_bench.packs.offline.datasets.minari_files import open_dataset
from privrl_bench.rollout import _able

DISCRETE = {"CartPole-v1", "Acrobot-v1", "MountainCar-v0"}
BOUNDED = [name for name, box in BOXES.items() if np.isfinite(action_box(box)).all()]


def config_of(box, **changes):
    return own("Strict", **{"id": f"spaces_pkg:Strict_{box}-v0", **changes})


def sent(space, policy, numbers):
    """What an environment gets for numbers [k, A] of a policy."""
    return ActionMap(space)(policy.to_env(numbers.astype(np.float32)))


def numbers(size, scale=1.0):
    drawn = np.random.default_rng(0).normal(size=(2000, size)) * scale
    ends = [np.full(size, x) for x in (-1, 1, -1.0000001, 0.9999999, -1e30, 1e30, 0)]
    return np.concatenate([ends, drawn])


@pytest.mark.parametrize("action", ["stretch", "clip"])
@pytest.mark.parametrize("box", BOXES)
def test_no_policy_leaves_the_box(box, action):
    space, spec = BOXES[box], env_spec(config_of(box, action=action))
    policies = [make_policy(spec, [4])]
    if box in BOUNDED:
        policies += [SquashedPolicy(spec, (4,)), DeterministicPolicy(spec, (4,), 0.1)]
    for policy in policies:
        found = sent(space, policy, numbers(spec.actions))
        assert found.dtype == space.dtype
        assert found.shape[1:] == space.shape
        assert all(space.contains(x) for x in found)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("box", BOUNDED)
def test_random_actions_stay_in_the_box_and_simple_rules_are_cut_to_it(box):
    space, spec = BOXES[box], env_spec(config_of(box))
    policy = RandomPolicy(spec)
    drawn = policy.draw(torch.Generator().manual_seed(0), 3000).numpy()
    found = ActionMap(space)(policy.to_env(drawn))
    assert all(space.contains(x) for x in found)
    streams, scaling = [Streams(0)], FrozenScaling(None, None, 10.0)
    for far in (-1e9, 1e9):  # the environment asserts
        rule = Trivial("far", functools.partial(_always, far, spec.actions))
        fixed = TrivialPolicy(rule)
        evaluator = ReturnEvaluator(config_of(box), spec, fixed, streams, 2, True)
        (result,) = evaluator.evaluate(torch.zeros(1, 0), 0, scaling)
        evaluator.close()
        assert not result.problem


def _always(number, size, obs):
    return torch.full((*obs.shape[:-1], size), number)


def test_both_bounds_are_reached_in_the_type_of_the_space():
    space = BOXES["double"]
    policy = make_policy(env_spec(config_of("double")), [4])
    low, high = sent(space, policy, np.array([[-1.0, -1.0], [1.0, 1.0]]))
    assert low.tolist() == [np.float64(np.float32(0.1))] * 2  # single precision is 1.5e-9 above
    assert high.tolist() == [0.3, 0.3]


@pytest.mark.parametrize("task", sorted(SLOTS.keys() - DISCRETE))
def test_our_own_simulators_get_the_same_bits_as_before(task):
    """Boxes of single precision that are symmetric: the last cut changes nothing."""
    if task.startswith("dm_control"):
        shimmy = pytest.importorskip("shimmy")
        gym.register_envs(shimmy)
    space = gym.make(task).action_space
    assert isinstance(space, Box)
    low, high = (x.astype(np.float64) for x in (space.low, space.high))
    centre, half = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
    x = numbers(len(low)).astype(np.float32)
    before = centre + half * np.minimum(np.maximum(x, -1.0), 1.0).astype(np.float32)
    assert ActionMap(space)(before).tobytes() == before.astype(space.dtype).tobytes()


def test_integers_have_equal_shares():
    space, spec = BOXES["integers"], env_spec(config_of("integers"))
    assert (spec.action_low.tolist(), spec.action_high.tolist()) == ([-1.5] * 2, [1.5] * 2)
    policy = make_policy(spec, [4])
    even = np.linspace(-1, 1, 3001)[:, None].repeat(2, 1)
    values, counts = np.unique(sent(space, policy, even), return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert np.abs(counts - 2000).max() <= 4
    drawn = RandomPolicy(spec).draw(torch.Generator().manual_seed(0), 3000).numpy()
    _, counts = np.unique(ActionMap(space)(drawn), return_counts=True)
    assert np.abs(counts - 2000).max() < 150
    clipped = make_policy(env_spec(config_of("integers", action="clip")), [4])
    assert sent(space, clipped, np.array([[0.6, -0.4], [7, -7]])).tolist() == [[1, 0], [1, -1]]


def test_choices_are_shifted_to_their_start():
    assert ActionMap(Discrete(3, start=-1))(np.array([0, 2])).tolist() == [-1, 1]
    space = MultiDiscrete([2, 3], start=[0, 5])
    assert ActionMap(space)(np.array([[1.0, 2.0]])).tolist() == [[1, 7]]
    assert corner_actions(space)[1].tolist() == [1, 5]


def test_numbers_that_are_not_finite_are_never_sent():
    with pytest.raises(ValueError, match="not finite"):
        ActionMap(BOXES["double"])(np.full((1, 2), np.nan))
    going = np.array([[True, True, False]])
    actions = np.array([[[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0]]], np.float32)
    able = _able(going, actions)
    assert able.tolist() == [[True, False, False]]
    assert actions.tolist() == [[[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]]
    assert _able(going, actions) is going


def test_bounds_beyond_a_million_are_none():
    spec = env_spec(config_of("huge"))
    assert spec.action_low.tolist() == [-np.inf]
    assert spec.action_words.endswith(": 1 unbounded")
    x = np.array([[0.25], [-3.0], [1e35]])
    assert sent(BOXES["huge"], make_policy(spec, [4]), x).tolist() == [[0.25], [-3.0], [1e30]]
    with pytest.raises(
        ConfigError, match="needs actions in a bounded box; those of Strict are not"
    ):
        check_actions(Actions.BOX, spec, "sac")
    words = env_spec(config_of("bytes")).action_words
    assert words.endswith("to its bounds, rounded to integers")


def test_a_component_with_one_value_has_an_inverse():
    policy = SquashedPolicy(env_spec(config_of("point")), (4,))
    assert policy.from_env(np.array([[0.3]])).tolist() == [[0.0]]
    assert policy.from_env(policy.to_env(np.array([[0.5]]))).tolist() == [[0.0]]


@pytest.mark.parametrize("box", BOXES)
def test_corners_are_in_the_box(box):
    corners = corner_actions(BOXES[box])
    size = int(np.prod(BOXES[box].shape))
    assert 2 <= len(corners) <= 8
    assert all(BOXES[box].contains(x) for x in corners)
    if box in BOUNDED:
        assert np.array_equal(corners[0], BOXES[box].low)
        assert any(np.array_equal(x, BOXES[box].high) for x in corners)
    assert len(corners) == min(2**size, 8)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Trains on a box once, and returns the run folder."""
    made = {}

    def folder(box):
        if box not in made:
            words = ["algo=dppg", "env=gym", f"env.id=spaces_pkg:Strict_{box}-v0"]
            words += ["env.user_steps=8", "env.obs_scaling=none", "privacy.users_per_round=4"]
            words += ["privacy.z=1", "rounds=2", "algo.hidden=[4]", "eval.episodes=2", "log=none"]
            words.append(f"hydra.run.dir={tmp_path_factory.mktemp(box)}")
            made[box] = pb.run(words, quiet=True).folder
        return made[box]

    return folder


@pytest.mark.fast_every(12)
@pytest.mark.parametrize("box", BOXES)
def test_a_run_and_all_that_uses_its_policy_stay_in_the_box(box, run_of, tmp_path, monkeypatch):
    """Training, evaluation and baselines step an environment that asserts; so do these."""
    run, space = run_of(box), BOXES[box]
    assert pb.evaluate(run, episodes=2).lengths.tolist() == [8, 8]
    policy = pb.load_policy(run, seed=0)
    obs = np.random.default_rng(0).normal(size=(500, 2)) * 5
    for greedy in (True, False):
        found = policy.act(obs, greedy=greedy)
        assert found.dtype == space.dtype
        assert all(space.contains(x) for x in found)
    target = pb.export(run, "torchscript", tmp_path / "p.ts")
    found = torch.jit.load(str(target))(torch.from_numpy(obs).float()).numpy()
    wanted = policy.act(obs.astype(np.float32), greedy=True)
    assert found.dtype == space.dtype
    assert all(space.contains(x.reshape(space.shape)) for x in found)
    np.testing.assert_allclose(
        found.astype(float), wanted.reshape(found.shape).astype(float), atol=1.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("box", ["half", "double", "integers"])
def test_onnx_files_stay_in_the_box(box, run_of, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    target = pb.export(run_of(box), "onnx", tmp_path / "p.onnx")
    obs = (np.random.default_rng(0).normal(size=(500, 2)) * 50).astype(np.float32)
    (found,) = ort.InferenceSession(str(target)).run(None, {"observations": obs})
    assert found.dtype == BOXES[box].dtype
    assert all(BOXES[box].contains(x) for x in found)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("box", ["double", "integers"])
def test_recordings_hold_the_actions_that_were_played(box, run_of, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    words = ["collect", f"policy={run_of(box)}", "episodes=3", f"name=box/{box}-v0"]
    words += ["env=gym", f"env.id=spaces_pkg:Strict_{box}-v0", "env.obs_scaling=none"]
    assert main(words) == 0, capsys.readouterr().err
    actions = np.asarray(open_dataset(f"box/{box}-v0").actions)
    space = BOXES[box]
    stored = actions.astype(space.dtype)
    if box == "integers":
        assert np.array_equal(stored, actions)
    assert (actions >= space.low.astype(np.float32)).all()
    assert (actions <= space.high.astype(np.float32)).all()
