"""Defects planted in the algorithms for recorded users: the leak test names each."""

from dataclasses import replace

import pytest
from test_planted_paths import assert_caught, mean_reward, remembering, serving
from walk_logs import config_of, walk_logs

from privrl_bench.composition.compose import compose
from privrl_bench.packs.offline.learning.dp_bc import DpBc
from privrl_bench.packs.offline.learning.dp_lspi import DpLspi
from privrl_bench.packs.offline.ope.importance_sampling import DpIs


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def config(kind):
    if kind is DpIs:
        users = ("data.policy=uniform", "privacy.population=20", "rounds=1")
        return compose(
            ["algo=dp_is", "env=riverswim", *users, "algo.center=0.5", "privacy.clip=0.5"]
        )
    words = ("rounds=4", "privacy.users_per_round=20", "algo.hidden=[4]") if kind is DpBc else ()
    name = {DpBc: "dp_bc", DpLspi: "dp_lspi"}[kind]
    return config_of(name, walk_logs("walks/b-v0", users=60), *words)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize(("kind", "name"), [(DpBc, "actor"), (DpLspi, "actor"), (DpIs, "released")])
def test_a_result_with_a_little_of_the_sum_before_noise(monkeypatch, kind, name):
    remembering(monkeypatch, kind, mean_reward)
    serving(monkeypatch, kind, lambda self, _, after: {name: after[name] + self.left[:, None]})
    assert_caught(config(kind), f"state {name}")


@pytest.mark.fast_every(2)
@pytest.mark.parametrize(
    ("kind", "name"), [(DpBc, "gradient"), (DpLspi, "sums"), (DpIs, "estimates")]
)
def test_rewards_and_observations_that_are_centred_over_all_users(monkeypatch, kind, name):
    """As who scales by the users of the round, and not by the public ones."""
    real = kind.user_update

    def user_update(self, state, users, streams):
        centred = {
            name: getattr(users, name) - getattr(users, name).mean((1, 2), keepdim=True)
            for name in ("rewards", "obs")
        }
        return real(self, state, replace(users, **centred), streams)

    monkeypatch.setattr(kind, "user_update", user_update)
    assert_caught(config(kind), f"same round's rows {name}")
