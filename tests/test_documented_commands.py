"""Every command of README.md, docs/ and the examples is run: training is planned, the rest on a small run.

Their prose has one spelling of each task.
"""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import privrl_bench as pb
from privrl_bench.api.launch import check_sweep
from privrl_bench.cli import main as privrl
from privrl_bench.cli import train
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition import plugins

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    # Before docs/: a command that is shown there too belongs to docs/ and needs no plugin.
    *sorted((ROOT / "examples").glob("*/README.md")),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.stem not in ("decisions", "screens")
    ),
]
# How prose writes tasks. Ids and names of the configuration are code.
TASKS = (
    *("CartPole", "Acrobot", "Pendulum", "MountainCar", "Dosing-0", "Dosing-1"),
    *("Hopper", "HalfCheetah", "Walker2d", "Ant", "RiverSwim"),
)
TASK = re.compile(
    r"\b(?:cart[-_ ]?pole|acrobot|pendulum|mountain[-_ ]?car|dosing[-_ ]?[01]|hopper|half[-_ ]?cheetah"
    r"|walker[-_ ]?2[-_ ]?d|ant|river[-_ ]?swim)(?:-v\d)?\b",
    re.IGNORECASE,
)
# Code, links' targets, and blocks that privrl_bench/papers/pages writes.
NO_PROSE = re.compile(
    r"^```.*?^```|^(?: {4}|\t)[^\n]*|<!-- results:.*?<!-- /results -->|<!--.*?-->"
    r"|(`+).+?\1|\]\([^)]*\)|https?://\S+",
    re.MULTILINE | re.DOTALL,
)
OTHER_SPELLINGS = (  # pages that still have some
    "docs/results/gpope_paper.md",
    "docs/results/primorl_paper.md",
)
PROGRAMS = ("privrl-bench", "privrl", "python", "make", "pip", "hf", "pytest")
# Shown, but not run here: the words that begin a command, and why.
NOT_RUN = {
    "make": "CI calls it, and `make run` is part of every closing check",
    "pip install": "needs a network",
    "hf download": "needs a network",
    "privrl audit leaks [": "a synopsis",
    "privrl audit epsilon [": "a synopsis",
    "privrl audit leaks algo=dppg env=cartpole": "tests/audit/test_leaks.py",
    "privrl audit leaks algo=mine": "tests/test_plugins.py, with another name",
    "privrl audit epsilon algo=dppg env=cartpole": "minutes; tests/audit/test_canary.py, on fewer runs",
    "privrl tune --audit": "minutes; tests/packs/tuning runs both on fewer runs",
    "privrl collect +collect=": "minutes; tests/packs/offline/test_collect.py, on shorter runs",
    "privrl collect policy=medium": "tests/packs/offline/test_trained_policy_episodes.py, on another run",
    "privrl collect policy=expert": "the same",
    "privrl import visits.csv": "needs logs; tests/packs/offline/test_import.py",
    "privrl import visits.parquet": "tests/packs/offline/test_clinic_example.py runs it",
    "python clinic.py": "the same",
    "privrl-bench algo=dp_cql env=logs": "the same",
    "privrl-bench algo=dp_fqe env=logs": "the same",
    "privrl plan algo=dp_lspi env=logs": "needs a dataset; tests/packs/offline/test_dp_lspi.py",
    "privrl-bench algo=dp_lspi env=logs": "the same",
    "privrl-bench algo=dp_bc env=logs": "tests/packs/offline/test_budget_guide.py runs it",
    "privrl-bench algo=dp_lstd env=logs": "the same",
    "privrl tune algo=dp_bc env=logs": "the same",
    "privrl tune algo=dp_lspi env=logs": "the same",
    "privrl budget": "the same",
    "privrl-bench algo=dp_is env=logs": "needs a dataset; tests/packs/offline/test_dp_is.py",
    "privrl reproduce primorl-table6": "needs the dataset of the lines before it",
    "privrl-bench plugins=[my_plugin]": "tests/test_plugin_template.py, with the template's names",
    "privrl-bench -m plugins=[my_plugin]": "the same",
    "privrl-bench algo=dppg env=gym env.id=minigrid": "needs the package minigrid",
    "privrl-bench algo=ppo env=gym env.id=minigrid": "needs the package minigrid",
    "privrl-bench algo=mean_return": "needs a policy; tests/algorithms/test_mean_return.py",
    "privrl-bench env=sentiment ": "needs models of a hub",
    "privrl-bench env=sentiment_small": "minutes; tests/packs/text/test_dppg_text.py",
    "privrl-bench algo=dppg env=hopper hardware=ray": "needs Ray",
    "privrl-bench algo=dppg env=cartpole env.backend=torch hardware=gpu": "needs a GPU",
    "privrl-bench algo=dppg env=hopper env.backend=warp hardware=gpu": "needs a GPU",
    "privrl-bench -m hydra/launcher": "needs a cluster; tests/training/test_sweep.py runs submitit_local",
    "privrl-bench algo=primorl": "needs a dataset; tests/packs/offline/test_minari.py",
    "privrl-bench algo=gpope env=cartpole data.id=": "needs a dataset",
    "privrl play RUN": "opens a window; the next line of the page writes a video",
    "pytest": "tests/test_plugin_template.py and tests/test_example_*.py run it in the examples",
    "privrl audit leaks algo=critic_reinforce": "tests/test_plugin_template.py",
    "privrl audit leaks algo=dppg env=recommender": "a minute; walkthrough.py runs it",
    "privrl audit epsilon algo=dppg env=recommender": "minutes; walkthrough.py runs it, with fewer scores",
}


