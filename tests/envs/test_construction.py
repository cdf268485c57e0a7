"""Errors of environments that cannot be made: packages that are not installed."""

from __future__ import annotations

import importlib

import gymnasium as gym
import pytest

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs import construction
from privrl_bench.errors import ConfigError

IDS = {
    "ALE/Pong-v5": ("ale_py", "ale-py"),
    "PongNoFrameskip-v4": ("ale_py", "ale-py"),
    "Pong-ram-v4": ("ale_py", "ale-py"),
    "MiniGrid-Empty-5x5-v0": ("minigrid", "minigrid"),
    "BabyAI-GoToObj-v0": ("minigrid", "minigrid"),
    "FetchReach-v4": ("gymnasium_robotics", "gymnasium-robotics"),
    "highway-fast-v0": ("highway_env", "highway-env"),
    "mo-hopper-v5": ("mo_gymnasium", "mo-gymnasium"),
}


def problem(env_id: str) -> str:
    with pytest.raises(ConfigError) as caught:
        construction.make_unchecked(EnvConfig(id=env_id))
    return str(caught.value)


@pytest.mark.parametrize("env_id", IDS)
def test_an_id_of_a_known_package_names_the_package(env_id: str, monkeypatch) -> None:
    """Also where the package is installed: its ids are registered when it is imported."""
    known = {name: spec for name, spec in gym.registry.items() if name != env_id}
    kept = {name: spec for name, spec in known.items() if spec.namespace is None}
    monkeypatch.setattr("gymnasium.envs.registration.registry", kept)
    module, package = IDS[env_id]
    expected = f"pip install {package}, then env.id={module}:{env_id}"
    said = f"env.id: {env_id!r} is an environment of the package {package}: {expected}"
    assert problem(env_id) == said


@pytest.mark.parametrize("module", sorted({module for module, _ in IDS.values()}))
def test_a_known_package_that_is_not_installed(module: str, monkeypatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    package = dict(IDS.values())[module]
    expected = f"env.id: cannot import {module!r}: the package was not found; pip install {package}"
    assert problem(f"{module}:Any-v0") == expected
    assert problem("own_pkg:Any-v0").endswith("install it, or run in its parent folder")
