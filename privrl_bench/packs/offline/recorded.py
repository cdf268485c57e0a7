"""Users of a dataset, whose trajectories were recorded before the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privrl_bench.config.schema import PrivacyConfig, RunConfig
from privrl_bench.config.traits import Data, Draws
from privrl_bench.errors import ConfigError, refuse
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.rules import rules
from privrl_bench.users.facts import People, UserSize, UserTerms, UserWords
from privrl_bench.users.refusals import (
    check_noise,
    evaluation,
    one_release,
    own_policy,
    segments_unbounded,
    unbounded,
)
from privrl_bench.users.users import Users

if TYPE_CHECKING:
    from privrl_bench.functional.rng import Streams
    from privrl_bench.packs.offline.datasets.trajectories import Dataset
    from privrl_bench.types import EnvSpec
    from privrl_bench.users.collectors.collector import Collector


def evaluates(run: RunConfig) -> bool:
    """Whether the algorithm evaluates the policy that acted, and learns none."""
    return Data.ACTED in run.algo.traits.data


def counted(run: RunConfig) -> bool:
    """Whether the guarantee is for exactly the private users of the dataset, whose number is public."""
    return evaluates(run) or run.algo.traits.one_cohort or RecordedUsers.in_order(run)


def _policy(run: RunConfig) -> None:
    """Whose policy acted."""
    (evaluation if evaluates(run) else own_policy)(run)


def _scaling(run: RunConfig) -> None:
    """Users who acted before the run give no scaling."""
    refuse(
        bool({"private", "running"} & {run.env.obs_scaling, run.env.reward_scaling}),
        "env.obs_scaling",
        "for a dataset use split, public or none; reward_scaling: public",
    )


def _population(run: RunConfig) -> None:
    """An algorithm that learns in rounds takes other users."""
    if not counted(run):
        unbounded(run, f"algo={run.algo.name} takes from a dataset")


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
    simulator = False
    listed = True
    refusals = (_policy, one_release, _scaling, _population, segments_unbounded)
    reads = ("data.",)
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
            "privrl import makes one of logs, privrl collect of a simulator",
        )
        refuse(
            Data.RECORDED not in run.algo.traits.data,
            "data.id",
            f"algo={name} acts with its own policy while it learns, and takes no dataset",
        )
        super().check(run)

    @classmethod
    def size_of(cls, run: RunConfig, spec: EnvSpec | None = None, most: int = 1) -> UserSize:
        """See `Users.size_of`: all trajectories of one user."""
        steps = 0 if spec is None else spec.max_episode_steps * most
        return UserSize(steps, run.privacy.users_per_round * steps)

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
        from privrl_bench.packs.offline.stored_users import open_data, scaled_by

        run = configs[0]
        self.data: Dataset = open_data(run.data, self.spec)
        self.most, self.says = self.data.most, f"{run.data.id} has"
        self._check_simulated(run)
        env = scaled_by(run.env, self.data)
        self._check_number(run)
        sampler = rules(run.privacy).sampler
        found = []
        for c in configs:
            privacy = c.privacy
            if sampler.every_round or counted(run):
                privacy = replace(privacy, population=privacy.population or self.data.users)
            if sampler.independent:  # see `neighbours_of`
                privacy = replace(privacy, adjacency="zero_out")
            found.append(replace(c, env=env, privacy=privacy))
        return found

    def _check_simulated(self, run: RunConfig) -> None:
        """Refuse seeded noise unless the dataset says that its users are simulated. Raises ConfigError."""
        from privrl_bench.packs.offline.datasets.user_keys import REAL, SIMULATED

        name = self.data.name
        said = self.data.trajectories.card["minari"].get("users")
        if said == SIMULATED:
            return
        if said == REAL:
            check_noise(run, f"the users of {name} are real")
        mark = f"minari.load_dataset({name!r}).storage.update_metadata({{'users': {SIMULATED!r}}})"
        who = f"{name} does not say that its users are simulated"
        check_noise(run, who, f", or, if they are simulated, say so once: {mark}")

    def _check_number(self, run: RunConfig) -> None:
        """Compare the number of private users with the configuration. Raises ConfigError."""
        from privrl_bench.packs.offline.fixed_policies import is_trained

        data, privacy = self.data, run.privacy
        population, cohort = privacy.population, privacy.users_per_round
        private = f"the {data.users} private users of {data.name}"
        if rules(privacy).sampler.independent and (population or data.users) < data.users:
            raise ConfigError("privacy.population", f"must be at least {private}, got {population}")
        if rules(privacy).sampler.independent and population is None and data.users < cohort:
            raise ConfigError("privacy.users_per_round", f"must be at most {private}, got {cohort}")
        if not counted(run):
            return
        if population not in (None, data.users):
            raise ConfigError(
                "privacy.population",
                f"is exact and public: {private}, or unset; got {population}",
            )
        target = getattr(run.algo, "target", None)
        estimated = run.data.policy is not None and is_trained(run.data.policy)
        known = data.trajectories.behavior_probs is not None or estimated
        if evaluates(run) and target not in (None, run.data.policy) and not known:
            raise ConfigError(
                "data.id",
                f"{data.name} has no behaviour probabilities, which algo.target={target} needs: give them to "
                "privrl import, or estimate them with algo=dp_bc, whose run is then data.policy",
            )

    def needed(self, rounds: int) -> int | None:
        """See `Users.needed`."""
        if not self.in_order(self.config):
            return None
        return rounds * self.config.privacy.users_per_round

    def terms(self) -> UserTerms:
        """See `Users.terms`."""
        config, most, data = self.config, self.most, self.data
        in_order, population = self.in_order(config), config.privacy.population
        named = data.trajectories.user_key
        what = "one user with one trajectory" if named else "one trajectory"
        if most > 1:
            what = f"all trajectories of one user, up to {most},"
        what += f" of at most {self.spec.max_episode_steps} steps"
        unit = Unit(f"{what}, in any of the rounds", None)
        if in_order:
            unit = Unit(f"{what}, used once", 1)
        public = [
            f"T={config.env.max_episode_steps or 'the episode limit'}",
            f"at most {most} episode{'s' if most > 1 else ''} of one user",
            "how many episodes there are, and the keys of their metadata",
        ]
        notes = {}
        if in_order or rules(config.privacy).sampler.every_round:  # their number matters
            exact = population == self.data.users
            what = "exactly the private users" if exact else "a bound on the private users"
            public.append(f"population={population}, {what}")
            notes["neighbours"] = neighbours_of(config.privacy, data.users, config.data.part)
        from privrl_bench.packs.offline.datasets.minari_files import datasets_root

        who = f"the metadata key {named!r} names the users" if named else "each episode is a user"
        notes["dataset"] = (
            f"{data.public_users} of {self._chosen()} users are public and unprotected: "
            f"{self._taken()}; no user's data may depend on "
            f"another's, although the collecting policy may have learned from one to the next; {who}"
        )
        # `public` says what their number is.
        folder, part = datasets_root() / data.name, config.data.part or ""
        if part:
            notes["dataset"] += f"; of the private users part {part}, chosen by their numbers alone"
        people = People(
            data.name, folder, named or "", data.trajectories.who(), data.public_users, part
        )
        notes |= order_note(in_order)
        return UserTerms(unit, False, tuple(public), notes, people=people)

    def _chosen(self) -> int:
        """How many users the parts have together, with the public ones."""
        return self.config.data.users or self.data.trajectories.user_count

    def _taken(self) -> str:
        """What a run takes from the public users."""
        from privrl_bench.packs.offline.datasets.trajectories import moments

        # `configs` have the moments of `env.obs_scaling=split` as constants; see `scaled_by`.
        config = self.config
        mean, std = moments(self.data.trajectories, self.data.public)
        scales = (config.env.obs_mean, config.env.obs_std) == (mean.tolist(), std.tolist())
        taken = ["the scaling"] if scales else []
        if self.data.trajectories.card.get("logs", {}).get("givers"):
            taken.append("the ranges and choices of the columns")
        taken += [config.algo.traits.public_data] if config.algo.traits.public_data else []
        return f"their data give {', '.join(taken)}" if taken else "their data are not used"

    def words(self, rounds: int) -> UserWords:
        """See `Users.words`."""
        return replace(super().words(rounds), about=self.data.describe())

    def public_sources(self, streams: list[Streams]) -> dict[str, Any]:
        """The public part of the dataset."""
        return {"transitions": self._collector(1, 1).public()}

    def collector(self, parts: Any, size: int) -> Collector:
        """See `Users.collector`."""
        return self._collector(len(self.configs), size)

    def _collector(self, replicas: int, size: int) -> Any:
        from privrl_bench.packs.offline.stored_users import DatasetCollector
        from privrl_bench.users.collectors.collector import BatchShape

        shape = BatchShape(replicas, size, self.size.steps)
        return DatasetCollector(self.data, self.config.env, shape, self.in_order(self.config))


def order_note(in_order: bool) -> dict[str, str]:
    """What the guarantee takes for granted of the users of a list."""
    order = "users take part in the order of the list, which does not depend on their data"
    return {"order": order} if in_order else {}


def neighbours_of(privacy: PrivacyConfig, users: int, part: str | None = None) -> str:
    """Which datasets of as many users are neighbours, in words.

    Which users are public is decided by how many there are and in which order. So their number is public
    whatever `privacy.population` is, and a neighbour has the same users in the same places.
    """
    where = "the dataset" if part is None else f"part {part} of the dataset"
    number = f"N = {users}, the number of private users in {where}, is taken as public"
    if int(privacy.population or 0) > users:
        number = f"the dataset's number of private users, {users}, is taken as public, too"
    one = "has no data" if privacy.adjacency == "zero_out" else "has other data"
    return f"one private user {one}, and all users keep their places; {number}"


USERS = RecordedUsers
