"""DP-CQL: rows against a slow gradient, what is learned, the conservative term, epsilon, leaks, refusals."""

import numpy as np
import pytest
import torch
from walk_logs import SIDE, check_neighbours, config_of, session, trained, walk_logs

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.learning.dp_cql import unit_of
from privrl_bench.types import Transitions

pytestmark = pytest.mark.usefixtures("datasets")
FEW = ("rounds=4", "privacy.users_per_round=40", "algo.hidden=[4]")


# --- rows


def slow_loss(algo, q, target, batch, weight):
    """The loss of the module, a step at a time."""
    net, total = algo.policy.net, 0.0
    for t in range(len(batch.action)):
        values = net.forward(q, batch.obs[None, t : t + 1])[0, 0]
        ahead = net.forward(target, batch.next_obs[None, t : t + 1])[0, 0].max()
        error = values[int(batch.action[t])] - (batch.reward[t] + batch.discount[t] * ahead)
        size = error.abs()
        huber = error**2 / 2 if size < 1 else size - 0.5
        above = values.exp().sum().log() - values[int(batch.action[t])]
        total = total + weight[t] * (huber + algo.config.conservative * above)
    return total


def test_rows_are_gradients_of_the_mean_loss_over_a_users_own_steps():
    name = walk_logs("walks/b-v0", episodes=2)
    one = session("dp_cql", name, *FEW, "algo.conservative=0.7", "algo.gamma=0.8", "algo.n_steps=1")
    algo, users = one.parts.algo, one.collect(one.parts.algo.actor(one.state), 0)
    rows = algo.user_update(one.state, users, one.parts.streams).take()[0]["q"]
    who = users.valid[0].nonzero().squeeze(-1).tolist()
    assert 10 < len(who) < 80
    target = one.state.tensors["target"][:1]
    for u in who[:4]:
        mask = users.mask[0, u]
        batch = algo._own_steps(0, users, one.parts.streams)[0]
        own = type(batch)(*(x[0, u][mask] for x in batch))
        assert torch.equal(own.reward, users.rewards[0, u][mask] / algo._unit)
        assert (own.discount == torch.where(users.terminated[0, u][mask], 0.0, 0.8)).all()
        q = one.state.tensors["actor"][:1, :-1].clone().requires_grad_()
        even = torch.full((int(mask.sum()),), 1.0 / float(mask.sum()))
        (expected,) = torch.autograd.grad(slow_loss(algo, q, target, own, even), q)
        torch.testing.assert_close(rows[0, u], expected[0], rtol=1e-3, atol=1e-6)
    assert not rows[~users.valid].any()
    one.close()


@pytest.mark.parametrize("n", [3, 100])
def test_returns_of_n_steps_end_with_their_episode(n):
    words = ("algo.gamma=0.8", f"algo.n_steps={n}")
    one = session("dp_cql", walk_logs("walks/b-v0", episodes=3), *FEW, *words)
    algo, users = one.parts.algo, one.collect(one.parts.algo.actor(one.state), 0)
    found = algo._transitions(users)
    for u in users.valid[0].nonzero().squeeze(-1).tolist()[:6]:
        paid, ends, over = users.rewards[0, u], users.done[0, u], users.terminated[0, u]
        for t in range(int(users.mask[0, u].sum())):
            reach = next((k for k in range(n) if ends[t + k]), n - 1)
            expected = sum(0.8**k * paid[t + k] for k in range(reach + 1)) / algo._unit
            assert found.reward[0, u, t] == pytest.approx(float(expected), rel=1e-5)
            assert torch.equal(found.next_obs[0, u, t], users.next_obs[0, u, t + reach])
            rest = 0.0 if over[t + reach] else 0.8 ** (reach + 1)
            assert found.discount[0, u, t] == pytest.approx(rest)
    one.close()


def test_a_part_of_a_users_steps_is_drawn_from_their_own():
    one = session("dp_cql", walk_logs("walks/b-v0"), *FEW, "algo.batch=3")
    algo, users = one.parts.algo, one.collect(one.parts.algo.actor(one.state), 0)
    batch, weight = algo._own_steps(0, users, one.parts.streams)
    assert weight.shape[-1] == 3
    for u in users.valid[0].nonzero().squeeze(-1).tolist()[:5]:
        own = users.obs[0, u][users.mask[0, u]]
        assert all((own == obs).all(-1).any() for obs in batch.obs[0, u])
    one.close()


def test_the_unit_is_of_discounted_rewards_to_go_of_public_episodes():
    """Of (1, 2) and (4,) with gamma 1/2: 1 + 2 / 2 = 2, 2 and 4, whose root mean square is 8^(1/2)."""
    rewards, empty = torch.tensor([1.0, 2.0, 4.0]), torch.zeros(3)
    lengths = torch.tensor([2, 1])
    public = Transitions(empty, empty, rewards, empty, empty.bool(), lengths)
    assert unit_of(public, 0.5) == pytest.approx(8**0.5)
    assert unit_of(public._replace(rewards=empty), 0.5) == 1.0


# --- what is learned


def places(one):
    seen = np.array([[k / SIDE, 0.0] for k in range(SIDE)], np.float32)
    return torch.from_numpy(one.collector.scaler.frozen().obs(seen[None])).float()


