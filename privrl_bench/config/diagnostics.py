"""The wording of errors in command lines and YAML files: one line with the key, what is wrong, what is allowed.

`composition/hydra_compose.py` calls Hydra and finds which word is wrong.
"""

from __future__ import annotations

import enum
import re
import shlex
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from privrl_bench.errors import ConfigError, suggest

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Choices of Hydra's groups that other packages bring: what to do about one that is not there.
_NEEDS = "is in an extra that is not installed: pip install 'privrl-bench[{}]'"
EXTRAS = {
    "hydra/launcher": {
        "joblib": _NEEDS.format("joblib"),
        "ray": f"{_NEEDS.format('ray')}, then pip install --no-deps hydra-ray-launcher",
        "submitit_local": _NEEDS.format("slurm"),
        "submitit_slurm": _NEEDS.format("slurm"),
        **dict.fromkeys(
            ("ray_aws", "rq"),
            "is not supported; use joblib, ray, submitit_slurm or submitit_local: docs/scaling.md",
        ),
    },
}
OPTIONAL_GROUPS = ("tuned", "paper/column")  # the command line may remove them

# Functions of a value: Hydra's for sweeps, and distributions of `privrl tune`.
DISTRIBUTIONS = ("uniform", "loguniform", "randint")
FUNCTIONS = ("range", "choice", "interval", "sort", "shuffle", *DISTRIBUTIONS)
CASTS = ("int", "float", "str", "bool", "tag", "glob")  # Hydra's other functions
# Keys that say which file a value is from: files set them, a command line must not.
NULL_WORDS = {"privacy.z": "auto"}  # what the command line calls null
SET_BY_FILES = {
    "env.name": "set by the env group; choose it with env=<name>",
    "algo.name": "set by the algo group; choose it with algo=<name>",
    "hyperparameter_source": "set by the file that holds the values; choose one with tuned=<name> "
    "or paper=<name>",
}
NOT_GIVEN = {
    **SET_BY_FILES,
    "hydra/sweeper": "-m takes values; privrl tune searches, inside the guarantee",
    "hydra.searchpath": "use --config-dir, whose files win over the package's",
}


def first_line(error: Exception) -> str:
    """The first line of an error's message that says what is wrong, or its type's name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].endswith("raised while composing config:") and len(lines) > 1:
        return f"{lines[0].partition(':')[0]}: {lines[1].strip()}"
    return lines[0]


def not_one_word(error: Exception, keys: Iterable[str]) -> ConfigError:
    """The error where no single one of the given keys is the cause of what Hydra raised."""
    text = str(error)
    if "'paper/" in text:  # its keys are those of one algorithm
        return ConfigError("paper", "its values do not fit this algorithm; use it with its own")
    if "'schema/algo/" in text:
        why = "is of a package that is not registered: install its plugin, or add plugins=[<its module>]"
        return ConfigError("algo", why)
    named = [key for key in keys if key in text]
    return ConfigError(named[0] if named else "", first_line(error))


def unreadable_value(key: str, value: str) -> ConfigError:
    """The error for a value that Hydra cannot read, or in quotes only, e.g. one that is not ASCII.

    >>> print(unreadable_value("env.id", "Wälder-v0").problem)
    cannot read the value 'Wälder-v0'; check its brackets and commas, or quote it: 'env.id="Wälder-v0"'
    >>> print(unreadable_value("seed", "rang(5)").problem.partition(";")[0])
    no such function 'rang' (did you mean range?)
    """
    called = re.match(r"(\w+)\(", value)
    if called and called[1] not in (*FUNCTIONS, *CASTS):
        known = f"allowed: {', '.join(FUNCTIONS)}; a text with brackets needs quotes"
        return ConfigError(
            key, f"no such function {called[1]!r}{suggest(called[1], FUNCTIONS)}; {known}"
        )
    if called and called[1] in DISTRIBUTIONS and value.endswith(")"):
        return drawn(key, value)
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    quoted = shlex.quote(f'{key}="{text}"')
    return ConfigError(
        key,
        f"cannot read the value {value!r}; check its brackets and commas, or quote it: {quoted}",
    )


def drawn(key: str, value: str) -> ConfigError:
    """The error for a distribution or an interval in a run or a sweep, which take values.

    >>> print(drawn("algo.lr", "interval(0.1,1)").problem.partition(":")[0])
    interval(0.1,1) is a range to draw from, and a sweep takes values
    """
    ends = value.partition("(")[2]
    how = value if value.startswith(DISTRIBUTIONS) else f"uniform({ends}"
    return ConfigError(
        key,
        f"{value} is a range to draw from, and a sweep takes values: -m {key}=a,b; "
        f"privrl tune draws: {key}={how}",
    )


def check_repeated(parsed: Iterable[Override]) -> None:
    """Check that no key or group is given twice with different values; the same value twice is accepted.

    Hydra takes the last one without a message. Raises `ConfigError`.
    """
    given: dict[str, tuple[str, object]] = {}
    for override in parsed:
        key, word = override.key_or_group, override.input_line or ""
        value = word.partition("=")[2] if override.is_sweep_override() else override.value()
        if key in given and given[key][1] != value:
            raise ConfigError(key, f"given twice, as {given[key][0]} and {word}; give it once")
        given[key] = (word, value)


def check_choices(
    parsed: Iterable[Override], groups: Collection[str], options: Callable[[str], list[str]]
) -> None:
    """Check that every group has the given choice.

    Hydra leaves out an optional group without a file, which is wanted only where the file's name follows from
    the algorithm and the environment; it takes paths and file names for choices, and lets any group be removed.

    Args:
        parsed: the words of one run.
        groups: names of the groups of YAML files.
        options: the choices of a group.

    Raises:
        ConfigError: a group has no such choice, or values were tuned for another algorithm.
    """
    chosen: dict[str, str] = {}
    for override in parsed:
        group = override.key_or_group
        if override.is_sweep_override():
            continue
        value = override.value()
        chosen[group] = str(value)
        if group in OPTIONAL_GROUPS and override.is_delete():
            continue
        if group in (*groups, *OPTIONAL_GROUPS) and not isinstance(value, dict):
            check_choice(override, options(group))
    algo, tuned = chosen.get("algo", "dppg"), str(chosen.get("tuned"))
    owners = [name for name in options("algo") if tuned.startswith(f"{name}_")]
    owner = max(owners, key=len, default=algo)
    if owner != algo:
        raise ConfigError("tuned", f"{tuned} is for algo={owner}, got algo={algo}")


def check_choice(override: Override, options: Sequence[str]) -> None:
    """Check that a group's name has a YAML file. Raises `ConfigError`."""
    group, value = override.key_or_group, override.value()
    if override.is_delete() or isinstance(value, list):
        raise ConfigError(group, f"takes one choice; allowed: {', '.join(options)}")
    if str(value) not in options and str(value) in (extras := EXTRAS.get(group, {})):
        raise ConfigError(group, f"{value} {extras[str(value)]}")
    if str(value) not in options:
        near, allowed = suggest(str(value), options), ", ".join(options)
        if group == "env" and re.search(r"-v\d+$", str(value)):
            near = f"; an id of Gymnasium is env=gym env.id={value}"
        own = "; --config-dir adds files of your own"
        raise ConfigError(group, f"no such choice {str(value)!r}{near}; allowed: {allowed}{own}")