def commands(text):
    """The commands in the code blocks of a page."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    for line in re.findall(r"^(?: {4}|)(?:\$ )?([a-z-]+(?: .*)?)$", joined, re.MULTILINE):
        if line.split()[0] in PROGRAMS and (f"    {line}" in joined or f"$ {line}" in joined):
            yield " ".join(shlex.quote(word) for word in shlex.split(line, comments=True))


SHOWN = {
    command: page.relative_to(ROOT).as_posix()
    for page in PAGES
    for command in commands(page.read_text())
}


def reason(command):
    plain = " ".join(shlex.split(command))
    found = [why for start, why in NOT_RUN.items() if plain.startswith(start)]
    if plain == "privrl play RUN":
        return NOT_RUN["privrl play RUN"]
    return next((why for why in found if why != NOT_RUN["privrl play RUN"]), None)


RUN = {command: page for command, page in SHOWN.items() if reason(command) is None}


def shown(command):
    return f"{RUN[command]}: {command}"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documented")
    words = "algo=dppg env=cartpole rounds=1 privacy.users_per_round=4 eval.episodes=2 log=none"
    return pb.run([*words.split(), f"hydra.run.dir={folder}/run"], quiet=True).folder


@pytest.fixture
def plugin(command, plugins_restored, monkeypatch):
    """The plugin of the example whose README shows the command, as if it were installed."""
    folder = (ROOT / RUN[command]).parent
    if folder.parent.name == "examples":
        monkeypatch.syspath_prepend(str(folder))
        plugins.load(conf.parent.name for conf in folder.glob("*/conf"))


def test_the_pages_show_commands():
    assert len(SHOWN) > 60
    assert len(RUN) > 40
    assert {page.split("/")[0] for page in SHOWN.values()} == {"README.md", "docs", "examples"}
    commands = {command.split()[0] for command in RUN}  # the tests below
    assert commands == {"privrl-bench", "privrl", "python"}


def test_every_exception_is_shown():
    plain = [" ".join(shlex.split(command)) for command in SHOWN]
    unused = [s for s in NOT_RUN if not any(command.startswith(s) for command in plain)]
    assert not unused


def misspelt(text):
    """The tasks that the prose of a page spells otherwise."""
    return [word for word in TASK.findall(NO_PROSE.sub(" ", text)) if word not in TASKS]


def test_a_task_has_one_spelling():
    pages = [ROOT / "README.md"]
    pages += [page for part in ("docs", "examples") for page in (ROOT / part).rglob("*.md")]
    found = {page.relative_to(ROOT).as_posix(): misspelt(page.read_text()) for page in pages}
    assert len(found) > 40
    assert not {
        page: words for page, words in found.items() if words and page not in OTHER_SPELLINGS
    }


def test_another_spelling_is_found():
    planted = (
        "Cartpole cart-pole cartpole CartPole-v1 Half-Cheetah Half Cheetah halfcheetah Walker2D walker2d "
        "mountain car Riverswim River Swim Dosing0 dosing-1 pendulum hopper acrobot ant"
    )
    assert " ".join(misspelt(planted)) == planted
    assert misspelt(f"On {planted.split()[0]}, env=halfcheetah.") == ["Cartpole", "halfcheetah"]
    assert not misspelt(f"{', '.join(TASKS)}; Ant's, an important distant plant")
    code = "`env=cartpole` [the file](cartpole.md)\n\n    env=hopper\n\n```\nhopper\n```\n"
    assert not misspelt(code)


@pytest.mark.fast_every(10)
@pytest.mark.parametrize(
    "command", [c for c in RUN if c.startswith("privrl-bench ")], ids=lambda c: shown(c)[-60:]
)
def test_a_training_command_plans(command, plugin, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    if words == ["--help"]:
        with pytest.raises(SystemExit) as ended:
            train.main(words)
        assert not ended.value.code
        assert "Usage: privrl-bench" in capsys.readouterr().out
        return
    if "-m" in words:
        check_sweep(config.hydra_overrides([word for word in words if word != "-m"]))
        return
    plan = pb.plan([word for word in words if word != "plan_only=true"])
    assert plan.lines()


@pytest.mark.fast_every(5)
@pytest.mark.parametrize(
    "command", [c for c in RUN if c.startswith("privrl ")], ids=lambda c: shown(c)[-60:]
)
def test_a_command_runs(command, plugin, small_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    words = [
        str(small_run) if re.match(r"RUN$|outputs/(dppg|ppo)/", word) else word for word in words
    ]
    if words[0] == "tune":  # minutes; tests/packs/tuning/test_tune.py runs shorter ones
        words = ["tune", "--plan", *(word for word in words[1:] if word != "--plan")]
    if words[0] == "play":
        words += ["--steps", "5"]
    words += ["--estimate"] if words[0] == "reproduce" and "paper" in words else []  # hours
    assert privrl.main(words) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in RUN if c.startswith("python ")], ids=shown)
def test_a_script_of_an_example_takes_its_options(command, plugin, monkeypatch, capsys):
    """It is imported and reads its options, which `--help` after them ends; it takes minutes to run."""
    _, script, *options = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [script, *options, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str((ROOT / RUN[command]).with_name(script)), run_name="__main__")
    assert not ended.value.code
    assert f"usage: {script}" in capsys.readouterr().out
