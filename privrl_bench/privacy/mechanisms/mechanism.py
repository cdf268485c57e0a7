"""What a mechanism is: how a sum over users is privatised, and everything that follows from its name.

A mechanism is a class with declarations, which configurations, algorithms and reports read, and an object
of it in every gate. A new one is a module in this folder with `MECHANISM = <class>`, a YAML in
conf/privacy and a test file; see tests/privacy/test_mechanism_registry.py.

Modules here import torch and dp-accounting inside methods only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privrl_bench.errors import ConfigError, PrivacyError, require_among
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.grid import L2, REPEATS
from privrl_bench.privacy.mechanisms.declarations import Declarations
from privrl_bench.privacy.sampling import ledger_sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor

    from privrl_bench.config.schema import EnvConfig, PrivacyConfig
    from privrl_bench.privacy.accounting.strategy import Strategy
    from privrl_bench.privacy.contribution import Block
    from privrl_bench.privacy.devices import DeviceNoise
    from privrl_bench.privacy.guarantee import Unit
    from privrl_bench.privacy.ledger import Ledger
    from privrl_bench.privacy.noise import NoiseSource
    from privrl_bench.privacy.sampling.sampler import Sampler
    from privrl_bench.types import EnvSpec


@dataclass(frozen=True)
class Terms:
    """The public facts that a gate's mechanism is built from.

    Attributes:
        configs: one privacy configuration for each replica, equal but for z.
        blocks: the parts of a row.
        unit: what one user is.
        rounds: number of releases, fixed in advance.
        sampler: how cohorts are drawn.
        devices: noise on the users' devices, or None.
        discrete: noise on the grid is the discrete Gaussian itself, not a rounded normal number.
    """

    configs: Sequence[PrivacyConfig]
    blocks: tuple[Block, ...]
    unit: Unit
    rounds: int
    sampler: Sampler
    devices: DeviceNoise | None = None
    discrete: bool = False


@dataclass(frozen=True)
class Attempt:
    """One attempt at a release of one replica: where its noise comes from.

    Seeded noise is the same at every call with the same sizes: a mechanism draws all that it needs at once.
    """

    replica: int
    round: int
    number: int
    source: NoiseSource
    ledger: Ledger

    def normal(self, sizes: list[int]) -> list[Tensor]:
        """One vector of standard normals for each size."""
        return self.source.normal(sizes, self.round, self.number)

    def integers(self, sizes: list[int], stds: list[float]) -> list[Tensor]:
        """One int64 vector of Gaussian noise on the grid for each size and standard deviation, in units."""
        return self.source.integers(sizes, stds, self.round, self.number)

    def laplace(self, sizes: list[int], scales: list[float]) -> list[Tensor]:
        """One int64 vector of discrete Laplace noise on the grid for each size and parameter, in units."""
        from privrl_bench.privacy.noise import discrete_laplace

        bits = self.bits()
        return [discrete_laplace(bits, n, b) for n, b in zip(sizes, scales, strict=True)]

    def bits(self) -> Callable[[int], bytes]:
        """A stream of random bytes, for noise of any other law: `stream(n)` gives its next n."""
        return self.source.bits(self.round, self.number)


class Noise(Declarations):
    """How the sum of a round is privatised: what is drawn, what is remembered. Default: nothing is added."""

    def __init__(self, terms: Terms):
        """Raises PrivacyError: the terms have no analysis."""
        self.terms = terms

    @property
    def strategy(self) -> Strategy:
        """C, of which noise is C^-1 w over the rounds: public. Independent noise: the identity."""
        from privrl_bench.privacy.accounting.strategy import Strategy

        return Strategy((1.0,), self.terms.rounds)

    def settings(self, r: int) -> dict[str, Any]:
        """Public facts that every line of a ledger has alike; a ledger with other ones is refused."""
        return {}

    def details(self, r: int, round_index: int, ledger: Ledger) -> dict[str, Any]:
        """Public facts of the next line of a ledger, beside the event and the kind of noise."""
        return {}

    def prepare(self, smooth: Tensor | None, complete: bool) -> None:
        """Take what a round has for this mechanism alone.

        Args:
            smooth: see `Contribution`.
            complete: every row takes part and is finite.

        Raises PrivacyError: it is missing, or it is for another mechanism.
        """
        if smooth is not None:
            raise PrivacyError("an output with a smooth bound and mechanism=smooth go together")

    def stds(self, r: int) -> dict[str, float]:
        """Block name -> standard deviation of the noise of replica r that is drawn for the sum of one round.

        In parameter units. Everything that depends on the size of the noise reads it here. Empty: the noise has
        no size of its own, or there is none.
        """
        return {}

    def release_noise(self, r: int) -> dict[str, float]:
        """Noise std of every number of a block in the sum of one round, the largest over the rounds.

        Empty: a release has no noise of a known size.
        """
        return self.stds(r)

    @classmethod
    def sum_noise(cls, z: Any, clip: float, rounds: int) -> Any:
        """Standard deviation of the noise in a sum over `rounds` rounds, of each z; shape as z."""
        return z * 0.0

    def privatize(self, sums: dict[str, Tensor], attempt: Attempt) -> dict[str, Tensor]:
        """The noised sums [P_b] of one replica, whose ledger line is on the disk; see `RowSum.sums`."""
        return sums

    def released(self, attempt: Attempt) -> None:
        """The attempt is what left the gate."""


class Accounting(Noise):
    """What a release is to the accountant, and what it composes with. Default: nothing is bounded.

    Ledger lines hold a `ReleaseEvent`. The class methods turn lines of `records` into dp-accounting's events,
    whichever run wrote them; the others make and count those of one run.
    """

    @classmethod
    def single(cls, release: ReleaseEvent) -> DpEvent:
        """dp-accounting's event of one release, without the amplification by its sampling."""
        from dp_accounting import NonPrivateDpEvent

        return NonPrivateDpEvent()

    @classmethod
    def composed(cls, counts: tuple[tuple[ReleaseEvent, int], ...]) -> DpEvent:
        """dp-accounting's event of (release, count) pairs about one user."""
        from dp_accounting import ComposedDpEvent, NonPrivateDpEvent, SelfComposedDpEvent

        events = []
        for release, count in counts:
            one = cls.single(release)
            if isinstance(one, NonPrivateDpEvent):
                return one
            if release.q < 1.0:
                one = ledger_sampler(release.sampling).wrap(one, release)
            events.append(SelfComposedDpEvent(one, count))
        return ComposedDpEvent(tuple(events))

    @classmethod
    def gaussians(
        cls, counts: tuple[tuple[ReleaseEvent, int], ...]
    ) -> tuple[tuple[float, int], ...] | None:
        """`composed` as (noise multiplier, count) pairs; 0: no noise. None: not Gaussian, or not known to be.

        A subclass does not inherit it: its releases may be others.
        """
        return None

    def event(self, r: int) -> ReleaseEvent:
        """What one release of replica r is to the ledger."""
        return self.recorded(r, self.records[0], self.terms.configs[r].noise_multiplier)

    def recorded(self, r: int, record: str, z: float, **more: Any) -> ReleaseEvent:
        """A release with the adjacency of replica r and its sampler; `more`: further fields."""
        config, sampler = self.terms.configs[r], self.terms.sampler
        known = {"sampling": sampler.name, **more}
        return sampler.record(ReleaseEvent(record, z, config.adjacency, **known), config)

    def planned_releases(self, r: int, participation: int | None) -> tuple[ReleaseEvent, int]:
        """(event, count) of all planned rounds about one user, in `participation` at most; None: in all.

        The event's z is proportional to `privacy.z`.
        """
        rounds = self.terms.rounds
        return self.event(r), rounds if participation is None else min(participation, rounds)

    def slack(self, r: int) -> float:
        """What noise costs beyond the events: added to epsilon, a share of delta. Default: nothing."""
        return 0.0

    def spent(
        self, r: int, ledger: Ledger, participation: int | None, below: int | None
    ) -> list[Counter[ReleaseEvent]]:
        """What a ledger says was released about the user with the largest loss; of several, the costliest.

        Args:
            r: the replica.
            ledger: of the replica.
            participation: in how many rounds at most one user takes part; None: in all.
            below: count rounds below this one only.
        """
        found = [ledger.releases(participation, below)]
        if self.terms.sampler.every_round and ledger.summary()["repeated"]:
            # A repeated round had the same users or others; neither is the worse in all cases.
            found.append(ledger.releases_merged(self.norm or L2, below))
        return found

    def too_many(self, ledger: Ledger, below: int | None) -> bool:
        """Whether a ledger has more repeats than rounding and discrete noise are analysed for."""
        return self.norm is not None and ledger.repeats(below) > self.terms.rounds + REPEATS


