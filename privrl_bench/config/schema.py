"""The typed configuration of a run: plain dataclasses with range checks.

No Hydra and no torch here, so that `RunConfig(...)` can be built from Python, and so that a typing
error is reported before anything heavy is imported. Values live in `conf/`; `config/compose.py` registers
these classes with Hydra. Checks run in `__post_init__` and name the key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from privrl_bench.config.limits import check_finite
from privrl_bench.errors import ConfigError, require, require_choice

USERS = ("fresh", "episode", "segment")
MECHANISMS = (
    "gaussian",
    "tree",
    "fresh_noise_per_round",
    "per_transition",
    "local",
    "smooth",
    "none",
)
SAMPLINGS = ("fixed", "poisson", "uniform_single_user", "full_batch")
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


@dataclass
class PrivacyConfig:
    """The mechanism, its noise and its accounting. The gate is built from this alone."""

    # gaussian | tree: sums over rounds | fresh_noise_per_round, per_transition: leak | local: on devices
    # | smooth: one release, noise by smooth sensitivity | none
    mechanism: str = "gaussian"
    z: float = 1.0  # noise multiplier = noise std / clip, no unit; 0 adds no noise
    clip: float = 1.0  # L2 bound of one user's contribution, parameter units
    delta: float = 1e-5
    epsilon: float | None = None  # budget: rounds end before it would be exceeded; unset: none
    users_per_round: int = 8  # U; for Poisson sampling the expected number, q * population
    # fixed: cohorts of U filled by arrival; poisson: each joins with q; uniform_single_user: one, drawn from exactly
    # `population`; everybody: all of exactly `population`, in one release
    sampling: str = "fixed"
    # public number of users: a bound (poisson; fixed: a run that needs more is refused), or exact
    population: int | None = None
    # zero_out | replace_one (fixed), add_or_remove (poisson of live users; of a dataset's it is zero_out),
    # any_trajectory_pair: trajectories (local)
    adjacency: str = "zero_out"
    accountant: str = "pld"  # pld (exact where it applies) | rdp | gaussian (exact or refused)
    noise: str = "seeded"  # seeded: reproducible research; secure: operating-system entropy
    rewards: str = "public"  # local: public: told exactly | noised

    def __post_init__(self) -> None:
        check_finite("privacy.", self)
        require_choice("privacy.mechanism", self.mechanism, MECHANISMS)
        if self.mechanism == "per_transition" and self.adjacency != "replace_one":
            raise ConfigError(
                "privacy.adjacency",
                f"noise on transitions is counted under replace_one only, got {self.adjacency!r}",
            )
        require_choice("privacy.sampling", self.sampling, SAMPLINGS)
        require_choice(
            "privacy.adjacency",
            self.adjacency,
            ("zero_out", "replace_one", "add_or_remove", "any_trajectory_pair"),
        )
        require_choice("privacy.rewards", self.rewards, ("public", "noised"))
        require_choice("privacy.accountant", self.accountant, ("pld", "rdp", "gaussian"))
        require_choice("privacy.noise", self.noise, ("seeded", "secure"))
        ok = math.isfinite(self.z) and self.z >= 0
        require("privacy.z", ok, ">= 0 (noise std / clip)", self.z)
        require("privacy.z", self.z == 0 or 1e-6 <= self.z <= 1e6, "0 or in [1e-6, 1e6]", self.z)
        ok = math.isfinite(self.clip) and self.clip > 0
        require("privacy.clip", ok, "> 0 (parameter units)", self.clip)
        require("privacy.clip", 1e-9 <= self.clip <= 1e9, "in [1e-9, 1e9]", self.clip)
        require("privacy.delta", 0 < self.delta < 1, "between 0 and 1", self.delta)
        require("privacy.delta", self.delta >= 1e-100, ">= 1e-100", self.delta)
        ok = self.epsilon is None or 0 < self.epsilon < math.inf
        require("privacy.epsilon", ok, "null or a finite number > 0", self.epsilon)
        require("privacy.epsilon", not ok or (self.epsilon or 1) >= 1e-4, ">= 1e-4", self.epsilon)
        if self.epsilon is not None and self.mechanism in (
            *("none", "fresh_noise_per_round", "per_transition"),
        ):
            raise ConfigError(
                "privacy.epsilon", f"nothing is bounded with privacy.mechanism={self.mechanism}"
            )
        users = self.users_per_round
        require("privacy.users_per_round", users >= 1, "a whole number >= 1", users)
        if self.sampling == "poisson":
            if self.population is not None and self.population < users:
                raise ConfigError(
                    "privacy.population",
                    "Poisson sampling needs the number of people, at least "
                    f"privacy.users_per_round={users}, got {self.population}",
                )
            if self.accountant != "pld":
                raise ConfigError(
                    "privacy.accountant",
                    f"only pld has an analysis of capped Poisson cohorts, got {self.accountant!r}",
                )
            if self.adjacency not in ("add_or_remove", "zero_out"):
                raise ConfigError(
                    "privacy.adjacency",
                    "Poisson sampling is analysed for add_or_remove and zero_out only, got "
                    f"{self.adjacency!r}",
                )
        elif self.adjacency == "add_or_remove":
            raise ConfigError(
                "privacy.adjacency",
                "cohorts of fixed size have no add_or_remove analysis (removing one user moves "
                "the others); use zero_out or replace_one, or privacy.sampling=poisson",
            )
        if self.sampling == "poisson" and self.mechanism not in ("gaussian", "none"):
            raise ConfigError(
                "privacy.mechanism",
                f"Poisson sampling is analysed for gaussian, got {self.mechanism!r}",
            )
        self._check_drawn()
        self._check_local()

    def _check_drawn(self) -> None:
        """What one of n, and everybody at once, go with. Raises ConfigError."""
        smooth = self.mechanism == "smooth"
        if smooth and self.epsilon is None:
            raise ConfigError(
                "privacy.epsilon", "privacy=smooth makes its noise for it: a number > 0, got null"
            )
        if smooth and self.z != 1:
            raise ConfigError(
                "privacy.z", f"privacy=smooth takes privacy.epsilon, so it stays 1, got {self.z:g}"
            )
        if smooth and self.sampling != "full_batch":
            raise ConfigError(
                "privacy.sampling", f"privacy=smooth is about everybody, got {self.sampling!r}"
            )
        if self.sampling not in ("uniform_single_user", "full_batch"):
            return
        fits = ("gaussian",) if self.sampling == "uniform_single_user" else ("smooth", "none")
        if self.mechanism not in fits:
            raise ConfigError(
                "privacy.mechanism",
                f"{self.sampling} sampling is analysed for {', '.join(fits)}, got {self.mechanism!r}",
            )
        if self.mechanism != "none" and self.adjacency != "replace_one":
            raise ConfigError(
                "privacy.adjacency",
                f"{self.sampling} sampling knows how many people there are: replace_one, got "
                f"{self.adjacency!r}",
            )
        people = self.population
        require("privacy.population", people is None or people >= 1, "a number >= 1", people)
        if self.users_per_round != 1:
            raise ConfigError(
                "privacy.users_per_round",
                f"{self.sampling} sampling has none to choose: 1, got {self.users_per_round}",
            )
        if self.sampling == "uniform_single_user" and self.accountant == "gaussian":
            raise ConfigError(
                "privacy.accountant",
                "gaussian is for fixed cohorts; use pld or rdp with uniform_single_user",
            )

    def _check_local(self) -> None:
        """What noise on the users' devices goes with. Raises ConfigError."""
        local = self.mechanism == "local"
        if local != (self.adjacency == "any_trajectory_pair"):
            raise ConfigError(
                "privacy.adjacency",
                "any_trajectory_pair trajectories belong to privacy.mechanism=local and to it alone, got "
                f"{self.adjacency!r} with {self.mechanism!r}; use privacy=local",
            )
        if local and self.accountant == "rdp":
            raise ConfigError("privacy.accountant", "local noise has an exact one: pld or gaussian")
        if not local and self.rewards != "public":
            raise ConfigError("privacy.rewards", "noised is for privacy.mechanism=local only")

    @property
    def pooled(self) -> bool:
        """Whether everybody's data are pooled in one row, which the gate neither clips nor noises."""
        return self.mechanism in ("none", "per_transition", "smooth")

    @property
    def drawn(self) -> bool:
        """Whether who is in a round is drawn by the gate, so that everybody may be in any."""
        return self.sampling != "fixed"


