"""Behaviour cloning: rows against a slow gradient, what is learned without a simulator, leaks, refusals."""

import json

import pytest
import torch
from walk_logs import check_neighbours, config_of, session, walk_logs

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.errors import ConfigError

pytestmark = pytest.mark.usefixtures("datasets")
FEW = ("rounds=4", "privacy.users_per_round=40", "algo.hidden=[4]")


@pytest.mark.parametrize("continuous", [False, True])
def test_rows_are_gradients_of_the_mean_over_a_users_own_steps(continuous):
    one = session("dp_bc", walk_logs("walks/b-v0", continuous=continuous, episodes=2), *FEW)
    algo, users = one.parts.algo, one.collect(one.parts.algo.actor(one.state), 0)
    rows = algo.user_update(one.state, users, one.parts.streams).take()[0]["gradient"]
    who = users.valid[0].nonzero().squeeze(-1).tolist()
    assert 10 < len(who) < 80
    for u in who[:5]:
        mask = users.mask[0, u]
        params = one.state.tensors["actor"][:1].clone().requires_grad_()
        actions = users.actions[0, u][mask]
        if continuous:  # the policy's [-1, 1] is the box here
            assert torch.equal(algo._chosen(actions), actions)
        logs, _ = algo.policy.log_prob(params, users.obs[0, u][mask][None], actions[None])
        (expected,) = torch.autograd.grad(-logs.mean(), params)
        torch.testing.assert_close(rows[0, u], expected[0], rtol=1e-4, atol=1e-6)
    assert not rows[~users.valid].any()
    one.close()


def test_recorded_actions_are_mapped_to_what_the_policy_chooses(monkeypatch):
    """`to_env` of what `_chosen` gives is the recorded action, in a box that is not [-1, 1]."""
    from gymnasium import spaces

    name = walk_logs("walks/b-v0", continuous=True)
    monkeypatch.setattr(
        "minari.serialization.deserialize_space",
        lambda text: (
            spaces.Box(-3.0, 5.0, (1,)) if '"shape": [1]' in text else spaces.Box(-5, 5, (2,))
        ),
    )
    one = session("dp_bc", name, *FEW)
    actions = torch.linspace(-3, 5, 9)[:, None]
    back = one.parts.algo.policy.to_env(one.parts.algo._chosen(actions).numpy())
    torch.testing.assert_close(torch.from_numpy(back), actions)
    one.close()


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("continuous", [False, True])
def test_it_learns_what_was_done_and_says_how_often_it_agrees(tmp_path, monkeypatch, continuous):
    name = walk_logs("walks/b-v0", right=0.9, continuous=continuous)
    words = ("privacy.epsilon=3", "rounds=60", "privacy.users_per_round=60", "algo.lr=0.05")
    monkeypatch.chdir(tmp_path)
    run = pb.run(
        ["algo=dp_bc", "env=logs", f"data.id={name}", "data.public=0.1", "log=none", *words]
    )
    assert run.summary["measure"] == "agreement"
    assert run.final_value > 0.8
    assert run.guarantee_status == "formal"
    assert run.epsilon == pytest.approx(3.0, rel=0.01)
    policy = pb.load_policy(run.folder)
    assert policy.file.spec.max_episode_steps == 12
    action = policy.act([0.5, 0.0], greedy=True)
    assert float(action if not continuous else action[0]) > 0.2
    assert pb.export(run.folder).exists()
    row = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["eval/agreement"] == run.final_value


def test_epsilon_is_that_of_its_rounds_and_of_poisson_sampling():
    """Against dp_accounting's own composition."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    one = session("dp_bc", walk_logs("walks/b-v0"), "rounds=20", "privacy.z=1.5", *FEW[1:])
    event = dp_event.PoissonSampledDpEvent(40 / 270, dp_event.GaussianDpEvent(1.5))
    theirs = PLDAccountant().compose(event, 20).get_epsilon(1e-5)
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(theirs, rel=0.02)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "zero-out")
    one.close()


def test_it_opens_no_path_around_the_gate():
    report = find_leaks(config_of("dp_bc", walk_logs("walks/b-v0", users=60), *FEW), late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()


def test_replicas_do_not_matter_to_each_other():
    check_neighbours("dp_bc", *FEW)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data.id=null",), "data.id: algo=dp_bc learns from a dataset"),
        (("data.id=walks/c-v0",), r"data.id: no dataset 'walks/c-v0'"),
        (("data.policy=uniform",), "data.policy: algo=dp_bc learns its own policy"),
        (("privacy=fixed",), r"privacy.sampling: .*dp_bc"),
        (("algo.log_std_init=1",), "algo.log_std_init: must be 0"),
        (("env.max_episode_steps=3",), "has an episode of 12 steps; env=logs allows 3"),
        (("env=cartpole",), "has 2 observations and actions of shape"),
    ],
)
def test_what_is_refused(words, message):
    name = walk_logs("walks/b-v0")
    with pytest.raises(ConfigError, match=message):
        session("dp_bc", name, *FEW, *words)
