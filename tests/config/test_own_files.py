"""A file of `--config-dir` wins over the package's file of its name, in every group and every command."""

import re
from pathlib import Path

import pytest
from helpers import exit_code
from hydra import compose as hydra_compose
from omegaconf import OmegaConf

from privrl_bench.api.training import plan
from privrl_bench.cli import main as privrl
from privrl_bench.cli import train
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition import plugins
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_files import composing
from privrl_bench.config import overrides
from privrl_bench.errors import ConfigError
from privrl_bench.training import describe

# group -> its file, an edit, words that use the file, the key that the edit changes, its value
GROUPS = {
    "algo": ("dppg", "lr: 6e-3", "lr: 0.5", [], "algo.lr", 0.5),
    "env": (
        "hopper",
        "reward_scale: 0.01",
        "reward_scale: 7",
        ["env=hopper"],
        "env.reward_scale",
        7,
    ),
    "hardware": ("cpu", "max_replicas: 8", "max_replicas: 3", [], "hardware.max_replicas", 3),
    "log": ("none", "lines: 200", "lines: 9", ["log=none"], "log.lines", 9),
    "privacy": ("correlated", "delta: 1e-5", "delta: 1e-7", [], "privacy.delta", 1e-7),
    "tuned": ("dppg_mujoco", "obs_clip: 5.0", "obs_clip: 6.0", ["env=hopper"], "env.obs_clip", 6.0),
    "paper": ("dppg", "hidden: [64, 64]", "hidden: [9]", ["+paper=dppg"], "algo.hidden", [9]),
    "paper/column": (
        *("dppg_hopper", "z: 0.1", "z: 0.3", ["+paper=dppg", "env=hopper"]),
        *("privacy.z", 0.3),
    ),
    "hydra/help": ("privrl_bench", "Usage:", "Use:", [], "hydra.help.template", "Use:"),
    "hydra/sweeper": (
        *("grid", "hydra_plugins.replicas_launcher.GridSweeper", "mine.Sweeper", []),
        *("hydra.sweeper._target_", "mine.Sweeper"),
    ),
    "collect": ("primorl", "pendulum:", "riverswim:", [], "", None),
}


def copy(folder: Path, group: str, name: str, old: str, new: str) -> Path:
    """Write the package's file into `folder` with one edit."""
    file = overrides.file_of(group, name)
    assert file is not None
    text = file.read_text()
    assert old in text
    path = folder / group / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(old, new))
    return path


def test_every_group_has_a_case() -> None:
    plugins.load_installed()
    folders = (config.conf_dir(), *overrides.added_folders())
    paths = [(path, folder) for folder in folders for path in folder.glob("*/**/*.yaml")]
    assert {path.parent.relative_to(folder).as_posix() for path, folder in paths} == set(GROUPS)


@pytest.mark.fast_every(10)
@pytest.mark.parametrize("group", GROUPS)
def test_an_own_file_wins_over_the_packages(group: str, tmp_path: Path, capsys) -> None:
    name, old, new, words, key, value = GROUPS[group]
    usual = None if group == "collect" else composed(words, key)
    path = copy(tmp_path, group, name, old, new)
    if group == "collect":
        command = ["collect", "+collect=primorl", "env=pendulum", "--config-dir", str(tmp_path)]
        assert privrl.main(command) == 2
        assert "collect=primorl is for riverswim, " in capsys.readouterr().err
        return
    found = composed(words, key, str(tmp_path))
    assert value in found if group == "hydra/help" else found == value
    assert found != usual
    if not group.startswith("hydra/"):
        assert str(path) in compose(words, str(tmp_path)).hyperparameter_source
    assert composed(words, key) == usual  # without the folder, nothing has changed


def test_files_of_users_are_read_each_time(tmp_path: Path) -> None:
    (tmp_path / "privacy").mkdir()
    for delta in (1e-6, 1e-7):
        (tmp_path / "privacy" / "mine.yaml").write_text(f"defaults: [fixed]\ndelta: {delta:.7f}\n")
        assert compose(["privacy=mine"], str(tmp_path)).privacy.delta == delta


