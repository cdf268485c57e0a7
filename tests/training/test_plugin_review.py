"""Algorithms from outside the package are `unreviewed` until the leak test has passed on them."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from privrl_bench.algorithms.registry import ALGORITHMS, Location
from privrl_bench.cli.audit import leaks as main
from privrl_bench.cli.train import main as train
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.kernels import machine
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.training import plugin_review as review
from privrl_bench.training import provenance
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

SOURCE = '''
"""DPPG with another name."""
from dataclasses import dataclass
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig

@dataclass
class MineConfig(DppgConfig):
    name: str = "mine"

class Mine(Dppg):
    pass

ALGORITHM, CONFIG = Mine, MineConfig
'''
YAML = """# @package _global_
defaults:
  - /schema/algo/mine@algo
  - _self_

algo:
  name: mine
"""
FEW = ("env.user_steps=16", "algo.hidden=[8]", "privacy.users_per_round=3", "eval.episodes=1")
FEW = (*FEW, "log=none", "log.progress=false", "log.plot=false", "total_steps=240")


@pytest.fixture
def outsider(tmp_path, monkeypatch):
    """Words that choose an algorithm whose module and YAML are in a folder, the working directory."""
    package, conf = tmp_path / "some_pkg", tmp_path / "conf" / "algo"
    package.mkdir()
    conf.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(SOURCE)
    (conf / "mine.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ALGORITHMS, "mine", Location("some_pkg.mine", "some_pkg.mine"))
    yield ["algo=mine", *FEW], str(conf.parent)
    for name in ("some_pkg", "some_pkg.mine"):
        sys.modules.pop(name, None)


def status(words, conf):
    """Of the plan of these words."""
    return describe_plan(make_plan([compose(words, conf)]), 0)["guarantee"]["status"]


@pytest.mark.slow
def test_unreviewed_until_the_leak_test_has_passed_on_this_version(outsider, capsys):
    words, conf = outsider
    assert status(words, conf) == "unreviewed"
    assert main([*words, "--config-dir", conf]) == 0
    said = capsys.readouterr().out
    assert "verdict  passed: no path around the gate" in said
    assert "review   recorded in outputs/reviews/" in said
    assert "passed; runs with this source and configuration are formal from now on" in said
    (file,) = Path("outputs/reviews").iterdir()
    record = json.loads(file.read_text())
    assert record["ok"]
    assert record["verdict"] == "passed: no path around the gate"
    assert status(words, conf) == "formal"
    assert status([*words, "seed=3", "privacy.z=2"], conf) == "formal"  # any seed and z
    assert status([*words, "algo.epochs=3"], conf) == "unreviewed"
    longer = [word.replace("total_steps=240", "total_steps=480") for word in words]
    assert status(longer, conf) == "unreviewed"

    (result,) = run([compose(words, conf)], [Path("outputs/one")], [words])
    assert result.summary["guarantee"]["status"] == "formal"
    assert json.loads(Path("outputs/one/leaks.json").read_text()) == record

    helper = Path("some_pkg/helper.py")
    helper.write_text("x = 1\n")  # any file of the package may change what it does
    assert status(words, conf) == "unreviewed"
    helper.unlink()
    assert status(words, conf) == "formal"
    file.write_text(json.dumps(record | {"ok": False}))
    assert status(words, conf) == "unreviewed"
    file.write_text("torn")
    assert status(words, conf) == "unreviewed"


def test_a_run_of_an_unreviewed_algorithm_says_what_to_run_and_when_its_source_has_changed(
    outsider, capsys
):
    words, conf = outsider
    folder = Path("outputs/one")
    (result,) = run([compose(words, conf)], [folder], [words])
    guarantee = result.summary["guarantee"]
    assert guarantee["status"] == "unreviewed"
    assert 0 < guarantee["epsilon"] < float("inf")
    assert any(
        "run `privrl audit leaks` with the same words" in note for note in guarantee["notes"]
    )
    assert not (folder / "leaks.json").exists()
    shown = capsys.readouterr().out
    assert "at delta 1e-05, unreviewed: " in shown
    assert "run `privrl audit leaks` with the same words" in shown

    kept = json.loads((folder / "provenance.json").read_text())["sources"]
    assert list(kept) == ["some_pkg"]
    assert len(kept["some_pkg"]) == 64
    Path("some_pkg/mine.py").write_text(SOURCE + "\n# changed\n")
    (again,) = run([compose(words, conf)], [folder], [words])
    said = capsys.readouterr().out
    assert ", but the source of some_pkg has changed since; resume=restart trains it again" in said
    assert again.status == "skipped"

    # An unfinished run is not resumed: no audit of today's code covers its first rounds.
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"status": "interrupted"}))
    with pytest.raises(ConfigError, match="source of some_pkg has changed since the run began"):
        run([compose(words, conf)], [folder], [words])


@pytest.mark.slow
def test_a_defect_leaves_no_record(outsider, monkeypatch):
    words, conf = outsider
    leak = SOURCE.replace("    pass\n", LEAK)
    Path("some_pkg/mine.py").write_text(leak)
    assert main([*words, "--config-dir", conf]) == 1
    assert not Path("outputs/reviews").exists()
    assert status(words, conf) == "unreviewed"


LEAK = """
    def user_update(self, state, users, streams):
        self.mean = float(users.rewards.nan_to_num().mean())
        return super().user_update(state, users, streams)

    def server(self, state, released):
        after = super().server(state, released)
        after.tensors["actor"] += 0.1 * self.mean
        return after
