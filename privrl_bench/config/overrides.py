"""The words of a command line before Hydra composes them: short forms, repetitions.

Hydra's own parser is called in `composition/hydra_compose.py`, whose `hydra_overrides` applies all of this.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.errors import ConfigError

GENERIC = ("gym", "dmc")  # environments that stand for any of their kind
CONFIG_NAME = "config"
OWN_FOLDER = "--config-dir"
WITH = ", with "  # in `hyperparameter_source`, before further files of `own_folder`


@cache
def conf_dir() -> Path:
    """The folder of YAML files: inside the package in a wheel, beside it in a source tree."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "conf", here.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"privrl_bench was installed without its YAML files (near {here})")


_folders: list[Path] = []  # of plugins
_own: list[Path] = []  # of --config-dir, or of a call from Python; the last one counts


def add_folder(folder: Path) -> None:
    """Take the YAML files of a folder, too; their names differ from all others."""
    _folders.append(folder)


def added_folders() -> tuple[Path, ...]:
    """The folders that were added, in order."""
    return tuple(_folders)


@contextmanager
def own_folder(config_dir: str | Path | None) -> Iterator[None]:
    """Let the YAML files of a folder (`--config-dir`) win over others of their names; None: no change.

    Raises:
        ConfigError: there is no such folder, a file in it is none of a group, or is not UTF-8 text.
    """
    if config_dir is None:
        yield
        return
    folder = Path(config_dir)
    if config_dir == "":
        raise ConfigError(OWN_FOLDER, "must not be empty")
    if not folder.is_dir():
        raise ConfigError(OWN_FOLDER, f"no such folder: {config_dir}")
    for name in (f"{CONFIG_NAME}.yaml", "schema"):
        if (folder / name).exists():
            rule = "takes files of groups, such as env/mine.yaml"
            raise ConfigError(OWN_FOLDER, f"{rule}; {folder / name} belongs to no group")
    for path in (path for group in groups() for path in (folder / group).glob("*.yml")):
        raise ConfigError(OWN_FOLDER, f"{path} must end with .yaml")
    for path in (path for group in groups() for path in (folder / group).glob("*.yaml")):
        _check_text(path)
    outer = list(_own)
    _own.append(folder)
    try:
        yield
    finally:
        _own[:] = outer


def _check_text(path: Path) -> None:
    """Raise `ConfigError` for a file that cannot be read as text: Hydra's errors do not name it."""
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        raise ConfigError(OWN_FOLDER, problem) from None
    except OSError as error:
        raise ConfigError(OWN_FOLDER, f"cannot read {path}: {error.strerror}") from None


def keep_own(folder: Path | None) -> None:
    """`own_folder` for the rest of a process, which another one has started."""
    _own[:] = [] if folder is None else [folder]


def own() -> Path | None:
    """The folder of `own_folder` that is in effect, as it was given."""
    return _own[-1] if _own else None


def own_file(group: str, name: str) -> Path | None:
    """The file of a group in the folder of `own_folder`; None: it has no such file."""
    path = _own[-1] / group / f"{name}.yaml" if _own else None
    return path if path is not None and path.is_file() else None


def file_of(group: str, name: str) -> Path | None:
    """The YAML file that is used for a name of a group; None: there is none."""
    paths = (folder / group / f"{name}.yaml" for folder in (*_own[-1:], conf_dir(), *_folders))
    return next((path for path in paths if path.is_file()), None)


def only_packaged() -> bool:
    """Whether all YAML files in use are the package's own or its packs', which do not change."""
    here = Path(__file__).resolve().parents[1]
    return not _own and all(folder.is_relative_to(here) for folder in _folders)


def is_packaged(group: str, name: str) -> bool:
    """Whether the file that is used for a name of a group is the package's own, or one of its packs."""
    file, here = file_of(group, name), Path(__file__).resolve().parents[1]
    return file is not None and (file.is_relative_to(conf_dir()) or file.is_relative_to(here))


def source_of(path: Path) -> str:
    """The `hyperparameter_source` of values of an own file: its text and its path, or its path alone."""
    found = re.search(r"^hyperparameter_source: *(.+)", path.read_text(encoding="utf-8"), re.M)
    return f"{found[1]} ({path})" if found else str(path)


