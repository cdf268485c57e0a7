"""Observations and actions of every kind: flattened, chosen, as images; training on them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import own

from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.cli import train
from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import digest
from privrl_bench.envs.registry import env_spec, make_slots
from privrl_bench.errors import ConfigError
from privrl_bench.models.policy import make_policy

KINDS = ("Two", "Grid", "Bits", "Parts", "Pair", "Picture", "Channels", "Half")


def config_of(name, **changes):
    return own(name, **{"id": f"spaces_pkg:{name}-v0", **changes})


def words(name, *more):
    return [
        *(
            "env=gym",
            f"env.id=spaces_pkg:{name}-v0",
            "env.user_steps=16",
            "privacy.users_per_round=8",
        ),
        *("algo.hidden=[8]", "eval.episodes=2", "eval.every=0", "log=none", *more),
    ]


@pytest.mark.parametrize(
    ("name", "size", "observations", "actions"),
    [
        (
            "Two",
            2,
            "Box(0.0, 1.0, (2,), float32)",
            "MultiDiscrete([2 3], start=[0 5]), independent choices",
        ),
        ("Bits", 2, "Box(0.0, 1.0, (2,), float32)", "MultiBinary(3), independent choices"),
        (
            "Parts",
            97,
            "Dict('image': Box(0, 255, (5, 6, 3), uint8), 'more': Tuple(Discrete(2), MultiBinary(2)), "
            "'place': Discrete(3)), flattened to 97 numbers",
            "Discrete(2)",
        ),
        (
            "Picture",
            48,
            "Box(0, 255, (6, 8, 1), uint8), an image, flattened to 48 numbers",
            "Discrete(2)",
        ),
        (
            "Half",
            2,
            "Box(0.0, 1.0, (2,), float32)",
            "Box([[ -2. 0.] [-inf -inf]], [[ 4. inf] [ 1. inf]], (2, 2), float64): 1 stretched from "
            "[-1, 1] to its bounds, 2 clipped at its one bound, 1 unbounded",
        ),
    ],
)
def test_what_the_policy_gets(name, size, observations, actions):
    spec = env_spec(config_of(name))
    assert (spec.obs_dim, spec.observations, spec.action_words) == (size, observations, actions)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_stepped_with_actions_of_its_policy(name):
    config = config_of(name)
    spec = env_spec(config)
    policy, slots = make_policy(spec, [8]), make_slots(config, 3)
    params = 0.3 * torch.randn(1, policy.size, generator=torch.Generator().manual_seed(0))
    obs = slots.reset(np.arange(3), [0, 1, 2])
    assert obs.shape == (3, spec.obs_dim)
    noise = policy.draw(torch.Generator().manual_seed(1), 20, 1, 3)
    act, taken = policy.sampler(params), []
    for t in range(5):
        action = act(torch.from_numpy(obs).float()[None], noise[t])
        taken.append(action.numpy()[0])
        obs = slots.step(np.arange(3), policy.to_env(action.numpy()[0])).obs  # the task asserts
    greedy = policy.greedy(params, torch.from_numpy(obs).float()[None])
    slots.step(np.arange(3), policy.to_env(greedy.numpy()[0]))
    if spec.choices is not None:
        assert len({tuple(x) for x in np.concatenate(taken)}) > 2


def test_images_are_told_by_shape_and_type():
    assert env_spec(config_of("Picture")).image == (6, 8, 1, False, 1 / 255)
    assert env_spec(config_of("Channels")).image == (6, 8, 1, True, 1 / 255)
    assert env_spec(config_of("Parts")).image is None
    assert env_spec(config_of("Parts", obs_parts=["image"])).image == (5, 6, 3, False, 1 / 255)
    public = {"obs_scaling": "public", "obs_mean": [0.0] * 48, "obs_std": [9.0] * 48}
    assert env_spec(config_of("Picture", **public)).image[-1] == 1.0  # scaled already


def test_parts_of_observations_are_chosen():
    assert env_spec(config_of("Mission", obs_parts=["place", "more"])).obs_dim == 3 + 4
    assert env_spec(config_of("Pair", obs_parts=["1"])).one_hot
    slots = make_slots(config_of("Mission", obs_parts=["place"]), 1)
    assert np.array_equal(slots.reset(np.arange(1), [0])[0], [0, 1, 0])
    problems = {
        ("Mission", None): "env.id: observations of Mission have no fixed size: Dict ('mission' is "
        "Text); name the parts to use, env.obs_parts=[image,more,place], or use a wrapper",
        ("Mission", ("mission",)): "env.id: observations of Mission have no fixed size: Text",
        ("Mission", ("imag",)): "env.obs_parts: Mission has no part 'imag' (did you mean image?); "
        "allowed: image, mission, more, place",
        ("Two", ("image",)): "env.obs_parts: must be null: observations of Two are Box, without",
    }
    for (name, parts), expected in problems.items():
        with pytest.raises(ConfigError) as error:
            env_spec(config_of(name, obs_parts=parts and list(parts)))
        assert str(error.value).startswith(expected)


def test_a_cnn_needs_an_image():
    run = compose(words("Parts", "algo.network=cnn"))
    spec = env_spec(run.env)
    with pytest.raises(
        ConfigError, match=r"algo.network: cnn needs observations that are one image.*Dict"
    ):
        make_policy(spec, [8], run.algo.network)
    with pytest.raises(ConfigError, match=r"algo\.network: must be one of mlp, cnn, got 'cn'"):
        compose(words("Parts", "algo.network=cn"))


def test_new_keys_do_not_change_the_identity_of_old_runs():
    run = compose(["env=hopper"])
    assert digest(run) == digest(compose(["env=hopper", "algo.network=mlp"]))
    assert digest(run) != digest(compose(["env=hopper", "algo.network=cnn"]))
    assert digest(run) != digest(replace(run, env=replace(run.env, obs_parts=["a"])))


TRAINED = [
    *[("dppg", name, ()) for name in ("Two", "Bits", "Parts", "Pair", "Half")],
    *[("ppo", name, ()) for name in ("Two", "Parts", "Half")],
    *[
        (algo, name, ("algo.network=cnn",))
        for algo in ("dppg", "ppo")
        for name in ("Picture", "Channels")
    ],
    ("a2c", "Picture", ("algo.network=cnn",)),
    ("dppg", "Mission", ("env.obs_parts=[image]", "algo.network=cnn", "algo.critic=shared")),
]


@pytest.mark.fast_every(8)
@pytest.mark.parametrize(("algo", "name", "more"), TRAINED)
def test_training(algo, name, more, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as done:
        train.main([*words(name, f"algo={algo}", *more), "rounds=2", f"hydra.run.dir={out}"])
    assert done.value.code == 0, capsys.readouterr()
    assert json.loads((out / "summary.json").read_text())["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("Two", ()), ("Picture", ("algo.network=cnn",))])
def test_no_leaks(name, more):
    run = shrink(compose(words(name, "algo=dppg", "rounds=4", *more)))[0]
    report = find_leaks(run, user=1, late=False)
    assert not report.no_test_power
    assert not report.found
    assert report.ok
