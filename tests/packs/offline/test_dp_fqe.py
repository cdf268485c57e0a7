"""DP-FQE: values against exact ones, the error against repeated noise, epsilon, leaks, refusals."""

import statistics

import numpy as np
import pytest
import torch
from walk_logs import SIDE, STEPS, config_of, session, trained, walk_logs

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.ope.dp_fqe import first_steps

pytestmark = pytest.mark.usefixtures("datasets")
OPEN = ("privacy.z=0", "privacy.clip=1000")
FEW = ("algo.target=uniform", "algo.features=4")


def exact(right, gamma):
    """The value of going right with this chance, from the places where the walk begins."""
    ahead = np.zeros(SIDE + 1)
    for _ in range(STEPS):
        pay = np.append(ahead[:-1], 1.0 / gamma)  # 1 is paid on arrival, where the episode ends
        go = right * pay[1:] + (1 - right) * pay[np.maximum(np.arange(SIDE) - 1, 0)]
        ahead = np.append(gamma * go, 0.0)
    return float(ahead[:3].mean())


def value_of(one, r=0):
    return one.parts.algo.numbers(one.state.tensors["released"][r], r)[0]


def test_first_steps_are_those_after_an_end():
    done = torch.tensor([[False, True, False, False], [True, True, False, False]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    assert first_steps(done, mask).tolist() == [
        [True, False, True, False],
        [True, True, False, False],
    ]


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("gamma", [0.8, 1.0])
@pytest.mark.parametrize("episodes", [1, 2])
def test_values_without_noise_are_those_of_dynamic_programming(gamma, episodes):
    name = walk_logs("walks/b-v0", users=2000, episodes=episodes)
    words = ("algo.features=24", "algo.frequency=1.5", f"algo.gamma={gamma}", "algo.target=uniform")
    found = value_of(trained("dp_fqe", name, *OPEN, *words))["eval/value"]
    assert found == pytest.approx(exact(0.5, gamma), abs=0.05)


def test_another_policy_than_who_acted_has_its_own_value(tmp_path, monkeypatch):
    """A policy that goes right arrives always."""
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=2000)
    logs = ["env=logs", f"data.id={name}", "log=none", "data.public=0.1", "algo.features=12"]
    target = pb.run(["algo=dp_lspi", *logs, "privacy.z=0", "algo.gamma=0.9"]).folder
    words = [f"algo.target='{target}'", "privacy.epsilon=3", "algo.gamma=0.8"]
    run = pb.run(["algo=dp_fqe", *logs, *words])
    assert run.summary["measure"] == "value"
    assert run.guarantee_status == "formal"
    assert run.epsilon == pytest.approx(3.0, rel=0.01)
    error = run.frame()["eval/value_error"].iloc[-1]
    assert abs(run.final_value - exact(1.0, 0.8)) < 3 * error + 0.05
    assert 0 < error < 0.2
    assert "add its" in str(pb.explain(run.folder))


@pytest.mark.slow
def test_the_error_is_that_of_values_with_noise_of_other_seeds():
    name = walk_logs("walks/b-v0", users=2000)
    words = ("algo.target=uniform", "algo.features=6", "algo.gamma=0.8", "privacy.z=4")
    one = trained("dp_fqe", name, *words, seeds=range(30))
    found = [value_of(one, r) for r in range(30)]
    spread = statistics.stdev(x["eval/value"] for x in found)
    said = statistics.median(x["eval/value_error"] for x in found)
    assert 0.5 < said / spread < 3.0  # chance is in what is said, and not in the seeds


def test_values_are_possible_ones_whatever_the_noise():
    name = walk_logs("walks/b-v0", users=2000)
    words = (*FEW, "algo.gamma=1", "algo.ridge=0.01", "privacy.z=100")
    one = trained("dp_fqe", name, *words, seeds=range(8))
    values = [value_of(one, r)["eval/value"] for r in range(8)]
    assert min(values) >= 0.0
    assert max(values) <= STEPS  # rewards are 0 and 1
    assert len({round(v, 3) for v in values}) > 4


def test_what_noise_hides_is_taken_to_be_usual():
    """With an endless ridge nothing changes, and every step pays the public users' mean."""
    name = walk_logs("walks/b-v0", users=2000, known=False)  # it needs no behaviour probabilities
    one = trained("dp_fqe", name, *FEW, "privacy.z=0.1", "algo.ridge=1e12")
    expected = STEPS * one.parts.algo._typical
    assert value_of(one)["eval/value"] == pytest.approx(expected, rel=0.1)


def test_a_user_has_a_share_of_the_start_whatever_their_number_of_episodes():
    one = session("dp_fqe", walk_logs("walks/b-v0", episodes=3), *FEW)
    algo = one.parts.algo
    users = one.collect(algo.actor(one.state), 0)
    rows = algo.user_update(one.state, users, one.parts.streams).take()[0]["start"]
    u = int(users.valid[0].nonzero()[0])
    first = first_steps(users.done, users.mask)[0, u]
    assert int(first.sum()) == 3
    expected = algo._phi(users.obs[0, u][first]).mean(0) / algo._short
    torch.testing.assert_close(rows[0, u], expected)
    one.close()


def test_epsilon_is_that_of_one_gaussian_of_both_blocks():
    """z = 1: 4.377 at delta 1e-5 (Balle and Wang 2018); 1/z^2 is the sum over blocks of 1/z_b^2."""
    one = session("dp_fqe", walk_logs("walks/b-v0"), *FEW, "privacy.z=1")
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "zero-out")
    stds, bounds = (
        one.parts.algo._context.schedule.stds[0],
        {b.name: b.clip for b in one.parts.gate.blocks},
    )
    assert sum((bounds[k] / stds[k]) ** 2 for k in stds) == pytest.approx(1.0)
    assert stds["start"] / bounds["start"] == pytest.approx(3 * stds["sums"] / bounds["sums"])
    one.close()


def test_it_opens_no_path_around_the_gate():
    config = config_of("dp_fqe", walk_logs("walks/b-v0", users=60), *FEW)
    report = find_leaks(config, late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"^algo.target: name the policy that is evaluated"),
        (("algo.target=unifrm",), r"^algo.target: no policy 'unifrm' .did you mean uniform"),
        ((*FEW, "rounds=2"), r"^rounds: algo=dp_fqe has one release, got 2$"),
        ((*FEW, "privacy=poisson"), r"^privacy.sampling: algo=dp_fqe takes"),
        ((*FEW, "data.policy=uniform"), r"^data.policy: "),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        session("dp_fqe", walk_logs("walks/b-v0"), *words)
