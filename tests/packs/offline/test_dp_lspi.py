"""DP-LSPI: rows and their inverse, what is solved against value iteration, epsilon, leaks, refusals."""

import math

import numpy as np
import pytest
import torch
from helpers import release
from hypothesis import given, settings
from hypothesis import strategies as st
from walk_logs import SIDE, config_of, session, trained, walk_logs

import privrl_bench as pb
from privrl_bench.audit.canary import claim_of, run_canaries
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.lower_bound import Options, attacked_runs
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.learning.action_values import ActionValuePolicy
from privrl_bench.packs.offline.learning.dp_lspi import spread
from privrl_bench.packs.offline.learning.linear_model import SufficientSums, sums_of
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.training.plan import make_plan
from privrl_bench.types import EnvSpec

pytestmark = pytest.mark.usefixtures("datasets")
OPEN = ("privacy.z=0", "privacy.clip=1000")
OWN = {"dp_lspi": ("algo.features=8",), "dp_cql": ("privacy.users_per_round=4",)}
SPEC = EnvSpec("walk", 2, True, 3, 12)


# --- rows


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 6), d=st.integers(1, 4))
def test_sums_are_those_of_the_definition(seed, steps, d):
    g = torch.Generator().manual_seed(seed)
    before, after = torch.randn(2, steps, d, generator=g)
    actions, rewards = torch.randint(0, 3, (steps,), generator=g), torch.randn(steps, generator=g)
    share = torch.rand(steps, generator=g)
    found = sums_of(3, before, after, actions, rewards, share)
    S, N, R = torch.zeros(3, d, d), torch.zeros(3, d, d), torch.zeros(3, d)
    for t in range(steps):
        a = actions[t]
        S[a] += share[t] * torch.outer(before[t], before[t])
        N[a] += share[t] * torch.outer(before[t], after[t] - before[t])
        R[a] += share[t] * rewards[t] * before[t]
    for one, expected in zip(found, (S, N, R), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("basis", ["quadratic", "fourier"])
def test_a_row_keeps_the_norm_of_its_sums_and_can_be_read_back(basis):
    one = session("dp_lspi", walk_logs("walks/b-v0"), f"algo.basis={basis}", "algo.features=5")
    algo, g = one.parts.algo, torch.Generator().manual_seed(0)
    S = torch.randn(2, 2, 5, 5, generator=g)
    sums = SufficientSums(S + S.mT, torch.randn(2, 2, 5, 5, generator=g), torch.randn(2, 2, 5))
    rows = algo._rows(sums)
    for back, given_sums in zip(algo._sums(rows), sums, strict=True):
        torch.testing.assert_close(back, given_sums)
    parts = [sums.S, sums.N / algo._units[1], sums.R / algo._units[2]]
    length = torch.cat([x.flatten(1) for x in parts], 1).norm(dim=-1)
    torch.testing.assert_close(rows.norm(dim=-1), length)
    (block,) = algo.blocks()
    assert rows.shape[-1] == block.size == 2 * (15 + 25 + 5)
    one.close()


def test_a_row_is_a_function_of_one_users_steps_alone_in_units_of_public_users():
    one = session("dp_lspi", walk_logs("walks/b-v0", episodes=2))
    algo, users = one.parts.algo, one.collect(one.parts.algo.actor(one.state), 0)
    rows = algo.user_update(one.state, users, one.parts.streams).take()[0]["sums"]
    assert 0.5 < float(rows[users.valid].norm(dim=-1).median()) < 2.0
    other = users.obs.clone()
    other[0, 1:] += 1.0
    users.obs = other
    again = algo.user_update(one.state, users, one.parts.streams).take()[0]["sums"]
    assert torch.equal(again[0, 0], rows[0, 0])
    assert not torch.equal(again[0, 1], rows[0, 1])
    assert not rows[~users.valid].any()
    one.close()


# --- what is learned


def test_values_without_noise_are_those_of_value_iteration():
    """In the walk the optimal value is gamma to the number of steps that are left, less one."""
    name = walk_logs("walks/b-v0", users=3000)
    words = ("algo.basis=fourier", "algo.features=24", "algo.gamma=0.8", "algo.frequency=1.5")
    words += ("algo.pessimism=0",)
    one = trained("dp_lspi", name, *OPEN, *words)
    algo, actor = one.parts.algo, one.state.tensors["actor"]
    places = torch.tensor([[k / SIDE, 0.0] for k in range(SIDE)])
    scaled = torch.from_numpy(one.collector.scaler.frozen().obs(places.numpy()[None])).float()
    found = algo.policy.values(actor, scaled)[0]
    expected = 0.8 ** (SIDE - 1 - np.arange(SIDE))
    np.testing.assert_allclose(found.max(-1).values, expected, atol=0.12)
    assert (found.argmax(-1) == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["quadratic", "fourier"])
def test_under_privacy_it_goes_to_the_right_and_its_policy_is_of_use(tmp_path, monkeypatch, basis):
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=3000)
    words = ["algo=dp_lspi", "env=logs", f"data.id={name}", "log=none", "privacy.epsilon=3"]
    run = pb.run([*words, f"algo.basis={basis}", "algo.features=6", "algo.gamma=0.9"])
    assert (run.guarantee_status, run.summary["measure"]) == ("formal", "agreement")
    assert run.epsilon == pytest.approx(3.0, rel=0.01)
    policy = pb.load_policy(run.folder)
    seen = np.array([[k / SIDE, 0.0] for k in range(SIDE)])
    assert policy.act(seen, greedy=True).tolist() == [1] * SIDE
    assert policy.act(seen).tolist() == [1] * SIDE  # it is not random
    onnxruntime = pytest.importorskip("onnxruntime")
    exported = onnxruntime.InferenceSession(str(pb.export(run.folder)))
    (actions,) = exported.run(None, {"observations": seen.astype(np.float32)})
    assert actions.tolist() == [1] * SIDE


