"""Ranges that fields declare, and rules between sections."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest

from privrl_bench.algorithms.registry import ALGORITHMS, algo_schema
from privrl_bench.composition.compose import compose
from privrl_bench.config.ranges import (
    Section,
    check_sizes,
    choice,
    integer,
    nonnegative,
    numbers,
    positive,
    random_seed,
    text,
    widths,
    within,
)
from privrl_bench.config.schema import (
    DataConfig,
    EnvConfig,
    EvalConfig,
    HardwareConfig,
    LogConfig,
    RunConfig,
    TextConfig,
)
from privrl_bench.config.traits import Data
from privrl_bench.errors import ConfigError
from privrl_bench.users import kind_of


@dataclass
class Some(Section):
    prefix: ClassVar[str] = "some."

    lr: float = positive(1.0)
    ratio: float | None = positive(None)
    decay: float = nonnegative(0.0)
    gamma: float = within(0.9, "(0, 1]")
    epochs: int = integer(8, most=100)
    rounds: int | None = integer(None, least=2)
    seed: int = random_seed()
    critic: str = choice("private", ("private", "shared"))
    hidden: list[int] = widths([64])
    linear: list[int] = widths([], empty=True)
    std: list[float] | None = numbers(None, "> 0", lambda x: x > 0)
    entity: str | None = text(None, 3)
    free: float = 0.0


WRONG: list[tuple[str, Any, str]] = [
    ("lr", 0.0, "some.lr: must be > 0, got 0.0"),
    ("lr", None, "some.lr: must be > 0, got null"),
    ("lr", float("inf"), "some.lr: must be finite, got inf"),
    ("ratio", -1.0, "some.ratio: must be null or > 0, got -1.0"),
    ("decay", -1.0, "some.decay: must be >= 0, got -1.0"),
    ("gamma", 0.0, "some.gamma: must be in (0, 1], got 0.0"),
    ("gamma", 1.1, "some.gamma: must be in (0, 1], got 1.1"),
    ("epochs", 0, "some.epochs: must be an integer >= 1, got 0"),
    ("rounds", 1, "some.rounds: must be null or an integer >= 2, got 1"),
    ("seed", 2**32, f"some.seed: must be between 0 and 2^32 - 1, got {2**32}"),
    (
        "critic",
        "shard",
        "some.critic: must be one of private, shared, got 'shard' (did you mean shared?)",
    ),
    ("hidden", [], "some.hidden: must be a list of layer widths >= 1, got []"),
    ("linear", [0], "some.linear: must be a list of layer widths >= 1 (empty: linear), got [0]"),
    ("std", [1.0, 0.0], "some.std: must be null or a list of numbers > 0, got [1.0, 0.0]"),
    ("std", [], "some.std: must be null or a list of numbers > 0, got []"),
    ("entity", "abcd", "some.entity: must be null or 1 to 3 characters, got 'abcd'"),
    ("free", float("nan"), "some.free: must be finite, got nan"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG)
def test_a_value_outside_its_range_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(Some(), **{key: value})
    assert str(caught.value) == message


def test_bounds_that_are_inside_and_lists_of_their_own() -> None:
    some = Some(gamma=1.0, epochs=1, rounds=2, decay=0.0, std=[0.1], entity="abc", seed=0)
    some.hidden.append(3)
    assert Some().hidden == [64]


def test_sizes_are_checked_for_what_users_give_only() -> None:
    large = Some(epochs=101)
    with pytest.raises(ConfigError, match=r"^some\.epochs: must be at most 100, got 101$"):
        check_sizes(large, "some.")
    with pytest.raises(ConfigError, match=r"^rounds: must be at most 1_000_000_000_000, got"):
        check_sizes(Some(rounds=10**13))


def test_every_number_declares_its_range() -> None:
    """Those that do not are any finite number, or are compared with another key."""
    any_number = {
        *("obs_mean", "obs_low", "obs_high", "reward_low", "reward_high"),
        *("solved", "baseline_value", "target_entropy", "return_low", "return_high"),
        "center",
    }
    sections = (DataConfig, EnvConfig, EvalConfig, HardwareConfig, LogConfig, RunConfig, TextConfig)
    for section in (*sections, *(algo_schema(name) for name in ALGORITHMS)):
        for one in fields(section):
            if any(word in str(one.type) for word in ("int", "float")):
                declared = "range" in one.metadata
                assert declared != (one.name in any_number), f"{section.__name__}.{one.name}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("algo=ppo env.user=episode", "env.user: algo=ppo takes fresh, segment, got 'episode'"),
        ("algo=reinforce env.user=fresh", "env.user: algo=reinforce takes episode, got 'fresh'"),
        ("algo=dqn privacy=fixed", "privacy.sampling: algo=dqn takes poisson, got 'fixed'"),
        (
            "algo=dppg privacy=uniform_single_user privacy.population=9 privacy.users_per_round=1",
            "privacy.sampling: algo=dppg takes fixed, poisson, got 'uniform_single_user'",
        ),
        (
            "algo=primorl env=pendulum data.id=a/b-v0 privacy=fixed",
            "privacy.sampling: algo=primorl takes poisson, got 'fixed'",
        ),
        ("algo=ucbvi privacy=fixed", "privacy.mechanism: algo=ucbvi takes tree, fresh_noise_per_"),
        ("algo=primorl env=pendulum data.id=a/b-v0 privacy=local", "privacy: local is noise on"),
        ("algo=dppg data.policy=uniform", "data.policy: algo=dppg learns its own policy"),
        ("algo=mopo env=pendulum data.id=null", "data.id: algo=mopo learns from a dataset"),
        ("algo=dppg data.id=a/b-v0", "data.id: algo=dppg acts with its own policy"),
        ("algo=dppg env.obs_scaling=split", "env.obs_scaling: split is the public part of a"),
        ("algo=ppo env.obs_scaling=private", "env.obs_scaling: private is a block of a private"),
        ("privacy=poisson privacy.population=900 env.user=segment", "env.user: with privacy.samp"),
        (
            "algo=ppo privacy.sampling=poisson privacy.population=900",
            "env.user: with privacy.sampling=poisson users come and go, so a user must start from a reset: "
            "use fresh, got 'segment'",
        ),
        ("privacy.population=900 env.user=segment", "privacy.population: bounds the users of fi"),
    ],
)
def test_rules_between_sections(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(words.split())
    assert str(caught.value).startswith(message)


def test_what_the_users_of_a_run_give() -> None:
    evaluation = "algo=gpope env=chain data.policy=uniform"
    found = {
        words: kind_of(compose(words.split())).gives
        for words in (
            "algo=dppg",
            "algo=dqn",
            "algo=primorl env=pendulum data.id=a/b-v0",
            f"{evaluation} privacy.population=9",
            f"{evaluation} data.id=a/b-v0",
            "env=sentiment_small",
        )
    }
    kept = [Data.LIVE, Data.KEPT, Data.RECORDED, Data.ACTED, Data.RECORDED, Data.TEXTS]
    assert list(found.values()) == kept
