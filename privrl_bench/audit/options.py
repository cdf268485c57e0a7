"""The options of `privrl audit epsilon`. Without torch, so that a wrong one is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privrl_bench.errors import ConfigError, require_choice

ATTACKS = ("canary", "one-run", "end-to-end")
LEAST = {"scores": 20, "per_round": 1, "canaries": 100, "replicas": 20, "later_rounds": 0}


@dataclass(frozen=True)
class Options:
    """How an audit measures.

    Attributes:
        attack: one of `ATTACKS`, or all.
        confidence: of each bound, in [0.5, 1).
        scores: canary: canary units of the run.
        per_round: canary: units of one round.
        canaries: one-run: canaries of the run.
        replicas: end-to-end: runs, half of them with the crafted user.
        later_rounds: end-to-end: rounds observed after the user's round.
        full_size: keep the sizes of the configuration.
    """

    attack: str = "canary"
    confidence: float = 0.95
    scores: int = 20_000
    per_round: int = 4
    canaries: int = 5000
    replicas: int = 800
    later_rounds: int = 8
    full_size: bool = False


def check_options(options: Options, key_of: Callable[[str], str] = str) -> None:
    """Raise `ConfigError` for an option out of its range; `key_of`: its name in the message."""
    for name, least in LEAST.items():
        if getattr(options, name) < least:
            problem = f"must be an integer >= {least}, got {getattr(options, name)}"
            raise ConfigError(key_of(name), problem)
    if not 0.5 <= options.confidence < 1.0:
        raise ConfigError(key_of("confidence"), f"must be in [0.5, 1), got {options.confidence}")
    require_choice(key_of("attack"), options.attack, (*ATTACKS, "all"))
