"""The kinds of users: which of them a run has, and those of plugins."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from privrl_bench import users
from privrl_bench.composition.compose import compose
from privrl_bench.composition.plugins import Plugin, additions, restore
from privrl_bench.config.traits import Data
from privrl_bench.errors import ConfigError
from privrl_bench.training.plan import make_plan
from privrl_bench.users import kind_of, kinds
from privrl_bench.users.simulated import SimulatedUsers

WARDS = """
from dataclasses import replace

from privrl_bench.privacy.guarantee import Unit
from privrl_bench.users.simulated import SimulatedUsers


class Wards(SimulatedUsers):
    name = "{name}"

    @classmethod
    def claims(cls, run, spec=None):
        return run.env.name == "cartpole"

    def terms(self):
        return replace(super().terms(), unit=Unit("one ward", 1))


USERS = Wards
"""


@pytest.fixture
def wards(tmp_path, monkeypatch):
    (tmp_path / "wards_pkg.py").write_text(WARDS.format(name="wards"))
    (tmp_path / "odd_wards.py").write_text(WARDS.format(name="others"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(users.REGISTRY, "outside", {})
    yield
    for name in ("wards_pkg", "odd_wards"):
        sys.modules.pop(name, None)


def test_every_kind_of_data_is_given_and_names_differ():
    assert {kind.gives for kind in kinds()} == set(Data)
    assert len({kind.name for kind in kinds()}) == len(kinds())


def test_a_configuration_has_one_kind_of_users_and_its_environment_may_declare_them():
    @dataclass
    class Spec:
        users: int | None

    run = compose(["algo=dppg"])
    for spec in (None, Spec(None), Spec(3)):
        (kind,) = [kind for kind in kinds() if kind.claims(run, spec)]
        assert (kind is SimulatedUsers) == (spec is None or spec.users is None)


def test_users_of_a_plugin_are_asked_first_and_stay_unreviewed(wards):
    users.REGISTRY.outside["wards"] = "wards_pkg"
    config = compose(["algo=dppg", "env=cartpole", "total_steps=10_000", "privacy.z=1"])
    assert kind_of(config).name == "wards"
    assert kind_of(compose(["algo=dppg", "env=pendulum"])) is SimulatedUsers
    guarantee = make_plan([config]).gate.guarantee(0)
    assert guarantee.unit == "one ward"
    assert guarantee.status == "unreviewed"
    found = additions()
    users.REGISTRY.outside.clear()
    restore(found)
    assert users.REGISTRY.outside == {"wards": "wards_pkg"}


def test_users_of_a_plugin_are_known_before_the_environment_is_made(wards, tmp_path):
    """Otherwise the run would count as one of shipped users, and not be unreviewed."""
    text = WARDS.format(name="wards")
    (tmp_path / "wards_pkg.py").write_text(
        text.replace('"cartpole"', '"cartpole" and spec is not None')
    )
    users.REGISTRY.outside["wards"] = "wards_pkg"
    config = compose(["algo=dppg", "env=cartpole", "total_steps=10_000", "privacy.z=1"])
    with pytest.raises(ConfigError, match="users: wards claims a run by its environment"):
        make_plan([config])


@pytest.mark.parametrize(
    ("name", "module", "problem"),
    [
        ("simulated", "wards_pkg", "the name simulated is taken"),
        ("wards", "odd_wards", "`name` must be 'wards', got 'others'"),
        ("wards", "json", "json has no USERS"),
    ],
)
def test_users_that_are_refused(wards, name, module, problem):
    with pytest.raises(ConfigError, match=problem):
        users.REGISTRY.refuse(name, module)


def test_a_plugin_names_users():
    assert Plugin(users={"wards": "wards_pkg"}).users == {"wards": "wards_pkg"}
