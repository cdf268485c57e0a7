"""DP-IS: rows against a slow reading, norms, exact values, coverage, epsilon, leaks, canaries, refusals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluation_runs import SWIM, check_neighbours, config_of, parts_of
from helpers import release
from hypothesis import given, settings
from hypothesis import strategies as st
from walk_logs import trained as walked
from walk_logs import walk_logs

import privrl_bench as pb
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.envs.registry import tables_of
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.datasets.minari_files import open_dataset
from privrl_bench.packs.offline.ope import importance_sampling as dp_is
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import UserBatch

RANGE = ("algo.center=0.5", "privacy.clip=0.5")
RUN = ("algo=dp_is", *SWIM, *RANGE)


@pytest.fixture
def target(tmp_path):
    """A policy of RiverSwim that swims to the right more often than not, as a file."""
    weights = [[0.0, 1.0]] + [[0.0, 0.1 * k] for k in range(6)]
    content = {"about": {}, "env_id": "privrl_bench/RiverSwim-v0", "order": 1, "joint": 1}
    path = tmp_path / "right.json"
    path.write_text(json.dumps({**content, "low": [0] * 6, "high": [1] * 6, "weights": weights}))
    return f"algo.target={path}:softmax:6.0"


def trained(*words, seeds=(0,)):
    one = Trainer(parts_of(*words, seeds=seeds))
    one.step()
    one.close()
    return one


def estimates(*words, seeds=(0,)):
    one = trained(*words, seeds=seeds)
    return [one.parts.algo.estimate(x, r) for r, x in enumerate(one.state.tensors["released"])]


def exact(config, policy):
    """Expected return of a policy in the tables, by dynamic programming."""
    model = tables_of(config.env)
    move, reward, start = (torch.as_tensor(x) for x in model[:3])
    chosen = policy.probabilities(torch.eye(len(start), dtype=torch.float64))
    value = torch.zeros(len(start), dtype=torch.float64)
    for _ in range(model.horizon):
        value = (chosen[:, :, None] * move * (reward + value)).sum((1, 2))
    return float(start @ value)


# --- rows


def batch(rng, users=3, episodes=2, steps=4):
    """Users with several episodes of RiverSwim's shapes, one after the other, padded."""
    size = episodes * steps
    shape = (1, users, size)
    lengths = rng.integers(1, steps + 1, (users, episodes))
    done, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for u, own in enumerate(lengths):
        mask[0, u, : own.sum()] = True
        done[0, u, own.cumsum() - 1] = True
    obs = torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 6, shape)), 6).float()
    return UserBatch(
        obs=obs,
        next_obs=obs.roll(-1, 2),
        actions=torch.from_numpy(rng.integers(0, 2, shape)),
        rewards=torch.from_numpy(rng.normal(0, 1, shape)).float() * mask,
        terminated=done & torch.from_numpy(rng.random(shape) < 0.5),
        done=done,
        mask=mask,
        valid=mask.any(-1),
        behavior_probs=torch.from_numpy(rng.uniform(0.05, 1, shape)).float(),
    )


def slowly(algo, users, model):
    """Row of each user by the definition: loops over episodes and steps."""
    config, c, found = algo.config, algo._context.privacy.clip, []
    unit = lambda x: (x - config.center) / c  # noqa: E731
    cut = lambda x: min(max(unit(x), -1.0), 1.0)  # noqa: E731
    for u in range(users.mask.shape[1]):
        parts, w, x, y, discount = [], 1.0, 0.0, 0.0, 1.0
        for t in range(int(users.mask[0, u].sum())):
            obs, a = users.obs[0, u, t], int(users.actions[0, u, t])
            before, r = float(model(obs)), float(users.rewards[0, u, t])
            chance = float(algo._target.probabilities(obs)[a])
            was, w = w, w * chance / float(users.behavior_probs[0, u, t])
            x += discount * (w * (r - before) + was * before)
            y += discount * r
            discount *= config.gamma
            if users.done[0, u, t]:
                ratio = min(w / config.cap, 1.0)
                parts.append((cut(x), cut(y), ratio * cut(y), ratio, abs(unit(x)) > 1.0))
                w, x, y, discount = 1.0, 0.0, 0.0, 1.0
        found.append(np.mean(parts, axis=0))
    x, y, a, b, k = np.array(found).T
    rows = {"per_decision": (x, y, b, k, x * x), "weighted": (a, y, b, b * b, a * b, a * a)}
    return np.stack(rows[config.estimator], axis=-1)