def composed(words: list[str], key: str, folder: str | None = None) -> object:
    """The value of a key, as Hydra composes it."""
    if not key.startswith("hydra."):
        with overrides.own_folder(folder):
            return OmegaConf.select(config.compose_raw(words), key)
    with composing(folder):
        return OmegaConf.select(hydra_compose("config", words, return_hydra_config=True), key)


def test_own_schemas_and_an_own_main_file_are_refused(tmp_path: Path) -> None:
    for name in ("config.yaml", "schema"):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=f"takes files of groups.*{name} belongs to no group"):
            compose([], str(tmp_path))
        (tmp_path / name).unlink()
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "dppg.yml").touch()
    with pytest.raises(ConfigError, match=r"dppg.yml must end with .yaml"):
        compose([], str(tmp_path))


PACKAGED = {
    "algo/dppg": [
        (
            "# @package _global_\ndefaults: [dppg, _self_]\nalgo: {lr: 0.5}\n",
            "a YAML file names itself in its defaults",
        ),
        (
            "lr: 0.5\n",
            "algo: algo/dppg.yaml must begin with the lines `# @package _global_` and",
        ),
        ("algo: {lr: 0.5}\n", "algo: algo/dppg.yaml must begin with the lines"),
        (
            "# @package _global_\ndefaults: [/schema/algo/dppg@algo]\nalgo: {name: dppg, lrr: 1}\n",
            "algo.lrr: in algo/dppg.yaml: no such key (did you mean algo.lr?)",
        ),
    ],
    "privacy/bin": [
        (
            b"\xff\xfe\x00z",
            "--config-dir: {}/privacy/bin.yaml is not UTF-8 text: invalid start byte at byte 0",
        )
    ],
    "privacy/correlated": [
        ("nosuch: 3\n", "privacy.nosuch: in privacy/correlated.yaml: no such key"),
        ("z: 1\0\n", "{}/privacy/correlated.yaml cannot be read: unacceptable character #x0000"),
    ],
    "tuned/dppg_cartpole": [
        (
            "# @package _global_\nalgo: {lrr: 3}\n",
            "algo.lrr: in tuned/dppg_cartpole.yaml: no such key",
        ),
        (
            "algo: {lr: 3}\n",
            "tuned: tuned/dppg_cartpole.yaml must begin with the line `# @package _global_`",
        ),
    ],
}


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("file", "text", "expected"), [(file, *case) for file in PACKAGED for case in PACKAGED[file]]
)
def test_a_wrong_file_with_a_packaged_name_is_one_line(file, text, expected, tmp_path) -> None:
    path = tmp_path / f"{file}.yaml"
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        compose([], str(tmp_path))
    assert str(caught.value).startswith(expected.format(tmp_path))
    assert compose([]).algo.lr == 6e-3  # Hydra is as before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder `cfg` with an own file of a packaged name; the working directory has it."""
    monkeypatch.chdir(tmp_path)
    copy(tmp_path / "cfg", "privacy", "correlated", "delta: 1e-5", "delta: 1e-7")
    return "cfg"


@pytest.mark.slow
def test_every_command_uses_it(folder: str, capsys) -> None:
    given = ["--config-dir", folder]
    short = ["total_steps=20_000", "log=none", "plan_only=true", "eval.episodes=1"]
    source = " control tasks, with cfg/privacy/correlated.yaml\n"
    assert exit_code(train.main, [*short, *given]) == 0
    shown = capsys.readouterr().out
    assert source in shown
    assert "at delta 1e-07" in shown
    assert exit_code(train.main, ["-m", "seed=1,2", *short, *given]) == 0
    assert source in capsys.readouterr().out
    assert exit_code(train.main, ["-m", "seed=3,4", "hardware.max_replicas=1", *short, *given]) == 0
    shown = capsys.readouterr().out
    assert shown.count(source) == 2
    assert exit_code(train.main, ["--cfg", "job", *given]) == 0
    assert "delta: 1.0e-07" in capsys.readouterr().out
    runs = [path.parent for path in Path("outputs").glob("dppg/cartpole/*/plan.json")]
    assert len(runs) == 5
    for run in runs:
        assert privrl.main(["explain", str(run)]) == 0
        assert "at delta 1e-07" in capsys.readouterr().out
    assert privrl.main(["plan", *given]) == 0
    shown = capsys.readouterr().out
    assert source in shown
    assert "at delta 1e-07" in shown
    search = ["algo.lr=uniform(1e-3,1e-2)", "tune.score=public", "total_steps=20_000"]
    assert privrl.main(["tune", "--plan", *search, *given]) == 0
    assert "at delta 1e-07" in capsys.readouterr().out
    assert plan("total_steps=20_000", config_dir=folder).facts["delta"] == 1e-7
    assert overrides.own() is None


