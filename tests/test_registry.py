"""One name in four places: registry, module, YAML, test."""

import importlib
from pathlib import Path

from privrl_bench.algos import algorithm
from privrl_bench.config import algo_schemas

ROOT = Path(__file__).parent.parent


def stems(folder, pattern="*.yaml"):
    return {path.stem for path in (ROOT / folder).glob(pattern)}


def test_algorithms_have_a_module_a_schema_a_yaml_and_a_test():
    names, schemas = stems("conf/algo"), algo_schemas()
    assert set(schemas) == names
    tests = stems("tests/algos", "test_*.py")
    for name in names:
        module = importlib.import_module(f"privrl_bench.algos.{name}")
        assert f"test_{name}" in tests
        assert module.CONFIG is schemas[name]
        assert module.CONFIG.__dataclass_fields__["name"].default == name


def test_every_algorithm_declares_what_it_supports():
    for name in stems("conf/algo"):
        support = algorithm(name).support
        assert isinstance(support.private, bool), name
        assert isinstance(support.replicas, bool), name


def test_tuned_files_name_an_algorithm_and_an_environment():
    envs, names = stems("conf/env"), stems("conf/algo")
    families = {"mujoco", "control", "continuous", "discrete"}
    for stem in stems("conf/tuned"):
        algo, _, env = stem.partition("_")
        assert algo in names, stem
        assert env in envs | families, stem
