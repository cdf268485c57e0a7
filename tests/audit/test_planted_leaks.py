"""Planted defects: mistakes of earlier code or plausible ones, each found by the leak test."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_leaks import CARRIED, CRITIC, base, changed

from privrl_bench.algorithms.policy_gradient.critics import SharedCritic
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.fisher import FisherMetric
from privrl_bench.algorithms.policy_gradient.row_norm import Scaled
from privrl_bench.audit.compare import OTHER_REPLICA
from privrl_bench.audit.counterfactual import CounterfactualRun
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.visits import Visit
from privrl_bench.cli.audit import leaks as main
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.devices import DeviceNoise
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.types import State
from privrl_bench.users.collectors import live
from privrl_bench.users.collectors.live import SimulatedCollector
from privrl_bench.users.collectors.substitutes import CRAFTED, SubstituteUser

ROUND = 1


def formal(user="fresh", critic="none", **env):
    return changed(algo={"critic": critic}, env={"user": user, **env})


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("user", ["fresh", "episode"])
def test_without_a_defect_nothing_is_found(user):
    """`test_leaks.py` has all the others."""
    report = find_leaks(formal(user), ROUND, late=False)
    assert report.ok
    assert not report.found


def assert_caught(config, *names, seen=ROUND):
    """The report names the path, where it was first seen, and fails."""
    report = find_leaks(config, ROUND, late=False)
    assert not report.no_test_power
    # Some defects mix the replicas, too; some are kept in the algorithm's object, which is found earlier.
    others = (OTHER_REPLICA, "memory ")
    caught = {name for name in report.undeclared if not name.startswith(others)}
    assert caught == set(names), report.lines()
    assert not report.ok
    assert "undeclared paths around the gate" in report.verdict()
    assert min(report.found[name].round for name in names) == seen
    return report


def patch_user_update(monkeypatch, change):
    """`change(algo, state, users, contribution)` after the real `user_update`; gives the contribution."""
    real = Dppg.user_update

    def user_update(self, state, users, streams):
        return change(self, state, users, real(self, state, users, streams))

    monkeypatch.setattr(Dppg, "user_update", user_update)


def keep_mean_row(algo, state, users, contribution):
    """For a server that uses it without noise."""
    rows, valid, bypass = contribution.take()
    algo.mean_row = (rows["actor"] * valid[..., None]).mean(1)
    return Contribution(rows, valid, bypass)


# --- beside the gate, without a name


def test_a_shared_critic_that_is_called_formal(monkeypatch):
    monkeypatch.setattr(SharedCritic, "caveats", {})
    monkeypatch.setattr(Gate, "permit", lambda self, name: None)
    report = assert_caught(formal(critic="shared"), CRITIC)
    assert report.status == "formal"


def test_the_gate_itself_refuses_a_shared_critic_without_a_name(monkeypatch, capsys):
    monkeypatch.setattr(SharedCritic, "caveats", {})
    words = ["algo.hidden=[8]", "algo.critic=shared", "env.user=fresh", "env.user_steps=16"]
    assert main(words) == 1
    assert "verdict  the gate refused: 'shared critic'" in capsys.readouterr().out


def test_carried_over_environments_without_a_name(monkeypatch):
    monkeypatch.setattr("privrl_bench.training.plan.caveats_of", lambda config, algo: {})
    assert_caught(formal("segment"), CARRIED)


def test_statistics_that_run_although_constants_are_declared(monkeypatch):
    real = SignalScaler.obs

    def obs(self, raw, *, update):
        if update is not None:
            self._obs.update(raw, update)
            self._refresh()
        return real(self, raw, update=None)

    monkeypatch.setattr(SignalScaler, "obs", obs)
    report = find_leaks(formal(), ROUND, late=False)
    assert not report.ok
    assert "users obs" in report.undeclared


# --- memory in the algorithm object instead of the state


def test_a_baseline_that_the_algorithm_keeps_to_itself(monkeypatch):
    def remember(self, state, users, contribution):
        rows, valid, bypass = contribution.take()
        rows["actor"] = rows["actor"] * (1.0 + getattr(self, "baseline", 0.0))
        self.baseline = float((users.rewards * valid[..., None]).mean())
        return Contribution(rows, valid, bypass)

    patch_user_update(monkeypatch, remember)
    assert_caught(formal(), "rows actor", seen=ROUND + 1)


def test_a_memory_that_outlives_the_run_is_refused(monkeypatch):
    """Runs of one process share it, so that even equal ones differ."""

    def remember(self, state, users, contribution):
        rows, valid, bypass = contribution.take()
        rows["actor"] = rows["actor"] * (1.0 + Dppg.seen)
        Dppg.seen += 0.1
        return Contribution(rows, valid, bypass)

    monkeypatch.setattr(Dppg, "seen", 0.0, raising=False)
    patch_user_update(monkeypatch, remember)
    with pytest.raises(ConfigError, match="two equal runs differ in rows actor"):
        find_leaks(formal(), ROUND, late=False)


def test_advantages_scaled_by_a_spread_that_was_seen_before(monkeypatch):
    """Normalisation over all users of the rounds so far."""
    from privrl_bench.algorithms.policy_gradient import dppg

    real = dppg.Dppg.user_update

    def user_update(self, state, users, streams):
        spread = getattr(self, "spread", 1.0)
        usable = users.mask & users.valid[..., None]
        self.spread = 0.9 * spread + 0.1 * float(users.rewards[usable].abs().mean())
        return real(self, state, replace(users, rewards=users.rewards / spread), streams)

    monkeypatch.setattr(dppg.Dppg, "user_update", user_update)
    config = changed(algo={"critic": "none", "normalize_advantage": False}, env={"user": "fresh"})
    assert_caught(config, "rows actor", seen=ROUND + 1)


def test_advantages_normalised_over_all_users_of_the_round(monkeypatch):
    """Nothing is remembered, but one user moves the others' rows: the clip bounds nothing."""
    real = Dppg.user_update

    def user_update(self, state, users, streams):
        usable = users.mask & users.valid[..., None]
        mean = users.rewards[usable].mean()
        return real(self, state, replace(users, rewards=users.rewards - 2.0 * mean), streams)

    monkeypatch.setattr(Dppg, "user_update", user_update)
    assert_caught(formal(), "same round's rows actor")


