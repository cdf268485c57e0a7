"""Defects planted in every family of algorithms, one at a time. The leak test names each, with exit code 1.

The first two passed the test before it saw metrics and late rounds.
"""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from test_leaks import OFFLINE, base, chained, formal_small, small, swim

from privrl_bench.algorithms.loglinear.dppg_l2 import DppgL2
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.reinforce import Reinforce
from privrl_bench.algorithms.value.dqn import Dqn
from privrl_bench.algorithms.value.ucbvi import UcbVi
from privrl_bench.audit.compare import OTHER_REPLICA
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.audit.visits import late_rounds, visits_after
from privrl_bench.cli.audit import leaks as main
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.packs.offline.model_based.primorl import Primorl
from privrl_bench.packs.offline.ope.linear_evaluation import Gpope
from privrl_bench.packs.text.dppg_text import DppgText
from privrl_bench.privacy.contribution import Contribution, check_private
from privrl_bench.training import results
from privrl_bench.types import State
from privrl_bench.users.collectors.live import SimulatedCollector


@cache
def formal():
    """DPPG without caveats."""
    return formal_small()


def assert_caught(config, *paths, late=False, round_index=1):
    """Each of the paths is found and not declared, and the test had power."""
    report = find_leaks(config, round_index, late=late)
    assert not report.no_test_power, report.no_test_power
    assert not report.ok
    assert set(paths) <= set(report.undeclared), report.lines()
    return report


def remembering(monkeypatch, kind, value):
    """`kind.user_update` leaves `value(users)` [R] behind in `self.left`."""
    real = kind.user_update

    def user_update(self, state, users, streams):
        self.left = value(users)
        return real(self, state, users, streams)

    monkeypatch.setattr(kind, "user_update", user_update)


def mean_reward(users):
    """[R] of all users."""
    return users.rewards.nan_to_num().mean((1, 2))


def serving(monkeypatch, kind, change):
    """`change(self, before, after)` of the state's tensors after the real `server`."""
    real = kind.server

    def server(self, state, released):
        after = real(self, state, released)
        return State(after.round, after.tensors | change(self, state, after.tensors))

    monkeypatch.setattr(kind, "server", server)


# --- the two that passed


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("period", [37, pytest.param(50, marks=SLOW), pytest.param(7, marks=SLOW)])
def test_a_step_that_follows_rewards_in_every_so_many_th_round(monkeypatch, period):
    def step(self, state, tensors):
        if state.round % period != period - 1:
            return {}
        before = state.tensors["actor"]
        return {"actor": before + (tensors["actor"] - before) / (1.0 + self.left[:, None])}

    remembering(monkeypatch, Dppg, mean_reward)
    serving(monkeypatch, Dppg, step)
    assert set(find_leaks(formal(), late=False).found) == {"memory left"}
    report = assert_caught(formal(), "policy parameters", "state actor", late=True)
    assert report.found["state actor"].round % period == period - 1


def test_users_rewards_under_the_name_of_a_released_metric(monkeypatch, capsys):
    real = Dppg.user_update

    def user_update(self, state, users, streams):
        found = real(self, state, users, streams)
        rows, valid, bypass = found.take()
        batch = [{"model/public_loss": float(x)} for x in mean_reward(users)]
        return Contribution(rows, valid, bypass, batch)

    monkeypatch.setattr(Dppg, "user_update", user_update)
    with pytest.raises(PrivacyError, match=r"'model/public_loss' is released"):
        find_leaks(formal(), late=False)
    assert main(["algo.hidden=[8]", "env.user_steps=16"]) == 1
    assert "verdict  the gate refused: diagnostics are computed" in capsys.readouterr().out


# --- policy gradient


@pytest.mark.slow
def test_features_that_are_centred_over_users(monkeypatch):
    real = DppgL2.user_update

    def user_update(self, state, users, streams):
        centred = users.rewards - users.rewards.mean((1, 2), keepdim=True)
        return real(self, state, replace(users, rewards=centred), streams)

    monkeypatch.setattr(DppgL2, "user_update", user_update)
    assert_caught(swim("algo=dppg_l2"), "same round's rows actor")


