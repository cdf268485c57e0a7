"""GPOPE and its rivals on small chains: convergence, pieces, replicas, what is judged, runs from end to end."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import open_gate

from privrl_bench.assemble import assemble
from privrl_bench.audit.canary import claim_of, refuse_unauditable, run_canaries
from privrl_bench.config import compose
from privrl_bench.data.minari_io import write_minari
from privrl_bench.data.trajectories import Episode
from privrl_bench.envs.registry import make_env
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.maths.evaluation import first_visits, mspbe, solve
from privrl_bench.played import Played
from privrl_bench.run import run
from privrl_bench.session import Session
from privrl_bench.values import reference

CHAIN = ("env=chain", "env.kwargs.n=5", "data.policy=uniform", "privacy.population=40")
SWIM = ("env=riverswim", "data.policy=uniform", "privacy.population=40")


def config_of(*words, seed=0):
    given = {w.split("=")[0] for w in words}
    if "env" in given:  # of another environment
        given.add("env.kwargs.n")
    base = [w for w in CHAIN if w.split("=")[0] not in given]
    quiet = ("log=none", "log.progress=false", "log.plot=false", "eval.every=0")
    return compose([*words[:1], *base, *quiet, *words[1:], f"seed={seed}"])


def parts_of(*words, seeds=(0,)):
    return assemble([config_of(*words, seed=s) for s in seeds], [None] * len(seeds))


def theta_of(*words, seeds=(0,)):
    one = Session(parts_of(*words, seeds=seeds))
    while not one.over:
        one.step()
    one.close()
    return one.parts.algo.actor(one.state)


def everybody(parts):
    """All people of a session in one batch."""
    session = Session(parts)
    members = [np.arange(40)] * len(parts.configs)
    played = session.rollout
    played.shape = (len(parts.configs), 40, played.shape[2])
    return played.collect(0, members)


def test_gpope_without_noise_converges_to_lstd():
    """Everybody's mean gradient in every round; within 1 % of LSTD with the same weights of steps."""
    parts = parts_of("algo=gpope", "algo.lr=3.0")
    users = everybody(parts)
    state = parts.algo.init(parts.streams)
    for _ in range(1000):
        values, bypass = open_gate(parts.algo.local(state, users, parts.streams))
        state = parts.algo.server(state, SimpleNamespace(values=values, bypass=bypass))
    lstd = theta_of("algo=lstd", "algo.weighting=trajectory")
    found = parts.algo.actor(state)
    assert float((found - lstd).norm() / lstd.norm()) < 0.01


def test_one_person_a_round_without_noise_comes_near():
    """The real loop, with the real gate at z = 0."""
    words = ("privacy.z=0", "privacy.clip=100", "rounds=600", "algo.lr=1.0")
    found = theta_of("algo=gpope", *words, "algo.step=diminishing", "algo.halving=200")
    lstd = theta_of("algo=lstd", "algo.weighting=trajectory")
    start = float(lstd.norm())
    assert float((found - lstd).norm()) < 0.35 * start


def test_off_policy_ratios_find_the_targets_value():
    """Uniform play, the value of a policy that goes right more often: LSTD with ratios nears the table's."""
    words = ("algo=lstd", *SWIM[:2], "privacy.population=3000")
    parts = parts_of(*words)
    swim_right = SimpleNamespace(
        probabilities=lambda obs: obs.new_tensor([0.2, 0.8]).expand(*obs.shape[:-1], 2)
    )
    parts.algo.target = swim_right
    session = Session(parts)
    session.step()
    truth = reference(parts.config.env, parts.spec, parts.algo).moments
    value = solve(truth.A, truth.b)
    found = parts.algo.actor(session.state)[0]
    assert float((found - value).norm() / value.norm()) < 0.15
    plain = theta_of(*words)[0]
    assert float((plain - value).norm() / value.norm()) > 0.3