def test_optimiser_moments_from_rows_without_noise(monkeypatch):
    patch_user_update(monkeypatch, keep_mean_row)
    real = Dppg.server

    def server(self, state, released):
        after = real(self, state, released)
        return State(after.round, {**after.tensors, "last_actor": self.mean_row})

    monkeypatch.setattr(Dppg, "server", server)
    config = changed(algo={"critic": "none", "user_adam": "seeded"}, env={"user": "fresh"})
    assert_caught(config, "state last_actor")


@pytest.mark.slow
def test_an_average_of_rows_without_noise_that_is_saved(monkeypatch):
    patch_user_update(monkeypatch, keep_mean_row)
    real = Dppg.server

    def server(self, state, released):
        after = real(self, state, released)
        return State(
            after.round, {**after.tensors, "average": after.tensors["average"] + self.mean_row}
        )

    monkeypatch.setattr(Dppg, "server", server)
    config = changed(algo={"critic": "none", "averaging": 4.0}, env={"user": "fresh"})
    assert_caught(config, "state average")


def test_gradients_scaled_by_the_norms_of_the_cohort(monkeypatch):
    def scaled(self, tensors, gradients):
        return {"actor": gradients * (self._clip / gradients.norm(dim=-1).mean())}

    monkeypatch.setattr(Scaled, "rows", scaled)
    config = changed(algo={"critic": "none", "user_update": "gradient"}, env={"user": "fresh"})
    assert_caught(config, "same round's rows actor")


