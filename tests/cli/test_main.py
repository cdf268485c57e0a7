"""The command `privrl`: its help, its subcommands, and tables with and without a terminal."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from helpers import exit_code

from privrl_bench.cli import audit, console, main, parsing, train

ROOT = Path(main.__file__).parents[2]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, *words).splitlines()
    for name, command in main.COMMANDS.items():
        assert sum(line.split() == [name, *command.about.split()] for line in lines) == 1
    assert lines[-1] == parsing.EXIT_CODES
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["audit"], ["  leaks     find what bypasses"]),
        (["audit", "leaks"], ["--round I"]),
        (["audit", "epsilon"], ["(default 20000)"]),
        (["collect"], ["privrl collect env=pendulum"]),
        (["report"], ["--out DIR", "Example: privrl report outputs/dppg"]),
        (["reproduce"], ["dppg-table1"]),
        (["text"], ["quality"]),
    ],
)
def test_every_command_has_help_with_exit_codes(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *words, "--help")
    assert text.startswith(f"usage: privrl {' '.join(words)}")
    assert not [part for part in expected if part not in text]
    assert "Exit codes: 0 " in " ".join(text.split())
    assert "%" not in text
    assert "{}" not in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--version").startswith("privrl ")
    assert exit_code(train.main, ["--version"]) == 0
    assert capsys.readouterr().out.startswith("privrl-bench ")


def test_there_are_two_commands_and_every_function_exists() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"privrl-bench", "privrl"}
    found = [command.function for command in (*main.COMMANDS.values(), *audit.COMMANDS.values())]
    for function in (*scripts.values(), *found):
        module, _, name = function.partition(":")
        assert callable(getattr(import_module(module), name))


def test_help_imports_nothing_heavy_and_a_wrong_option_of_an_audit_no_torch() -> None:
    code = (
        "import sys; from privrl_bench.cli.main import main; main(['--help'])\n"
        "print(sorted({'torch', 'wandb', 'gymnasium', 'numpy', 'hydra', 'rich'} & set(sys.modules)))\n"
        "assert main(['audit', 'epsilon', '--trials', '0']) == 2\n"
        "assert main(['audit', 'epsilon', '--confidence', '2']) == 2\n"
        "assert main(['audit', 'epsilon', 'privacy.zz=2']) == 2\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


HEAD, ROWS = ("folder", "status"), [("outputs/" + "x" * 120, "done"), ("[b]", "failed")]


def test_a_table_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(HEAD, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "folder" + " " * 122 + "  status",
        "outputs/" + "x" * 120 + "  done",
        "[b]" + " " * 125 + "  failed",
    ]