def values_of(one):
    """Q [SIDE, 2] in units of the reward."""
    algo, q = one.parts.algo, one.state.tensors["actor"][:1, :-1]
    return algo.policy.net.forward(q, places(one))[0] * algo._unit


@pytest.mark.slow
def test_values_without_noise_are_those_of_value_iteration():
    """In the walk the optimal value is gamma to the number of steps that are left, less one."""
    words = (
        "privacy.z=0",
        "privacy.clip=100",
        "rounds=600",
        "algo.conservative=0",
        "algo.n_steps=1",
    )
    name = walk_logs("walks/b-v0", users=600)
    one = trained("dp_cql", name, *words, "algo.gamma=0.8", "algo.averaging=4")
    expected = 0.8 ** (SIDE - 1 - np.arange(SIDE))
    np.testing.assert_allclose(values_of(one).max(-1).values, expected, atol=0.15)


@pytest.mark.slow
def test_the_conservative_term_lowers_what_was_not_done():
    """Who acted went right in 97 of 100 steps."""
    name = walk_logs("walks/b-v0", right=0.97)
    words = ("privacy.z=0", "rounds=150", "algo.gamma=0.8", "privacy.clip=100", "algo.lr=0.01")
    gaps = []
    for weight in (0.0, 1.0):
        values = values_of(trained("dp_cql", name, *words, f"algo.conservative={weight}"))
        gaps.append(float((values[:, 1] - values[:, 0]).mean()))
    assert gaps[1] > gaps[0] + 0.3


@pytest.mark.slow
def test_under_privacy_it_goes_to_the_right_and_its_policy_is_of_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=1500)
    words = ["algo=dp_cql", "env=logs", f"data.id={name}", "log=none", "privacy.epsilon=5"]
    run = pb.run([*words, "data.public=0.1", "algo.gamma=0.8", "rounds=200", "algo.n_steps=3"])
    assert (run.guarantee_status, run.summary["measure"]) == ("formal", "agreement")
    assert run.epsilon == pytest.approx(5.0, rel=0.01)
    policy = pb.load_policy(run.folder)
    seen = np.array([[k / SIDE, 0.0] for k in range(SIDE)])
    assert policy.act(seen, greedy=True).tolist() == [1] * SIDE
    assert policy.act(seen).tolist() == [1] * SIDE  # it is not random
    onnxruntime = pytest.importorskip("onnxruntime")
    exported = onnxruntime.InferenceSession(str(pb.export(run.folder)))
    (actions,) = exported.run(None, {"observations": seen.astype(np.float32)})
    assert actions.tolist() == [1] * SIDE
    offered = policy.file.policy.probabilities(policy.file.params[None], torch.zeros(1, 3, 2), 2)
    assert (offered.shape, set(offered.unique().tolist())) == ((1, 2, 3, 2), {0.0, 1.0})


# --- privacy


def test_epsilon_is_that_of_its_rounds_and_of_poisson_sampling():
    """Against dp_accounting's own composition."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    one = session("dp_cql", walk_logs("walks/b-v0"), *FEW[1:], "rounds=20", "privacy.z=1.5")
    event = dp_event.PoissonSampledDpEvent(40 / 270, dp_event.GaussianDpEvent(1.5))
    theirs = PLDAccountant().compose(event, 20).get_epsilon(1e-5)
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(theirs, rel=0.02)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "zero-out")
    one.close()


@pytest.mark.parametrize("privacy", ["fixed", "correlated"])
def test_in_a_fixed_order_epsilon_is_that_of_one_gaussian(privacy):
    """z = 1: 4.377 at delta 1e-5 (Balle and Wang 2018); 270 users, 40 of them in a round."""
    name = walk_logs("walks/b-v0")
    one = session("dp_cql", name, *FEW[1:], f"privacy={privacy}", "rounds=6", "privacy.z=1")
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert "used once" in guarantee.unit
    one.close()
    with pytest.raises(ConfigError, match="270"):
        session("dp_cql", name, *FEW[1:], f"privacy={privacy}", "rounds=7", "privacy.z=1")


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [(), ("privacy=correlated", "privacy.z=1")])
def test_it_opens_no_path_around_the_gate(words):
    few = ("rounds=4", "privacy.users_per_round=10", "algo.hidden=[4]", "algo.batch=2")
    config = config_of("dp_cql", walk_logs("walks/b-v0", users=60), *few, *words)
    report = find_leaks(config, late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()


def test_replicas_do_not_matter_to_each_other():
    check_neighbours("dp_cql", *FEW)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("algo.conservative=-1",), r"^algo.conservative: must be"),
        (("algo.tau=0",), r"^algo.tau: must be in \(0, 1\]"),
        (("data.policy=uniform",), r"^data.policy: algo=dp_cql learns its own policy"),
        (("privacy=tree",), r"^privacy.*dp_cql"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        session("dp_cql", walk_logs("walks/b-v0"), *FEW, *words)


def test_continuous_actions_and_few_public_users_are_said():
    with pytest.raises(ConfigError, match="algo=dp_cql needs discrete actions"):
        session("dp_cql", walk_logs("walks/c-v0", continuous=True))
    warning = session("dp_cql", walk_logs("walks/f-v0", users=150), *FEW).parts.algo.terms().warning
    assert warning == "the unit of returns is that of 15 public episodes; raise data.public"
