"""The environment of a run: simulator, user, public constants; and text environments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privrl_bench.config.ranges import (
    Section,
    choice,
    integer,
    numbers,
    positive,
    random_seed,
    ranged,
)
from privrl_bench.config.traits import USERS
from privrl_bench.errors import ConfigError, require

MADE = "made"  # of a text environment: by the package itself
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:Class
SCALINGS = ("public", "private", "running", "split", "none")


def _source(default: str) -> Any:
    return ranged(default, "a name or a folder", bool)


@dataclass
class TextConfig(Section):
    """A text environment: policy model, reward model, prompts. Used with env.kind=text only."""

    prefix: ClassVar[str] = "env.text."

    policy: str = _source(MADE)  # made: the package's own small model | a folder | a hub name
    # made | a folder | a hub name; it has one label, or several with one POSITIVE (or LABEL_1)
    classifier: str = _source(MADE)
    # made: reviews of the grammar | a .txt, .jsonl or .parquet file, or a folder of .txt files
    prompts: str | None = MADE
    simulated: bool = False  # true: reviews of a file are simulated; else they need secure noise
    # length of a prompt: low <= length < high
    prompt_tokens: list[int] = ranged(
        [2, 8],
        "two integers, 1 <= low < high (high is excluded)",
        lambda x: len(x) == 2 and 1 <= x[0] < x[1],
        most=10**5,
    )
    new_tokens: int = integer(24, most=10**5)  # maximum length of an answer
    min_characters: int = integer(200, least=0)  # a shorter review is an absent user
    holdout: int = integer(20, least=2)  # one review in this many is public, chosen by a hash
    reviews: int | None = integer(25_000, least=2)  # maximum number of reviews; null: all of a file
    seed: int = random_seed()  # of made reviews, of the order of users and of prompt lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        ok = self.reviews is not None or self.prompts != MADE
        require("env.text.reviews", ok, "an integer for made prompts", self.reviews)


def wrapper_parts(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name `module:Class` and the arguments of an entry of `env.wrappers`.

    >>> wrapper_parts({"name": "my_pkg:Skip", "k": 3}), wrapper_parts("my_pkg:Skip")
    (('my_pkg:Skip', {'k': 3}), ('my_pkg:Skip', {}))
    """
    if isinstance(entry, str):
        return entry, {}
    return entry["name"], {key: value for key, value in entry.items() if key != "name"}


def wrappers_in_words(config: EnvConfig) -> str:
    """The wrappers of an environment, innermost first, and what becomes of them at a reset."""
    calls = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in map(wrapper_parts, config.wrappers)
    ]
    return f"{', '.join(calls)}; made anew with the environment at every reset"


def _is_wrapper(entry: Any) -> bool:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return isinstance(name, str) and bool(_CLASS.fullmatch(name))


@dataclass
class EnvConfig(Section):
    """The simulator, the definition of a user in it, and the public constants that scale its signals."""

    prefix: ClassVar[str] = "env."

    name: str = "gym"  # registry name, equal to the YAML's name
    # gym: a Gymnasium id; dmc: a dm_control suite task; text: prompts and answers; logs: of a dataset
    kind: str = "gym"
    id: str | None = None  # Gymnasium id, `my_package:MyEnv-v0` imports my_package first
    domain: str | None = None  # dm_control domain
    task: str | None = None  # dm_control task
    kwargs: dict[str, Any] = field(default_factory=dict)  # passed to gymnasium.make
    # parts of Dict or Tuple observations to use; null: all
    obs_parts: list[str] | None = ranged(
        None, "a list of different names, not empty", lambda x: bool(x) and len({*x}) == len(x)
    )
    # around the environment, innermost first: `module:Class`, or {name: `module:Class`, argument: value}
    wrappers: list[Any] = ranged(
        [],
        "a list of module:Class or {name: module:Class, argument: value}, e.g. "
        "[{name: gymnasium.wrappers:TimeLimit, max_episode_steps: 100}]",
        lambda entries: all(map(_is_wrapper, entries)),
    )
    check: bool = True  # of an unknown environment: a second of random actions before training
    # auto: vectorised where implemented | loop: one environment at a time | torch, warp: users are
    # simulated on hardware.device, evaluation is on the CPU (docs/gpu.md)
    backend: str = choice("auto", ("auto", "loop", "torch", "warp"))
    user: str = choice("fresh", USERS)  # what one user is; segment leaks
    # T, environment steps of one user; null: the episode limit
    user_steps: int | None = integer(None, most=10**8)
    # public episode limit; null: the environment's own
    max_episode_steps: int | None = integer(None, most=10**8)
    # public | private: in the release | split: data.public | running: leaks | none
    obs_scaling: str = choice("public", SCALINGS)
    obs_mean: list[float] | None = None  # public mean of each observation coordinate
    # public standard deviation of each observation coordinate
    obs_std: list[float] | None = numbers(None, "> 0", lambda x: x > 0)
    obs_clip: float = positive(10.0)  # scaled observations are clipped to +- this
    # public: times reward_scale | private: in the release | running: leaks | none
    reward_scaling: str = choice("public", tuple(s for s in SCALINGS if s != "split"))
    reward_scale: float = positive(1.0)  # learning uses reward * reward_scale
    reward_clip: float = positive(10.0)  # scaled rewards are clipped to +- this
    # box actions: the policy's [-1, 1] is stretched to the box | clip: clipped to it
    action: str = choice("stretch", ("stretch", "clip"))
    # public range of each coordinate, for privacy=local and for the features of policy evaluation
    obs_low: list[float] | None = None
    obs_high: list[float] | None = None  # its upper ends
    # privacy=local: noise std / z of each coordinate; null: high - low
    obs_noise_scale: list[float] | None = numbers(None, "> 0", lambda x: x > 0)
    reward_low: float | None = None  # privacy.rewards=noised: public least reward
    reward_high: float | None = None  # privacy.rewards=noised: public largest reward
    text: TextConfig = field(default_factory=TextConfig)  # for kind=text

    @property
    def reward_unit(self) -> float:
        """Of what is learned from rewards with public scaling, in the environment's rewards."""
        return 1.0 if self.reward_scaling == "none" else 1.0 / self.reward_scale

    @property
    def label(self) -> str:
        """Name for messages and results: registry name, or id or task of a generic one, with `+` wrappers."""
        generic = {"gym": self.id, "logs": self.id, "dmc": f"{self.domain}-{self.task}"}
        own = str(generic.get(self.name, self.name))
        return "+".join([own, *(wrapper_parts(x)[0].partition(":")[2] for x in self.wrappers)])

    def __post_init__(self) -> None:
        super().__post_init__()
        # One form for one meaning, because the identity has it.
        self.wrappers = [
            name if not arguments else {"name": name, **arguments}
            for name, arguments in map(wrapper_parts, self.wrappers)
        ]
        if self.kind == "gym" and not self.id:
            raise ConfigError("env.id", "env=gym needs a Gymnasium id, e.g. env.id=Walker2d-v5")
        if self.kind == "dmc" and not (self.domain and self.task):
            raise ConfigError(
                "env.domain", "env=dmc needs both, e.g. env.domain=walker env.task=walk"
            )
        low, high = self.obs_low, self.obs_high
        if low is not None and high is not None:
            ok = len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True))
            require("env.obs_high", ok, f"elementwise above env.obs_low={low}", high)
        least, most = self.reward_low, self.reward_high
        if least is not None and most is not None:
            require("env.reward_high", least < most, f"> env.reward_low={least:g}", most)