@dataclass
class DataConfig:
    """A fixed dataset of trajectories, for algorithms that learn from one instead of from live users."""

    id: str | None = None  # of a local Minari dataset, e.g. pendulum/ddpg-v0
    public: float = 0.01  # share of its users who are public: scaling, early stopping, start states
    users: int | None = None  # take only so many of its users; unset: all
    # Key of the episodes' metadata that names their user. auto: `user` if it is there, else each episode is a
    # user, and refused if values of other keys repeat | a key | null: each episode is a user
    user_key: str | None = "auto"
    # For algorithms that evaluate one: the policy that acted (nets/known.py); without data.id it plays anew
    policy: str | None = None

    def __post_init__(self) -> None:
        check_finite("data.", self)
        require("data.public", 0 < self.public < 1, "between 0 and 1", self.public)
        ok = self.users is None or self.users >= 2
        require("data.users", ok, "null or a whole number >= 2", self.users)
        require("data.user_key", self.user_key != "", "auto, a key or null", "nothing")


@dataclass
class AlgoConfig:
    """What every algorithm has.

    `private`: users' rows go through the gate; else data are pooled, and privacy=none is needed.
    `mechanisms`: of `privacy.mechanism`, those that it can use.
    `learns_scaling`: env.obs_scaling=private and env.reward_scaling=private mean something.
    `whole_episodes`: a user must be one whole episode (env.user=episode).
    `offline`: learns from a dataset (data.id), and then a user is one of its users.
    `local`: can learn from noised observations (privacy=local), which no gate clips or noises again.
    `keeps`: users keep what they did and may join any later round; then `people` and `arrivals` say who comes.
    `takes_episodes`: pooled, and yet a user may be one whole episode.
    `evaluates`: the value of a policy, from trajectories of data.policy: of a dataset (data.id), or played by
    privacy.population people, who then keep what they did. Released are the weights of the value.
    `full_batch`: takes all people at once, in one round.
    `texts`: trains a language model, whose users bring prompts (env.kind=text).
    """

    private: ClassVar[bool] = True
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    learns_scaling: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = False
    offline: ClassVar[bool] = False
    local: ClassVar[bool] = True
    keeps: ClassVar[bool] = False
    takes_episodes: ClassVar[bool] = False
    evaluates: ClassVar[bool] = False
    full_batch: ClassVar[bool] = False
    texts: ClassVar[bool] = False

    name: str = ""
    gamma: float = 0.99

    def __post_init__(self) -> None:
        check_finite("algo.", self)
        require("algo.gamma", 0 < self.gamma <= 1, "in (0, 1]", self.gamma)

    def round_steps(self, users: int, steps: int) -> int:
        """Environment steps that one round counts, for U users of T steps each: a public number."""
        return users * steps

    def people(self, rounds: int) -> int:
        """How many people come in so many rounds, where users keep what they did."""
        return 0

    def arrivals(self, round_index: int) -> range:
        """Numbers of the people who come in a round, as many in every round that has any; round 0 has."""
        return range(0)