def no_such_key(key: str, names: Iterable[str], free: bool, groups: Iterable[str]) -> ConfigError:
    """The error for an unknown key, with the nearest name and the names beside it.

    Args:
        key: what was given.
        names: all keys, with dots; also those of sections.
        free: the section that holds `key` is a mapping with any keys.
        groups: of YAML files.
    """
    if free:
        return ConfigError(key, f"no such key; add it with +{key}=<value>")
    known = [name for name in names if name not in SET_BY_FILES]
    parent = key.rpartition(".")[0]
    beside = [name for name in known if name.rpartition(".")[0] == parent]
    if not parent or not beside:
        beside = [*(name for name in known if "." not in name), "tuned", "paper"]
        known += [*groups, "tuned", "paper"]
    endings = {name.rpartition(".")[2]: name for name in reversed(known)}
    ending = key.rpartition(".")[2]
    if ending in endings:
        near = f" (did you mean {endings[ending]}?)"
    elif beside[0].startswith(f"{parent}."):  # the section is right, which is no likeness
        near = suggest(ending, [name.rpartition(".")[2] for name in beside])
        near = near.replace("did you mean ", f"did you mean {parent}.")
    else:
        near = suggest(key, known)
    return ConfigError(key, f"no such key{near}; allowed: {', '.join(beside)}")


def wrong_type(wanted: Any, value: Any, key: str = "") -> str:
    """Words for a value of the wrong type; `key` may have a word of its own for null.

    >>> wrong_type(int, 1e6)
    'must be an integer, got 1000000.0; write 1000000'
    """
    got = "null" if value is None else repr(str(value) if isinstance(value, str) else value)
    text = f"must be {_kind(wanted)}, got {got}"
    text = text.replace("be null", f"be {NULL_WORDS.get(key, 'null')}")
    if wanted is int and isinstance(value, float) and value.is_integer():
        text += f"; write {int(value)}"
    return text


def _kind(wanted: Any) -> str:
    """A type in words.

    >>> _kind(list[float] | None)
    'null or a list of numbers'
    """
    if isinstance(wanted, types.UnionType) or typing.get_origin(wanted) is typing.Union:
        kinds = [_kind(t) for t in typing.get_args(wanted) if t is not type(None)]
        return f"null or {' or '.join(kinds)}"
    if typing.get_origin(wanted) is list:
        of = {int: "integers", float: "numbers", str: "texts"}
        return f"a list of {of.get(typing.get_args(wanted)[0], 'values')}"
    if typing.get_origin(wanted) is dict:
        return "a mapping {name: value}"
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return f"one of {', '.join(choice.name for choice in wanted)}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return words.get(wanted, "of another type")


# --- YAML files

NAMED = ("env", "algo")  # groups whose files hold their own name


def unreadable(error: yaml.YAMLError) -> ConfigError:
    """The error for a file that is not YAML."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if mark is None:  # a character that YAML does not allow
        file = getattr(error, "name", "a YAML file")
        return ConfigError("", f"{file} cannot be read: {what}")
    path = Path(mark.name)
    group = path.parent.name
    return ConfigError(group, f"{group}/{path.name} cannot be read: line {mark.line + 1}: {what}")


def check_names(chosen: Mapping[str, str], name_of: Callable[[str], str]) -> None:
    """Check that a file's `name` is that of the file. With another's name it would have that one's identity.

    Args:
        chosen: group -> the name of the file.
        name_of: group -> the composed `<group>.name`.

    Raises:
        ConfigError: a file has another name, or none, and so the default.
    """
    for group in NAMED:
        file, name = chosen.get(group), name_of(group)
        if file is not None and name != file:
            rule = f"must have `name: {file}`, as the file is named"
            raise ConfigError(f"{group}.name", f"{group}/{file}.yaml {rule}, got {name!r}")
