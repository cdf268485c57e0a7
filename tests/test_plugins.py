"""What packages from outside add, how they are refused, and when a mechanism of theirs is `formal`."""

import json
import pickle
import re
import sys
from pathlib import Path

import pytest
from helpers import exit_code

import privrl_bench
from privrl_bench.algorithms import registry as algorithm_registry
from privrl_bench.audit import lower_bound
from privrl_bench.cli.audit import epsilon, leaks
from privrl_bench.cli.main import main as privrl
from privrl_bench.cli.train import main as train
from privrl_bench.composition import plugins
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_compose import help_text
from privrl_bench.composition.identity import digest
from privrl_bench.config import overrides
from privrl_bench.errors import ConfigError
from privrl_bench.privacy import mechanisms
from privrl_bench.training.describe import describe_plan
from privrl_bench.training.plan import make_plan
from privrl_bench.training.provenance import provenance

INIT = """
from pathlib import Path
from privrl_bench import Plugin

__version__ = "1.2"
PLUGIN = Plugin(
    algorithms={"plugged": "plug_pkg.plugged"},
    mechanisms={"two_servers": "plug_pkg.two_servers"},
    conf=Path(__file__).parent / "conf",
)
"""
ALGORITHM = '''
"""DPPG with another name."""
from dataclasses import dataclass
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig

@dataclass
class PluggedConfig(DppgConfig):
    name: str = "plugged"

class Plugged(Dppg):
    pass

ALGORITHM, CONFIG = Plugged, PluggedConfig
'''
ALGO = """# @package _global_
defaults:
  - /schema/algo/plugged@algo
  - _self_

algo:
  name: plugged
"""
MECHANISM = '''
"""Two servers add independent Gaussian noise, each enough for z: one of them may reveal its noise."""
from privrl_bench.privacy.mechanisms.gaussian import Gaussian


class TwoServers(Gaussian):
    name = "two_servers"
    records = ("two_servers",)
    subsampled = False

    def event(self, r):
        return self.recorded(r, "two_servers", self.joint_z(r))

    def noise(self, attempt):
        drawn = attempt.integers(self.sizes * 2, self.grid_stds(attempt.replica) * 2)
        count = len(self.sizes)
        return [a + b for a, b in zip(drawn[:count], drawn[count:], strict=True)]


MECHANISM = TwoServers
'''
ENV = """name: plug_row
kind: gym
id: my_pkg:MyEnv-v0
obs_scaling: none
reward_scaling: none
"""
PRIVACY = (Path(__file__).parent.parent / "conf/privacy/fixed.yaml").read_text()
FILES = {
    "__init__.py": INIT,
    "plugged.py": ALGORITHM,
    "two_servers.py": MECHANISM,
    "conf/algo/plugged.yaml": ALGO,
    "conf/env/plug_row.yaml": ENV,
    "conf/tuned/plugged_plug_row.yaml": "# @package _global_\nprivacy:\n  z: 3.0\n",
    "conf/privacy/two_servers.yaml": PRIVACY.replace("gaussian", "two_servers", 1),
}
FEW = ("env.user_steps=8", "algo.hidden=[4]", "privacy.users_per_round=3", "eval.episodes=1")
FEW = (*FEW, "log=none", "log.progress=false", "log.plot=false", "total_steps=120")
WORDS = ["plugins=[plug_pkg]", "algo=plugged", "env=plug_row", *FEW]
SERVERS = ["plugins=[plug_pkg]", "algo=dppg", "env=plug_row", "privacy=two_servers", *FEW]


def forget():
    """The modules of plugins, which are imported again."""
    for name in [one for one in sys.modules if one.partition(".")[0] in ("plug_pkg", "my_plugin")]:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path, plugins_restored, monkeypatch):
    """The folder of a package with a plugin, in the working directory; nothing of it stays registered."""
    folder = tmp_path / "plug_pkg"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    forget()


def refusal(words=WORDS):
    """The one line with which composing is refused."""
    with pytest.raises(ConfigError) as found:
        compose(words)
    assert "\n" not in str(found.value)
    return str(found.value)


# --- what is added


def test_algorithm_environment_and_tuned_values_are_choices_like_ours(package):
    config = compose(WORDS)
    assert (config.algo.name, config.env.name, config.privacy.z) == ("plugged", "plug_row", 3.0)
    assert config.plugins == ["plug_pkg"]
    assert "plugged" in overrides.choices("algo")
    said = " ".join(help_text().split())
    assert "plugged" in said
    assert "plug_row" in said
    near = refusal([*WORDS[:2], "env=plug_rw"])
    assert "(did you mean plug_row?)" in near
    assert "(did you mean plugged?)" in refusal(["plugins=[plug_pkg]", "algo=pluged"])
    assert "tuned: plugged_plug_row is for algo=plugged" in refusal(
        ["algo=dppg", "env=plug_row", "tuned=plugged_plug_row"]
    )


