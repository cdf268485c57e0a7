"""Discrete actions and ends of episodes in models of the environment."""

import numpy as np
import pytest
import torch
from walk_logs import SIDE, check_neighbours, config_of, walk_logs

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.mlp import Mlp
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.offline.model_based.ensemble import (
    Ensemble,
    Simulated,
    Units,
    model_rollouts,
)
from privrl_bench.packs.offline.model_based.inner import QInside, endings, inside, never
from privrl_bench.packs.offline.model_based.model_based_settings import PrimorlConfig
from privrl_bench.types import EnvSpec

pytestmark = pytest.mark.usefixtures("datasets")
SPEC = EnvSpec("walk", 2, True, 3, 12)
SMALL = ("algo.members=2", "algo.model_hidden=[8]", "algo.hidden=[8]", "algo.policy_steps=20")
SHORT = ("rounds=4", "privacy.users_per_round=10", "algo.rollouts=8", "algo.improve_every=2")
SHORT += ("algo.check_every=2", "algo.policy_turns=1", "algo.batch=8", *SMALL)


def test_ends_are_those_of_a_threshold_in_the_public_states():
    """As CartPole's: an episode ends where a coordinate is far from 0 on either side."""
    obs = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    ended = obs[:, 0].abs() > 1.5
    found = endings(SPEC, obs, ended)
    assert float((found(obs) == ended).float().mean()) > 0.98
    assert found(obs[None]).shape == (1, 5000)
    assert endings(SPEC, obs, torch.zeros(5000).bool()) is never
    assert not never(obs).any()


def test_the_models_see_which_action_was_chosen_and_rollouts_begin_again():
    config = PrimorlConfig(hidden=[4], rollout_length=5, gamma=0.9)
    learner, g = QInside(config, SPEC), torch.Generator().manual_seed(0)
    assert learner.encoded(learner.recorded(torch.tensor([2, 0]))).tolist() == [
        [0, 0, 1],
        [1, 0, 0],
    ]
    ensemble = Ensemble(2, Mlp(5, (6,), 6, "swish"), Units(torch.zeros(3), torch.ones(3)))
    streams = [Streams(1), Streams(2)]
    tensors = learner.init(streams)
    assert not tensors["actor"][:, -1].any()  # the saved policy is greedy
    actor = learner.acting(tensors["actor"])
    assert actor[:, -1].tolist() == pytest.approx([0.1, 0.1])
    models = torch.stack([ensemble.init(g) for _ in streams])
    starts = torch.randn(2, 7, 2, generator=g)
    world = Simulated(ensemble, learner.encoded, lambda obs: obs[..., 0] > 0.3)
    draws = [s.torch("after_release", 0) for s in streams]
    found = model_rollouts(world, learner.policy, config, (models, actor), starts, draws)
    over = found.next_obs[..., 0] > 0.3
    assert over.any()
    assert not over.all()
    assert torch.equal(found.discount, torch.where(over, 0.0, torch.tensor(0.9)))
    obs, after, ends = (
        x.unflatten(1, (5, 7)) for x in (found.obs, found.next_obs, over[..., None])
    )
    assert torch.equal(obs[:, 1:], torch.where(ends, starts[:, None], after)[:, :-1])
    assert set(found.action.unique().tolist()) <= {0, 1, 2}


@pytest.mark.slow
def test_primorl_learns_to_go_right_from_discrete_logs(tmp_path, monkeypatch):
    """Rewards are paid on arrival alone, where the episode ends."""
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=600)
    words = ["algo=primorl", "env=logs", f"data.id={name}", "data.public=0.2", "log=none"]
    words += ["privacy.z=0.3", "rounds=200", "privacy.users_per_round=60", "algo.penalty=0"]
    words += ["algo.policy_turns=4", "algo.policy_steps=500", "algo.gamma=0.8", "algo.tau=0.05"]
    words += ["algo.members=2", "algo.model_hidden=[16]", "algo.hidden=[16]", "algo.lr=3e-3"]
    run = pb.run(words)
    assert (run.guarantee_status, run.summary["measure"]) == ("formal", "agreement")
    policy = pb.load_policy(run.folder)
    # The model's reward is smooth, so that the last place but one looks as good as the end.
    seen = np.array([[k / SIDE, 0.0] for k in range(SIDE - 1)])
    assert policy.act(seen).tolist() == [1] * (SIDE - 1)
    assert isinstance(policy.file.policy, QPolicy)


def test_it_opens_no_path_around_the_gate():
    config = config_of("primorl", walk_logs("walks/b-v0", users=60), *SHORT)
    report = find_leaks(config, late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()


def test_replicas_do_not_matter_to_each_other():
    check_neighbours("primorl", *SHORT, rtol=1e-4, atol=1e-5)


def test_several_choices_at_once_are_refused():
    several = EnvSpec("levers", 2, False, 2, 12)
    with pytest.raises(ConfigError, match="algo=primorl needs actions in a bounded box"):
        inside(PrimorlConfig(), several)