@pytest.mark.parametrize("algo", ["lstd", "wis_lstd", "dp_lsw", "dp_lsl"])
def test_pieces_do_not_matter(algo, monkeypatch):
    whole = theta_of(f"algo={algo}", "env.max_episode_steps=30")
    monkeypatch.setattr("privrl_bench.session.piece", lambda spec, steps: 7)
    torch.testing.assert_close(theta_of(f"algo={algo}", "env.max_episode_steps=30"), whole)


@pytest.mark.parametrize("algo", ["gpope", "dp_lsw", "wis_lstd"])
def test_a_replica_does_not_depend_on_its_neighbours(algo):
    words = (f"algo={algo}", *(["rounds=3"] if algo == "gpope" else []))
    both, second = theta_of(*words, seeds=(3, 4)), theta_of(*words, seeds=(4,))
    torch.testing.assert_close(both[1:], second, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(both[0], both[1])


def test_people_keep_what_they_did():
    parts = parts_of("algo=gpope", *SWIM[:2])
    session = Session(parts)
    played = session.rollout
    assert isinstance(played, Played)
    (piece,) = played.pieces()
    one = played.collect(5, [np.array([17])])
    for name in ("obs", "next_obs", "actions", "rewards", "terminated", "ended", "mask"):
        assert torch.equal(getattr(one, name)[0, 0], getattr(piece, name)[0, 17]), name
    assert torch.equal(one.chances, torch.full_like(one.chances, 0.5))
    again = Session(parts_of("algo=gpope", *SWIM[:2])).rollout.collect(9, [np.array([17])])
    assert torch.equal(again.obs, one.obs)
    assert session.snapshot()["rollout"] == {}  # no checkpoint holds it


def test_dp_lsw_answers_with_mean_first_visit_returns():
    parts = parts_of("algo=dp_lsw", "algo.return_high=1")
    users = everybody(parts)
    algo = parts.algo
    seen = algo.everybodys([users], 1)
    found, there = first_visits(
        users.obs.argmax(-1), users.rewards, users.ended, users.mask, 0.99, 4
    )
    mean = found.sum(1) / there.sum(1)
    torch.testing.assert_close(algo.answer(seen).theta, mean)
    assert (mean > 0.9).all()
    (block,) = algo.blocks()
    assert float(algo.answer(seen).bound) >= block.clip


def test_a_person_without_numbers_is_nobody():
    parts = parts_of("algo=dp_lsw")
    users = everybody(parts)
    whole = parts.algo.everybodys([users], 1)
    users.rewards[0, 3] = torch.nan
    users.obs[0, 5] = torch.inf
    users.rewards[0, 7] = 1e9
    less = parts.algo.everybodys([users], 1)
    assert torch.isfinite(less.total).all()
    assert float(less.total.max()) <= 40 * 100.0
    assert 0 < float((whole.visits - less.visits).max()) <= 2


@pytest.mark.parametrize("words", [(), ("algo.features=fourier", "algo.order=2", "algo.grid=5")])
def test_dp_lsw_on_real_observations(words):
    """States are cells of a public grid."""
    base = ("env=mountain_car", "env.obs_scaling=none", "env.reward_scaling=none")
    steps = ("env.max_episode_steps=20", "algo.return_low=-20", "algo.return_high=0")
    if not words:
        with pytest.raises(ConfigError, match=r"^algo.features: tabular needs"):
            parts_of("algo=dp_lsw", *base, *steps)
        return
    parts = assemble(
        [compose(["algo=dp_lsw", *base, *CHAIN[2:], *steps, *words, "log=none"])], [None]
    )
    session = Session(parts)
    session.step()
    assert torch.isfinite(parts.algo.actor(session.state)).all()
    assert parts.plan.guarantee(0).status == "formal"


# --- the measure


def test_errors_of_the_chain_are_exact():
    parts = parts_of("algo=lstd", "env.kwargs.n=40")
    truth = reference(parts.config.env, parts.spec, parts.algo)
    assert truth.exact
    assert float(mspbe(torch.zeros(39), truth.moments)) == pytest.approx(0.0125)
    assert truth.reward == pytest.approx(1 / 40)  # 1 in an episode of 40 steps


def test_a_sampled_reference_is_near_the_exact_one(monkeypatch):
    parts = parts_of("algo=lstd", "algo.reference=3000")
    exact = reference(parts.config.env, parts.spec, parts.algo)
    monkeypatch.setattr("privrl_bench.values.process_of", lambda config: None)
    sampled = reference(parts.config.env, parts.spec, parts.algo)
    assert not sampled.exact
    for a, b in zip(exact.moments, sampled.moments, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.01)
    assert sampled.reward == pytest.approx(exact.reward, rel=0.05)


# --- whole runs


def test_a_run_from_end_to_end(tmp_path, capsys):
    words = ("algo=gpope", "rounds=6", "eval.every=400", "log.plot=true")
    config = config_of(*words)
    (result,) = run([config], [tmp_path / "a"], [[]])
    assert result.status == "done"
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["measure"] == "mspbe"
    assert "return" not in summary
    assert summary["mspbe"]["mean"] > 0
    assert summary["guarantee"]["status"] == "formal"
    assert summary["guarantee"]["adjacency"] == "replace-one"
    lines = [json.loads(x) for x in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/mspbe", "eval/relative_mspbe"} <= set(lines[-1])
    assert lines[-1]["eval/mspbe"] == summary["mspbe"]["mean"]
    assert "done  mspbe " in capsys.readouterr().out
    from privrl_bench.report.cli import write_report
    from privrl_bench.report.runs import load_runs

    runs = load_runs(tmp_path / "a")
    assert runs[0].final_value == summary["mspbe"]["mean"]
    page = write_report(runs, tmp_path / "report", "x")
    assert "mspbe (mean" in page.read_text()
    (again,) = run([config], [tmp_path / "a"], [[]])
    assert again.status == "skipped"


def test_a_dataset_and_who_n_is(tmp_path, monkeypatch):
    """Recorded people: n is exactly the private ones, whose own chances count."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    parts = parts_of("algo=lstd", *SWIM[:2])
    users = everybody(parts)
    episodes = []
    for p in range(40):
        obs = torch.cat([users.obs[0, p], users.next_obs[0, p, -1:]]).numpy()
        cut = np.arange(20) == 19
        arrays = users.actions[0, p].numpy(), users.rewards[0, p].numpy()
        chances = np.full(20, 0.5, np.float32)
        episodes.append(Episode(obs, *arrays, cut & False, cut, chances=chances))
    env = make_env(parts.config.env)
    write_minari(
        "swim/uniform-v0",
        iter(episodes),
        parts.config.env.id,
        env.observation_space,
        env.action_space,
        {"description": "x", "algorithm_name": "uniform"},
    )
    more = ("data.id=swim/uniform-v0", "data.public=0.1", "privacy.population=null")
    there = parts_of("algo=gpope", *SWIM[:2], *more, "rounds=3")
    assert there.config.privacy.population == 36
    session = Session(there)
    session.step()
    assert there.plan.members(1, 36)[0].shape == (1,)
    with pytest.raises(PrivacyError, match="is public"):
        there.plan.members(2, 35)
    with pytest.raises(ConfigError, match=r"^privacy.population: is exact and public: the 36"):
        parts_of("algo=gpope", *SWIM[:2], *more[:2], "privacy.population=50")
    assert theta_of("algo=lstd", *SWIM[:2], *more).shape == (1, 6)


def test_canaries_stand_where_the_drawn_person_would():
    config = config_of("algo=gpope", "privacy.z=2", "env.max_episode_steps=8")
    found = run_canaries(config, 120, 4, True, lambda line: None)
    assert found.rounds == 120
    assert found.mu == 1.0
    inside, outside = found.split()
    assert 0.4 < inside.mean() - outside.mean() < 1.6
    assert claim_of(found)[0] == pytest.approx(4.3772, abs=1e-3)
    with pytest.raises(ConfigError, match="privacy=smooth noises one answer"):
        refuse_unauditable(config_of("algo=dp_lsw"))