def test_how_a_plugin_is_found_is_not_part_of_a_run_s_identity(package):
    named = compose(WORDS)
    found = compose(WORDS[1:])  # it is loaded by now
    assert found.plugins == []
    assert digest(named) == digest(found)


def test_a_run_records_its_plugins(package):
    assert not exit_code(train, [*WORDS, "hardware.workers=1"])
    (folder,) = [path.parent for path in Path("outputs").rglob("summary.json")]
    assert "plugins" not in folder.name
    assert json.loads((folder / "provenance.json").read_text())["plugins"] == {"plug_pkg": "1.2"}
    found = json.loads((folder / "provenance.json").read_text())
    assert list(found["sources"]) == ["plug_pkg", "my_pkg"]
    assert "plugins:\n- plug_pkg\n" in (folder / "config.yaml").read_text()


def test_a_plugin_without_a_version_has_none(package):
    (package / "__init__.py").write_text(INIT.replace('__version__ = "1.2"', ""))
    config = compose(WORDS)
    assert provenance(config)["plugins"] == {"plug_pkg": None}


def installed(package):
    """The files that make the package an installed one."""
    about = package.parent / "plug_pkg-7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-pkg\nVersion: 7\n")
    (about / "entry_points.txt").write_text("[privrl_bench.plugins]\nany = plug_pkg\n")
    plugins.load_installed.cache_clear()


