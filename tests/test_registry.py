"""One name in four places: registry, module, YAML, test."""

import importlib
from pathlib import Path

from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema, algorithm
from privrl_bench.composition import plugins
from privrl_bench.config.traits import USERS, Data
from privrl_bench.privacy import rules
from privrl_bench.users import kinds

ROOT = Path(__file__).parent.parent
CONF = (ROOT / "conf", *(ROOT / "privrl_bench" / "packs").glob("*/conf"))
OURS = {name for name, where in ALGORITHMS.items() if where.module.startswith("privrl_bench.")}


def stems(group):
    return {path.stem for folder in CONF for path in (folder / group).glob("*.yaml")}


def test_algorithms_have_a_module_settings_a_yaml_and_a_test():
    assert stems("algo") == OURS
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for name in OURS:
        assert algorithm(name).__name__.lower() == name.replace("_", "")
        assert f"test_{name}" in tests
        assert algo_schema(name).__dataclass_fields__["name"].default == name


def test_every_algorithm_declares_what_it_is():
    products = {key: {"policy"} for key in (Data.LIVE, Data.KEPT)} | {Data.TEXTS: {"text_policy"}}
    products |= {Data.RECORDED: {"policy", "estimate"}, Data.ACTED: {"values", "estimate"}}
    for name in OURS:
        traits = algo_schema(name).traits
        assert isinstance(traits.replicas, bool), name
        assert any(rules.taking(traits.sends)), name
        users = next(kind for kind in kinds() if kind.gives is traits.data[0])
        assert {*traits.draws} & {*users.draws}, name
        assert set(traits.units) <= {*USERS}, name
        assert traits.releases in products[traits.data[0]], name


def test_choices_that_models_implement():
    plugins.load_installed()
    rollouts = importlib.import_module("privrl_bench.packs.offline.model_based.ensemble")
    field = algo_schema("primorl").__dataclass_fields__["uncertainty"]
    assert set(field.metadata["range"].options) == set(rollouts.UNCERTAINTY)


def test_tuned_files_name_an_algorithm_and_an_environment():
    envs, names = stems("env"), stems("algo")
    families = {"mujoco", "dosing", "control", "continuous", "discrete"}
    families |= {f"{a}_{n}" for a in ("continuous", "discrete") for n in ("short", "long")}
    for stem in stems("tuned"):
        algo, _, env = stem.partition("_")
        assert algo in names, stem
        former = env.removesuffix("_adam").removesuffix("_many_rounds")  # of committed results
        assert former in envs | families, stem
