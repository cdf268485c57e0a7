"""A mechanism or sampling cannot be added without a YAML, a known epsilon, a sensitivity test, a leak test and
an audit.

Each name has a file tests/privacy/test_<name>.py, whose constants name the tests by file and function:
KNOWN_EPSILON, SENSITIVITY (of samplings: who is in a cohort), LEAKS and AUDIT. AUDIT is a reason in words where
the mechanism itself says that canaries do not apply. The tests below audit every mechanism that privatises
clipped rows at the gate.
"""

import ast
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from test_gate import make_account, send

from privrl_bench.audit import bounds
from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.mechanisms import mechanism_class

TESTS = Path(__file__).parent.parent
CONF = TESTS.parent / "conf" / "privacy"
NAMES = [*mechanisms.names(), *sampling.names()]
AT_THE_GATE = [name for name in mechanisms.names() if mechanism_class(name).norm is not None]


def functions(path):
    return {
        one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["KNOWN_EPSILON", "SENSITIVITY", "LEAKS", "AUDIT"])
def test_every_mechanism_and_sampling_names_its_tests(name, what):
    places = (TESTS / "privacy", TESTS / "packs/imitations")
    files = [place / f"test_{name}.py" for place in places]
    file = next((one for one in files if one.exists()), None)
    assert file, f"test_{name}.py is missing: known epsilon, sensitivity, leak test, audit"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    node = getattr(module, what)
    if what == "AUDIT" and name in mechanisms.names() and mechanism_class(name).not_auditable:
        assert node == mechanism_class(name).not_auditable
        return
    path, _, function = node.partition("::")
    assert function in functions(TESTS / path), f"{name}: {what} names no test"


def test_every_name_has_a_yaml():
    packs = Path(mechanisms.__file__).parents[2] / "packs"
    files = [*CONF.glob("*.yaml"), *packs.glob("*/conf/privacy/*.yaml")]
    settings = [yaml.safe_load(path.read_text()) for path in files]
    settings = [one.get("privacy", one) for one in settings]
    assert set(mechanisms.names()) <= {one["mechanism"] for one in settings}
    assert set(sampling.names()) <= {one.get("sampling") for one in settings}


def test_the_rules_are_read_without_torch():
    heavy = "torch", "dp_accounting", "scipy", "gymnasium", "hydra"
    code = (
        "import sys\nfrom privrl_bench.config.schema import PrivacyConfig\n"
        "from privrl_bench.privacy.rules import rules\n"
        f"rules(PrivacyConfig())\nprint([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_ledger_record_has_one_mechanism():
    records = [record for name in mechanisms.names() for record in mechanism_class(name).records]
    assert len(records) == len(set(records))
    for name in AT_THE_GATE:
        kind = make_account(mechanism=name, z=1.0).event(0).mechanism
        assert mechanisms.ledger_class(kind).name in mechanisms.names()


@pytest.mark.parametrize("name", AT_THE_GATE)
def test_one_user_moves_a_release_by_at_most_one_clip(name):
    """Whatever the row holds; the same noise with and without the user."""
    for scale in (0.0, 1e-3, 1.0, 1e6, math.inf, math.nan):
        rows = torch.full((1, 4, 6), 0.1)
        rows[0, 2] *= scale
        without = rows.clone()
        without[0, 2] = 0.0
        released = [
            4 * send(make_account(mechanism=name, z=0.7), {"actor": x}).values["actor"].double()
            for x in (rows, without)
        ]
        assert float((released[0] - released[1]).norm()) <= 0.5 * 1.001


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("name", AT_THE_GATE)
def test_an_audit_of_one_release_does_not_contradict_epsilon(name):
    """The user's row is known, all others are zero: the score is the projection on it."""
    blocks, scores = (Block("actor", 4, 0.5),), {}
    for there in (True, False):
        rows = torch.zeros(600, 4, 4)
        rows[:, 0, 0] = 10.0 * there
        seeds = range(600 * there, 600 * there + 600)
        plan = make_account(blocks, z=1.0, rounds=1, seeds=seeds, mechanism=name)
        scores[there] = 4 * send(plan, {"actor": rows}).values["actor"][:, 0].numpy()
    claim = make_account(blocks, z=1.0, rounds=1, mechanism=name).planned_epsilon(0)
    found = bounds.direct_bound(scores[True], scores[False], 0.5, 1e-5, 0.999)
    assert found.epsilon <= claim
