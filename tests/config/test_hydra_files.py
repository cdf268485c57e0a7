"""YAML files are read when a run is composed."""

from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import compose


def test_a_config_does_not_change_the_next_one():
    first = config.compose_raw(["algo.hidden=[5]"])
    first.algo.hidden.append(6)
    first.env.id = "other"
    second = config.compose_raw(["algo.hidden=[5]"])
    assert second.algo.hidden == [5]
    assert second.env.id != "other"


def test_files_of_users_are_read_each_time(tmp_path):
    (tmp_path / "privacy").mkdir()
    file = tmp_path / "privacy" / "mine.yaml"
    for delta in (1e-6, 1e-7):
        file.write_text(f"defaults: [fixed]\ndelta: {delta:.7f}\n")
        assert compose(["privacy=mine"], str(tmp_path)).privacy.delta == delta
