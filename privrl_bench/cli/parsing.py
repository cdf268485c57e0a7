"""The argument parser of all commands: bad input is one line and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from privrl_bench.config.registry import Command
from privrl_bench.errors import ConfigError, suggest

EXIT_CODES = (
    "Exit codes: 0 success; 1 a failure; 2 bad input; 128 + N ended by signal N (130: Ctrl-C)."
)
CONFIG_DIR = "a folder with YAML files of your own, which win over the package's of their names"
OVERRIDES = "group=choice or key=value, as for privrl-bench"


class _Once(argparse.Action):
    """Store a value, as argparse does by default; another value of the same option is an error."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Called by argparse for each time that the argument is given."""
        before = self.__dict__.setdefault("before", values)
        if self.option_strings and before != values:
            rule = f"given twice, as {_shown(before)} and {_shown(values)}; give it once"
            raise argparse.ArgumentError(self, rule)
        setattr(namespace, self.dest, values)


def _shown(values: Any) -> str:
    return " ".join(map(str, values)) if isinstance(values, list) else str(values)


def _not_empty(value: Any) -> Any:
    """A text as it is; an empty one would name the working directory where a path is expected."""
    if value == "":
        raise argparse.ArgumentTypeError("must not be empty")
    return value


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `ConfigError` instead of printing its usage.

    Options are not abbreviated, and take one value. Options and positional arguments may be mixed.
    Texts and paths must not be empty.

    Args:
        prog: the command, as in `privrl audit leaks`.
        about: what the command does: one line, then more after an empty line.
        epilog: shown after the arguments; ends with the exit codes.
    """

    def __init__(self, prog: str, about: str, epilog: str = EXIT_CODES, **more: Any):
        super().__init__(
            prog,
            description=about,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **more,
        )
        self.register("action", None, _Once)
        self.register("type", None, _not_empty)
        self.register("type", Path, lambda value: Path(_not_empty(value)))

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError` for argparse's message, with the nearest option for an unknown one."""
        key, problem = _in_our_words(message, self._option_string_actions)
        hint = ""
        if "unrecognized" in message and any(one.dest == "overrides" for one in self._actions):
            hint = "; a setting has no dashes, key=value"
        raise ConfigError(key, f"{problem}; see {self.prog} --help{hint}")

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse arguments, which default to those of the process. Raises `ConfigError`."""
        return self.parse_intermixed_args(given(arguments))


def _in_our_words(message: str, options: Iterable[str]) -> tuple[str, str]:
    """The argument and what is wrong, of a message of argparse.

    >>> _in_our_words("argument --cfg/-c: invalid choice: 'jbo' (choose from 'job', 'all')", [])
    ('--cfg', "must be one of job, all, got 'jbo'")
    """
    unknown = re.match(r"unrecognized arguments: ([^ =]*)", message)
    if unknown is not None:
        return unknown[1], f"no such argument{suggest(unknown[1], options)}"
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing is not None:
        return missing[1], f"{'are' if ', ' in missing[1] else 'is'} required"
    key, problem = "", message
    wrong = re.fullmatch(r"argument ([^:/]+)(?:/[^:]+)?: (.*)", message, re.DOTALL)
    if wrong is not None:
        key, problem = wrong[1], wrong[2]
    choice = re.fullmatch(r"invalid choice: (.*) \(choose from (.*)\)", problem)
    if choice is not None:
        allowed = choice[2].replace("'", "")
        return key, f"must be one of {allowed}, got {choice[1]}"
    kind = re.fullmatch(r"invalid (int|float) value: (.*)", problem)
    if kind is not None:
        return key, f"must be {'an integer' if kind[1] == 'int' else 'a number'}, got {kind[2]}"
    return key, problem


def given(arguments: Sequence[str] | None) -> list[str]:
    """Return the arguments, or those of the process for None."""
    return list(sys.argv[1:] if arguments is None else arguments)


def check_at_least(flag: str, value: int | None, low: int) -> None:
    """Raise `ConfigError` unless an integer is None or at least `low`."""
    if value is not None and value < low:
        raise ConfigError(flag, f"must be an integer >= {low}, got {value}")


def add_working_directory() -> None:
    """Let `env.id=my_pkg:MyEnv-v0` find a package in the working directory."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def dispatch(
    prog: str,
    about: str,
    commands: Mapping[str, Command],
    words: Sequence[str],
    codes: str = EXIT_CODES,
) -> int:
    """Run one of several commands.

    Args:
        prog: the command that has them.
        about: what it does.
        commands: by name.
        words: the name of a command, then its arguments; none, or --help: the commands are listed.
        codes: their exit codes.

    Returns:
        The exit code of the command.

    Raises:
        ConfigError: there is no such command.
    """
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, commands)) + 3
        lines = [f"  {name:{width}}{command.about}" for name, command in commands.items()]
        listed = "\n".join(["commands:", *lines, "", f"Arguments of each: {prog} COMMAND --help"])
        usage = f"{prog} COMMAND [argument ...]"
        Parser(prog, about, f"{listed}\n{codes}", usage=usage, add_help=False).print_help()
        return 0
    name, *rest = words
    if name not in commands:
        near = suggest(name, commands)
        raise ConfigError("", f"no command {name!r}{near}; allowed: {', '.join(commands)}")
    module, _, function = commands[name].function.partition(":")
    return int(getattr(importlib.import_module(module), function)(rest, f"{prog} {name}"))