def test_more_noise_gives_a_larger_ridge_and_a_model_of_less_change():
    one = session("dp_lspi", walk_logs("walks/b-v0"), "algo.features=4")
    algo, g = one.parts.algo, torch.Generator().manual_seed(0)
    half = torch.randn(2, 4, 4, generator=g).double()
    sums = SufficientSums(half @ half.mT, half, torch.ones(2, 4).double())
    sizes = [float(algo._solved(sums, std).norm()) for std in (0.0, 1.0, 100.0)]
    assert all(map(math.isfinite, sizes))
    assert sizes[2] < sizes[0]
    worst = SufficientSums(-sums.S, 1e6 * sums.N, 1e6 * sums.R)  # as noise may make them
    assert torch.isfinite(algo._solved(worst, 1.0)).all()
    one.close()


def test_the_deviation_of_a_value_is_that_of_noise_in_the_released_numbers():
    """Against 4,000 draws of small noise in all of S, N and R."""
    g, d, e, gamma, n_0, r_0 = torch.Generator().manual_seed(0), 4, 1e-4, 0.9, 0.3, 2.0

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    half, N, R, v, phi = normal(d, d), normal(d, d), normal(d), normal(d), normal(d)
    S = half @ half.mT + torch.eye(d)
    h = torch.linalg.solve(S, R + gamma * N @ v)
    found = []
    for _ in range(4000):
        noise = torch.triu(normal(d, d) / math.sqrt(2.0), 1)
        dS = noise + noise.mT + torch.diag(normal(d))  # as the upper triangle is sent
        other = R + e * r_0 * normal(d) + gamma * (N + e * n_0 * normal(d, d)) @ v
        found.append(phi @ torch.linalg.solve(S + e * dS, other))
    reach = torch.linalg.solve(S, phi).norm()
    said = e * reach * spread(h[None], gamma * n_0 * v, r_0)[0]
    assert float(torch.stack(found).std()) == pytest.approx(float(said), rel=0.1)


@pytest.mark.parametrize("pessimism", [0.0, 3.0])
def test_actions_that_are_rare_are_valued_less_with_pessimism(pessimism):
    """Who acted went right in 97 of 100 steps; the value of left is less certain."""
    name = walk_logs("walks/b-v0", right=0.97)
    words = ("privacy.z=0", "algo.features=8", f"algo.pessimism={pessimism}")
    one = trained("dp_lspi", name, *words)
    seen = one.parts.algo._states.float()
    actor = one.state.tensors["actor"].unflatten(-1, (2, -1))[0]
    raw = one.parts.algo._context.sources.transitions.obs
    values = one.parts.algo.policy.raw(raw) @ actor.mT
    assert len(seen)
    gap = float((values[:, 1] - values[:, 0]).median())
    assert gap > 0.5 if pessimism else abs(gap) < 0.5