@dataclass
class NetConfig(AlgoConfig):
    """What every policy-gradient algorithm with a network shares."""

    hidden: list[int] = field(default_factory=lambda: [64, 64])  # tanh layers
    gae_lambda: float = 0.95
    lr: float = 3e-4
    anneal_lr: bool = True  # linearly to 0 over the run
    entropy_coef: float = 0.0
    normalize_advantage: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.gae_lambda", 0 <= self.gae_lambda <= 1, "in [0, 1]", self.gae_lambda)
        require("algo.lr", math.isfinite(self.lr) and self.lr > 0, "> 0", self.lr)
        require("algo.entropy_coef", self.entropy_coef >= 0, ">= 0", self.entropy_coef)
        ok = all(h >= 1 for h in self.hidden)
        require("algo.hidden", ok, "a list of layer widths >= 1 (empty: linear)", self.hidden)


@dataclass
class DppgConfig(NetConfig):
    """DPPG, algorithms 2 and 3 of "Differentially Private Policy Gradient"."""

    learns_scaling: ClassVar[bool] = True

    name: str = "dppg"
    epochs: int = 8  # E, local passes over one user's data
    minibatches: int = 2  # local steps in one pass
    advantage_scope: str = "user"  # normalise over one user's data | over each of her minibatches
    ratio_clip: float | None = None  # PPO clipping of the ratio; the paper does without
    local_adam: str = "reset"  # reset for every user | seeded from the last release (the paper's)
    critic: str = "private"  # private (a second block) | shared (the paper's, leaks) | none
    critic_clip: float = 0.5  # L2 bound of one user's critic change, parameter units
    critic_features: int = 64  # private critic: random Fourier features
    critic_frequency: float = 1.0  # private critic: std of the feature frequencies
    critic_ridge: float = 0.01  # private critic: ridge penalty of the local regression
    critic_noise_ratio: float = 3.0  # private critic: its noise multiplier / the actor's
    anneal_lr: bool = False  # linearly to 0 over the run
    anneal_server: bool = True  # step of the released change: linearly from 1 to 0, or 1
    moments_clip: float = 3.0  # private scaling: L2 bound of one user's wish
    moments_noise_ratio: float = 3.0  # private scaling: its noise multiplier / the actor's

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.epochs", self.epochs >= 1, "a whole number >= 1", self.epochs)
        require("algo.minibatches", self.minibatches >= 1, "a whole number >= 1", self.minibatches)
        ok = self.ratio_clip is None or self.ratio_clip > 0
        require("algo.ratio_clip", ok, "null or > 0", self.ratio_clip)
        require_choice("algo.advantage_scope", self.advantage_scope, ("user", "minibatch"))
        require_choice("algo.local_adam", self.local_adam, ("reset", "seeded"))
        require_choice("algo.critic", self.critic, ("shared", "private", "none"))
        for key in (
            *("critic_clip", "critic_frequency", "critic_ridge", "critic_noise_ratio"),
            *("moments_clip", "moments_noise_ratio"),
        ):
            value = getattr(self, key)
            require(f"algo.{key}", math.isfinite(value) and value > 0, "> 0", value)
        features = self.critic_features
        require("algo.critic_features", features >= 1, "a whole number >= 1", features)