def test_a_metric_at_the_states_of_users(monkeypatch):
    def at_their_states(self, state, users, contribution):
        self._geometry._metric._states = users.obs.flatten(0, 2)[:50].clone()
        return contribution

    patch_user_update(monkeypatch, at_their_states)
    monkeypatch.setattr(FisherMetric, "divergences", lambda self, actors, steps: torch.ones(2))
    algo = {"critic": "none", "user_update": "gradient", "metric": "fisher"}
    assert_caught(changed(algo=algo, env={"user": "fresh"}), "state metric")


def test_a_replay_buffer(monkeypatch):
    def remember(self, state, users, contribution):
        self.replay = users.obs[:, :, :4].flatten(1, 2).clone()
        return contribution

    patch_user_update(monkeypatch, remember)
    real = Dppg.server

    def server(self, state, released):
        after = real(self, state, released)
        return State(after.round, {**after.tensors, "buffer": self.replay})

    monkeypatch.setattr(Dppg, "server", server)
    assert_caught(formal(), "state buffer")


# --- counts and lengths


def test_a_learning_rate_that_counts_episodes(monkeypatch):
    def count(self, state, users, contribution):
        self.episodes = getattr(self, "episodes", 0) + int(users.done[users.valid].sum())
        return contribution

    patch_user_update(monkeypatch, count)
    real = Dppg.learning_rate

    def learning_rate(self, index):
        return real(self, index) / (1.0 + 0.01 * getattr(self, "episodes", 0))

    monkeypatch.setattr(Dppg, "learning_rate", learning_rate)
    assert_caught(formal(), "schedule learning rate", "rows actor", "metrics.jsonl lr", "W&B lr")


def test_a_number_of_rounds_that_counts_steps(monkeypatch):
    real = Gate.release

    def release(self, index):
        self.rounds = 500 + int(self._sum.valid.sum())  # a null user is not counted
        return real(self, index)

    monkeypatch.setattr(Gate, "release", release)
    assert_caught(formal(), "schedule rounds")


def test_environment_seeds_that_count_episodes(monkeypatch):
    """A slot's next user gets other simulators if the previous one had more episodes."""
    real = SimulatedCollector._reset

    def reset(self, where, index, t):
        if not hasattr(self, "total"):
            self.total = 0
        self.total += int(where.sum())
        for r, u in zip(*where.nonzero(), strict=True):
            self._episode[r, u] += self.total
        real(self, where, index, t)

    monkeypatch.setattr(SimulatedCollector, "_reset", reset)
    report = find_leaks(formal(), ROUND, late=False)
    assert not report.ok
    assert "users obs" in report.undeclared
    # Slots share the counter here, so that even users of the same round, or of the other run, feel each other.
    assert {"same round's users obs", "another replica's users obs"} & set(report.undeclared)


def test_a_cohort_that_depends_on_the_round_before(monkeypatch):
    real = Gate.release

    def release(self, index):
        self.fewer = int((self._sum.valid < self._sum.users).any())
        return real(self, index)

    monkeypatch.setattr(Gate, "release", release)
    monkeypatch.setattr(
        Gate,
        "draw",
        lambda self, *_: Cohort(
            [self.config.users_per_round - getattr(self, "fewer", 0)] * len(self.configs)
        ),
    )
    report = find_leaks(formal(), ROUND, late=False)
    assert "cohort users" in report.undeclared
    assert report.found["cohort users"].substitute == "null"


def test_later_users_cut_at_the_number_of_episodes_so_far(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, actor, index, cohort):
        users = real(self, actor, index, cohort)
        most = getattr(self, "most", 0)
        users.mask[:, :, most + 8 :] = False
        self.most = max(most, int(users.done.sum(-1).max()))
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    assert_caught(formal(), "users mask", seen=ROUND + 1)


