"""One run: the sections of its configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from privrl_bench.config.ranges import (
    Section,
    choice,
    integer,
    random_seed,
    ranged,
    text,
)
from privrl_bench.config.schema.algorithm import AlgoConfig
from privrl_bench.config.schema.env import EnvConfig
from privrl_bench.config.schema.privacy import PrivacyConfig

AUTO = "auto"  # value of eval.every
_PART = re.compile(r"([1-9]|10)/([2-9]|10)")
EVALUATIONS = 20  # of a run with it, where it has as many rounds; the initial one apart


def _is_part(text: str) -> bool:
    found = _PART.fullmatch(text)
    return found is not None and int(found[1]) <= int(found[2])


@dataclass
class DataConfig(Section):
    """A dataset of trajectories, for algorithms that do not learn from live users."""

    prefix: ClassVar[str] = "data."

    id: str | None = None  # of a local Minari dataset, e.g. pendulum/ddpg-v0
    # share of its users that is public: scaling, early stopping, start states
    public: float = ranged(0.01, "above 0 and below 1", lambda x: 0 < x < 1)
    users: int | None = integer(None, least=2)  # use only this many of its users; null: all
    # of its private users, as 1/2: every second in a fixed order; parts compose in parallel; null: all
    part: str | None = ranged(None, "one of 1/2, 2/2, 1/3, 2/3, ... 10/10", _is_part)
    # Key of the episodes' metadata that names their user. auto: `user` if it is there, else each episode is a
    # user, and refused if values of other keys repeat | a key | null: each episode is a user
    user_key: str | None = ranged(AUTO, "auto or a key", bool)
    # For algorithms that evaluate a policy: the policy that acted (packs/offline); without data.id
    # new trajectories are simulated with it
    policy: str | None = None


@dataclass
class HardwareConfig(Section):
    """Where the run computes."""

    prefix: ClassVar[str] = "hardware."

    device: str = choice("cpu", ("cpu", "cuda"))  # of networks and their training
    # processes that work at the same time, on the shards of a round or on the groups of a sweep; null: one for
    # each core, once a run has lasted long enough
    workers: int | None = integer(None)
    shard_users: int | None = integer(None, most=10**7)  # users held at a time; null: by memory
    max_replicas: int = integer(8, most=10**6)  # maximum number of a sweep's jobs trained together
    engine: str = choice("processes", ("processes", "ray"))  # where the workers are
    address: str | None = text(None, 256)  # engine=ray: of the cluster; null: this machine


def _project(name: str) -> bool:
    return 1 <= len(name) <= 128 and not set(name) & set("/\\#?%:")


@dataclass
class LogConfig(Section):
    """What is recorded besides the files of the run folder, which are always written."""

    prefix: ClassVar[str] = "log."

    wandb: str = choice("offline", ("none", "offline", "online"))  # offline: no account, no network
    # W&B project
    project: str = ranged("privrl_bench", "1 to 128 characters without / \\ # ? % :", _project)
    entity: str | None = text(None, 128)  # W&B user or team; null: the default of the account
    group: str | None = text(None, 128)  # null: algorithm, environment and everything but the seed
    # W&B tags
    tags: list[str] = ranged(
        [], "a list of texts of 1 to 64 characters", lambda x: all(1 <= len(t) <= 64 for t in x)
    )
    lines: int = integer(200, most=10**7)  # approximate number of training lines in metrics.jsonl
    progress: bool = True  # show the progress of a run or a sweep
    full: bool = False  # print the whole plan; of each run of a sweep, too
    plot: bool = True  # write curve.png into the run folder at the end


@dataclass
class BudgetConfig(Section):
    """What a run about users of a dataset is charged to; `budget=FILE` is short for `budget.file`."""

    prefix: ClassVar[str] = "budget."

    file: str | None = None  # of privrl budget create; null: none
    # formal | heuristic: also runs without a formal guarantee, after which nothing is said of all runs together
    allow: str = choice("formal", ("formal", "heuristic"))


def _evaluation_steps(every: int | str) -> bool:
    return every == AUTO if isinstance(every, str) else every >= 0


@dataclass
class EvalConfig(Section):
    """Evaluation of the released policy, with its own random stream."""

    prefix: ClassVar[str] = "eval."

    # Episodes of one evaluation, simulated side by side. At the maximum the standard error of the mean is
    # 0.3 % of a return's standard deviation.
    episodes: int = integer(10, most=10**5)
    # environment steps between evaluations | auto: a twentieth of the run, at least a round | 0: only the final
    # one, else also one of the initial public parameters, before any data
    every: int | str = ranged(AUTO, "auto or an integer >= 0", _evaluation_steps)
    # stochastic, as the papers report | greedy
    policy: str = choice("stochastic", ("stochastic", "greedy"))
    # the run ends when `window` evaluations have this mean; null: never
    solved: float | None = None
    window: int = integer(25, most=10**6)  # consecutive evaluations


@dataclass
class RunConfig(Section):
    """One run. Everything that changes a result is in here."""

    algo: AlgoConfig = field(default_factory=AlgoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    data: DataConfig = field(default_factory=DataConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    total_steps: int = integer(1_000_000)  # environment steps, counted from the public U and T
    rounds: int | None = integer(None, most=10**9)  # releases; null: total_steps / (U * T)
    # whether there are at most as many rounds as the users of `privacy.population` suffice for
    fit_population: bool = False
    seed: int = random_seed()  # of all random streams of the run
    # the file of conf/ that was tuned, and on what; printed with the plan
    hyperparameter_source: str = ""
    plan_only: bool = False  # print and write the plan, train nothing
    # modules of plugins that are not installed (composition/plugins.py)
    plugins: list[str] = field(default_factory=list)
    # auto: continue from the run folder | restart: move it aside first
    resume: str = choice("auto", ("auto", "restart"))

    # set for a run that a search or a sweeper made: what covers the search; the run's status is heuristic
    search: str | None = text(None, 4096)
