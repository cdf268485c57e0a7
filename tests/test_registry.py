"""One name in four places: registry, module, YAML, test."""

import importlib
from pathlib import Path

from privrl_bench.algorithms import algorithm
from privrl_bench.config.compose import algo_schema
from privrl_bench.config.schema import ALGO_CONFIGS, algo_module

ROOT = Path(__file__).parent.parent


def stems(folder, pattern="*.yaml"):
    return {path.stem for path in (ROOT / folder).glob(pattern)}


def test_algorithms_have_a_module_a_schema_a_yaml_and_a_test():
    names = stems("conf/algo")
    assert set(ALGO_CONFIGS) <= names
    tests = stems("tests/algorithms", "test_*.py")
    for name in names:
        module = importlib.import_module(algo_module(name))
        assert f"test_{name}" in tests
        assert module.CONFIG is algo_schema(name)
        assert module.CONFIG.__dataclass_fields__["name"].default == name


def test_every_algorithm_declares_what_it_is():
    for name in stems("conf/algo"):
        assert isinstance(algorithm(name).replicas, bool), name
        schema = algo_schema(name)
        assert isinstance(schema.private, bool), name
        assert isinstance(schema.learns_scaling, bool), name


def test_tuned_files_name_an_algorithm_and_an_environment():
    envs, names = stems("conf/env"), stems("conf/algo")
    families = {"mujoco", "control", "continuous", "discrete"}
    for stem in stems("conf/tuned"):
        algo, _, env = stem.partition("_")
        assert algo in names, stem
        assert env in envs | families, stem
