"""What a run promises: its mechanism, its sampler and its ledger, and the guarantee that follows from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from types import MappingProxyType

import numpy as np

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, epsilon_paper
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.devices import DeviceNoise
from privrl_bench.privacy.grid import L2, LEAST_CLIP, MOST_EPSILON, MOST_USERS
from privrl_bench.privacy.guarantee import WEAK_DELTA, Guarantee, Unit, weak_delta
from privrl_bench.privacy.ledger import Ledger, event_of
from privrl_bench.privacy.mechanisms.mechanism import Mechanism, Terms
from privrl_bench.privacy.noise import NoiseSource, SecureNoise, SeededNoise, noise_source
from privrl_bench.privacy.rules import check, rules
from privrl_bench.privacy.sampling.sampler import Sampler


@dataclass(eq=False, repr=False)
class Account:
    """Mechanism, sampler, ledger and accounting of R replicas that differ in z and seed.

    Args:
        configs: one privacy configuration for each replica, equal but for z.
        blocks: the parts of a row.
        unit: what one user is.
        rounds: number of releases, fixed in advance.
        noises: noise source of each replica.
        ledgers: ledger of each replica.
        caveats: everything outside the guarantee, name -> reason.
        notes: what the guarantee assumes, name -> reason; that of the noise is added.
        devices: the users' devices, for a mechanism on devices only.
        relations: adjacencies that have a meaning for these users; None: all.

    Raises:
        PrivacyError: configurations differ in more than z, a configuration or unit without an analysis, or
            a ledger of other settings.

    Attributes:
        mechanism, sampler: see `mechanisms/mechanism.py` and `sampling/sampler.py`.
    """

    configs: list[PrivacyConfig]
    blocks: tuple[Block, ...]
    unit: Unit
    rounds: int
    noises: InitVar[list[NoiseSource]]
    ledgers: list[Ledger]
    caveats: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    devices: DeviceNoise | None = None
    relations: Collection[str] | None = None

    def __post_init__(self, noises: list[NoiseSource]) -> None:
        configs, blocks, ledgers, devices = self.configs, self.blocks, self.ledgers, self.devices
        _check(configs, blocks, noises, ledgers)
        self.config, self._noises = configs[0], noises
        mechanism, sampler = rules(self.config)
        if devices is not None and not mechanism.on_devices:
            raise PrivacyError("noise on users' devices and mechanism=local go together")
        self.sampler: Sampler = sampler(self.config, mechanism.private)
        if self.slots > MOST_USERS:
            raise PrivacyError(f"a round has {self.slots} users; sums are exact up to {MOST_USERS}")
        exact = mechanism.norm is not None
        discrete = exact and any(isinstance(noise, SecureNoise) for noise in noises)
        self.mechanism: Mechanism = mechanism(
            Terms(configs, blocks, self.unit, self.rounds, self.sampler, devices, discrete)
        )
        self.caveats = MappingProxyType({**self.caveats, **mechanism.caveats})
        self.notes = dict(self.notes)
        if mechanism.private:
            self.notes["runs"] = (
                "epsilon is for this run alone; others about the same users compose"
            )
        if mechanism.norm not in (None, L2):
            self.notes["norm"] = f"rows are clipped, and z is counted, in L{mechanism.norm} norm"
        if self.is_preview:
            self.notes["preview"] = (
                f"noise as of {self.config.noise_cohort} users a round, of whom "
                f"{self.config.users_per_round} are simulated (privacy.noise_cohort): not private"
            )
        if sampler.random and not {"dataset", "users"} & set(self.notes):
            self.notes["sampling"] = (
                "simulated: a deployment must draw from all users, afresh and in secret"
            )
        for noise in noises:
            if mechanism.private:
                self.notes.update(noise.notes(exact=exact))
        for r, ledger in enumerate(ledgers):
            planned, settings = self.event(r), self.mechanism.settings(r)
            for line in ledger.lines:
                found = {key: line.get(key) for key in settings}
                if (event_of(line), found) != (planned, settings):
                    raise PrivacyError(
                        f"the ledger's line of round {line['round']} is of other settings: "
                        f"{event_of(line)} {found or ''}, not {planned} {settings or ''}"
                    )

    @property
    def slots(self) -> int:
        """Users a round has room for: U, or the cap of a Poisson cohort."""
        return self.sampler.room(self.config)

    def event(self, r: int) -> ReleaseEvent:
        """What one release of replica r is to the accountant."""
        return self.mechanism.event(r)

    @property
    def participation(self) -> int | None:
        """In how many rounds one user takes part at most; None: in every one."""
        return None if self.sampler.every_round else self.unit.participation

    def planned_epsilon(self, r: int) -> float:
        """Epsilon after all planned rounds; infinite in a preview."""
        return math.inf if self.is_preview else self.real_epsilon(r)

    def epsilon_of(
        self,
        r: int,
        releases: Iterable[ReleaseEvent] | Mapping[ReleaseEvent, int],
        delta: float | None = None,
    ) -> float:
        """Epsilon of releases about one user, the slack of discrete noise included; at the run's own delta."""
        config, slack, counts = self.configs[r], self.mechanism.slack(r), Counter(releases)
        if not counts:
            return 0.0
        own = config.delta if delta is None else delta
        found = ledger_epsilon(counts, own * (1.0 - slack), config.accountant)
        if slack and found > MOST_EPSILON:
            return math.inf
        return found + slack

    def paper_epsilon(self, r: int) -> float:
        """The number that papers print: DPPG's formula for one release, or an accountant's over all rounds.

        Of a release with an epsilon of its own that one. Infinite: none does.
        """
        config, sampler, event = self.configs[r], self.sampler, self.event(r)
        if not self.mechanism.in_papers:
            return math.inf
        if event.epsilon is not None:
            return float(event.epsilon)
        if not sampler.paper_accountant:
            return epsilon_paper(config.noise_multiplier, config.delta)
        releases = Counter({sampler.fast(event): self.rounds})
        return ledger_epsilon(releases, config.delta, sampler.paper_accountant)

    @property
    def is_preview(self) -> bool:
        """Whether noise is that of larger cohorts than those that are released (`privacy.noise_cohort`)."""
        return self.config.noise_cohort is not None

    def real_epsilon(self, r: int) -> float:
        """`planned_epsilon`, but in a preview that of the run which it is a preview of."""
        event, count = self.mechanism.planned_releases(r, self.participation)
        real = replace(event, z=event.z * self.configs[r].preview_scale)
        return self.epsilon_of(r, {real: count})

    def planned_epsilons(self, r: int) -> dict[str, float]:
        """Adjacency -> epsilon after all planned rounds, for every relation with an analysis here."""
        event, count = self.mechanism.planned_releases(r, self.participation)
        if self.is_preview:
            return {self.configs[r].adjacency: math.inf}
        both = set(self.mechanism.adjacencies) & set(self.sampler.adjacencies)
        if self.relations is not None:
            both &= set(self.relations)
        own = self.configs[r].adjacency
        return {
            name: self.epsilon_of(r, {replace(event, adjacency=name): count})
            for name in sorted(both | {own}, key=lambda name: (name != own, name))
        }

    def spent_epsilon(
        self,
        r: int,
        below_round: int | None = None,
        delta: float | None = None,
        ledger: Ledger | None = None,
    ) -> float:
        """Epsilon of what a ledger says was released; by default that of replica r, at the run's own delta.

        `below_round` leaves out later rounds: for a curve of a resumed run, which repeats rounds that it
        knows, never for a guarantee.
        """
        ledger = ledger or self.ledgers[r]
        if self.is_preview or self.mechanism.too_many(ledger, below_round):
            return math.inf
        spent = self.mechanism.spent(r, ledger, self.participation, below_round)
        return max((self.epsilon_of(r, some, delta) for some in spent), default=0.0)

    def continued_ledger(self, r: int, round_index: int) -> Ledger:
        """What the ledger of replica r will hold if it continues from a round to its end, in memory."""
        return self.ledgers[r].continued(
            round_index, self.rounds, self.event(r), repeatable=self._noises[r].name == "seeded"
        )

    def guarantee(self, r: int, done: int | None = None, ledger: Ledger | None = None) -> Guarantee:
        """The guarantee of replica r: as planned, or, with `done`, of parameters that have seen so many rounds.

        Never less than planned: a run that ends early may end because of what it released, and then no theorem
        covers the smaller number. Never less than the lines of the ledger, or of `ledger` in its place.

        Raises PrivacyError if the ledger lacks one of these rounds: epsilon is then unknown.
        """
        ledger = ledger or self.ledgers[r]
        if gaps := ledger.missing(done or 0):
            raise PrivacyError(f"the ledger has no line of round {gaps[0]}: epsilon is unknown")
        value = max(self.planned_epsilon(r), self.spent_epsilon(r, ledger=ledger))
        config, notes = self.configs[r], dict(self.notes)
        caveats, repeated = dict(self.caveats), ledger.repeated()
        if repeated and self.sampler.every_round:
            caveats["repeated rounds"] = (
                "epsilon is the larger of two analyses, neither proven for both"
            )
        if self._noises[r].name == "seeded" and repeated:
            notes["attempts"] = "which rounds were repeated is not covered: it depends on the data"
        users = config.population or self.rounds * config.users_per_round
        weak = weak_delta(config.delta, users, known=config.population is not None)
        if weak is not None and self.mechanism.private:
            (caveats if weak[0] else notes)[WEAK_DELTA] = weak[1]
        return Guarantee(
            epsilon=value,
            delta=config.delta,
            unit=self.unit.text,
            notion=self.mechanism.notion,
            adjacency=config.adjacency.replace("_", "-"),
            caveats=caveats,
            notes=notes,
        )


