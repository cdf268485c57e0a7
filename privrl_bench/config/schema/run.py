"""One run: the sections of its configuration, and what must hold between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from privrl_bench.config.limits import check_finite
from privrl_bench.config.schema.algorithm import AlgoConfig
from privrl_bench.config.schema.env import EnvConfig
from privrl_bench.config.schema.privacy import PrivacyConfig, privacy_rules
from privrl_bench.errors import ConfigError, require, require_choice


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
        mechanism, sampler = self.privacy.rules
        local = mechanism.on_devices
        mechanisms = (mechanism.name,) if local else self.algo.mechanisms
        kinds = privacy_rules().kinds(mechanisms)
        if local and (self.algo.offline or not self.algo.local):
            why = (
                "learns from a dataset" if self.algo.offline else "needs the gate's clip and noise"
            )
            raise ConfigError(
                "privacy", f"local is noise on live users' devices, but algo={self.algo.name} {why}"
            )
        if not any(kind.private for kind in kinds) and mechanism.private:
            raise ConfigError(
                "privacy",
                f"algo={self.algo.name} trains on everybody's pooled data and cannot be private; "
                "use privacy=none, privacy=local (noise on what users tell), or algo=dppg for a private run",
            )
        if all(kind.calibrated for kind in kinds) and not mechanism.private:
            raise ConfigError(
                "privacy",
                f"algo={self.algo.name} is private by construction; for a run without noise use privacy.z=0, "
                "for a non-private baseline algo=ppo or algo=a2c",
            )
        if not {mechanism.name, mechanism.like} & set(mechanisms):
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
        if not mechanism.private and self.privacy.z != 0:
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
        if self.algo.keeps and not sampler.independent:
            raise ConfigError(
                "privacy.sampling",
                f"algo={self.algo.name} draws who joins a round: use privacy=poisson",
            )
        if pooled and self.env.user == "episode" and not self.algo.takes_episodes:
            raise ConfigError("env.user", "pooled algorithms take segment or fresh, got 'episode'")
        if sampler.independent and self.env.user == "segment":
            raise ConfigError(
                "env.user",
                "with privacy.sampling=poisson people come and go, so a user must start from a "
                "reset: use fresh or episode, got 'segment'",
            )

    def _check_evaluation(self) -> None:
        """What algorithms that evaluate a policy need, and nobody else has. Raises `ConfigError`."""
        algo, privacy = self.algo, self.privacy
        sampler, needed = privacy.rules.sampler, privacy_rules().exact_samplings(algo.full_batch)
        if not algo.evaluates:
            if sampler.exact:
                raise ConfigError(
                    "privacy.sampling",
                    f"{privacy.sampling} is for algorithms that evaluate a policy, as algo=gpope",
                )
            return
        if sampler.name not in needed:
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
        if self.privacy.rules.mechanism.on_devices:
            raise ConfigError("privacy", "local noises numbers, and a text has none")
        env, plain = self.env, EnvConfig(id="any")
        keys = ("domain", "task", "kwargs", "backend", "obs_mean", "obs_std", "action")
        for key in (*keys, "reward_scale", "obs_low", "obs_high", "reward_low", "reward_high"):
            value = getattr(env, key)
            require(f"env.{key}", value == getattr(plain, key), "left out for texts", value)
        if self.privacy.rules.sampler.every_round:
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
        mechanism, sampler = privacy.rules
        if offline and mechanism.private and not sampler.independent:
            raise ConfigError(
                "privacy.sampling", f"algo={self.algo.name} draws its users: use privacy=poisson"
            )
        bounded = not sampler.every_round and privacy.population is not None
        if bounded and (offline or self.env.user == "segment"):
            why = (
                f"algo={self.algo.name} takes from a dataset" if offline else "env.user=segment has"
            )
            raise ConfigError(
                "privacy.population",
                f"bounds the users of fixed cohorts, each used once, and {why} others",
            )
