"""DP-LSTD on small chains: the system that it solves, what one user changes, epsilon, attacks."""

import pytest
import torch
from evaluation_runs import SWIM, check_neighbours, config_of, parts_of, theta_of
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.audit.canary import claim_of, run_canaries
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.lower_bound import Options, attacked_runs
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.ope.linear_evaluation import ridge_solve
from privrl_bench.training.trainer import Trainer

OPEN = ("algo=dp_lstd", "privacy.z=0", "privacy.clip=100", "algo.ridge=0")


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("weighting", ["trajectory", "step"])
def test_without_clip_noise_and_ridge_it_is_lstd(weighting):
    for task in ((), SWIM[:2]):
        lstd = theta_of("algo=lstd", f"algo.weighting={weighting}", *task)
        found = theta_of(*OPEN, f"algo.weighting={weighting}", *task)
        torch.testing.assert_close(found, lstd, rtol=1e-3, atol=1e-4)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), size=st.integers(1, 6), level=st.sampled_from([0.0, 0.1, 1.0, 10.0])
)
def test_the_ridge_is_the_least_that_is_enough(seed, size, level):
    """Against the definition: (A + ridge I) theta = b, and x.(A + ridge I) x >= level |x|^2 up to the cap."""
    g = torch.Generator().manual_seed(seed)
    A, b = torch.randn(2, size, size, generator=g), torch.randn(2, size, generator=g)
    A, b = A.double(), b.double()
    theta = ridge_solve(A, b, torch.full((2,), level, dtype=A.dtype))
    for one, rest, found in zip(A, b, theta, strict=True):
        least = float(torch.linalg.eigvalsh((one + one.T) / 2)[0])
        ridge = min(max(level - least, 0.0), 3 * level)
        moved = one + ridge * torch.eye(size, dtype=one.dtype)
        torch.testing.assert_close(moved @ found, rest, rtol=1e-6, atol=1e-6)
        if ridge < 3 * level:
            assert float(torch.linalg.eigvalsh((moved + moved.T) / 2)[0]) >= level - 1e-9


def test_more_noise_gives_a_larger_ridge_and_smaller_values():
    """The level is public: half the expected norm of a square matrix of the noise."""
    parts = parts_of("algo=dp_lstd", "privacy.z=8", "privacy.clip=0.05", "env.kwargs.n=40")
    level = float(parts.algo._noise[0])
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(39, 39, generator=g) * 8 * 0.05 / 40
    assert float(torch.linalg.matrix_norm(noise, 2)) == pytest.approx(2 * level, rel=0.15)
    norms = [
        float(theta_of("algo=dp_lstd", f"algo.ridge={k}", "env.kwargs.n=40").norm())
        for k in (1, 4, 16)
    ]
    assert norms[0] > norms[1] > norms[2]


def test_another_user_changes_the_release_by_at_most_two_clips(monkeypatch):
    """With the same seeded noise the difference of two releases is that of the sums."""
    clip, seen = 0.05, []
    for other in (False, True):
        session = Trainer(parts_of("algo=dp_lstd", f"privacy.clip={clip}"))
        algo = session.parts.algo
        local, server = algo.user_update, algo.server

        def changed(state, users, streams, local=local, other=other):
            rows = local(state, users, streams)
            if other and users.first == 0:  # one user of the first shard
                rows._content[0]["sums"][:, 7] = -1e6
            return rows

        def taken(state, released, server=server):
            seen.append(released.values["sums"])
            return server(state, released)

        monkeypatch.setattr(algo, "user_update", changed)
        monkeypatch.setattr(algo, "server", taken)
        session.step()
        session.close()
    moved = 40 * float((seen[0] - seen[1]).double().norm())
    assert clip < moved <= 2 * clip * 1.001


def test_epsilon_is_that_of_one_gaussian():
    """Two rows differ by two clips: z = 2 is the Gaussian mechanism of multiplier 1, 4.377 at 1e-5."""
    parts = parts_of("algo=dp_lstd", "privacy.z=2")
    guarantee = parts.gate.guarantee(0)
    assert guarantee.epsilon == pytest.approx(4.3772, abs=1e-3)
    assert (guarantee.status, guarantee.adjacency) == ("formal", "replace-one")
    assert guarantee.unit.endswith("one trajectory of at most 200 steps, used once")
    assert parts_of("algo=dp_lstd").gate.guarantee(0).epsilon == pytest.approx(1.0, abs=1e-3)
    assert (parts.rounds, parts.config.privacy.users_per_round) == (1, 40)


def test_shards_and_other_replicas_do_not_matter():
    whole = theta_of("algo=dp_lstd", "env.max_episode_steps=30")
    for users in (7, 39):
        split = theta_of(
            "algo=dp_lstd", "env.max_episode_steps=30", f"hardware.shard_users={users}"
        )
        assert torch.equal(split, whole)
    check_neighbours("dp_lstd")


@pytest.mark.slow
def test_users_who_are_many_give_values_near_the_truth_under_privacy():
    """The error falls with the number of users, and is below that of values of zero."""
    from privrl_bench.packs.offline.ope.mspbe import reference
    from privrl_bench.packs.offline.ope.policy_evaluation import mspbe

    words = ("algo=dp_lstd", "env.kwargs.n=10", "env.max_episode_steps=60")
    parts = parts_of(*words)
    truth = reference(parts.config.env, parts.spec, parts.algo).moments
    errors = [
        float(mspbe(theta_of(*words, f"privacy.population={n}", seeds=range(12)), truth).mean())
        for n in (300, 3000)
    ]
    zero = float(mspbe(torch.zeros_like(truth.b), truth))
    assert errors[1] < errors[0] / 3
    assert errors[1] < zero / 20


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [(), ("algo.weighting=step", "privacy.noise=secure")])
def test_it_opens_no_path_around_the_gate(words):
    report = find_leaks(config_of("algo=dp_lstd", *words), late=False)
    assert report.verdict() == "formal: no path around the gate", report.lines()
    assert report.compared > 3


def test_canaries_of_its_one_round():
    config = config_of("algo=dp_lstd", "privacy.z=2", "env.kwargs.n=20", "env.max_episode_steps=8")
    ((run, _),) = attacked_runs(config, Options(attack="canary"), set()).values()
    found = run_canaries(run, 300, 4, lambda line: None)
    assert (found.rounds, found.scores.shape) == (1, (1, 300))
    assert claim_of(found)[0] == pytest.approx(4.3772, abs=1e-3)
    inside, outside = found.split()
    assert 0.4 < inside.mean() - outside.mean() < 1.6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("privacy.users_per_round=5",), r"^privacy.users_per_round: .* all users in one round"),
        (("rounds=2",), r"^rounds: algo=dp_lstd has one release, got 2$"),
        (("algo.ridge=-1",), r"^algo.ridge: must be"),
        (("privacy.population=null",), r"^privacy.population: give the number of users"),
        (
            ("privacy=poisson", "privacy.adjacency=zero_out"),
            r"^privacy.sampling: algo=dp_lstd takes",
        ),
    ],
)
def test_what_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parts_of("algo=dp_lstd", *words)