def test_lengths_of_whole_episodes_decide_how_long_later_users_act(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, actor, index, cohort):
        users = real(self, actor, index, cohort)
        average = getattr(self, "average", users.mask.shape[-1])
        users.mask[:, :, int(average) :] = False
        self.average = max(2.0, float(users.mask.sum(-1).float().mean()))
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    assert_caught(formal("episode"), "users mask", seen=ROUND + 1)


# --- the gate


def test_a_clip_that_follows_the_norms(monkeypatch):
    """Adaptive clipping without noise; the gate's own values show it, though rows are the same."""
    real = Gate.add

    def add(self, contribution):
        rows, valid, bypass = contribution.take()
        bound = getattr(self, "bound", 1.0)
        self.bound = 0.5 * float(rows["actor"].norm(dim=-1).mean())
        norms = {name: x.norm(dim=-1, keepdim=True) for name, x in rows.items()}
        rows = {name: x * (bound / norms[name]).clamp(max=1.0) for name, x in rows.items()}
        real(self, Contribution(rows, valid, bypass))

    monkeypatch.setattr(Gate, "add", add)
    config = changed(algo={"critic": "none"}, env={"user": "fresh"}, privacy={"z": 0.01})
    assert_caught(config, "release actor", seen=ROUND + 1)


# --- devices


def assert_user_update_caught(name, *words):
    report = find_leaks(base("privacy=local", *words), ROUND, late=False)
    assert not report.ok
    assert report.undeclared
    assert any(found.startswith(name) for found in report.undeclared), report.lines()


def test_a_batch_with_the_raw_observation(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, actor, index, cohort):
        users = real(self, actor, index, cohort)
        users.next_obs[:, :, -1] = torch.from_numpy(self._raw).float()
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    assert_user_update_caught("users next_obs")
    assert_user_update_caught("users next_obs", "algo=ppo", "env.user=segment")


def test_noise_that_depends_on_the_observation(monkeypatch):
    """Not the slot's own value, which the test replaces, but that of the next slot."""
    real = DeviceNoise.after_step

    def after_step(self, raw, t):
        shown = real(self, raw, t)
        shown[:, 1:] *= 1.0 + 0.01 * np.abs(np.nan_to_num(raw[:, :1])).sum(-1, keepdims=True)
        return shown

    monkeypatch.setattr(DeviceNoise, "after_step", after_step)
    assert_user_update_caught("users obs")


def test_a_user_left_out_because_their_observation_is_no_number(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, actor, index, cohort):
        users = real(self, actor, index, cohort)
        users.valid &= torch.from_numpy(np.isfinite(self._raw).all(-1))
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    assert_user_update_caught("users valid")


# --- the test itself


def test_a_person_who_changes_nothing_has_no_power(monkeypatch):
    class Same(SubstituteUser):
        def step(self, indices, actions):
            return self._slots.step(indices, actions)

        def _seen(self, obs):
            return obs

    monkeypatch.setattr(live, "SubstituteUser", Same)
    report = find_leaks(formal(), ROUND, late=False)
    assert not report.found
    assert report.no_test_power == ("the crafted user's row is the same as the one it replaces",)
    assert not report.ok
    assert report.verdict().startswith("no test power: the crafted user's row is the same")


def test_the_crafted_row_differs_from_the_one_it_replaces():
    """What every other test relies on, seen directly."""
    config = formal()
    place = Visit(ROUND, 1, ROUND, ROUND + 3)
    model = CounterfactualRun(config, place)
    crafted = CounterfactualRun(config, place, CRAFTED, model)
    for _ in range(ROUND + 1):
        model.step()
        crafted.step()
    here, there = model.own_rows[0]["actor"], crafted.own_rows[0]["actor"]
    assert model.own_valid
    assert crafted.own_valid
    assert float((here - there).norm()) > 0.1 * float(here.norm())
    assert torch.isfinite(there).all()
    assert not crafted.stages.differences