@pytest.mark.parametrize("estimator", ["per_decision", "weighted"])
def test_rows_are_those_of_the_definition_and_none_is_longer_than_the_clip(target, estimator):
    words = (
        *RUN,
        target,
        f"algo.estimator={estimator}",
        "algo.gamma=0.9",
        "algo.cap=3",
        "privacy.z=0",
    )
    algo = parts_of(*words).algo
    state = algo.init([None])
    (block,) = algo.blocks()

    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 1e6]), model=st.booleans())
    def check(seed, scale, model):
        rng = np.random.default_rng(seed)
        users = batch(rng)
        users.rewards *= scale
        values = torch.from_numpy(rng.normal(size=6)).float()
        known = (lambda obs: obs @ values) if model else (lambda obs: torch.zeros(obs.shape[:-1]))
        algo._values = known if model else None
        rows = algo.user_update(state, users, [None]).take()[0]["estimates"]
        np.testing.assert_allclose(rows[0], slowly(algo, users, known), rtol=1e-4, atol=1e-5)
        assert float(rows.norm(dim=-1).max()) <= block.clip * (1 + 1e-6)
        one = replace(users, rewards=users.rewards.clone())
        one.rewards[0, 0] += 3.0  # of the first user only
        other = algo.user_update(state, one, [None]).take()[0]["estimates"]
        assert torch.equal(other[0, 1:], rows[0, 1:])

    check()


def test_a_user_without_finite_data_is_not_counted():
    algo, users = parts_of(*RUN).algo, batch(np.random.default_rng(0))
    users.rewards[0, 1, 0] = math.nan
    valid = algo.user_update(algo.init([None]), users, [None]).take()[1]
    assert valid.tolist() == [[True, False, True]]


# --- values


@pytest.mark.parametrize("words", [(), ("algo.estimator=weighted",)])
def test_without_noise_the_value_is_that_of_the_tables(target, words):
    """3,000 users of RiverSwim under uniform play; the target swims to the right."""
    given_words = (*RUN, target, "privacy.population=3000", "privacy.z=0", "algo.cap=100")
    one = trained(*given_words, "algo.center=5", "privacy.clip=5", *words)
    algo = one.parts.algo
    found = algo.estimate(one.state.tensors["released"][0], 0)
    truth = exact(one.parts.config, algo._target)
    width = (found.high - found.low) / 2
    assert abs(found.value - truth) < 2.5 * width
    assert width < 0.5 * truth
    assert abs(found.ratio - 1) < 0.1
    assert found.behavior == pytest.approx(exact(one.parts.config, algo._acted), rel=0.15)


