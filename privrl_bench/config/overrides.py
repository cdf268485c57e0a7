"""The words of a command line, before Hydra composes them: short forms, repetitions, choices of groups.

`settle` gives the words that Hydra gets. It is used for the command line, for sweeps and from Python alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from privrl_bench.config.diagnostics import CONFIG_NAME, SET_BY_FILES, parse
from privrl_bench.config.schema import TEXT_VERSIONS
from privrl_bench.errors import ConfigError


@cache
def conf_dir() -> Path:
    """The folder of YAML files: inside the package in a wheel, beside it in a source tree."""
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "conf", here.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"privrl_bench was installed without its YAML files (near {here})")


def choices(group: str) -> list[str]:
    """The names of a group's own YAML files.

    >>> choices("log")
    ['none', 'offline', 'online']
    """
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


@cache
def has_texts(env: str) -> bool:
    """Whether the users of one of our environments bring prompts."""
    path = conf_dir() / "env" / f"{env}.yaml"
    return path.is_file() and bool(re.search(r"^kind: text\b", path.read_text(), re.M))


def settle(words: Iterable[str]) -> list[str]:
    """The words that Hydra gets.

    Raises `ConfigError`: unreadable, a key twice with different values, or one that only files set.

    >>> settle(["env=hopper", "+paper=dppg", "total_steps=10"])
    ['env=hopper', 'paper=dppg', 'total_steps=10', 'rounds=null']
    """
    found = text_versions(plain_groups(words))
    check_repeated(found)
    for key in explicit_keys(found) & set(SET_BY_FILES):
        raise ConfigError(key, SET_BY_FILES[key])
    return explicit_length(found)


def plain_groups(words: Iterable[str]) -> list[str]:
    """`+paper=x` as `paper=x`, `tuned=null` as `~tuned`, and `env.kwargs={...}` as `++env.kwargs={...}`.

    Both groups are in config.yaml's defaults. `paper` is null there, because its column depends on the
    environment; users add it with a plus, as any group that is off by default. Hydra removes an optional
    group with `~` only. env.kwargs is the one mapping with free keys, which Hydra adds with pluses only.

    >>> plain_groups(["env=hopper", "+paper=dppg", "tuned=null"])
    ['env=hopper', 'paper=dppg', '~tuned']
    """
    found = [re.sub(r"^\+{1,2}paper=", "paper=", word) for word in words]
    found = [re.sub(r"^\+?env\.kwargs=\{", "++env.kwargs={", word) for word in found]
    return ["~tuned" if word == "tuned=null" else word for word in found]


def text_versions(words: Iterable[str]) -> list[str]:
    """The same words, with the algorithms' versions for texts where the environment has texts.

    Raises `ConfigError`: a sweep over environments of which some have texts.

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


def check_repeated(words: Iterable[str]) -> None:
    """Raise `ConfigError` for a key or a group that is given twice with different values.

    Hydra takes the last one without a word. The same value twice is accepted.
    """
    given: dict[str, tuple[str, object]] = {}
    for override in parse(words):
        key, word = override.key_or_group, override.input_line or ""
        value = word.partition("=")[2] if override.is_sweep_override() else override.value()
        if key in given and given[key][1] != value:
            raise ConfigError(key, f"given twice, as {given[key][0]} and {word}; give it once")
        given[key] = (word, value)


def explicit_keys(words: Iterable[str]) -> set[str]:
    """The keys and groups that words set; the others have values of YAML files.

    >>> sorted(explicit_keys(["env=hopper", "++privacy.z=1"]))
    ['env', 'privacy.z']
    """
    return {override.key_or_group for override in parse(words)}


def explicit_length(words: Sequence[str]) -> list[str]:
    """With `rounds=null` where the words give `total_steps` only: rounds of a YAML file would win.

    The reverse needs nothing: `rounds` wins over `total_steps` wherever both have a value.
    """
    keys = explicit_keys(words)
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
