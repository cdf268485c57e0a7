"""The environment of a run: simulator, user, public constants; and text environments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from privrl_bench.config.limits import check_finite
from privrl_bench.errors import ConfigError, require, require_choice

USERS = ("fresh", "episode", "segment")
MADE = "made"  # of a text environment: by the package itself
SCALINGS = ("public", "private", "running", "split", "none")


@dataclass
class TextConfig:
    """A text environment: who answers, who judges, whose prompts. Used with env.kind=text only."""

    policy: str = MADE  # made: the package's own small model | a folder | a hub name
    classifier: str = MADE  # made | a folder | a hub name; it has a label POSITIVE (or LABEL_1)
    # made: reviews of the grammar | a .txt, .jsonl or .parquet file, or a folder of .txt files
    prompts: str | None = MADE
    prompt_tokens: list[int] = field(
        default_factory=lambda: [2, 8]
    )  # n of a prompt: low <= n < high
    new_tokens: int = 24  # of an answer, which may end earlier
    min_characters: int = 200  # a shorter review is an absent user
    holdout: int = 20  # one of so many reviews, by a hash of each, is public: for evaluation
    reviews: int | None = 25_000  # at most so many places; unset: all (a file's)
    seed: int = 0  # of made models and reviews, of the order of users and their prompts' lengths
    size: str = "small"  # of the made models: small | smoke (seconds, learns little)
    cache: str | None = (
        None  # of the made models; unset: PRIVRL_BENCH_CACHE or the user's cache folder
    )

    def __post_init__(self) -> None:
        check_finite("env.text.", self)
        for key in ("policy", "classifier"):
            require(f"env.text.{key}", bool(getattr(self, key)), "a name or a folder", "nothing")
        ok = len(self.prompt_tokens) == 2 and 1 <= self.prompt_tokens[0] < self.prompt_tokens[1]
        rule = "two whole numbers, 1 <= low < high (high is left out)"
        require("env.text.prompt_tokens", ok, rule, self.prompt_tokens)
        new, least, every = self.new_tokens, self.min_characters, self.holdout
        require("env.text.new_tokens", new >= 1, "a whole number >= 1", new)
        require("env.text.min_characters", least >= 0, ">= 0", least)
        require("env.text.holdout", every >= 2, "a whole number >= 2", every)
        ok = self.reviews is None or self.reviews >= 2
        require("env.text.reviews", ok, "null or a whole number >= 2", self.reviews)
        ok = self.reviews is not None or self.prompts != MADE
        require("env.text.reviews", ok, "a whole number for made prompts", self.reviews)
        require("env.text.seed", 0 <= self.seed < 2**32, "between 0 and 2^32 - 1", self.seed)
        require_choice("env.text.size", self.size, ("small", "smoke"))


@dataclass
class EnvConfig:
    """Which simulator, what one user is in it, and the public constants that scale its signals."""

    name: str = "gym"  # registry name, equal to the YAML's name
    kind: str = (
        "gym"  # gym: a Gymnasium id; dmc: a dm_control suite task; text: prompts and answers
    )
    id: str | None = None  # Gymnasium id, `my_package:MyEnv-v0` imports my_package first
    domain: str | None = None  # dm_control domain
    task: str | None = None  # dm_control task
    kwargs: dict[str, Any] = field(default_factory=dict)  # passed to gymnasium.make
    backend: str = (
        "auto"  # auto: arrays where we have them | loop: one by one | rollout: mujoco.rollout
    )
    user: str = "fresh"  # what one user is: fresh | episode | segment (leaks)
    user_steps: int | None = None  # T, environment steps of one user; unset: the episode limit
    max_episode_steps: int | None = None  # public length limit; unset: the environment's own
    obs_scaling: str = (
        "public"  # public | private: in the release | split: data.public | running: leaks | none
    )
    obs_mean: list[float] | None = None  # public mean of each observation number
    obs_std: list[float] | None = None  # public standard deviation of each observation number
    obs_clip: float = 10.0  # scaled observations are cut at +- this
    reward_scaling: str = "public"
    reward_scale: float = 1.0  # learning sees reward * reward_scale
    reward_clip: float = 10.0  # scaled rewards are cut at +- this
    action: str = "stretch"  # of a box: the policy's [-1, 1] is stretched to it | clip: cut at it
    # Public ranges, for privacy=local.
    obs_low: list[float] | None = None  # of each observation number
    obs_high: list[float] | None = None
    obs_noise_scale: list[float] | None = None  # unset: high - low
    reward_low: float | None = None  # for privacy.rewards=noised
    reward_high: float | None = None
    text: TextConfig = field(default_factory=TextConfig)  # for kind=text

    @property
    def label(self) -> str:
        """What people call it: the registry name, or what a generic one points at."""
        if self.name == "gym":
            return str(self.id)
        return f"{self.domain}-{self.task}" if self.name == "dmc" else self.name

    def __post_init__(self) -> None:
        check_finite("env.", self)
        require_choice("env.kind", self.kind, ("gym", "dmc", "text"))
        require_choice("env.backend", self.backend, ("auto", "loop", "rollout"))
        require_choice("env.user", self.user, USERS)
        require_choice("env.action", self.action, ("stretch", "clip"))
        require_choice("env.obs_scaling", self.obs_scaling, SCALINGS)
        require_choice(
            "env.reward_scaling", self.reward_scaling, tuple(s for s in SCALINGS if s != "split")
        )
        if self.kind == "gym" and not self.id:
            raise ConfigError("env.id", "env=gym needs a Gymnasium id, e.g. env.id=Walker2d-v5")
        if self.kind == "dmc" and not (self.domain and self.task):
            raise ConfigError(
                "env.domain", "env=dmc needs both, e.g. env.domain=walker env.task=walk"
            )
        for key in ("user_steps", "max_episode_steps"):
            value = getattr(self, key)
            require(f"env.{key}", value is None or value >= 1, "a whole number >= 1", value)
        for key in ("obs_clip", "reward_clip", "reward_scale"):
            value = getattr(self, key)
            require(f"env.{key}", value > 0, "> 0", value)
        for key in ("obs_mean", "obs_std"):
            numbers = getattr(self, key)
            ok = numbers is None or all(math.isfinite(x) for x in numbers)
            require(f"env.{key}", ok, "a list of finite numbers", numbers)
        if self.obs_std is not None:
            require("env.obs_std", min(self.obs_std) > 0, "a list of numbers > 0", self.obs_std)
        if self.obs_mean is not None and self.obs_std is not None:
            require(
                "env.obs_std",
                len(self.obs_std) == len(self.obs_mean),
                f"as long as env.obs_mean ({len(self.obs_mean)})",
                len(self.obs_std),
            )
        self._check_ranges()
        if self.kind == "text":
            self._check_text()

    def _check_text(self) -> None:
        """A user is one prompt with its answer, and scores are as they are. Raises ConfigError."""
        steps, new = self.user_steps, self.text.new_tokens
        ok = steps is None or steps == new
        require("env.user_steps", ok, f"null or env.text.new_tokens={new}", steps)
        if self.user == "segment":
            raise ConfigError("env.user", "of a text is fresh or episode, got 'segment'")
        for key in ("obs_scaling", "reward_scaling"):
            value = getattr(self, key)
            require(f"env.{key}", value == "none", "none for a text", value)
        require(
            "env.max_episode_steps", self.max_episode_steps is None, "null for a text", "a number"
        )

    def _check_ranges(self) -> None:
        """Public ranges that are none. Raises ConfigError."""
        for key in ("obs_low", "obs_high", "obs_noise_scale"):
            numbers = getattr(self, key)
            ok = numbers is None or all(math.isfinite(x) for x in numbers)
            require(f"env.{key}", ok, "a list of finite numbers", numbers)
        low, high, scale = self.obs_low, self.obs_high, self.obs_noise_scale
        if low is not None and high is not None:
            ok = len(low) == len(high) and all(a < b for a, b in zip(low, high, strict=True))
            require("env.obs_high", ok, f"number by number above env.obs_low={low}", high)
        if scale is not None:
            require("env.obs_noise_scale", min(scale) > 0, "a list of numbers > 0", scale)
        for key in ("reward_low", "reward_high"):
            value = getattr(self, key)
            require(f"env.{key}", value is None or math.isfinite(value), "a finite number", value)
        if self.reward_low is not None and self.reward_high is not None:
            ok = self.reward_low < self.reward_high
            require(
                "env.reward_high", ok, f"> env.reward_low={self.reward_low:g}", self.reward_high
            )