def test_an_installed_plugin_that_is_broken_stops_every_command(package, capsys):
    installed(package)
    (package / "plugged.py").unlink()
    assert exit_code(train, ["--help"]) == 2
    assert privrl(["report", "outputs"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("error: plugin plug_pkg (installed package plug-pkg): algo: no mod")


def test_an_entry_point_needs_no_word(package):
    installed(package)
    assert compose(WORDS[1:]).algo.name == "plugged"
    assert plugins.versions()["plug_pkg"] == "7"
    compose(WORDS)  # named as well: loaded once


def test_from_python(package):
    import plug_pkg

    privrl_bench.register(plug_pkg.PLUGIN, "mine")
    privrl_bench.register(plug_pkg.PLUGIN)
    assert compose(WORDS[1:]).algo.name == "plugged"
    assert "mine" in plugins.versions()


def test_a_new_process_is_told(package):
    compose(WORDS)
    told = pickle.loads(pickle.dumps(plugins.additions()))
    algorithm_registry.ALGORITHMS.pop("plugged")
    mechanisms.REGISTRY.outside.clear()
    plugins.restore(told)
    assert algorithm_registry.algo_schema("plugged").name == "plugged"
    assert mechanisms.mechanism_class("two_servers").name == "two_servers"


# --- what is refused


BAD = {
    "absent": ({}, ["plugins=[plug_pk]"], "plugin plug_pk: plug_pk cannot be imported: No module"),
    "no list": ({}, ["plugins=plug_pkg"], "plugins: must be one list of modules"),
    "two lists": ({}, ["plugins=[a],[b]"], "plugins: must be one list of modules"),
    "raises": (
        {"__init__.py": "import os\nos.nothing"},
        WORDS,
        "plugin plug_pkg: plug_pkg cannot be imported: module 'os' has no attribute 'nothing'",
    ),
    "syntax": ({"__init__.py": "x ="}, WORDS, "plug_pkg cannot be imported: invalid syntax"),
    "no plugin": ({"__init__.py": ""}, WORDS, "plugin plug_pkg: plug_pkg needs PLUGIN = "),
    "another object": ({"__init__.py": "PLUGIN = 3"}, WORDS, "Plugin(...), got int"),
    "no module": (
        {"__init__.py": INIT.replace("plug_pkg.plugged", "plug_pkg.pluged")},
        WORDS,
        "plugin plug_pkg: algo: no module plug_pkg.pluged, which algorithm plugged names",
    ),
    "our name": (
        {"__init__.py": INIT.replace('"plugged"', '"dppg"')},
        WORDS,
        "plugin plug_pkg: algo: the name dppg is taken",
    ),
    "odd name": ({"__init__.py": INIT.replace('"plugged"', '"Plug-ged"')}, WORDS, "got 'Plug-ged'"),
    "no yaml": (
        {"__init__.py": INIT.replace('"plugged"', '"other"')},
        WORDS,
        "algorithm other needs a file algo/other.yaml",
    ),
    "no folder": ({"__init__.py": INIT.replace('"conf"', '"cnf"')}, WORDS, "path of a folder, got"),
    "our yaml": ({"conf/env/hopper.yaml": ENV}, WORDS, "env=hopper is taken"),
    "group": (
        {"conf/envs/x.yaml": ENV},
        WORDS,
        "plugin plug_pkg: conf: envs/x.yaml belongs in <group>/<name>.yaml; groups: algo, env, "
        "privacy, tuned, collect, paper, paper/column, hardware, log (did you mean env?)",
    ),
    "ending": ({"conf/env/x.yml": ENV}, WORDS, "env/x.yml belongs in <group>/<name>.yaml"),
    "bad yaml": (
        {"conf/env/x.yaml": "name: x\n  id: 3\n"},
        [*WORDS, "env=x"],
        "env: env/x.yaml cannot be read: line 2: mapping values are not allowed",
    ),
    "no mapping": ({"conf/env/x.yaml": "- 3\n"}, [*WORDS, "env=x"], "env/x"),
    "env name": ({"conf/env/x.yaml": ENV}, [*WORDS, "env=x"], "env/x.yaml must have `name: x`"),
    "no algorithm": (
        {"conf/algo/pluged.yaml": ALGO},
        WORDS,
        "algo/pluged.yaml has no algorithm of this name (did you mean plugged?)",
    ),
    "no class": ({"two_servers.py": ""}, WORDS, "plug_pkg.two_servers has no MECHANISM"),
    "no mechanism": ({"two_servers.py": "MECHANISM = int"}, WORDS, "must be a subclass of"),
    "mechanism taken": (
        {"__init__.py": INIT.replace('"two_servers":', '"tree":')},
        WORDS,
        "plugin plug_pkg: privacy.mechanism: the name tree is taken",
    ),
    "class name": (
        {"two_servers.py": MECHANISM.replace('name = "two_servers"', 'name = "x"')},
        WORDS,
        "the class's `name` must be 'two_servers', got 'x'",
    ),
    "records": (
        {"two_servers.py": MECHANISM.replace("    records =", "    other =")},
        WORDS,
        "`records` has 'gaussian', the ledger lines of gaussian",
    ),
    "own": (
        {"two_servers.py": MECHANISM.replace("    name", '    own = ("clip",)\n    name')},
        WORDS,
        "`own` has 'clip', which is not a key of a single mechanism",
    ),
    "settings": (
        {"plugged.py": ALGORITHM.replace("DppgConfig)", "NoConfig)")},
        WORDS,
        "algo: plug_pkg.plugged cannot be imported: name 'NoConfig' is not defined",
    ),
    "no config": (
        {"plugged.py": ALGORITHM + "\nCONFIG = dict\n"},
        WORDS,
        "algo: plug_pkg.plugged has no CONFIG: it must be a subclass of AlgoConfig",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_plugin_is_one_line_and_registers_nothing(package, case):
    files, words, said = BAD[case]
    for name, text in files.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    before = (
        dict(algorithm_registry.ALGORITHMS),
        dict(mechanisms.REGISTRY.outside),
        len(overrides._folders),
    )
    assert said in refusal(overrides.later_wins(words))
    # Those are found when the algorithm or the environment is chosen.
    if case not in ("settings", "no config", "bad yaml", "no mapping", "env name"):
        after = dict(algorithm_registry.ALGORITHMS), dict(mechanisms.REGISTRY.outside)
        assert (*after, len(overrides._folders)) == before


def test_the_exit_code_of_a_bad_plugin_is_2(package, capsys):
    (package / "__init__.py").write_text("PLUGIN = None")
    assert exit_code(train, WORDS) == 2
    assert exit_code(train, ["--help", WORDS[0]]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: plugin plug_pkg: plug_pkg needs PLUGIN")


def test_an_algorithm_that_cannot_be_imported_is_bad_input(package, capsys):
    """Its settings are in another module, which can."""
    pair = INIT.replace('"plug_pkg.plugged"', '("plug_pkg.plugged", "plug_pkg.settings")')
    (package / "__init__.py").write_text(pair)
    (package / "settings.py").write_text(ALGORITHM)
    (package / "plugged.py").write_text("import no_such_module")
    assert exit_code(train, [*WORDS, "hardware.workers=1"]) == 2
    said = capsys.readouterr().err
    assert "algo: plug_pkg.plugged cannot be imported: No module named 'no_such_module'" in said


def test_a_plugin_in_a_file_comes_too_late(package):
    late = "# @package _global_\nplugins: [other]\n"
    (package / "conf/tuned/plugged_plug_row.yaml").write_text(late)
    plugins.load(["plug_pkg"])
    assert "plugins: give it on the command line, plugins=[other]" in refusal(WORDS[1:])


# --- mechanisms


def status(words):
    """Of the plan of these words, with the note that says why."""
    guarantee = describe_plan(make_plan([compose(words)]), 0)["guarantee"]
    why = [note for note in guarantee["notes"] if note.startswith("unreviewed")]
    return guarantee["status"], "".join(why)


@pytest.mark.slow
def test_a_mechanism_is_unreviewed_until_both_audits_have_passed(package, monkeypatch, capsys):
    monkeypatch.setattr(lower_bound, "REVIEW_SCORES", 200)
    found, why = status(SERVERS)
    assert found == "unreviewed"
    assert "privacy.mechanism=two_servers is from outside" in why
    assert "run `privrl audit leaks` and `privrl audit epsilon` with the same words" in why
    assert leaks(SERVERS) == 0
    said = capsys.readouterr().out
    assert "passed; runs are unreviewed until `privrl audit epsilon` with the same words" in said
    found, why = status(SERVERS)
    assert found == "unreviewed"
    assert "run `privrl audit epsilon` with" in why

    assert epsilon([*SERVERS, "--scores", "200"]) == 0
    said = capsys.readouterr().out
    assert "review   recorded in outputs/reviews/" in said
    assert "passed; runs with this source and configuration are formal from now on" in said
    assert status(SERVERS)[0] == "formal"
    assert status([*SERVERS, "seed=3"])[0] == "formal"
    assert status([*SERVERS, "privacy.z=2"])[0] == "unreviewed"  # the attack was on one z
    source = package / "two_servers.py"
    source.write_text(MECHANISM + "\n# changed\n")
    assert status(SERVERS)[0] == "unreviewed"


@pytest.mark.slow
def test_a_weak_attack_is_no_review(package, capsys):
    assert epsilon([*SERVERS, "--scores", "20"]) == 0
    assert "not recorded: a review needs --scores 20000 or more" in capsys.readouterr().out
    assert status(SERVERS)[0] == "unreviewed"
    for change in ({"attack": "one-run"}, {"confidence": 0.9999}):
        assert lower_bound.weakness(lower_bound.Options(**change))
    assert not lower_bound.weakness(lower_bound.Options(attack="all"))


def test_a_mechanism_with_too_little_noise_stays_unreviewed(package, monkeypatch):
    monkeypatch.setattr(lower_bound, "REVIEW_SCORES", 200)
    little = MECHANISM.replace("a + b", "(0.05 * (a + b)).long()")
    (package / "two_servers.py").write_text(little)
    assert epsilon([*SERVERS, "--scores", "200"]) == 1
    assert not Path("outputs/reviews").exists()


def test_a_mechanism_that_cannot_be_attacked_stays_unreviewed(package):
    text = MECHANISM.replace("    name", '    not_auditable = "its noise is a secret"\n    name')
    (package / "two_servers.py").write_text(text)
    found, why = status(SERVERS)
    assert found == "unreviewed"
    assert "no audit sees the mechanism's noise: its noise is a secret" in why


def test_epsilon_of_a_plugin_s_algorithm(package, capsys):
    assert epsilon([*WORDS, "--scores", "100"]) == 0
    said = capsys.readouterr().out
    assert "nothing contradicts the claim" in said
    assert "review" not in said.split("results:")[1]


# --- the page about plugins


@pytest.mark.slow
def test_the_code_of_the_page_runs(package, capsys):
    """Every block of docs/plugins.md whose first line is a comment with a file's name."""
    page = (Path(__file__).parent.parent / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"^```\w+\n# (my_plugin/\S+)\n(.*?)^```", page, re.M | re.S)
    for name, text in blocks:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    assert leaks(["plugins=[my_plugin]", "algo=simple", "env=corridor"]) == 0  # as on the page
    few = ("rounds=5", *(word for word in FEW[2:] if "total_steps" not in word))
    words = ["plugins=[my_plugin]", "algo=simple", "env=corridor", *few]
    assert compose(words).algo.lr == 10.0
    assert status(words)[0] == "unreviewed"
    assert leaks(words) == 0
    assert status(words)[0] == "formal"
    assert not exit_code(train, [*words, "hardware.workers=1"])
    servers = ["plugins=[my_plugin]", "algo=dppg", "privacy=two_servers", "env=corridor", *few]
    assert not exit_code(train, [*servers, "hardware.workers=1"])
    assert len(list(Path("outputs").rglob("policy.pt"))) == 2
