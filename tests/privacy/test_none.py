"""No mechanism: nothing is bounded, and the guarantee says so."""

import math

import torch
from helpers import release
from test_gate import make_account

from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.contribution import Contribution
from privrl_bench.privacy.mechanisms import mechanism_class

KNOWN_EPSILON = "privacy/test_none.py::test_epsilon_is_infinite"
SENSITIVITY = "privacy/test_none.py::test_a_row_passes_as_it_is"
LEAKS = "audit/test_leaks.py::test_pooled_training_is_outside_the_gate"
AUDIT = mechanism_class("none").not_auditable


def test_epsilon_is_infinite():
    assert (
        ledger_epsilon([ReleaseEvent("none", 0.0, "zero_out", sampling="fixed")], 1e-5) == math.inf
    )
    plan = make_account(mechanism="none", z=0.0)
    assert plan.guarantee(0).status == "none"
    assert plan.paper_epsilon(0) == math.inf


def test_a_row_passes_as_it_is():
    row = torch.full((1, 1, 6), 1e6)
    plan = make_account(mechanism="none", z=0.0)
    sent = Contribution({"actor": row}, torch.ones(1, 1, dtype=torch.bool))
    assert torch.equal(release(plan, sent, 0).values["actor"], row[:, 0])
