"""Fixed policies: hand-computed probabilities, and errors."""

import json

import pytest
import torch
from helpers import shipped

from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.fixed_policies import LinearValues, fixed_policy

CAR = shipped("mountain_car")
SPEC = env_spec(CAR)
OBS = torch.tensor([[-0.5, 0.0], [0.3, 0.05], [-1.2, -0.07]])


def values_of(order=1, env_id="MountainCar-v0"):
    weights = torch.arange(3.0 * (order + 1) ** 2).reshape(-1, 3).sin()
    return LinearValues(
        env_id, order, None, [-1.2, -0.07], [0.6, 0.07], weights.double(), {"made_by": "a test"}
    )


@pytest.fixture
def file(tmp_path):
    values_of().save(tmp_path / "own.json")
    return str(tmp_path / "own.json")


def test_uniform() -> None:
    policy = fixed_policy("uniform", CAR, SPEC)
    assert policy.name == "uniform"
    torch.testing.assert_close(policy.probabilities(OBS), torch.full((3, 3), 1 / 3))
    assert policy.probabilities(OBS.reshape(1, 3, 1, 2)).shape == (1, 3, 1, 3)


def test_values_of_a_file_are_linear_in_its_features(file) -> None:
    x, v = (OBS.double()[:, 0] + 1.2) / 1.8, (OBS.double()[:, 1] + 0.07) / 0.14
    phi = torch.stack(
        [torch.ones(3).double(), *(torch.cos(torch.pi * s) for s in (v, x, x + v))], -1
    )
    q = phi @ values_of().weights
    soft = fixed_policy(f"{file}:softmax:0.3", CAR, SPEC).probabilities(OBS)
    torch.testing.assert_close(soft, torch.softmax(q / 0.3, -1).float(), rtol=1e-5, atol=1e-6)
    best = torch.eye(3)[q.argmax(-1)]
    assert torch.equal(fixed_policy(file, CAR, SPEC).probabilities(OBS), best)
    assert torch.equal(fixed_policy(f"{file}:greedy", CAR, SPEC).probabilities(OBS), best)
    loose = fixed_policy(f"{file}:epsilon:0.05", CAR, SPEC).probabilities(OBS.double())
    torch.testing.assert_close(loose.max(-1).values, torch.full((3,), 1 - 2 * 0.05 / 3).double())
    torch.testing.assert_close(loose.min(-1).values, torch.full((3,), 0.05 / 3).double())
    torch.testing.assert_close(loose.sum(-1), torch.ones(3).double())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unifrom", r"no policy 'unifrom' \(did you mean uniform\?\); allowed: uniform"),
        ("nowhere.json", r"no policy 'nowhere.json'"),
        ("uniform:greedy", "uniform has no mode"),
        ("FILE:gredy", r"no mode 'gredy' .*did you mean greedy\?"),
        ("FILE:greedy:1", "greedy has no parameter"),
        *(
            (f"FILE:epsilon{x}", "epsilon needs a probability")
            for x in ("", ":x", ":1.5", ":nan", ":0:1")
        ),
        *((f"FILE:softmax{x}", "softmax needs a temp") for x in ("", ":0", ":inf", ":-1", ":")),
    ],
)
def test_wrong_names(file, name, message) -> None:
    with pytest.raises(ConfigError, match=f"^policy: {message}"):
        fixed_policy(name.replace("FILE", file), CAR, SPEC)


def test_files_that_are_no_policy(tmp_path, file) -> None:
    content = json.loads((tmp_path / "own.json").read_text())
    for changes in (
        *({"weights": content["weights"][:-1]}, {"weights": [[float("nan")] * 3] * 4}),
        *({"order": "x"}, {"high": [0.0]}, {"low": [7.0, 7.0]}, {"order": 4000}),
    ):
        (tmp_path / "bad.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(ConfigError, match="is not a policy file: "):
            fixed_policy(str(tmp_path / "bad.json"), CAR, SPEC)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a policy file: 'weights'"):
        fixed_policy(str(tmp_path / "bad.json"), CAR, SPEC)
