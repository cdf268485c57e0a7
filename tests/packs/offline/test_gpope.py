"""GPOPE on small chains: convergence, the loop, canaries."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from evaluation_runs import SWIM, check_neighbours, config_of, full_batch, parts_of, theta_of
from helpers import members_of, open_gate

from privrl_bench.audit.canary import claim_of, refuse_unauditable, run_canaries
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.lower_bound import Options, attacked_runs
from privrl_bench.envs.registry import make_env
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.packs.offline.datasets.minari_files import write_minari
from privrl_bench.packs.offline.datasets.trajectories import Episode
from privrl_bench.training.runner import run
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State, UserBatch


def test_gpope_without_noise_converges_to_lstd():
    """Everybody's mean gradient in every round; within 1 % of LSTD with the same weights of steps."""
    parts = parts_of("algo=gpope", "algo.lr=3.0")
    users = full_batch(parts)
    state = parts.algo.init(parts.streams)
    for _ in range(1000):
        values, bypass = open_gate(parts.algo.user_update(state, users, parts.streams))
        state = parts.algo.server(state, SimpleNamespace(values=values, bypass=bypass))
    lstd = theta_of("algo=lstd", "algo.weighting=trajectory")
    found = parts.algo.actor(state)
    assert float((found - lstd).norm() / lstd.norm()) < 0.01


ORDERED = ("privacy=correlated", "privacy.adjacency=replace_one", "privacy.users_per_round=4")
CAR = (
    "env=mountain_car",
    "env.obs_scaling=none",
    "env.max_episode_steps=60",
    "algo.features=fourier",
    "algo.order=2",
    "algo.target=uniform",
    "data.policy=mountain_car:epsilon:0.5",
)