@dataclass
class PpoConfig(NetConfig):
    """Pooled PPO (Schulman et al. 2017) with the settings of CleanRL; not private."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)

    name: str = "ppo"
    epochs: int = 10
    minibatches: int = 32
    ratio_clip: float = 0.2
    value_coef: float = 0.5
    clip_value_loss: bool = True
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("algo.epochs", self.epochs >= 1, "a whole number >= 1", self.epochs)
        require("algo.minibatches", self.minibatches >= 1, "a whole number >= 1", self.minibatches)
        for key in ("ratio_clip", "value_coef", "max_grad_norm"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))


@dataclass
class A2cConfig(NetConfig):
    """Pooled synchronous advantage actor-critic (Mnih et al. 2016); not private."""

    private: ClassVar[bool] = False
    mechanisms: ClassVar[tuple[str, ...]] = ("none",)

    name: str = "a2c"
    value_coef: float = 0.5
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("value_coef", "max_grad_norm"):
            require(f"algo.{key}", getattr(self, key) > 0, "> 0", getattr(self, key))


@dataclass
class HardwareConfig:
    """Where the run computes."""

    device: str = "cpu"  # cpu | cuda
    threads: int = 1  # torch threads; small networks run fastest on one
    env_workers: int = 0  # processes that step environments; 0 steps them in this one
    eval_process: bool | None = None  # evaluate in a process of its own; unset: when it pays
    max_replicas: int = 8  # jobs of a sweep that are trained together at most
    processes: int | None = (
        None  # that train a sweep's groups side by side; unset: one for each core
    )

    def __post_init__(self) -> None:
        check_finite("hardware.", self)
        require_choice("hardware.device", self.device, ("cpu", "cuda"))
        require("hardware.threads", self.threads >= 1, "a whole number >= 1", self.threads)
        require("hardware.env_workers", self.env_workers >= 0, ">= 0", self.env_workers)
        for key in ("max_replicas", "processes"):
            value = getattr(self, key)
            ok = value is None or value >= 1
            require(f"hardware.{key}", ok, "a whole number >= 1", value)


@dataclass
class LogConfig:
    """What is recorded besides the run folder's files, which are always written."""

    wandb: str = "offline"  # none | offline (no account, no network) | online
    project: str = "privrl_bench"
    entity: str | None = None
    group: str | None = None  # unset: algorithm, environment and everything but the seed
    tags: list[str] = field(default_factory=list)
    lines: int = 200  # about how many training lines metrics.jsonl gets
    progress: bool = True
    plot: bool = True  # writes curve.png into the run folder at the end

    def __post_init__(self) -> None:
        check_finite("log.", self)
        require_choice("log.wandb", self.wandb, ("none", "offline", "online"))
        require("log.lines", self.lines >= 1, "a whole number >= 1", self.lines)
        ok = 1 <= len(self.project) <= 128 and not set(self.project) & set("/\\#?%:")
        rule = "1 to 128 characters without / \\ # ? % :"
        require("log.project", ok, rule, repr(self.project))
        for key in ("entity", "group"):
            value = getattr(self, key)
            ok = value is None or 1 <= len(value) <= 128
            require(f"log.{key}", ok, "null or 1 to 128 characters", repr(value))
        ok = all(1 <= len(tag) <= 64 for tag in self.tags)
        require("log.tags", ok, "a list of texts of 1 to 64 characters", self.tags)