def test_the_best_policy_is_kept_by_private_returns(monkeypatch):
    def keep(self, state, tensors):
        best = getattr(self, "best", torch.full_like(self.left, -torch.inf))
        better = self.left > best
        self.best = torch.maximum(self.left, best)
        last = state.tensors.get("kept", state.tensors["actor"])
        return {"kept": torch.where(better[:, None], tensors["actor"], last)}

    remembering(monkeypatch, Reinforce, mean_reward)
    serving(monkeypatch, Reinforce, keep)
    config = base("algo=reinforce", "env=cartpole", "env.user=episode")
    assert_caught(config, "state kept")


def test_a_mean_that_outlives_the_run(monkeypatch):
    """Runs of a process share it, so that even equal ones differ: the test cannot go on, and says so."""
    seen = []

    def user_update(self, state, users, streams, real=UcbVi.user_update):
        seen.append(float(users.rewards.mean()))
        return real(self, state, replace(users, rewards=users.rewards + sum(seen)), streams)

    monkeypatch.setattr(UcbVi, "user_update", user_update)
    with pytest.raises(ConfigError, match="two equal runs differ in rows"):
        find_leaks(swim("algo=ucbvi"), late=False)


def test_users_of_one_collection_who_share_a_baseline(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, *args):
        users = real(self, *args)
        users.rewards -= users.mask.sum((1, 2)).float()[:, None, None] / users.mask[0].numel()
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    plain = ("env.obs_scaling=none", "env.reward_scaling=none", "env.user=episode")
    config = base("algo=reinforce", "env=cartpole", *plain)
    assert_caught(config, "same round's users rewards")


# --- values


@pytest.mark.slow
def test_a_step_size_from_private_errors(monkeypatch):
    def slower(self, state, tensors):
        size = 1.0 / (1.0 + self.left.abs()[:, None])
        return {
            "actor": state.tensors["actor"] + size * (tensors["actor"] - state.tensors["actor"])
        }

    remembering(monkeypatch, Dqn, mean_reward)
    serving(monkeypatch, Dqn, slower)
    words = small("algo=dqn", "algo.new_users=2", "privacy.users_per_round=9")
    config = shrink(compose(words), frozenset({"algo.new_users"}), rounds=6, users=9)[0]
    assert_caught(config, "policy parameters", round_index=0)


# --- evaluation


def test_a_replica_that_sees_the_others_users(monkeypatch):
    """Nothing of its own run shows it: the second seed learns from the first one's users."""
    real = Gpope.user_update

    def user_update(self, state, users, streams):
        found = real(self, state, users, streams)
        rows, valid, bypass = found.take()
        first = rows["gradient"][:1].clone()
        rows["gradient"][1:] += 0.01 * first
        return Contribution(rows, valid, bypass)

    monkeypatch.setattr(Gpope, "user_update", user_update)
    assert_caught(chained("algo=gpope"), f"{OTHER_REPLICA} rows gradient")


def test_a_baseline_that_is_carried_between_rounds(monkeypatch):
    real = Gpope.user_update

    def user_update(self, state, users, streams):
        last = getattr(self, "left", torch.zeros(len(users.rewards)))
        self.left = mean_reward(users)
        less = users.rewards - last[:, None, None]
        return real(self, state, replace(users, rewards=less), streams)

    monkeypatch.setattr(Gpope, "user_update", user_update)
    assert_caught(chained("algo=gpope"), "rows gradient")


# --- model-based


@pytest.mark.slow
def test_private_losses_that_end_training(monkeypatch, sets):
    """One user with too high a return ends it, in every 37th round only."""

    def stop(self, state, tensors):
        return {"stopped": self.left[:, None]} if state.round % 37 == 36 else {}

    above = lambda users: (users.rewards.mean(-1) > 0).any(1).float()  # noqa: E731
    remembering(monkeypatch, Primorl, above)
    serving(monkeypatch, Primorl, stop)
    config = base("algo=primorl", f"data.id={sets}", *OFFLINE)
    assert_caught(config, "state stopped", late=True)