"""


def test_an_edit_of_a_module_that_the_algorithm_imports_needs_a_new_review(outsider):
    """Found by an audit: only the algorithm's own package was part of the record."""
    words, conf = outsider
    Path("beside.py").write_text("SCALE = 1\n")
    Path("later.py").write_text("STEP = 1\n")
    late = "def late():\n    import later\n    return later.STEP\n"
    Path("some_pkg/mine.py").write_text(f"from beside import SCALE\n{late}{SOURCE}")
    seen = [review.subject(compose(words, conf))]
    for file, text in (("beside.py", "SCALE = 2\n"), ("later.py", "STEP = 2\n")):
        Path(file).write_text(text)
        seen.append(review.subject(compose(words, conf)))
        assert seen[-1] not in seen[:-1]
    sys.modules.pop("beside", None)


def test_a_changed_method_of_our_own_class_is_outside(monkeypatch):
    """Found by an audit: whoever replaces a method of a class of the package stayed `formal`."""
    from privrl_bench.algorithms.policy_gradient.dppg import Dppg

    config = compose(["algo=dppg", *FEW])
    monkeypatch.setattr(Dppg, "user_update", lambda self, state, users, streams: None)
    assert review.outside(config)


def test_our_own_algorithms_need_no_review():
    config = compose(["algo=dppg", *FEW])
    assert not review.outside(config)
    assert review.note(config) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "unreviewed"),
        ({"notes": {}}, "formal"),
        ({"caveats": {"a": "b"}}, "heuristic"),
        ({"epsilon": float("inf"), "caveats": {"a": "b"}}, "none"),
    ],
)
def test_which_status_comes_first(changes, expected):
    one = Guarantee(1.0, 1e-5, "u", "central", "zero-out", {}, {"unreviewed": "why"})
    assert replace(one, **changes).status == expected


@pytest.mark.slow
def test_a_sweep_in_two_processes_knows_the_algorithm(outsider, monkeypatch):
    words, conf = outsider
    monkeypatch.setattr(machine, "cores", lambda: 2)
    grid = ["-m", "privacy.z=1,2"]
    with pytest.raises(SystemExit) as done:
        train(
            [*grid, *words, "hardware.workers=2", "hardware.max_replicas=1", "--config-dir", conf]
        )
    assert not done.value.code
    assert len(list(Path("outputs").rglob("summary.json"))) == 2


def test_what_is_wrong_with_an_outside_algorithm_is_one_line(outsider):
    words, conf = outsider
    (Path(conf) / "algo" / "absent.yaml").write_text(YAML.replace("mine", "absent"))
    with pytest.raises(ConfigError, match=r"algo: .*not registered"):
        compose(["algo=absent", *words[1:]], conf)