def leaves(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a YAML file by dotted key, without `defaults`.

    >>> leaves({"defaults": ["_self_"], "algo": {"lr": 0.1, "hidden": [4]}})
    {'algo.lr': 0.1, 'algo.hidden': [4]}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{prefix}{name}.")
        elif name != "defaults":
            found[f"{prefix}{name}"] = value
    return found


@cache
def groups() -> frozenset[str]:
    """The groups of YAML files, without Hydra's own: `paper/column` is a group as `paper` is."""
    files = conf_dir().glob("**/*.yaml")
    found = {path.parent.relative_to(conf_dir()).as_posix() for path in files}
    found |= {"collect", "paper", "paper/column"}  # of packs
    return frozenset(group for group in found if group != "." and not group.startswith("hydra"))


@cache
def default_choices() -> dict[str, str]:
    """The choices that config.yaml makes: group -> name.

    >>> default_choices()["algo"], default_choices()["env"]
    ('dppg', 'cartpole')
    """
    main = yaml.safe_load((conf_dir() / f"{CONFIG_NAME}.yaml").read_text())
    pairs = [pair for one in main["defaults"] if isinstance(one, dict) for pair in one.items()]
    return {group: name for group, name in pairs if group in groups() and name is not None}


def choices(group: str) -> list[str]:
    """The names of a group's YAML files, those of plugins and of `own_folder` included.

    >>> choices("log")
    ['none', 'offline', 'online']
    """
    folders = (*_own[-1:], conf_dir(), *_folders)
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def _text(group: str, name: str) -> str:
    path = file_of(group, name)
    return "" if path is None else path.read_text(encoding="utf-8")


def choices_in_help(group: str) -> str:
    """The names of a group, in the lines of `privrl-bench --help`."""
    return ("\n" + " " * 12).join(textwrap.wrap(", ".join(choices(group)), 86))


def default_algo(env: str) -> str:
    """The algorithm of an environment where none is given: its file may have `- override /algo: <name>`.

    >>> default_algo("hopper")
    'dppg'
    """
    own = re.search(r"^ *- *override /algo: *(\w+)", _text("env", env), re.M)
    return own[1] if own else default_choices()["algo"]


def plain_groups(words: Iterable[str]) -> list[str]:
    """`+paper=x` as `paper=x`, `tuned=null` as `~tuned`, and `env.kwargs={...}` as `++env.kwargs={...}`.

    Also `privacy.z=auto` as `privacy.z=null`, alone or among the values of a sweep, and `budget=` as
    `budget.file=`.

    Both groups are in config.yaml's defaults. `paper` is null there, because its column depends on the
    environment; users add it with a plus, as any group that is off by default. Hydra removes an optional
    group with `~` only. env.kwargs is the one mapping with free keys, which Hydra adds with pluses only.

    >>> plain_groups(["env=hopper", "+paper=dppg", "tuned=null", "privacy.z=auto,1"])
    ['env=hopper', 'paper=dppg', '~tuned', 'privacy.z=null,1']
    """
    found = [re.sub(r"^\+{1,2}(paper|plugins)=", r"\1=", word) for word in words]
    found = [re.sub(r"^\+?env\.kwargs=\{", "++env.kwargs={", word) for word in found]
    found = [re.sub(r"^budget=", "budget.file=", word) for word in found]
    found = ["~tuned" if word == "tuned=null" else word for word in found]
    z = re.compile(r"\+{0,2}privacy\.z=")
    return [re.sub(r"\bauto\b", "null", word) if z.match(word) else word for word in found]


def explicit_keys(words: Iterable[str]) -> set[str]:
    """The keys and groups that words set; the others have values of YAML files.

    >>> sorted(explicit_keys(["env=hopper", "++privacy.z=1", "~tuned"]))
    ['env', 'privacy.z', 'tuned']
    """
    return {re.split("[=@]", word.lstrip("+~"))[0] for word in words}


def explicit_length(words: Sequence[str], keys: Collection[str]) -> list[str]:
    """With `rounds=null` where the words give `total_steps` only: rounds of a YAML file would win.

    The reverse needs nothing: `rounds` wins over `total_steps` wherever both have a value.
    """
    more = ["rounds=null"] if "total_steps" in keys and "rounds" not in keys else []
    return [*words, *more]


def later_wins(*parts: Iterable[str]) -> list[str]:
    """Words of several sources as one command line: a later word replaces an earlier one of its key.

    >>> later_wins(["total_steps=5", "seed=1"], ["total_steps=7"])
    ['seed=1', 'total_steps=7']
    """
    words = plain_groups(word for part in parts for word in part)
    last = {word.partition("=")[0].lstrip("+"): at for at, word in enumerate(words)}
    return [word for at, word in enumerate(words) if at in last.values()]