def some_people(lengths, T, dims=2, seed=0):
    """[1, U, T] steps of two episodes each, the first one cut: what comes after it comes before nothing."""
    g = torch.Generator().manual_seed(seed)
    low, wide = torch.tensor([-1.2, -0.07]), torch.tensor([1.8, 0.14])
    U = len(lengths)
    obs = low + wide * torch.rand(1, U, T, dims, generator=g)
    after = torch.cat([obs[:, :, 1:], obs[:, :, :1]], dim=2)
    done, over = torch.zeros(1, U, T, dtype=torch.bool), torch.zeros(1, U, T, dtype=torch.bool)
    for u, length in enumerate(lengths):
        if length:
            last = length - 1
            for t in (length // 2, last):
                done[0, u, t] = True
                after[0, u, t] = low + wide * torch.rand(dims, generator=g)
            over[0, u, last] = u % 2 == 0
    mask = (torch.arange(T) < torch.tensor(lengths)[:, None])[None]
    return UserBatch(
        obs=torch.where(mask[..., None], obs, 0.0),
        next_obs=torch.where(mask[..., None], after, 0.0),
        actions=torch.randint(0, 3, (1, U, T), generator=g),
        rewards=-torch.rand(1, U, T, generator=g),
        terminated=over,
        done=done,
        mask=mask,
        valid=mask.any(-1),
    )


@pytest.mark.parametrize("weighting", ["trajectory", "step"])
def test_rows_are_those_of_one_person_after_the_other(weighting):
    """Against A, b and C of each, step by step in double precision."""
    parts = parts_of("algo=gpope", *CAR, f"algo.weighting={weighting}")
    algo, T, lengths = parts.algo, 30, [30, 7, 0, 1, 18]
    users = some_people(lengths, T)
    d = algo.features.size
    g = torch.Generator().manual_seed(1)
    theta, w = torch.randn(1, d, generator=g), torch.randn(1, d, generator=g)
    found, _, _ = algo.user_update(State(0, {"theta": theta, "w": w}), users, parts.streams).take()
    ratios = algo.ratios(users)[0].double()
    phi, after = (algo.features.phi(x)[0].double() for x in (users.obs, users.next_obs))
    for u, length in enumerate(lengths):
        row = torch.zeros(2 * d, dtype=torch.float64)
        for t in range(length):
            here = phi[u, t]
            there = torch.zeros(d) if users.terminated[0, u, t] else after[u, t]
            c = 1 / length if weighting == "trajectory" else 1 / T
            A = c * ratios[u, t] * torch.outer(here, here - 0.99 * there)
            b = c * ratios[u, t] * users.rewards[0, u, t] * here
            C = c * torch.outer(here, here)
            x, y = theta[0].double(), w[0].double()
            row += torch.cat([-A.T @ y, A @ x - b + C @ y])
        torch.testing.assert_close(found["gradient"][0, u].double(), row, rtol=1e-4, atol=1e-5)


def test_a_row_has_nothing_of_others_nor_of_padding():
    """Bit for bit: whoever else is there, however long they went on, and whatever T is."""
    parts = parts_of("algo=gpope", *CAR)
    zeros = torch.zeros(1, parts.algo.features.size)
    state = State(0, {"theta": zeros + 0.3, "w": zeros - 0.7})

    def rows(users):
        return parts.algo.user_update(state, users, parts.streams).take()[0]["gradient"]

    users = some_people([12, 5, 25], 25)
    together = rows(users)
    for u, length in enumerate([12, 5, 25]):
        one = UserBatch(
            **{
                name: getattr(users, name)[:, u : u + 1, :length]
                for name in ("obs", "next_obs", "actions", "rewards", "terminated", "done", "mask")
            },
            valid=users.valid[:, u : u + 1],
        )
        assert torch.equal(rows(one)[0, 0], together[0, u])


@pytest.mark.slow
def test_one_person_a_round_without_noise_comes_near():
    """The real loop, with the real gate at z = 0."""
    words = ("privacy.z=0", "privacy.clip=100", "rounds=600", "algo.lr=1.0")
    found = theta_of("algo=gpope", *words, "algo.step=diminishing", "algo.halving=200")
    lstd = theta_of("algo=lstd", "algo.weighting=trajectory")
    start = float(lstd.norm())
    assert float((found - lstd).norm()) < 0.35 * start


def test_a_replica_does_not_depend_on_its_neighbours():
    check_neighbours("gpope", "rounds=3")


def test_people_keep_what_they_did():
    parts = parts_of("algo=gpope", *SWIM[:2])
    session = Trainer(parts)
    (piece,) = session.collector.simulate()
    one = session.collector.collect(None, 5, members_of([17]))
    for name in ("obs", "next_obs", "actions", "rewards", "terminated", "done", "mask"):
        assert torch.equal(getattr(one, name)[0, 0], getattr(piece, name)[0, 17]), name
    assert torch.equal(one.behavior_probs, torch.full_like(one.behavior_probs, 0.5))
    again = Trainer(parts_of("algo=gpope", *SWIM[:2])).collector.collect(None, 9, members_of([17]))
    assert torch.equal(again.obs, one.obs)
    assert session.snapshot()["collector"] == {}  # no checkpoint holds it


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
    printed = capsys.readouterr()
    assert f"done  mspbe {summary['mspbe']['mean']:.3g}, start (theta = 0) " in printed.out
    assert summary["references"] == {"start (theta = 0)": {"mean": lines[0]["eval/mspbe"]}}
    said = printed.out + printed.err
    assert "rounds/s" in said
    assert "steps/s" not in said  # no environment is stepped in a round
    assert re.search(r"plan    \d+ rounds? of 1 user, trajectories of at most \d+ steps", said)
    from privrl_bench.cli.report import write_report
    from privrl_bench.reporting.run_loader import load_runs

    runs = load_runs(tmp_path / "a")
    assert runs[0].final_value == summary["mspbe"]["mean"]
    page = write_report(runs, tmp_path / "report", "x")
    assert "<th>mspbe</th>" in page.read_text()  # of one seed there is no interval
    note = (tmp_path / "report" / "table.md").read_text()
    assert "MSPBE: mean over seeds of the mean squared projected Bellman error" in note
    assert "undiscounted return" not in note + page.read_text()
    (again,) = run([config], [tmp_path / "a"], [[]])
    assert again.status == "skipped"


@pytest.mark.slow
def test_a_dataset_and_who_n_is(tmp_path, monkeypatch):
    """Recorded people: n is exactly the private ones, whose own chances count."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    parts = parts_of("algo=lstd", *SWIM[:2])
    users = full_batch(parts)
    episodes = []
    for p in range(40):
        obs = torch.cat([users.obs[0, p], users.next_obs[0, p, -1:]]).numpy()
        cut = np.arange(20) == 19
        arrays = users.actions[0, p].numpy(), users.rewards[0, p].numpy()
        behavior_probs = np.full(20, 0.5, np.float32)
        episodes.append(Episode(obs, *arrays, cut & False, cut, behavior_probs=behavior_probs))
    env = make_env(parts.config.env)
    write_minari(
        "swim/uniform-v0",
        iter(episodes),
        parts.config.env.id,
        env.observation_space,
        env.action_space,
        {"users": "simulated", "algorithm_name": "uniform"},
    )
    more = ("data.id=swim/uniform-v0", "data.public=0.1", "privacy.population=null")
    there = parts_of("algo=gpope", *SWIM[:2], *more, "rounds=3")
    assert there.config.privacy.population == 36
    guarantee = there.gate.guarantee(0)
    assert guarantee.adjacency == "replace-one"
    assert "N = 36, the number of private users" in guarantee.notes["neighbours"]
    assert "unprotected: their data are not used; no user's" in guarantee.notes["dataset"]
    scope = guarantee.notes["scope"]
    assert "errors are measured with" in scope
    assert not [x for x in ("episodes are simulated", "reset", "failing") if x in scope]
    session = Trainer(there)
    session.step()
    assert there.gate.draw(1, 36, False).numbers()[0].shape == (1,)
    with pytest.raises(PrivacyError, match="is public"):
        there.gate.draw(2, 35, False).numbers()
    with pytest.raises(ConfigError, match=r"^privacy.population: is exact and public: the 36"):
        parts_of("algo=gpope", *SWIM[:2], *more[:2], "privacy.population=50")
    assert theta_of("algo=lstd", *SWIM[:2], *more).shape == (1, 6)
    at_once = parts_of("algo=dp_lstd", *SWIM[:2], *more)
    assert at_once.config.privacy.users_per_round == 36
    assert theta_of("algo=dp_lstd", *SWIM[:2], *more).shape == (1, 6)
    ordered = parts_of("algo=gpope", *SWIM[:2], *more, *ORDERED, "rounds=9")
    assert ordered.gate.unit.participation == 1
    guarantee = ordered.gate.guarantee(0)
    assert "N = 36, the number of private users" in guarantee.notes["neighbours"]
    assert "order of the list" in guarantee.notes["order"]
    with pytest.raises(ConfigError, match=r"^rounds: .* need 40 users, .*; swim/uniform-v0 has 36"):
        parts_of("algo=gpope", *SWIM[:2], *more, *ORDERED, "rounds=10")
    write_minari(
        "swim/bare-v0",
        (e._replace(behavior_probs=None) for e in episodes),
        parts.config.env.id,
        env.observation_space,
        env.action_space,
        {"users": "simulated", "algorithm_name": "uniform"},
    )
    more = ("data.id=swim/bare-v0", *more[1:], "rounds=3")
    parts_of("algo=gpope", *SWIM[:2], *more)  # ratios of 1 need none
    with pytest.raises(ConfigError, match=r"^data.id: .* has no behaviour probabilities, which"):
        parts_of("algo=gpope", *SWIM[:2], *more, "algo.target=mountain_car")


def test_features_of_real_observations_need_public_ranges():
    """Nothing is scaled by the data's range, and the policies are public by a note."""
    assert "known policies" in parts_of("algo=gpope", *CAR).gate.guarantee(0).notes
    for kind in ("linear", "fourier"):
        words = ("env.obs_low=null", "env.obs_high=null", f"algo.features={kind}")
        # Of the box of the space.
        assert parts_of("algo=gpope", *CAR, *words).algo.features.size > 2
        words += ("env=cartpole", "env.obs_scaling=none", "algo.target=null")
        with pytest.raises(ConfigError, match=r"^env.obs_low: .* need public ranges"):
            parts_of("algo=gpope", *words)


def test_too_many_cells_are_refused_with_the_largest_grid():
    message = r"^algo.grid: results in 400\^2 cells, of at most 100,000; use 316 or less$"
    words = [word for word in CAR if not word.startswith("algo.target")]
    with pytest.raises(ConfigError, match=message):
        parts_of("algo=dp_lsw", *words, "algo.grid=400")


def test_canaries_stand_where_the_drawn_person_would():
    config = config_of("algo=gpope", "privacy.z=2", "env.max_episode_steps=8")
    found = run_canaries(config, 120, 4, lambda line: None)
    assert found.rounds == 120
    assert found.mu == 1.0
    inside, outside = found.split()
    assert 0.4 < inside.mean() - outside.mean() < 1.6
    assert claim_of(found)[0] == pytest.approx(4.3772, abs=1e-3)
    with pytest.raises(ConfigError, match="privacy=smooth noises one answer"):
        refuse_unauditable(config_of("algo=dp_lsw"))


def test_a_list_of_users_in_its_order_each_once():
    """Every user in one round; epsilon is that of one Gaussian, and a further round is refused."""
    parts = parts_of("algo=gpope", *ORDERED, "rounds=10", "privacy.z=2", "privacy.correlation=1")
    guarantee = parts.gate.guarantee(0)
    assert guarantee.status == "formal"
    assert parts.gate.planned_epsilon(0) == pytest.approx(4.3772, abs=1e-3)  # z / 2 = 1
    assert guarantee.unit.endswith("one trajectory of at most 200 steps, used once")
    assert "order of the list" in guarantee.notes["order"]
    assert "population=40, exactly the users who played" in guarantee.notes["public information"]
    session, seen = Trainer(parts), []
    (everyone,) = session.collector.simulate()
    for index in range(10):
        users = session.collect(parts.algo.actor(session.state), index)
        (who,) = parts.gate.draw(index, 40, True).numbers()
        for name in ("obs", "actions", "rewards", "mask"):
            assert torch.equal(getattr(users, name)[0], getattr(everyone, name)[0, who]), name
        seen += who.tolist()
        session.step()
    assert seen == list(range(40))
    session.close()
    assert parts.gate.spent_epsilon(0) == pytest.approx(parts.gate.planned_epsilon(0))
    with pytest.raises(
        ConfigError, match=r"^rounds: 11 rounds of 4 users need 44 users, each used"
    ):
        parts_of("algo=gpope", *ORDERED, "rounds=11")


@pytest.mark.slow
def test_users_in_order_have_no_path_around_the_gate():
    for privacy in ("privacy=correlated", "privacy=fixed"):
        config = config_of("algo=gpope", privacy, *ORDERED[1:], "rounds=10")
        report = find_leaks(config)
        assert not report.found, privacy
        assert report.status == "formal"


def test_canaries_of_users_in_order():
    config = config_of(
        "algo=gpope", *ORDERED, "privacy.z=2", "rounds=10", "env.max_episode_steps=8"
    )
    ((run, _),) = attacked_runs(config, Options(attack="canary"), set()).values()
    found = run_canaries(run, 60, 4, lambda line: None)
    assert found.mu == 1.0
    assert claim_of(found)[0] == pytest.approx(4.3772, abs=1e-3)
