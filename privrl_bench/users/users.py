"""The base of the kinds of users: one class is one answer to "who are the users of this run?".

A kind is a module of this folder with `USERS = <class>`. Nothing outside the folder compares kinds: what
depends on who the users are is asked of the object that `users.users_of` makes, or, where there is only a
configuration, of the class that `users.kind_of` finds.

Modules of kinds import torch inside methods only, so that a configuration is checked before anything heavy is
loaded. How users act and train is in `collectors/`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, refuse, require_among
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.rules import drawing, rules

if TYPE_CHECKING:
    from privrl_bench.functional.rng import Streams
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector

_STEPS = 64  # T in the leak test


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
        verb: what happens to each of them once, in words.
        one_process: why one process has all of them; empty: several may.
        simulator: their environment is a simulator, whose settings give T.
        scarce: there are few of them, each for one round.
        sized: settings of the algorithm that are a number of users.

    Attributes:
        configs: of the runs, with what follows from their users.
        spec: public facts of the environment.
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
    one_process: ClassVar[str] = ""
    simulator: ClassVar[bool] = True
    scarce: ClassVar[bool] = False
    sized: ClassVar[tuple[str, ...]] = ()
    may_be_real: bool = False
    private_because: str = ""
    untested: str = ""
    most: int = 1

    # -- of a configuration -----------------------------------------------------------------

    @classmethod
    def claims(cls, run: RunConfig, spec: EnvSpec | None = None) -> bool:
        """Whether these are the users of a run; `spec`: of its environment, where it is known."""
        return cls.gives is data_of(run)

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """Refuse settings that have no meaning or no analysis with such users. Raises `ConfigError`."""
        cls._check_draws(run)
        cls._check_policy(run)
        cls._check_scaling(run)
        cls._check_population(run)

    @classmethod
    def _check_draws(cls, run: RunConfig) -> None:
        """A sampler finds them as they and the algorithm allow. Raises ConfigError."""
        traits, sampler = run.algo.traits, rules(run.privacy).sampler
        taken = drawing([one for one in traits.draws if one in cls.draws])
        require_among("privacy.sampling", sampler.name, taken, f"algo={run.algo.name} takes")
        starts = " or ".join(unit for unit in traits.units if unit != "segment")
        refuse(
            sampler.independent and run.env.user == "segment",
            "env.user",
            "with privacy.sampling=poisson users come and go, so a user must start from a reset: use "
            f"{starts}, got 'segment'",
        )

    @classmethod
    def _check_policy(cls, run: RunConfig) -> None:
        """Whose policy acts. Raises ConfigError."""
        given = run.data.policy is not None
        refuse(given, "data.policy", f"algo={run.algo.name} learns its own policy")

    @classmethod
    def _check_scaling(cls, run: RunConfig) -> None:
        """Scaling by their data. Raises ConfigError."""
        refuse(
            run.env.obs_scaling == "split",
            "env.obs_scaling",
            "split is the public part of a dataset; without data.id use public, private, running or none",
        )

    @classmethod
    def _check_population(cls, run: RunConfig) -> None:
        """A bound on the users of fixed cohorts bounds users who are used once. Raises ConfigError."""
        if run.env.user == "segment":
            cls._refuse_bound(run, "env.user=segment has")

    @classmethod
    def _refuse_bound(cls, run: RunConfig, why: str) -> None:
        bounded = not rules(run.privacy).sampler.every_round and run.privacy.population is not None
        refuse(
            bounded,
            "privacy.population",
            f"bounds the users of fixed cohorts, each used once, and {why} others",
        )

    @classmethod
    def without_effect(cls, run: RunConfig) -> dict[str, str]:
        """Keys, or beginnings of keys, that have no effect with such users, and why."""
        none = "splits a dataset, and there is none: set data.id"
        texts = f"is for texts, env={run.env.name} has none: use env=sentiment"
        return {"env.text.": texts, "data.public": none, "data.users": none}

    @classmethod
    def in_order(cls, run: RunConfig) -> bool:
        """Whether the users of a list take part in its order, each in one round.

        Without privacy, cohorts of fixed size are drawn from it.
        """
        mechanism, sampler = rules(run.privacy)
        return cls.listed and mechanism.private and not sampler.every_round

    @classmethod
    def round_steps_of(cls, run: RunConfig, steps: int) -> int:
        """Environment steps that one round counts, a public number; `steps`: T, of one user."""
        return run.privacy.users_per_round * steps

    @classmethod
    def given_steps(cls, run: RunConfig) -> int | None:
        """T where the configuration alone gives it; None where the environment or the data do."""
        if run.env.user == "episode" or run.env.user_steps is None:
            return run.env.max_episode_steps
        return run.env.user_steps

    @classmethod
    def spec_of(cls, run: RunConfig) -> EnvSpec:
        """The public facts of the environment. Raises ConfigError: it cannot be made."""
        from privrl_bench.envs.registry import env_spec

        return env_spec(run.env)

    # -- of a configuration, for audits -----------------------------------------------------

    @classmethod
    def with_users(cls, run: RunConfig, users: int) -> RunConfig:
        """The same run with so many users of a list, where they take part in its order."""
        return run

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """Reduce sizes for the leak test.

        Args:
            cuts: reduces settings that the command line does not give, and records it: `audit/shrink.py`.
            rounds: that have to fit.
            users: of a round.
            user: the one who is replaced, where they come one after the other.
        """
        if cls.in_environments:
            cls._shrink_steps(cuts, rounds)

    @classmethod
    def _shrink_steps(cls, cuts: Any, rounds: int) -> None:
        """Reduce T, in the key that determines it, and the length. A minibatch has at least one step."""
        run = cuts.config
        spec = cls.spec_of(run)
        key = "max_episode_steps" if run.env.user == "episode" else "user_steps"
        explicit: Any = {key: steps_of(run.env, spec)}
        cuts.config = replace(run, env=replace(run.env, **explicit))
        cuts.cut("env", **{key: max(_STEPS, getattr(run.algo, "minibatches", 1))})
        need = rounds * run.privacy.users_per_round * getattr(cuts.config.env, key)
        once = not rules(run.privacy).sampler.every_round
        bounded = (spec.users or run.privacy.population) and once
        wrong = run.total_steps < need or (bounded and run.total_steps > need)
        if wrong and "total_steps" not in cuts.given:
            cuts.steps(need)

    # -- of runs ----------------------------------------------------------------------------

    def __init__(self, configs: list[RunConfig], spec: EnvSpec):
        self.spec = spec
        if spec.users is not None:
            self.may_be_real, self.private_because = True, f"env {spec.name} declares users"
        self.numbered = self.listed or spec.users is not None
        self.configs = _with_one_round(self.configured(configs))

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """The same runs, with what their users decide. Raises `ConfigError`: see the class."""
        return configs

    def of(self, configs: list[RunConfig]) -> Self:
        """The same users, of runs with other settings that do not concern them."""
        found = copy(self)
        found.configs = configs
        return found

    def for_rounds(self, rounds: int) -> None:
        """Set in `configs` what the number of rounds decides. Raises ConfigError: it does not fit."""

    # -- sizes ------------------------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        """The configuration, but for seed and z the same for all runs."""
        return self.configs[0]

    @property
    def steps(self) -> int:
        """T, the largest number of steps of one user."""
        return steps_of(self.config.env, self.spec)

    @property
    def round_steps(self) -> int:
        """Environment steps that one round counts."""
        return self.round_steps_of(self.config, self.steps)

    def divided(self, pooled: bool) -> tuple[int, str]:
        """What the minibatches of an update divide, and its unit; `pooled`: of all users of a round."""
        return self.round_steps if pooled else self.steps, "steps"

    def needed(self, rounds: int) -> int | None:
        """How many users so many rounds use, each of them once; None: they are drawn, or segments."""
        drawn = rules(self.config.privacy).sampler.every_round
        if drawn or self.config.env.user == "segment":
            return None
        return rounds * self.config.privacy.users_per_round

    def check_enough(self, rounds: int) -> None:
        """Compare what a run needs with the users that there are.

        Raises:
            ConfigError: a user would be used twice.
        """
        need, bounds = self.needed(rounds), self._bounds()
        if need is not None and bounds and need > min(bounds)[0]:
            self._refuse_length(rounds, need, *min(bounds))

    def _bounds(self) -> list[tuple[int, str]]:
        """Upper bounds on the users that there are, each with who says it."""
        config, declared = self.config, self.spec.users
        bounds = [] if declared is None else [(declared, f"{config.env.label} declares")]
        if config.privacy.population is not None and not rules(config.privacy).sampler.every_round:
            bounds.append((config.privacy.population, self._says))
        return bounds

    @property
    def _says(self) -> str:
        """Who says how many users there are, before the number."""
        return "privacy.population says"

    def _refuse_length(self, rounds: int, need: int, there: int, who: str) -> None:
        """Raise ConfigError: `rounds` need `need` users, and `who` says that `there` are."""
        each = self.config.privacy.users_per_round
        problem = (
            f"{rounds} rounds of {each} users need {need} users, each used once; {who} {there}"
        )
        self._refuse_above(there // each, problem)

    def _refuse_above(self, most: int, problem: str) -> None:
        """Raise ConfigError: there are users for `most` rounds only."""
        if most < 1:
            raise ConfigError("privacy.users_per_round", f"{problem}: not enough for one round")
        length = f"{most} round{'s' if most > 1 else ''}, total_steps={most * self.round_steps}"
        raise ConfigError(
            "rounds" if self.config.rounds else "total_steps", f"{problem}: at most {length}"
        )

    def most_rounds(self, rounds: int) -> int:
        """As many of these rounds as there are users for, each used once; all if there are too few for one."""
        privacy = self.config.privacy
        if self.needed(rounds) is None or rules(privacy).sampler.every_round:
            return rounds
        known = [users for users in (self.spec.users, privacy.population) if users is not None]
        if not known:
            raise ConfigError(
                "fit_population", "needs the number of users: give privacy.population"
            )
        return min(rounds, min(known) // privacy.users_per_round) or rounds

    def limit(self, rounds: int) -> bool:
        """Whether so many rounds, which the configuration names, are all that its population has users for."""
        config, there = self.config, self.config.privacy.population
        if config.rounds != rounds or there is None or self.needed(rounds) is None:
            return False
        drawn = rules(config.privacy).sampler.every_round
        return not drawn and rounds == there // config.privacy.users_per_round

    # -- the guarantee ----------------------------------------------------------------------

    @property
    def unit(self) -> Unit:
        """What one user is in words, and how many releases their data can enter."""
        env, poisson = self.config.env, rules(self.config.privacy).sampler.independent
        limit = self.spec.max_episode_steps
        return unit_in_words(env, limit, self.steps, poisson, self.spec.one_user)

    @property
    def bounded(self) -> bool:
        """Whether `privacy.population` is public as a bound on their number."""
        sampler, population = rules(self.config.privacy).sampler, self.config.privacy.population
        fixed = population is not None and not sampler.every_round
        return sampler.independent or (fixed and not self.in_order(self.config))

    def public(self) -> list[str]:
        """What the guarantee takes as public about them."""
        return []

    def notes(self) -> dict[str, str]:
        """What the guarantee takes for granted of them."""
        return {}

    def caveats(self) -> dict[str, str]:
        """What lets their data past the gate of a private run, by name."""
        return {}

    # -- the plan in words ------------------------------------------------------------------

    def describe(self) -> str:
        """Where they are from, a line of the plan; empty: nothing to say."""
        return ""

    def in_words(self, rounds: int) -> str:
        """Who takes part: `96 of 1000 users, each used once`; empty for segments."""
        need, declared = self.needed(rounds), self.spec.users
        if need is not None:
            of = "" if declared is None else f" of {declared}"
            return f"{need}{of} users, each {self.verb} once"
        if rules(self.config.privacy).sampler.independent:
            return f"drawn from a population of {self.config.privacy.population}"
        return ""

    def who(self, rounds: int) -> str:
        """`in_words` with the population where it bounds them, and in any case."""
        words, privacy = self.in_words(rounds), self.config.privacy
        if not words and rules(privacy).sampler.exact:
            return f"exactly {privacy.population:,}, a public number"
        if not words and self.in_environments and self.config.env.user == "segment":
            return "segments of running episodes"
        bound = privacy.population if self.needed(rounds) is not None else None
        return f"{words}, of a population of {bound:,}" if bound and not self.spec.users else words

    def size_in_words(self, rounds: int) -> tuple[str, str]:
        """After `8 rounds of 96 users`: the steps, and who takes part."""
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
        size = f" x {steps} = {rounds * self.round_steps} steps"
        if self.from_data:
            size = f", trajectories of at most {steps}"
        return size, self.in_words(rounds)

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


def steps_of(env: EnvConfig, spec: EnvSpec) -> int:
    """T of users who act in environments: the episode limit for whole episodes, or `env.user_steps`."""
    if env.user == "episode" or env.user_steps is None:
        return spec.max_episode_steps
    return env.user_steps


def unit_in_words(
    env: EnvConfig, max_episode_steps: int, steps: int, poisson: bool, who: str = "one user"
) -> Unit:
    """What one user is, of those who act in environments; `who`: `EnvSpec.one_user`.

    An episode of `max_episode_steps` steps that may begin anywhere in a segment of `steps` touches at most
    (max_episode_steps + steps - 2) // steps + 1 segments.
    """
    if poisson:
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


def check_noise(run: RunConfig, who: str, otherwise: str = "") -> None:
    """Refuse noise whose seed leaves with the run, about users who are real or may be.

    Whoever knows the seed can take the noise off a release, and knows who was drawn. Users' devices would also
    draw the same noise again in a repeated round. Without noise nothing is promised, and nothing is refused.

    Args:
        run: the configuration.
        who: what is known of its users, for the message.
        otherwise: another way than secure noise, for the message.

    Raises:
        ConfigError: on privacy.noise.
    """
    privacy, mechanism = run.privacy, rules(run.privacy).mechanism
    noise = mechanism.private and (privacy.z != 0 or mechanism.one_release)
    if noise and privacy.noise == "seeded":
        raise ConfigError(
            "privacy.noise",
            f"{who}, and the seed of seeded noise is published with the run; use secure{otherwise}",
        )


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