@dataclass
class EvalConfig:
    """Evaluation of the released policy, on its own random stream."""

    episodes: int = 10  # whole episodes in one evaluation
    every: int = 50_000  # environment steps between evaluations; 0: only the final one
    policy: str = "stochastic"  # stochastic, as the papers report | greedy
    solved: float | None = (
        None  # a run is over when `window` evaluations have this mean; unset: never
    )
    window: int = 25  # evaluations in a row

    def __post_init__(self) -> None:
        check_finite("eval.", self)
        require("eval.episodes", self.episodes >= 1, "a whole number >= 1", self.episodes)
        require("eval.every", self.every >= 0, ">= 0 (0: only the final one)", self.every)
        require_choice("eval.policy", self.policy, ("stochastic", "greedy"))
        ok = self.solved is None or math.isfinite(self.solved)
        require("eval.solved", ok, "null or a finite return", self.solved)
        require("eval.window", self.window >= 1, "a whole number >= 1", self.window)


@dataclass
class RunConfig:
    """One run. Everything that changes a number is in here."""

    algo: AlgoConfig = field(default_factory=AlgoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    data: DataConfig = field(default_factory=DataConfig)
    total_steps: int = 1_000_000  # environment steps, counted from the public U and T
    rounds: int | None = None  # releases; unset: total_steps / (U * T)
    seed: int = 0
    hyperparameter_source: str = (
        ""  # the file of conf/ that was tuned, and on what; printed with the plan
    )
    plan_only: bool = False  # print and write the plan, train nothing
    resume: str = "auto"  # auto: go on where the folder stands | restart: move it aside first

    def __post_init__(self) -> None:
        check_finite("", self)
        require("total_steps", self.total_steps >= 1, "a whole number >= 1", self.total_steps)
        ok = self.rounds is None or self.rounds >= 1
        require("rounds", ok, "null or a whole number >= 1", self.rounds)
        require("seed", 0 <= self.seed < 2**32, "between 0 and 2^32 - 1", self.seed)
        require_choice("resume", self.resume, ("auto", "restart"))
        self.cross_check()

    def cross_check(self) -> None:
        """Reject combinations that have no meaning or no analysis. Raises `ConfigError`."""
        self._check_texts()
        pooled = not self.algo.private
        local = self.privacy.mechanism == "local"
        mechanisms = ("local",) if local else self.algo.mechanisms
        if local and (self.algo.offline or not self.algo.local):
            why = (
                "learns from a dataset" if self.algo.offline else "needs the gate's clip and noise"
            )
            raise ConfigError(
                "privacy", f"local is noise on live users' devices, but algo={self.algo.name} {why}"
            )
        if mechanisms == ("none",) and self.privacy.mechanism != "none":
            raise ConfigError(
                "privacy",
                f"algo={self.algo.name} trains on everybody's pooled data and cannot be private; "
                "use privacy=none, privacy=local (noise on what users tell), or algo=dppg for a private run",
            )
        if mechanisms == ("gaussian",) and self.privacy.mechanism == "none":
            raise ConfigError(
                "privacy",
                f"algo={self.algo.name} is private by construction; for a run without noise use privacy.z=0, "
                "for a non-private baseline algo=ppo or algo=a2c",
            )
        if self.privacy.mechanism not in mechanisms:
            raise ConfigError(
                "privacy.mechanism",
                f"algo={self.algo.name} takes {', '.join(mechanisms)}, got {self.privacy.mechanism!r}",
            )
        if self.algo.whole_episodes and self.env.user != "episode":
            raise ConfigError(
                "env.user",
                f"algo={self.algo.name} needs whole episodes: episode, got {self.env.user!r}",
            )
        self._check_evaluation()
        self._check_data()
        if self.privacy.mechanism == "none" and self.privacy.z != 0:
            raise ConfigError(
                "privacy.z", f"privacy=none adds no noise, so it must be 0, got {self.privacy.z:g}"
            )
        for key in ("obs_scaling", "reward_scaling"):
            if not self.algo.learns_scaling and getattr(self.env, key) == "private":
                raise ConfigError(
                    f"env.{key}",
                    f"private is a block of a private release, which algo={self.algo.name} does not "
                    "make; use public, running or none",
                )
        if self.algo.keeps and self.privacy.sampling != "poisson":
            raise ConfigError(
                "privacy.sampling",
                f"algo={self.algo.name} draws who joins a round: use privacy=poisson",
            )
        if pooled and self.env.user == "episode" and not self.algo.takes_episodes:
            raise ConfigError("env.user", "pooled algorithms take segment or fresh, got 'episode'")
        if self.privacy.sampling == "poisson" and self.env.user == "segment":
            raise ConfigError(
                "env.user",
                "with privacy.sampling=poisson people come and go, so a user must start from a "
                "reset: use fresh or episode, got 'segment'",
            )

    def _check_evaluation(self) -> None:
        """What algorithms that evaluate a policy need, and nobody else has. Raises `ConfigError`."""
        algo, privacy = self.algo, self.privacy
        needed = ("full_batch",) if algo.full_batch else ("uniform_single_user",)
        if not algo.evaluates:
            if privacy.sampling in ("uniform_single_user", "full_batch"):
                raise ConfigError(
                    "privacy.sampling",
                    f"{privacy.sampling} is for algorithms that evaluate a policy, as algo=gpope",
                )
            return
        if privacy.sampling not in needed:
            raise ConfigError(
                "privacy.sampling",
                f"algo={algo.name} takes {', '.join(needed)}, got {privacy.sampling!r}",
            )
        if self.data.policy is None:
            raise ConfigError(
                "data.policy",
                f"algo={algo.name} evaluates from what a known policy did: say which, e.g. "
                "data.policy=uniform (also of a dataset: errors are measured under it)",
            )
        if self.data.id is None and privacy.population is None:
            raise ConfigError(
                "privacy.population",
                "say how many people play data.policy, e.g. privacy.population=1000",
            )
        if {self.env.obs_scaling, self.env.reward_scaling} - {"none", "public"}:
            raise ConfigError("env.obs_scaling", "to evaluate a policy use none or public")
        if self.env.obs_scaling != "none":
            raise ConfigError(
                "env.obs_scaling",
                f"algo={algo.name} makes features of observations as they are: none, got "
                f"{self.env.obs_scaling!r}",
            )
        if self.env.user != "episode":
            raise ConfigError(
                "env.user", f"algo={algo.name} needs whole episodes: episode, got {self.env.user!r}"
            )
        if algo.full_batch and self.rounds not in (None, 1):
            raise ConfigError("rounds", f"algo={algo.name} has one release, got {self.rounds}")

    def _check_texts(self) -> None:
        """An algorithm for texts where there are texts, and no setting without meaning. Raises ConfigError."""
        texts = self.env.kind == "text"
        if texts and not self.algo.texts:
            raise ConfigError(
                "env",
                f"{self.env.name} is prompts and answers, from which algo={self.algo.name} does not "
                "learn; use algo=dppg or algo=ppo",
            )
        if self.algo.texts and not texts:
            raise ConfigError(
                "env", f"{self.env.label} has no prompts, which algo={self.algo.name} answers"
            )
        if not texts:
            return
        if self.privacy.mechanism == "local":
            raise ConfigError("privacy", "local noises numbers, and a text has none")
        env, plain = self.env, EnvConfig(id="any")
        keys = ("domain", "task", "kwargs", "backend", "obs_mean", "obs_std", "action")
        for key in (*keys, "reward_scale", "obs_low", "obs_high", "reward_low", "reward_high"):
            value = getattr(env, key)
            require(f"env.{key}", value == getattr(plain, key), "left out for texts", value)
        if self.privacy.sampling != "fixed":
            raise ConfigError(
                "privacy.sampling",
                f"every prompt is used once, in cohorts: fixed, got {self.privacy.sampling!r}",
            )
        require_choice("eval.policy", self.eval.policy, ("stochastic",))
        aside, workers = self.hardware.eval_process, self.hardware.env_workers
        require("hardware.eval_process", not aside, "null or false for texts", aside)
        require("hardware.env_workers", workers == 0, "0 for texts", workers)

    def _check_data(self) -> None:
        """A dataset where one is needed, and nowhere else. Raises `ConfigError`."""
        offline, privacy = self.algo.offline, self.privacy
        if offline and self.data.id is None:
            raise ConfigError(
                "data.id",
                f"algo={self.algo.name} learns from a dataset: data.id=<a local Minari dataset>; "
                "privrl-collect makes one",
            )
        if not (offline or self.algo.evaluates) and self.data.id is not None:
            raise ConfigError(
                "data.id", f"algo={self.algo.name} learns from live users and takes no dataset"
            )
        if not self.algo.evaluates and self.data.policy is not None:
            raise ConfigError("data.policy", f"algo={self.algo.name} learns its own policy")
        if self.env.obs_scaling == "split" and not offline:
            raise ConfigError(
                "env.obs_scaling",
                "split is the public part of a dataset; without data.id use public, private, running "
                "or none",
            )
        if offline and {"private", "running"} & {self.env.obs_scaling, self.env.reward_scaling}:
            raise ConfigError(
                "env.obs_scaling", "for a dataset use split, public or none; reward_scaling: public"
            )
        poisson = privacy.sampling == "poisson"
        if offline and privacy.mechanism != "none" and not poisson:
            raise ConfigError(
                "privacy.sampling", f"algo={self.algo.name} draws its users: use privacy=poisson"
            )
        bounded = privacy.sampling == "fixed" and privacy.population is not None
        if bounded and (offline or self.env.user == "segment"):
            why = (
                f"algo={self.algo.name} takes from a dataset" if offline else "env.user=segment has"
            )
            raise ConfigError(
                "privacy.population",
                f"bounds the users of fixed cohorts, each used once, and {why} others",
            )


# algo=<name> -> the algorithm that answers prompts under this name, where env.kind=text
TEXT_VERSIONS = {"dppg": "dppg_text", "ppo": "ppo_text"}

# Family (a folder of privrl_bench/algorithms) -> names of its algorithms; the module is <family>/<name>.py.
FAMILIES = {
    "policy_gradient": ("dppg", "ppo", "a2c", "reinforce"),
    "value": ("dqn", "dqn_replay", "ddpg", "sac", "ucbvi"),
    "model_based": ("primorl", "mopo"),
    "loglinear": ("dppg_l2", "dppg_kl"),
    "ope": ("gpope", "dp_lsw", "dp_lsl", "lstd", "wis_lstd"),
    "language": ("dppg_text", "ppo_text"),
}

# algo=<name> from outside the package -> its module, with ALGORITHM and CONFIG as our own have
ALGO_MODULES: dict[str, str] = {}


def algo_module(name: str) -> str:
    """The module behind algo=<name>."""
    if name in ALGO_MODULES:
        return ALGO_MODULES[name]
    for family, names in FAMILIES.items():
        if name in names:
            return f"privrl_bench.algorithms.{family}.{name}"
    return f"privrl_bench.algorithms.{name}"


ALGO_CONFIGS: dict[str, type[AlgoConfig]] = {
    "dppg": DppgConfig,
    "ppo": PpoConfig,
    "a2c": A2cConfig,
}