@pytest.mark.slow
def test_a_released_metric_of_private_data(monkeypatch, sets):
    remembering(monkeypatch, Primorl, mean_reward)
    metrics = lambda self, state: [{"model/public_loss": float(x)} for x in self.left]  # noqa: E731
    monkeypatch.setattr(Primorl, "metrics", metrics)
    config = base("algo=primorl", f"data.id={sets}", *OFFLINE)
    assert_caught(config, "metrics.jsonl model/public_loss", "W&B model/public_loss")


# --- texts


@pytest.mark.slow
def test_scores_in_an_exported_file(monkeypatch, texts):
    real = DppgText.export
    remembering(monkeypatch, DppgText, lambda users: users.scores.nan_to_num().mean(1))

    def export(self, state, r, folder):
        made = real(self, state, r, folder)
        card = {"mean_score": float(self.left[r]) if hasattr(self, "left") else None}
        (folder / "card.json").write_text(json.dumps(card))
        return [*made, folder / "card.json"]

    monkeypatch.setattr(DppgText, "export", export)
    few = ("env.text.min_characters=0", "env.text.holdout=8", "env.text.new_tokens=6")
    few = (*few, "privacy.users_per_round=3", "eval.episodes=1", "env.text.prompt_tokens=[1,4]")
    words = ("algo=dppg_text", "env=sentiment_small", *texts, *few, "algo.baseline_prompts=3")
    report = assert_caught(shrink(compose(words))[0], "file card.json")
    assert {n for n in report.undeclared if "memory" not in n} == {"file card.json"}


# --- files and devices


def test_users_observations_in_the_policys_file(monkeypatch):
    real = results.policy_content

    def content(session, r):
        return real(session, r) | {
            "obs_center": torch.from_numpy(session.collector._raw[r].mean(0))
        }

    monkeypatch.setattr(results, "policy_content", content)
    report = assert_caught(formal(), "policy.pt obs_center")
    found = {name for name in report.undeclared if not name.startswith(OTHER_REPLICA)}
    assert found == {"policy.pt obs_center", "W&B when done artifact policy.pt"}


def test_rewards_that_devices_compute_from_what_they_hide(monkeypatch):
    real = SimulatedCollector.collect

    def collect(self, actor, index, cohort):
        users = real(self, actor, index, cohort)
        users.rewards[:, :, -1] += torch.from_numpy(self._raw[..., 0]).float().nan_to_num()
        return users

    monkeypatch.setattr(SimulatedCollector, "collect", collect)
    assert_caught(base("privacy=local", "algo.critic=none"), "users rewards")


# --- which rounds are compared


def test_late_rounds_cover_every_period():
    periods = [37, 1000, *range(2, 101)]
    numbers = late_rounds(periods, 2**51)
    assert all(any(n % p == 0 for n in numbers) for p in periods)
    assert max(numbers) <= 2**51
    assert len(numbers) <= 4


def test_configured_periods_have_windows_of_their_own():
    config = compose(["algo=primorl", "env=pendulum", "data.id=x", "algo.check_every=53"])
    windows = [v for v in visits_after(config, 0, 4) if v.moved]
    for period in (*range(2, 101), 53, 100):
        for phase in (period - 2, period - 1, 0, 1 % period):
            assert any(
                index % period == phase % period for v in windows for index in range(v.start, v.end)
            ), (period, phase)
    assert all(v.start <= v.first <= v.last < v.end for v in windows)


# --- what may leave


@pytest.mark.parametrize("name", ["model/public_loss", "lr", "mine/own"])
def test_the_gate_refuses_names_that_may_leave(name):
    with pytest.raises(PrivacyError, match=name):
        check_private([{"train/entropy": 1.0}, {name: 1.0}])
    check_private([{"train/entropy": 1.0}, {}])
