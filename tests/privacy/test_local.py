"""Local noise as a mechanism; the devices' tests are in test_device_noise.py."""

from privrl_bench.privacy.mechanisms import mechanism_class

KNOWN_EPSILON = "privacy/test_device_noise.py::test_known_answers_on_cartpole"
SENSITIVITY = "privacy/test_device_noise.py::test_numbers_are_clipped_and_then_noised"
LEAKS = "audit/test_leaks.py::test_what_devices_show_is_all_that_leaves_a_user"
AUDIT = mechanism_class("local").not_auditable


def test_it_leaves_rows_at_the_gate_alone():
    local = mechanism_class("local")
    assert local.on_devices
    assert local.norm is None
    assert not local.pooled