def test_a_model_leaves_the_mean_and_takes_variance_off(target):
    """Of 3,000 users of RiverSwim, with the exact values of the target in all steps but the last few."""
    words = (*RUN, target, "privacy.population=3000", "privacy.z=0", "privacy.clip=1000")
    one = trained(*words)
    algo, model = one.parts.algo, tables_of(one.parts.config.env)
    move, reward = torch.as_tensor(model.transitions), torch.as_tensor(model.rewards)
    chosen = algo._target.probabilities(torch.eye(6, dtype=torch.float64))
    values = torch.zeros(6, dtype=torch.float64)
    for _ in range(model.horizon // 2):
        values = (chosen[:, :, None] * move * (reward + values)).sum((1, 2))
    found = []
    for known in (None, lambda obs: obs.double() @ values):
        algo._values = known
        users = list(Trainer(one.parts).collector.simulate())
        found.append(torch.cat([algo._estimates(one)[0][0] for one in users]))
    plain, robust = found
    assert float(robust.std()) < 0.8 * float(plain.std())
    error = float((plain - robust).std()) / 3000**0.5
    assert abs(float(plain.mean() - robust.mean())) < 4 * error


@pytest.mark.parametrize("n", [1000, 10_000])
@pytest.mark.parametrize("z", [0.0, 1.46, 10.0])
@pytest.mark.parametrize("kind", ["even", "rare", "constant"])
def test_intervals_cover_the_mean_of_the_clipped_returns(n, z, kind):
    """The released means are drawn with their noise; the package computes the intervals."""
    rng, hits, trials = np.random.default_rng(0), 0, 600
    values, chances = {
        "even": ([-0.5, 0.0, 0.7], [0.3, 0.4, 0.3]),
        "rare": ([-1.0, 1.0], [0.97, 0.03]),
        "constant": ([0.2], [1.0]),
    }[kind]
    truth, std = float(np.dot(values, chances)), z * 5**0.5 / n
    for _ in range(trials):
        counts = rng.multinomial(n, chances) / n
        means = [counts @ values, 0.0, 0.1, 0.0, counts @ np.square(values)]
        found = dp_is.per_decision((means + rng.normal(0, std, 5)).tolist(), std, n, 10.0)
        hits += found.low - 1e-9 <= truth <= found.high + 1e-9
    assert hits / trials > 0.9 - 3 * math.sqrt(0.09 / trials)


@pytest.mark.parametrize(
    "found",
    [
        dp_is.per_decision([0.1, 0.3, 0.05, 0.0, 0.2], 1e-4, 1000, 10.0),
        dp_is.per_decision([0.1, 0.3, 0.5, 0.0, 0.2], 1e-4, 1000, 10.0),
        dp_is.per_decision([0.1, 0.3, -0.02, 0.0, 0.2], 1e-4, 1000, 10.0),
        dp_is.weighted([0.0, 0.3, 0.001, 0.0, 0.0, 0.0], 1e-3, 1000, 10.0),
        dp_is.weighted([0.0, 0.3, 0.5, 0.0, 0.0, 0.0], 1e-3, 1000, 10.0),
    ],
)
def test_of_a_policy_that_the_data_do_not_cover_there_is_no_value(found):
    assert math.isnan(found.value)
    assert found.behavior == 0.3


def test_a_run_without_a_value_fails_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=500)
    words = ["algo=dp_lspi", "env=logs", f"data.id={name}", "log=none", "privacy.z=0"]
    folder = pb.run(words, quiet=True).folder  # greedy: nearly no episode does all that it does
    words[0] = "algo=dp_is"
    with pytest.raises(pb.RunFailed, match=r"value invalid: the mean ratio is .* do not cover"):
        pb.run([*words, f"algo.target={folder}", "algo.center=0.5", "privacy.clip=0.5"], quiet=True)
    planned = pb.plan([*words, f"algo.target={folder}", "privacy.clip=0.5"])
    assert "algo.target is greedy" in str(planned)
    assert "greedy" not in str(pb.plan([*words, "data.policy=uniform", "privacy.clip=0.5"]))
    with pytest.raises(ConfigError, match=r"^algo.cap: 1000 gives the mean ratio"):
        pb.run([*words[:4], f"algo.target={folder}", "privacy.z=1", "algo.cap=1000"], quiet=True)


def test_of_who_acted_one_number_is_said():
    """Without a target the value is that of who acted, and ratios are 1."""
    one = trained(*RUN)
    numbers, _ = one.parts.algo.numbers(one.state.tensors["released"][0], 0)
    assert set(numbers) == {"eval/value", "eval/value_low", "eval/value_high", "eval/clipped"}


# --- privacy


def test_epsilon_is_that_of_one_gaussian():
    """z = 1 is the Gaussian mechanism of multiplier 1: 4.377 at delta 1e-5 (Balle and Wang 2018)."""
    guarantee = parts_of(*RUN, "privacy.z=1").gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "zero-out")
    assert guarantee.unit.endswith("all trajectories, each of at most 20 steps, used once")
    twice = parts_of(*RUN, "privacy.z=2", "privacy.adjacency=replace_one").gate.guarantee(0)
    assert twice.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert parts_of(*RUN).gate.guarantee(0).epsilon == pytest.approx(1.0, abs=1e-3)


def test_shards_and_other_replicas_do_not_matter():
    whole = estimates(*RUN)
    assert estimates(*RUN, "hardware.shard_users=7") == whole
    both = estimates(*RUN, seeds=(3, 4))
    assert both[1] == pytest.approx(estimates(*RUN, seeds=(4,))[0])
    assert both[0] != both[1]
    check_neighbours("dp_is", *SWIM)


