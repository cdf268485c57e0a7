"""All people in one release: members, and what goes with it."""

import pytest
from test_smooth import smooth_plan

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.rules import check

KNOWN_EPSILON = "privacy/test_smooth.py::test_the_gate_draws_the_noise_of_a_smooth_bound"
SENSITIVITY = "privacy/test_full_batch.py::test_all_people_are_in_it"
LEAKS = "audit/test_leaks.py::test_evaluating_a_policy_opens_no_path"
AUDIT = "privacy/test_smooth.py::test_smooth_noise_spends_no_more_than_delta"


def test_all_people_are_in_it():
    assert smooth_plan().draw(0, 40, False).numbers()[0].tolist() == list(range(40))
    with pytest.raises(PrivacyError, match="is public"):
        smooth_plan().draw(0, 39, False)


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "per_transition"])
def test_it_is_for_one_release(mechanism):
    with pytest.raises(ConfigError, match=r"privacy\.mechanism: privacy\.sampling=full_batch"):
        check(PrivacyConfig(mechanism=mechanism, sampling="full_batch", adjacency="replace_one"))
