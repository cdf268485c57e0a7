"""What the command line gives wins over YAML, or is refused; never ignored. Refusals: test_bad_commands.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from privrl_bench.api import launch
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline import collect


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("line", "rounds", "total_steps"),
    [
        ("algo=dqn env=riverswim", 1000, 1_000_000),
        ("algo=dqn env=riverswim total_steps=60000", None, 60_000),
        ("algo=dqn env=riverswim ++total_steps=60000", None, 60_000),
        ("algo=dqn env=riverswim rounds=7", 7, 1_000_000),
        ("algo=dqn_replay +paper=dqn total_steps=60000", None, 60_000),
        ("algo=dppg env=hopper rounds=7", 7, 8_000_000),
        ("algo=dppg rounds=5 total_steps=20480", 5, 20_480),
        ("algo=dppg rounds=5 total_steps=20481", 5, 20_481),  # 5 whole rounds fit
        ("algo=dqn env=riverswim rounds=null total_steps=9000", None, 9000),
        ("algo=dppg algo=dppg privacy.z=1 privacy.z=1.0", None, 600_000),
    ],
)
def test_the_length_that_is_given_wins(line: str, rounds: int | None, total_steps: int) -> None:
    run = compose(line.split())
    assert (run.rounds, run.total_steps) == (rounds, total_steps)


def test_tuned_values_are_less_explicit_than_the_command_line() -> None:
    offline = ["algo=mopo", "env=cartpole_balance", "data.id=own/x-v0"]
    assert compose(offline).rounds == 150
    assert compose([*offline, "total_steps=4000"]).rounds is None


def test_a_column_with_steps_belongs_to_an_algorithm_without_rounds() -> None:
    """`rounds` wins over `total_steps` between YAML files, too; an algorithm must not hide a column's."""
    keys = {
        path: {line.partition(":")[0] for line in path.read_text().splitlines()}
        for path in config.conf_dir().glob("*/**/*.yaml")
    }
    algos = {path.stem: found for path, found in keys.items() if path.parent.name == "algo"}
    columns = [p for p in keys if {"tuned", "paper"} & set(p.parts) and "total_steps" in keys[p]]
    assert columns
    for path in columns:
        owner = max((a for a in algos if f"{path.stem}_".startswith(f"{a}_")), key=len)
        assert "rounds" not in algos[owner] | keys[path], path


def test_a_pair_without_a_tuned_file_has_none() -> None:
    assert "ppo_riverswim" not in config.choices("tuned")
    assert compose(["algo=ppo", "env=riverswim"]).hyperparameter_source.startswith("algo/ppo,")
    assert "dppg_hopper" in compose(["env=hopper"]).hyperparameter_source
    for off in ("~tuned", "tuned=null"):
        assert "dppg_hopper" not in compose(["env=hopper", off]).hyperparameter_source
    other = compose(["env=gym", "env.id=Humanoid-v5", "tuned=dppg_mujoco"])
    assert other.hyperparameter_source == "tuned/dppg_mujoco"


def test_a_switch_may_be_off_where_only_a_file_has_the_setting_that_needs_it() -> None:
    off = ["algo=dppg", "env=hopper", "algo.metric=euclidean"]
    assert compose(off).algo.step_kl == 0.02  # of the tuned file: without effect  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"algo\.step_kl: has no effect"):
        compose([*off, "algo.step_kl=0.1"])


def test_a_sweep_over_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["algo=dqn", "env=riverswim", "total_steps=6000,9000"]
    launch.check_sweep(config.hydra_overrides(given))
    assert config.hydra_overrides(given)[-1] == "rounds=null"
    with pytest.raises(ConfigError, match="total_steps: contradicts rounds"):
        launch.check_sweep(["algo=dppg", "rounds=5", "total_steps=60000,70000"])


def test_the_folder_has_the_words_that_were_given() -> None:
    given = ["algo=dqn", "total_steps=60000"]
    chosen = {"algo": "dqn", "env": "cartpole"}
    folder = config.run_folder(chosen, config.hydra_overrides(given), 0)
    assert folder == "dqn/cartpole/total_steps=60000,seed=0"
    assert config.run_folder(chosen, ["rounds=null"], 0) == "dqn/cartpole/rounds=null,seed=0"


def test_collect_words_win_over_a_preset() -> None:
    order = collect.parse(["+collect=primorl", "env=pendulum", "steps=4_000", "seed=3"])
    assert (order.runs, order.steps) == (60, 4000)
    assert [run.seed for run in collect.configs_of(order._replace(runs=2))] == [3, 4]
    assert collect.configs_of(order._replace(runs=1))[0].total_steps == 4000
