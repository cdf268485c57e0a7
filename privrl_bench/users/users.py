"""The base of the kinds of users: one class is one answer to "who are the users of this run?".

A kind is a module of this folder with `USERS = <class>`. Nothing outside the folder compares kinds: what
depends on who the users are is asked of the object that a plan has, or, where there is only a
configuration, of the class that `users.kind_of` finds.

Modules of kinds import torch inside methods only, so that a configuration is checked before anything heavy is
loaded. How users act and train is in `collectors/`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.rules import rules
from privrl_bench.users.facts import Room, UserSize, UserTerms, UserWords
from privrl_bench.users.refusals import no_split, own_policy, segments_unbounded

if TYPE_CHECKING:
    from privrl_bench.functional.rng import Streams
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector

_TRAJECTORIES = 6  # of users under a known policy, in the leak test


def data_of(run: RunConfig) -> Data:
    """What the users of a configuration give."""
    if run.env.kind == "text":
        return Data.TEXTS
    return run.algo.traits.data[0] if run.data.id is None else Data.RECORDED


class Users:
    """The users of runs that differ in seed and z only.

    Class attributes:
        name: of the kind, in the registry.
        gives: what the users give.
        draws: how a sampler may find the users of a round.
        relations: adjacencies under which they are protected; None: all that the sampler is analysed under.
        from_data: rounds use trajectories that are there before the run, and step no environment.
        in_environments: the users act in environments.
        listed: they come from a list, in whose order fixed cohorts take them; see `in_order`.
        returning: they act once, and join later rounds with what they did.
        used_up: they come in a public order, whatever the sampling.
        verb, wants: what happens to each of them once, and what rounds need of them, in words.
        refusals: rules of their configurations; each raises ConfigError.
        whole: minibatches divide users, not their steps.
        reads: keys, or beginnings of keys, of users' data that have an effect with them.
        one_process: why one process has all of them; empty: several may.
        simulator: their environment is a simulator, whose settings give T.
        scarce: there are few of them, each for one round.
        sized: settings of the algorithm that are a number of users.

    Attributes:
        configs: of the runs, with what follows from their users.
        spec: public facts of the environment.
        size: steps of one user and of a round.
        says: who says what `privacy.population` is, before the number.
        most: the largest number of trajectories of one user.
        may_be_real: messages of exceptions may hold data of real users.
        numbered: they have numbers, by which nothing keeps one part of them out of another.
        private_because: why a search on them is not one on a public simulator; empty: it may be.
        untested: what the leak test does not cover; empty: nothing of theirs.

    Args:
        configs: as they were composed.
        spec: of `spec_of`.

    Raises:
        ConfigError: the configuration does not fit the users.
    """

    name: ClassVar[str]
    gives: ClassVar[Data]
    draws: ClassVar[tuple[Draws, ...]]
    relations: ClassVar[tuple[str, ...] | None] = None
    from_data: ClassVar[bool] = False
    in_environments: ClassVar[bool] = True
    listed: ClassVar[bool] = False
    returning: ClassVar[bool] = False
    used_up: ClassVar[bool] = False
    verb: ClassVar[str] = "used"
    wants: ClassVar[str] = "rounds of {each} users need {need} users, each used once"
    refusals: ClassVar[tuple[Callable[[RunConfig], None], ...]] = (
        own_policy,
        no_split,
        segments_unbounded,
    )
    whole: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    one_process: ClassVar[str] = ""
    simulator: ClassVar[bool] = True
    scarce: ClassVar[bool] = False
    sized: ClassVar[tuple[str, ...]] = ()
    may_be_real: bool = False
    private_because: str = ""
    untested: str = ""
    says: str = "privacy.population says"
    most: int = 1

    # -- of a configuration -----------------------------------------------------------------

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """Whether these are the users of a run; `spec`: of its environment, where it is known."""
        return cls.gives is data_of(run)

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """Refuse settings that have no meaning or no analysis with such users.

        Raises:
            ConfigError: names the setting.
        """
        for rule in cls.refusals:
            rule(run)

    @classmethod
    def in_order(cls, run: RunConfig) -> bool:
        """Whether the users of a list take part in its order, each in one round.

        Without privacy, cohorts of fixed size are drawn from it.
        """
        mechanism, sampler = rules(run.privacy)
        return cls.listed and mechanism.private and not sampler.every_round

    @classmethod
    def size_of(cls, run: RunConfig, spec: EnvSpec | None = None, most: int = 1) -> UserSize:
        """What one of them counts; 0 steps: that is not known without the environment or the data.

        Args:
            run: the configuration.
            spec: of its environment, where it is known.
            most: the largest number of trajectories of one user.
        """
        steps = None if run.env.user == "episode" else run.env.user_steps
        if steps is None:
            steps = run.env.max_episode_steps if spec is None else spec.max_episode_steps
        return UserSize(steps or 0, run.privacy.users_per_round * (steps or 0))

    @classmethod
    def spec_of(cls, run: RunConfig) -> EnvSpec:
        """The public facts of the environment. Raises ConfigError: it cannot be made."""
        from privrl_bench.envs.registry import env_spec

        return env_spec(run.env)

    # -- of a configuration, for audits -----------------------------------------------------

    @classmethod
    def with_users(cls, run: RunConfig, users: int) -> RunConfig:
        """The same run with so many users of a list taken in its order; a dataset has its own number."""
        if not cls.in_order(run) or run.algo.traits.one_cohort:
            return run
        return with_population([run], users if cls.in_environments else None)[0]

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """Reduce sizes for the leak test.

        Args:
            cuts: reduces settings that the command line does not give, and records it: `audit/shrink.py`.
            rounds: that have to fit.
            users: of a round.
            user: the one who is replaced, where they come one after the other.
        """
        run = cuts.config
        if Data.ACTED in run.algo.traits.data:  # of users under a known policy few are enough
            many = run.rounds if "rounds" in cuts.given and run.rounds else rounds
            need = many * run.privacy.users_per_round if cls.in_order(run) else 0
            cuts.cut("privacy", population=max(_TRAJECTORIES, need))
            cuts.cut("algo", reference=_TRAJECTORIES)
        if cls.from_data:
            cuts.rounds(rounds)
        if cls.in_environments:
            cuts.user_steps(cls.spec_of(run), rounds)

    # -- of runs ----------------------------------------------------------------------------

    def __init__(self, configs: list[RunConfig], spec: EnvSpec):
        self.spec = spec
        if spec.users is not None:
            self.may_be_real, self.private_because = True, f"env {spec.name} declares users"
        self.numbered = self.listed or spec.users is not None
        self.configs = _with_one_round(self.configured(configs))
        self.size = self.size_of(self.config, spec, self.most)

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """The same runs, with what their users decide. Raises `ConfigError`: see the class."""
        return configs

    def of(self, configs: list[RunConfig]) -> Self:
        """The same users, of runs with other settings that do not concern them."""
        found = copy(self)
        found.configs = configs
        return found

    @property
    def config(self) -> RunConfig:
        """The configuration, but for seed and z the same for all runs."""
        return self.configs[0]

    # -- what is said of them ---------------------------------------------------------------

    def needed(self, rounds: int) -> int | None:
        """How many users so many rounds use, each of them once; None: they are drawn, or segments."""
        drawn = rules(self.config.privacy).sampler.every_round
        if drawn or self.config.env.user == "segment":
            return None
        return rounds * self.config.privacy.users_per_round

    def room(self, rounds: int) -> Room:
        """Whether there are users for so many rounds."""
        config, privacy, declared = self.config, self.config.privacy, self.spec.users
        need, there = self.needed(rounds), privacy.population
        drawn = rules(privacy).sampler.every_round
        words = self.wants.format(each=privacy.users_per_round, need=need)
        bounds = [] if declared is None else [(declared, f"{words}; {config.env.label} declares")]
        if there is not None and not drawn:
            bounds.append((there, f"{words}; {self.says}"))
        limits = need is not None and there is not None and not drawn and config.rounds == rounds
        return Room(
            rounds,
            self.needed,
            tuple(bounds),
            "rounds" if config.rounds else "total_steps",
            self.size.round_steps,
            limits and rounds == (there or 0) // privacy.users_per_round,
        )

    def terms(self) -> UserTerms:
        """What the guarantee says of them."""
        config, sampler = self.config, rules(self.config.privacy).sampler
        fixed = config.privacy.population is not None and not sampler.every_round
        limit, sampled = self.spec.max_episode_steps, sampler.draws is Draws.SAMPLED
        return UserTerms(
            unit_in_words(config.env, limit, self.size.steps, sampled, self.spec.one_user),
            bounded=sampled or (fixed and not self.in_order(config)),
        )

    def words(self, rounds: int) -> UserWords:
        """What the plan says of them."""
        config, privacy, sampler = self.config, self.config.privacy, rules(self.config.privacy)[1]
        need, declared, bound = self.needed(rounds), self.spec.users, privacy.population
        size = f" x {self.size.text} = {rounds * self.size.round_steps} steps"
        if self.from_data:
            size = f", trajectories of at most {self.size.text}"
        who = ""
        if need is not None:
            of = "" if declared is None else f" of {declared}"
            who = f"{need}{of} users, each {self.verb} once"
        elif sampler.draws is Draws.SAMPLED:
            who = f"drawn from a population of {bound}"
        full = who
        if not who and sampler.exact:
            full = f"exactly {bound:,}, a public number"
        elif not who and self.in_environments and config.env.user == "segment":
            full = "segments of running episodes"
        elif need is not None and bound and not declared:
            full = f"{who}, of a population of {bound:,}"
        return UserWords(size, who, full)

    # -- rounds -----------------------------------------------------------------------------

    def one_shard(self) -> str:
        """Why the users of a round are one shard, in one process; empty: they may be many."""
        env = self.config.env
        running = "running" in (env.obs_scaling, env.reward_scaling)
        return "running statistics are shared" if running else ""

    def public_sources(self, streams: list[Streams]) -> dict[str, Any]:
        """What an algorithm may learn from before any release, by the names of `PublicSources`."""
        return {}

    def collector(self, parts: Any, size: int) -> Collector:
        """What makes the batches of a round's users.

        One plan has several: those of the runs that an audit compares, and those of workers.

        Args:
            parts: the run's algorithm, gate, streams and rounds.
            size: users of a shard.

        Raises:
            ConfigError, EnvironmentFailure: it cannot be made.
        """
        raise NotImplementedError


def unit_in_words(
    env: EnvConfig, max_episode_steps: int, steps: int, sampled: bool, who: str = "one user"
) -> Unit:
    """What one user is, of those who act in environments; `who`: `EnvSpec.one_user`.

    An episode of `max_episode_steps` steps that may begin anywhere in a segment of `steps` touches at most
    (max_episode_steps + steps - 2) // steps + 1 segments.
    """
    if sampled:
        what = "one episode" if env.user == "episode" else f"{steps} steps from a reset"
        return Unit(f"{who} with all their rounds (each round: {what})", None)
    if env.user == "segment":
        touched = (max_episode_steps + steps - 2) // steps + 1
        return Unit(
            f"{who}: one episode of at most {max_episode_steps} steps, with every segment of {steps} steps "
            f"that it touches (up to {touched})",
            touched,
        )
    if env.user == "fresh":
        return Unit(f"{who}: {steps} steps from a reset, used once", 1)
    return Unit(f"{who}: one whole episode of at most {steps} steps, used once", 1)


def with_population(configs: list[RunConfig], population: int | None) -> list[RunConfig]:
    """The same runs with a number of users."""
    return [replace(c, privacy=replace(c.privacy, population=population)) for c in configs]


def _with_one_round(configs: list[RunConfig]) -> list[RunConfig]:
    """The same runs, whose number of users is known; the algorithm may take all of them in one round."""
    algo, population = configs[0].algo, configs[0].privacy.population
    if algo.traits.one_cohort and population is not None:
        return [
            replace(c, rounds=1, privacy=replace(c.privacy, users_per_round=population))
            for c in configs
        ]
    return [replace(c, rounds=1) for c in configs] if algo.traits.one_round else configs