def planned_account(config: PrivacyConfig, block: Block, unit: Unit, rounds: int) -> Account:
    """The account of a run of so many releases, before it has released anything; it draws no noise.

    For code outside this package, which makes neither ledgers nor noise.
    """
    noise = noise_source(config.noise, 0, 0)
    return Account([config], (block,), unit, rounds, [noise], [Ledger(None)])


def secret_uniforms(kind: str, seed: int, identity: int) -> Callable[[int, int], np.ndarray]:
    """`uniform` of a source of noise, for what a search draws; see `noise_source`."""
    return noise_source(kind, seed, identity).uniform


def _check(
    configs: list[PrivacyConfig],
    blocks: tuple[Block, ...],
    noises: list[NoiseSource],
    ledgers: list[Ledger],
) -> None:
    """What the accountant relies on, whoever made the configuration. Raises PrivacyError."""
    if not len(configs) == len(noises) == len(ledgers):
        raise ValueError("one config, noise source and ledger for each replica")
    try:
        for config in configs:
            config.__post_init__()
            check(config)
    except ConfigError as error:
        raise PrivacyError(str(error)) from error
    if rules(configs[0]).sampler.every_round and configs[0].population is None:
        raise PrivacyError("the sampling needs privacy.population")
    if any(replace(one, z=configs[0].z) != configs[0] for one in configs):
        raise PrivacyError("replicas may differ in z only")
    if len({block.name for block in blocks}) != len(blocks):
        raise ValueError("block names must differ")
    if any(
        not (LEAST_CLIP < b.clip < 1 / LEAST_CLIP and 0 < b.noise_ratio < math.inf) for b in blocks
    ):
        raise PrivacyError(
            f"every block needs a clip from {LEAST_CLIP:.2g} to {1 / LEAST_CLIP:.2g} and a finite noise "
            "ratio > 0"
        )
    for noise in noises:
        if type(noise) not in (SeededNoise, SecureNoise):
            raise PrivacyError(f"noise comes from noise.py, not from {type(noise).__name__}")