def test_it_opens_no_path_around_the_gate():
    report = find_leaks(config_of(*RUN), late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()
    assert report.compared > 3


@pytest.mark.slow
def test_the_noise_of_a_release_is_what_epsilon_is_computed_from():
    """With z = 2, the user who differs most moves a mean by half a standard deviation of its noise."""
    seeds, sums = range(20), []
    for sign in (0.0, 1.0):
        parts = parts_of(*RUN, "privacy.z=2", seeds=seeds)
        gate, rows = parts.gate, torch.zeros(len(seeds), 40, 5)
        rows[:, 0] = sign  # of norm sqrt(5), the clip
        gate.draw(0, None, True)
        found = release(gate, Contribution({"estimates": rows}, torch.ones(20, 40).bool()), 0)
        sums.append(40 * found.values["estimates"])
    torch.testing.assert_close(sums[1] - sums[0], torch.ones(20, 5), rtol=0.01, atol=0.01)
    assert float(sums[0].std()) == pytest.approx(2 * 5**0.5, rel=0.3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rounds=2",), r"^rounds: algo=dp_is has one release, got 2$"),
        (("algo.cap=0",), r"^algo.cap: must be"),
        (("algo.target=left",), r"^algo.target: no policy 'left'"),
        (("algo.model=/nowhere",), r"^algo.model: "),
        (("algo.estimator=weighted", "algo.model=/nowhere"), r"^algo.model: is for"),
        (("privacy.population=null",), r"^privacy.population: give the number of users"),
        (("env=pendulum", "algo.target=uniform"), r"^data.policy: fixed policies need discrete"),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parts_of(*RUN, *words)


# --- logs


@pytest.mark.slow
def test_a_trained_policy_is_evaluated_on_logs_and_the_guarantee_says_what_it_leaves_out(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    name = walk_logs("walks/b-v0", users=2000, right=0.6)
    words = ["algo=dp_bc", "env=logs", f"data.id={name}", "log=none", "privacy.z=0", "rounds=80"]
    folder = pb.run([*words, "privacy.users_per_round=200", "algo.hidden=[]"], quiet=True).folder
    of = ("privacy.z=0", "algo.center=5", "privacy.clip=5", f"algo.target={folder}")
    one = walked("dp_is", name, *of)
    found = one.parts.algo.estimate(one.state.tensors["released"][0], 0)
    assert found.behavior == pytest.approx(open_dataset(name).returns().mean(), rel=0.1)
    assert found.value == pytest.approx(found.behavior, rel=0.2)  # the clone of who acted
    assert found.clipped == 0.0  # those of 0, at the end of the range, are not
    # Enough for returns, not for w r.
    cut = walked("dp_is", name, *of, "algo.center=0.5", "privacy.clip=0.5")
    cut = cut.parts.algo.estimate(cut.state.tensors["released"][0], 0)
    assert cut.clipped > 0.1
    assert cut.value < found.value
    assert set(one.parts.gate.guarantee(0).notes) >= {"given", "interval"}
    assert "probabilities" not in one.parts.gate.guarantee(0).notes
    unknown = walk_logs("walks/c-v0", users=2000, right=0.6, known=False)
    with pytest.raises(ConfigError, match=r"^data.id: walks/c-v0 has no behaviour probabilities"):
        walked("dp_is", unknown, *of)
    two = walked("dp_is", unknown, *of, f"data.policy={folder}")
    assert "no coverage is claimed" in two.parts.gate.guarantee(0).notes["probabilities"]
    with pytest.raises(ConfigError, match=r"^algo.model: .* has a policy, and no values"):
        walked("dp_is", name, *of, f"algo.model={folder}")
    scaled = ["env.reward_scaling=public", "env.reward_scale=0.05"]  # the values of a run are not
    words[0], words[3:] = "algo=dp_lstd", [*scaled, "log=none", "privacy.z=0", "privacy.clip=1000"]
    values = pb.run([*words, "algo.features=fourier", "algo.order=2"], quiet=True).folder
    wide = ("algo.center=0", "privacy.clip=5")  # estimates may be below 0
    three = walked("dp_is", name, *of, *wide, f"algo.model={values}")
    robust = three.parts.algo.estimate(three.state.tensors["released"][0], 0)
    assert robust.value == pytest.approx(found.value, rel=0.02)
    assert robust.high - robust.low < 0.95 * (found.high - found.low)