@pytest.mark.slow
def test_a_finished_run_is_formal_after_an_audit_when_it_is_trained_again(outsider, capsys):
    words, conf = outsider
    folder = Path("outputs/one")
    run([compose(words, conf)], [folder], [words])
    before = (folder / "summary.json").read_bytes()
    capsys.readouterr()
    run([compose(words, conf)], [folder], [words])
    said = capsys.readouterr().out
    assert re.search(r"is done \(return .*, epsilon .*, unreviewed\); resume=restart trains", said)

    assert main([*words, "--config-dir", conf]) == 0
    capsys.readouterr()
    run([compose(words, conf)], [folder], [words])
    assert (folder / "summary.json").read_bytes() == before  # a fact of the run at its end
    (result,) = run([replace(compose(words, conf), resume="restart")], [folder], [words])
    assert result.summary["guarantee"]["status"] == "formal"


ENVIRONMENT = """
import gymnasium
from my_pkg import MyEnv

gymnasium.register("Changed-v0", "beside_env:Later", max_episode_steps=20)
"""


def test_an_own_environment_that_has_changed_is_noticed(outsider, capsys, monkeypatch):
    Path("some_env.py").write_text(ENVIRONMENT)
    Path("beside_env.py").write_text("from my_pkg import MyEnv as Later\n")
    words = ["algo=dppg", "env=gym", "env.id=some_env:Changed-v0", "env.check=false", *FEW]
    words += ["env.obs_scaling=none", "env.reward_scaling=none"]
    config, folder = compose(words), Path("outputs/one")
    run([config], [folder], [words])
    kept = json.loads((folder / "provenance.json").read_text())["sources"]
    assert list(kept) == ["some_env"]
    capsys.readouterr()
    run([config], [folder], [words])
    assert "changed" not in capsys.readouterr().out.replace("Changed-v0", "")
    with Path("beside_env.py").open("a") as file:  # the module of the entry point
        file.write("# other rewards\n")
    run([config], [folder], [words])
    said = capsys.readouterr().out
    assert ", but the source of some_env has changed since; resume=restart trains it again" in said
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"status": "interrupted"}))
    run([config], [folder], [words])
    said = capsys.readouterr().out
    assert "is resumed, but the source of some_env has changed since it began" in said


def test_sources_of_the_package_and_broken_files_are_left_out(outsider):
    assert provenance.sources(compose(["algo=dppg", *FEW])) == {}
    Path("torn_env.py").write_text("def (")
    config = compose(["algo=dppg", "env=gym", "env.id=torn_env:X-v0", *FEW])
    assert list(provenance.sources(config)) == ["torn_env"]
    assert provenance.changed(config, {}) == []  # a run of an earlier version
    assert provenance.changed(config, {"sources": {}}) == ["torn_env"]


@pytest.mark.slow
def test_a_module_of_a_linked_folder_of_packages_is_installed(tmp_path):
    """A virtual environment that is reached through a symbolic link."""
    code = (
        "import sys\n"
        "from privrl_bench.training.provenance import _local_file\n"
        "print([_local_file(name) for name in ('torch', 'numpy')], bool(_local_file('beside')))"
    )
    real = Path(sys.prefix).resolve()
    (tmp_path / "linked").symlink_to(real)
    (tmp_path / "beside.py").write_text("")
    program = tmp_path / "linked" / "bin" / Path(sys.executable).name
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [program, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[None, None] True"


def test_a_processor_has_family_and_model_where_the_machine_says_them(monkeypatch):
    told = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: X\n\nprocessor\t: 1\n"
    monkeypatch.setattr(provenance.Path, "exists", lambda path: True)
    monkeypatch.setattr(provenance.Path, "read_text", lambda path: told)
    assert provenance.processor() == "X (family 6, model 1)"
    monkeypatch.setattr(provenance.Path, "read_text", lambda path: "model name\t: Y\n")
    assert provenance.processor() == "Y"  # ARM
    monkeypatch.setattr(provenance.Path, "read_text", lambda path: "BogoMIPS\t: 50\n")
    assert provenance.processor() == provenance.platform.processor()