@pytest.mark.slow
def test_an_own_environment_of_a_packaged_name_is_checked_as_unknown(tmp_path: Path) -> None:
    copy(tmp_path, "env", "cartpole", "id: CartPole-v1", "id: Acrobot-v1")
    assert not describe.unknown(compose([]).env)
    with overrides.own_folder(tmp_path):
        run = compose(["env.obs_scaling=none"])
        assert run.env.id == "Acrobot-v1"
        assert describe.unknown(run.env)


def test_an_own_algorithm_file_wins_over_generic_values(tmp_path: Path) -> None:
    words = ["env=gym", "env.id=Acrobot-v1"]
    assert "generic values" in compose(words).hyperparameter_source
    path = copy(tmp_path, "algo", "dppg", "lr: 6e-3", "lr: 0.5")
    run = compose(words, str(tmp_path))
    assert run.algo.lr == 0.5
    assert run.hyperparameter_source.endswith(f"({path})")


def test_an_own_file_of_generic_values_wins(tmp_path: Path) -> None:
    name = "dppg_discrete_long"
    path = copy(tmp_path, "tuned", name, "algo:\n", "algo:\n  epochs: 77\n")
    path.write_text(re.sub(r"\n  epochs: \d\b.*", "", path.read_text()))
    run = compose(["env=gym", "env.id=Acrobot-v1"], str(tmp_path))
    assert run.algo.epochs == 77
    assert run.hyperparameter_source.endswith(f"({path})")


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("text", ["", "hyperparameter_source: found by hand\n"])
def test_the_plan_names_an_own_tuned_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    path = tmp_path / "tuned" / "dppg_cartpole.yaml"
    path.write_text(f"# @package _global_\nalgo:\n  lr: 1e-3\n{text}")
    source = compose([], str(tmp_path)).hyperparameter_source
    assert source == (f"found by hand ({path})" if text else str(path))
    assert compose(["tuned=null"], str(tmp_path)).hyperparameter_source.startswith("algo/dppg")


def test_hydras_search_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^hydra\.searchpath: use --config-dir"):
        compose(["hydra.searchpath=['file:///tmp']"])


def test_new_processes_know_the_folder(tmp_path: Path) -> None:
    with overrides.own_folder(tmp_path):
        told = plugins.additions()
        with overrides.own_folder(tmp_path / "."):
            plugins.restore(told)
    assert told.own == tmp_path
    assert overrides.own() is None  # a launcher may train in the process of the command
    plugins.restore(told)
    assert overrides.own() == tmp_path
    overrides.keep_own(None)


def test_a_value_that_another_file_overrules_is_refused(tmp_path: Path) -> None:
    """It was ignored, and the plan named its file."""
    (tmp_path / "privacy").mkdir()
    text = "mechanism: gaussian\ndelta: 1e-6\nz: 2.0\nclip: 0.123\n"
    (tmp_path / "privacy" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^privacy\.z: 2\.0 of .*mine\.yaml has no effect"):
        compose(["privacy=mine"], str(tmp_path))
    run = compose(["privacy=mine", "privacy.z=2", "privacy.clip=0.123"], str(tmp_path))
    assert (run.privacy.z, run.privacy.clip, run.privacy.delta) == (2.0, 0.123, 1e-6)


def test_a_copy_of_a_packaged_file_may_be_overruled_where_it_was_not_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "algo").mkdir()
    text = (config.conf_dir() / "algo" / "dppg.yaml").read_text()
    (tmp_path / "algo" / "dppg.yaml").write_text(text)
    assert compose(["env=hopper"], str(tmp_path)).algo == compose(["env=hopper"]).algo
