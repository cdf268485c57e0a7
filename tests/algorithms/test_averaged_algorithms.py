"""`algo.averaging` of DQN and REINFORCE: users act with the last policy, the average is what is saved."""

import json

import pytest
import torch

from privrl_bench.composition.compose import compose
from privrl_bench.functional.averaging import deployed
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

RUNS = {
    "dqn": ["algo=dqn", "rounds=6", "privacy.population=20", "privacy.users_per_round=4", "algo.new_users=2"],
    "reinforce": ["algo=reinforce", "rounds=6", "privacy.users_per_round=2"],
}  # fmt: skip
SMALL = ["env=cartpole", "env.max_episode_steps=20", "algo.hidden=[4]", "log=none"]


def trained(name, *words):
    parts = make_plan([compose([*RUNS[name], *SMALL, *words])])
    trainer = Trainer(parts)
    iterates = []
    for _ in range(parts.rounds):
        trainer.step()
        iterates.append(parts.algo.actor(trainer.state).clone())
    trainer.close()
    return parts, trainer, iterates


@pytest.mark.parametrize("name", RUNS)
def test_the_saved_policy_is_the_average_and_training_is_as_without(name, monkeypatch):
    # the seeded noise follows all settings; here both runs get the same
    monkeypatch.setattr("privrl_bench.training.plan.noise_key", lambda config: 1, raising=False)
    _, last, plain = trained(name)
    _, trainer, iterates = trained(name, "algo.averaging=0")
    mean = torch.stack(iterates).mean(0)
    assert torch.allclose(deployed(trainer.state.tensors, iterates[-1]), mean, atol=1e-6)
    assert torch.equal(deployed(last.state.tensors, plain[-1]), plain[-1])
    assert all(torch.equal(a, b) for a, b in zip(iterates, plain, strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_averaging_costs_no_epsilon(name):
    plain, averaging = (
        make_plan([compose([*RUNS[name], *SMALL, *words])]).gate
        for words in ([], ["algo.averaging=4"])
    )
    assert json.dumps(plain.guarantee(0).to_dict()) == json.dumps(averaging.guarantee(0).to_dict())