def test_features_are_the_same_in_every_version():
    """Known answers: a file of a policy has weights of these features."""
    policy = ActionValuePolicy(SPEC, "fourier", 0.33)
    obs = torch.tensor([[0.5, -1.0]])
    assert policy.raw(obs).shape == (1, 401)
    torch.testing.assert_close(policy.raw(obs)[0, :4], torch.tensor(KNOWN), rtol=1e-5, atol=1e-5)
    quadratic = ActionValuePolicy(SPEC, "quadratic", 0.33).raw(torch.tensor([[0.5, -9.0]]))
    assert quadratic[0].tolist() == [1.0, 0.5, -8.0, 0.25, -4.0, 64.0]


KNOWN = [1.000000, 0.455287, -0.423850, -0.512182]


# --- privacy


def test_epsilon_is_that_of_one_gaussian():
    """z = 1 is the Gaussian mechanism of multiplier 1: 4.377 at delta 1e-5 (Balle and Wang 2018)."""
    name = walk_logs("walks/b-v0")
    one = session("dp_lspi", name, "privacy.z=1")
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "zero-out")
    assert (one.parts.rounds, one.parts.config.privacy.users_per_round) == (1, 270)
    other = session("dp_lspi", name, "privacy.z=2", "privacy.adjacency=replace_one")
    assert other.parts.gate.guarantee(0).epsilon == pytest.approx(4.3772, abs=1e-3)


def test_it_opens_no_path_around_the_gate():
    config = config_of("dp_lspi", walk_logs("walks/b-v0", users=60), "algo.features=4")
    report = find_leaks(config, late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()


@pytest.mark.parametrize("algo", ["dp_lspi", "dp_cql"])
def test_canaries_among_the_users_of_a_dataset(algo):
    """z = 1: 4.377 at delta 1e-5 (Balle and Wang 2018)."""
    name = walk_logs("walks/b-v0", users=400)
    config = config_of(algo, name, "privacy.z=1", *OWN[algo])
    ((run, _),) = attacked_runs(config, Options(attack="canary"), set()).values()
    found = run_canaries(run, 200, 4, lambda line: None)
    assert found.scores.size >= 200
    assert not found.problems
    assert claim_of(found)[0] == pytest.approx(4.3772, abs=1e-3)
    inside, outside = found.split()
    assert found.mu == 1.0
    assert 0.5 < inside.mean() - outside.mean() < 1.5


def test_the_noise_of_a_release_is_what_epsilon_is_computed_from():
    """With z = 2, a user moves the sum by the clip at most, half a standard deviation of its noise."""
    one, sums = session("dp_lspi", walk_logs("walks/b-v0", users=60), "privacy.z=2"), []
    for size in (0.0, 1e6):
        parts = make_plan(one.parts.configs)
        (block,) = parts.gate.blocks
        rows = torch.zeros(1, 54, block.size)
        rows[:, 0, 0] = size
        parts.gate.draw(0, 54, True)
        found = release(parts.gate, Contribution({"sums": rows}, torch.ones(1, 54).bool()), 0)
        sums.append(54 * found.values["sums"][0])
    assert float((sums[1] - sums[0]).norm()) == pytest.approx(1.0, rel=0.01)
    assert float(sums[0].std()) == pytest.approx(2.0, rel=0.2)
    one.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rounds=2",), r"^rounds: algo=dp_lspi has one release, got 2$"),
        (("algo.features=0",), r"^algo.features: must be"),
        (("algo.basis=cubic",), r"^algo.basis: must be one of fourier, quadratic"),
        (("privacy.users_per_round=5",), r"^privacy.users_per_round: .* all users in one round"),
        (("privacy=poisson",), r"^privacy.sampling: algo=dp_lspi takes"),
        (("privacy.population=7",), r"^privacy.population: is exact and public"),
        (("data.policy=uniform",), r"^data.policy: algo=dp_lspi learns its own policy"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        session("dp_lspi", walk_logs("walks/b-v0"), *words)


def test_continuous_actions_are_refused():
    with pytest.raises(ConfigError, match="algo=dp_lspi needs discrete actions"):
        session("dp_lspi", walk_logs("walks/b-v0", continuous=True))


def test_few_public_users_are_said_before_the_run():
    name = walk_logs("walks/f-v0", users=150)
    few = session("dp_lspi", name, "privacy.z=1").parts.algo.terms().warning
    assert few == "features and units are of 15 public episodes; raise data.public"
    assert not session("dp_lspi", name, "privacy.z=1", "data.public=0.2").parts.algo.terms().warning