class Description(Declarations):
    """What configurations, guarantees and plans say of a mechanism."""

    @classmethod
    def validate(cls, privacy: PrivacyConfig) -> None:
        """Reject a configuration that this mechanism has no meaning or no analysis for.

        Raises: ConfigError.
        """
        who, adjacency = f"privacy.mechanism={cls.name}", privacy.adjacency
        require_among("privacy.adjacency", adjacency, cls.adjacencies, f"{who} is analysed under")
        require_among("privacy.accountant", privacy.accountant, cls.accountants, f"{who} takes")
        if (cls.imitation or not cls.private) and privacy.epsilon is not None:
            raise ConfigError(
                "privacy.epsilon", f"nothing is bounded with privacy.mechanism={cls.name}"
            )
        if not cls.on_devices and privacy.rewards != "public":
            raise ConfigError(
                "privacy.rewards", "noised is for noise on users' devices: privacy=local"
            )

    @classmethod
    def notes(cls, privacy: PrivacyConfig) -> dict[str, str]:
        """What the guarantee assumes because of this mechanism: name -> reason."""
        return {}

    @classmethod
    def unit(cls, env: EnvConfig, privacy: PrivacyConfig, spec: EnvSpec, steps: int) -> Unit | None:
        """The privacy unit, where it is not what environment and algorithm say; None: it is."""
        return None

    @classmethod
    def devices(
        cls, env: EnvConfig, configs: Sequence[PrivacyConfig], spec: EnvSpec, steps: int
    ) -> DeviceNoise | None:
        """The users' devices, if they add noise. Raises ConfigError: a public range is missing."""
        return None

    def plan_entries(self, r: int) -> dict[str, Any]:
        """Further entries of plan.json."""
        return {}

    def describe_noise(self, r: int) -> str:
        """The noise in words, for the terminal; empty: nothing beyond z."""
        return ""


class Mechanism(Accounting, Description):
    """Base of the mechanisms: noise, accounting and description, one small part each.

    As it is, it adds nothing and bounds nothing. Mechanisms on clipped rows begin with `on_grid.OnGrid`.
    """
