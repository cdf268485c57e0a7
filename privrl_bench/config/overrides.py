"""The words of a command line before Hydra composes them: short forms, repetitions, versions for texts.

Hydra's own parser is called in `config/compose.py`, whose `settle` applies all of this.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

from privrl_bench.config.algorithm_registry import TEXT_VERSIONS
from privrl_bench.errors import ConfigError

CONFIG_NAME = "config"


@cache
def conf_dir() -> Path:
    """The folder of YAML files: inside the package in a wheel, beside it in a source tree."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "conf", here.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"privrl_bench was installed without its YAML files (near {here})")


_folders: list[Path] = []  # of plugins


def add_folder(folder: Path) -> None:
    """Take the YAML files of a folder, too; their names differ from all others."""
    _folders.append(folder)
    has_texts.cache_clear()


def added_folders() -> tuple[Path, ...]:
    """The folders that were added, in order."""
    return tuple(_folders)


def choices(group: str) -> list[str]:
    """The names of a group's YAML files, those of plugins included.

    >>> choices("log")
    ['none', 'offline', 'online']
    """
    folders = (conf_dir(), *_folders)
    return sorted(path.stem for folder in folders for path in (folder / group).glob("*.yaml"))


def choice_with_id(env_id: str) -> str | None:
    """The name of the first YAML file of a Gymnasium id; None where there is none.

    >>> choice_with_id("Hopper-v5"), choice_with_id("my_pkg:MyEnv-v0")
    ('hopper', None)
    """
    line = re.compile(rf"^id: {re.escape(env_id)}(\s|$)", re.M)
    for folder in (conf_dir(), *_folders):
        for path in sorted((folder / "env").glob("*.yaml")):
            if line.search(path.read_text()):
                return path.stem
    return None


def choices_in_help(group: str) -> str:
    """The names of a group, in the lines of `privrl-bench --help`."""
    return ("\n" + " " * 12).join(textwrap.wrap(", ".join(choices(group)), 86))


@cache
def has_texts(env: str) -> bool:
    """Whether an environment of a YAML file consists of prompts and answers."""
    paths = [folder / "env" / f"{env}.yaml" for folder in (conf_dir(), *_folders)]
    found = [path.read_text() for path in paths if path.is_file()]
    return any(re.search(r"^kind: text\b", text, re.M) for text in found)


def plain_groups(words: Iterable[str]) -> list[str]:
    """`+paper=x` as `paper=x`, `tuned=null` as `~tuned`, and `env.kwargs={...}` as `++env.kwargs={...}`.

    Also `privacy.z=auto` as `privacy.z=null`, alone or among the values of a sweep.

    Both groups are in config.yaml's defaults. `paper` is null there, because its column depends on the
    environment; users add it with a plus, as any group that is off by default. Hydra removes an optional
    group with `~` only. env.kwargs is the one mapping with free keys, which Hydra adds with pluses only.

    >>> plain_groups(["env=hopper", "+paper=dppg", "tuned=null", "privacy.z=auto,1"])
    ['env=hopper', 'paper=dppg', '~tuned', 'privacy.z=null,1']
    """
    found = [re.sub(r"^\+{1,2}(paper|plugins)=", r"\1=", word) for word in words]
    found = [re.sub(r"^\+?env\.kwargs=\{", "++env.kwargs={", word) for word in found]
    found = ["~tuned" if word == "tuned=null" else word for word in found]
    z = re.compile(r"\+{0,2}privacy\.z=")
    return [re.sub(r"\bauto\b", "null", word) if z.match(word) else word for word in found]


def text_versions(words: Iterable[str]) -> list[str]:
    """The same words, with the algorithms' versions for texts where the environment has texts.

    Raises:
        ConfigError: a sweep over environments of which some have texts.

    >>> text_versions(["algo=ppo", "env=sentiment_small"]), text_versions(["algo=ppo", "env=hopper"])
    (['algo=ppo_text', 'env=sentiment_small'], ['algo=ppo', 'env=hopper'])
    """
    found = list(words)
    envs = [name for word in found if word.startswith("env=") for name in word[4:].split(",")]
    texts = [name for name in envs if has_texts(name)]
    if not texts:
        return found
    if len(texts) < len(envs):
        raise ConfigError("env", f"sweep texts ({', '.join(texts)}) apart from other environments")
    if not any(word.startswith("algo=") for word in found):
        found.append("algo=dppg")
    return [
        "algo=" + ",".join(TEXT_VERSIONS.get(name, name) for name in word[5:].split(","))
        if word.startswith("algo=")
        else word
        for word in found
    ]


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
