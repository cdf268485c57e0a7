"""One name in four places: registry, module, YAML, test."""

from pathlib import Path

import privrl_bench.algos as algos
from privrl_bench.schema import ALGO_CONFIGS

ROOT = Path(__file__).parent.parent


def stems(folder, pattern="*.yaml"):
    return {path.stem for path in (ROOT / folder).glob(pattern)}


def test_algorithms_have_a_registry_entry_a_schema_a_module_a_yaml_and_a_test():
    names = set(algos.ALGORITHMS)
    assert names == set(ALGO_CONFIGS) == stems("conf/algo")
    modules = stems("privrl_bench/algos", "*.py")
    tests = stems("tests/algos", "test_*.py")
    for name in names:
        assert name in modules
        assert f"test_{name}" in tests
        assert ALGO_CONFIGS[name].__dataclass_fields__["name"].default == name


def test_every_algorithm_declares_what_it_supports():
    for name, build in algos.ALGORITHMS.items():
        support = build.support
        assert isinstance(support.private, bool), name
        assert isinstance(support.replicas, bool), name


def test_tuned_files_name_an_algorithm_and_an_environment():
    envs, names = stems("conf/env"), set(algos.ALGORITHMS)
    families = {"mujoco", "control", "continuous", "discrete"}
    for stem in stems("conf/tuned"):
        algo, _, env = stem.partition("_")
        assert algo in names, stem
        assert env in envs | families, stem
