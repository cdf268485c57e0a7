"""Users of a dataset, whose trajectories were recorded before the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import PrivacyConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.rules import rules
from privrl_bench.users.users import Users, check_noise, with_population

if TYPE_CHECKING:
    from privrl_bench.functional.rng import Streams
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector
    from privrl_bench.users.collectors.dataset import Dataset

_TRAJECTORIES = 6  # of users under a known policy, in the leak test


class RecordedUsers(Users):
    """Users of a dataset; see `Users`.

    Attributes:
        data: the dataset and its split into public and private users.
    """

    name = "recorded"
    gives = Data.RECORDED
    draws = tuple(Draws)
    # Not add_or_remove: the users of a dataset keep their places, see `neighbours_of`.
    relations = ("zero_out", "replace_one", "any_trajectory_pair")
    from_data = True
    in_environments = False
    listed = True
    may_be_real = True  # whatever the dataset says
    private_because = "data.id names a dataset"
    untested = "how the dataset is loaded and split (the user is replaced after it)"

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """See `Users.check`: an algorithm that learns from a dataset, and a dataset."""
        name = run.algo.name
        refuse(
            rules(run.privacy).mechanism.on_devices,
            "privacy",
            f"local is noise on live users' devices, but algo={name} learns from a dataset",
        )
        refuse(
            run.data.id is None,
            "data.id",
            f"algo={name} learns from a dataset: data.id=<a local Minari dataset>; "
            "privrl collect makes one",
        )
        refuse(
            Data.RECORDED not in run.algo.traits.data,
            "data.id",
            f"algo={name} acts with its own policy while it learns, and takes no dataset",
        )
        super().check(run)

    @classmethod
    def _check_draws(cls, run: RunConfig) -> None:
        super()._check_draws(run)
        mechanism, sampler = rules(run.privacy)
        refuse(
            not cls.evaluates(run) and mechanism.private and not sampler.independent,
            "privacy.sampling",
            f"algo={run.algo.name} draws its users: use privacy=poisson",
        )

    @classmethod
    def _check_policy(cls, run: RunConfig) -> None:
        if not cls.evaluates(run):
            super()._check_policy(run)
            return
        check_known_policy(run)
        check_evaluation(run)

    @classmethod
    def _check_scaling(cls, run: RunConfig) -> None:
        refuse(
            bool({"private", "running"} & {run.env.obs_scaling, run.env.reward_scaling}),
            "env.obs_scaling",
            "for a dataset use split, public or none; reward_scaling: public",
        )

    @classmethod
    def _check_population(cls, run: RunConfig) -> None:
        if not cls.evaluates(run):
            cls._refuse_bound(run, f"algo={run.algo.name} takes from a dataset")
        super()._check_population(run)

    @classmethod
    def without_effect(cls, run: RunConfig) -> dict[str, str]:
        """See `Users.without_effect`."""
        return {key: why for key, why in super().without_effect(run).items() if "data" not in key}

    @classmethod
    def given_steps(cls, run: RunConfig) -> int | None:
        """See `Users.given_steps`."""
        return None

    @classmethod
    def with_users(cls, run: RunConfig, users: int) -> RunConfig:
        """See `Users.with_users`: as many as the dataset has."""
        if not cls.in_order(run) or run.algo.traits.one_cohort:
            return run
        return with_population([run], None)[0]

    @classmethod
    def shrink(cls, cuts: Any, rounds: int, users: int, user: int) -> None:
        """See `Users.shrink`."""
        if cls.evaluates(cuts.config):
            shrink_list(cuts, rounds, cls.in_order(cuts.config))
        cuts.rounds(rounds)

    @classmethod
    def evaluates(cls, run: RunConfig) -> bool:
        """Whether the algorithm evaluates the policy that acted, and learns none."""
        return Data.ACTED in run.algo.traits.data

    @classmethod
    def spec_of(cls, run: RunConfig) -> EnvSpec:
        """See `Users.spec_of`; scaling by the public part of the dataset is not known yet."""
        split = run.env.obs_scaling == "split"
        return super().spec_of(
            replace(run, env=replace(run.env, obs_scaling="none")) if split else run
        )

    def configured(self, configs: list[RunConfig]) -> list[RunConfig]:
        """The same runs with the scaling and the number of users of the dataset, which is opened.

        Raises:
            ConfigError: the configuration does not fit the dataset.
        """
        from privrl_bench.users.collectors.dataset import open_data, scaled_by

        run = configs[0]
        self.data: Dataset = open_data(run.data, self.spec)
        self.most = self.data.most
        self._check_simulated(run)
        env = scaled_by(run.env, self.data)
        self._check_number(run)
        sampler, evaluates = rules(run.privacy).sampler, self.evaluates(run)
        found = []
        for c in configs:
            privacy = c.privacy
            if sampler.every_round or evaluates:
                privacy = replace(privacy, population=privacy.population or self.data.users)
            if sampler.independent:  # see `neighbours_of`
                privacy = replace(privacy, adjacency="zero_out")
            found.append(replace(c, env=env, privacy=privacy))
        return found

    def _check_simulated(self, run: RunConfig) -> None:
        """Refuse seeded noise unless the dataset says that its users are simulated. Raises ConfigError."""
        from privrl_bench.datasets.user_keys import REAL, SIMULATED, collected_before, users_said

        found, name = self.data.trajectories, self.data.name
        said = users_said(found.card)
        ours = collected_before(found.card) and found.env_id == run.env.id
        if said == SIMULATED or (said is None and ours and self.spec.users is None):
            return
        if said == REAL:
            check_noise(run, f"the users of {name} are real")
        mark = f"minari.load_dataset({name!r}).storage.update_metadata({{'users': {SIMULATED!r}}})"
        who = f"{name} does not say that its users are simulated"
        check_noise(run, who, f", or, if they are simulated, say so once: {mark}")

    def _check_number(self, run: RunConfig) -> None:
        """Compare the number of private users with the configuration. Raises ConfigError."""
        data, privacy = self.data, run.privacy
        population, cohort = privacy.population, privacy.users_per_round
        private = f"the {data.users} private users of {data.name}"
        if rules(privacy).sampler.independent and (population or data.users) < data.users:
            raise ConfigError("privacy.population", f"must be at least {private}, got {population}")
        if rules(privacy).sampler.independent and population is None and data.users < cohort:
            raise ConfigError("privacy.users_per_round", f"must be at most {private}, got {cohort}")
        if not self.evaluates(run):
            return
        if population not in (None, data.users):
            raise ConfigError(
                "privacy.population",
                f"is exact and public: {private}, or unset; got {population}",
            )
        target = getattr(run.algo, "target", None)
        known = data.trajectories.behavior_probs is not None
        if target not in (None, run.data.policy) and not known:
            raise ConfigError(
                "data.id",
                f"{data.name} has no behaviour probabilities, which importance ratios to algo.target={target} "
                "need; privrl collect policy=... writes data with them",
            )

    @property
    def steps(self) -> int:
        """See `Users.steps`: of all trajectories of one user."""
        return self.spec.max_episode_steps * self.most

    def needed(self, rounds: int) -> int | None:
        """See `Users.needed`."""
        if not self.in_order(self.config):
            return None
        return rounds * self.config.privacy.users_per_round

    @property
    def _says(self) -> str:
        return f"{self.config.data.id} has"

    @property
    def bounded(self) -> bool:
        """See `Users.bounded`: `public` says what their number is."""
        return False

    @property
    def unit(self) -> Unit:
        """See `Users.unit`."""
        most = self.most
        what = "one trajectory" if most == 1 else f"all trajectories of one user, up to {most},"
        what += f" of at most {self.spec.max_episode_steps} steps"
        if self.in_order(self.config):
            return Unit(f"{what}, used once", 1)
        return Unit(f"{what}, in any of the rounds", None)

    def public(self) -> list[str]:
        """See `Users.public`."""
        config, most = self.config, self.most
        public = [
            f"T={config.env.max_episode_steps or 'the episode limit'}",
            f"at most {most} episode{'s' if most > 1 else ''} of one user",
            "how many episodes there are, and the keys of their metadata",
        ]
        if self._numbered_in(config):
            exact = config.privacy.population == self.data.users
            what = "exactly the private users" if exact else "a bound on the private users"
            public.append(f"population={config.privacy.population}, {what}")
        return public

    @classmethod
    def _numbered_in(cls, run: RunConfig) -> bool:
        """Whether the number of users enters the guarantee."""
        return rules(run.privacy).sampler.every_round or cls.in_order(run)

    def notes(self) -> dict[str, str]:
        """See `Users.notes`."""
        notes, config, split = {}, self.config, self.data.split
        if self._numbered_in(config):
            notes["neighbours"] = neighbours_of(config.privacy, split.users)
        key = self.data.trajectories.user_key
        who = f"the metadata key {key!r} names the users" if key else "each episode is a user"
        notes["dataset"] = (
            f"{split.public_users} of {split.public_users + split.users} users are public and unprotected: "
            f"{self._taken()}; no user's data may depend on "
            f"another's, although the collecting policy may have learned from one to the next; {who}"
        )
        return notes | order_note(self.in_order(config))

    def _taken(self) -> str:
        """What a run takes from the public users."""
        from privrl_bench.datasets.split import moments

        # `configs` have the moments of `env.obs_scaling=split` as constants; see `scaled_by`.
        config = self.config
        mean, std, _, _ = moments(self.data.trajectories, self.data.split.public)
        scales = (config.env.obs_mean, config.env.obs_std) == (mean.tolist(), std.tolist())
        taken = ["the scaling"] if scales else []
        taken += [config.algo.traits.public_data] if config.algo.traits.public_data else []
        return f"their data give {', '.join(taken)}" if taken else "their data are not used"

    def describe(self) -> str:
        """See `Users.describe`."""
        return self.data.describe()

    def public_sources(self, streams: list[Streams]) -> dict[str, Any]:
        """The public part of the dataset."""
        return {"transitions": self._collector(1, 1).public()}

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        return self._collector(len(self.configs), size)

    def _collector(self, replicas: int, size: int) -> Any:
        from privrl_bench.users.collectors.collector import BatchShape
        from privrl_bench.users.collectors.dataset import DatasetCollector

        shape = BatchShape(replicas, size, self.steps)
        return DatasetCollector(self.data, self.config.env, shape, self.in_order(self.config))


def check_known_policy(run: RunConfig) -> None:
    """An algorithm that evaluates a policy knows the one that acted. Raises ConfigError."""
    refuse(
        run.data.policy is None,
        "data.policy",
        f"algo={run.algo.name} evaluates from the trajectories of a known policy: give it, e.g. "
        "data.policy=uniform (with a dataset, too: errors are measured under it)",
    )


def check_evaluation(run: RunConfig) -> None:
    """What an algorithm that evaluates a policy takes of its users. Raises ConfigError."""
    algo, privacy = run.algo, run.privacy
    refuse(
        run.env.obs_scaling != "none",
        "env.obs_scaling",
        f"is {run.env.obs_scaling!r}, but algo={algo.name} computes features of unscaled observations: "
        "set env.obs_scaling=none",
    )
    refuse(
        run.env.reward_scaling not in ("none", "public"),
        "env.reward_scaling",
        "to evaluate a policy use none or public",
    )
    refuse(
        algo.traits.one_round and run.rounds not in (None, 1),
        "rounds",
        f"algo={algo.name} has one release, got {run.rounds}",
    )
    refuse(
        algo.traits.one_cohort and privacy.users_per_round not in (1, privacy.population),
        "privacy.users_per_round",
        f"algo={algo.name} takes all users in one round (privacy.population): leave it out, got "
        f"{privacy.users_per_round}",
    )


def order_note(in_order: bool) -> dict[str, str]:
    """What the guarantee takes for granted of the users of a list."""
    order = "users take part in the order of the list, which does not depend on their data"
    return {"order": order} if in_order else {}


def shrink_list(cuts: Any, rounds: int, in_order: bool) -> None:
    """Reduce a list whose users acted with a known policy; arguments as `Users.shrink`."""
    run = cuts.config
    many = run.rounds if "rounds" in cuts.given and run.rounds else rounds
    need = many * run.privacy.users_per_round if in_order else 0
    cuts.cut("privacy", population=max(_TRAJECTORIES, need))
    cuts.cut("algo", reference=_TRAJECTORIES)


def neighbours_of(privacy: PrivacyConfig, users: int) -> str:
    """Which datasets of as many users are neighbours, in words.

    Which users are public is decided by how many there are and in which order. So their number is public
    whatever `privacy.population` is, and a neighbour has the same users in the same places.
    """
    number = f"N = {users}, the number of private users in the dataset, is taken as public"
    if int(privacy.population or 0) > users:
        number = f"the dataset's number of private users, {users}, is taken as public, too"
    one = "has no data" if privacy.adjacency == "zero_out" else "has other data"
    return f"one private user {one}, and all users keep their places; {number}"


USERS = RecordedUsers
