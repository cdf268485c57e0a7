"""The gate. Private data become parameters in the `Gate` and nowhere else.

    clip every user's row -> cut to the integer grid -> add -> ledger line on disk -> integer noise -> divide by
    the public U

`add` takes the rows of some users at a time, `merge` takes sums that workers made of rows (`row_sum.py`), and
`release` ends the round. Between the clip and the division everything is an integer (`grid.py`).

The mechanism (`mechanisms/`) decides how a sum is privatised, the sampler (`sampling/`) who takes part; both
are found by the privacy configuration. With noise on the users' devices the gate is on every device
(`devices.py`): the line is on the disk before its noise is drawn (`begin_devices`), what users send is private
already, and the gate only adds their rows.

The gate is built from the privacy configuration alone, so the noise, the clip, the divisor and the accounted
event cannot disagree. Any path beside it must be declared by name before the run; the name then stands in
the guarantee as a caveat.

What is proven and what is assumed: `privrl_bench/privacy/__init__.py`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.account import Account
from privrl_bench.privacy.contribution import _GATE, Contribution, Released
from privrl_bench.privacy.ledger import Ledger, digest
from privrl_bench.privacy.mechanisms.mechanism import Attempt
from privrl_bench.privacy.noise import NoiseSource
from privrl_bench.privacy.row_sum import RowSum
from privrl_bench.privacy.sampling.sampler import Cohort

_WRITERS = 8
# Rounds whose lines are written at once: at most so many, and one of so many. A crash counts them as released.
_MOST_AHEAD = 64
_SHARE_AHEAD = 256


@dataclass(eq=False, repr=False)
class Gate(Account):
    """The way of users' data: cohorts, clip, sum, mechanism, release. Everything else: `Account`.

    Args:
        pooled: the algorithm sends one row with all users' data (with mechanisms that pool, all do).
        Others: see `Account`.

    Raises: see `Account`.

    Attributes:
        diagnostics: exact, private numbers about the last release, for the local log: for each replica the
            share of users at the clip bound and the number whose rows were not finite.
    """

    pooled: bool = False

    def __post_init__(self, noises: list[NoiseSource]) -> None:
        super().__post_init__(noises)
        self._pooled = self.mechanism.pooled or (self.pooled and self.mechanism.on_devices)
        self.diagnostics: list[dict[str, float]] = []
        self._sum = self.empty_sum()
        self._ended: set[int] = set()
        self._last_round = -1
        self._threads = ThreadPoolExecutor(_WRITERS, "ledger")  # that wait for the disk
        self._announced: tuple[int, dict[int, Future[int]]] | None = None
        self._ahead = max(1, min(_MOST_AHEAD, self.rounds // _SHARE_AHEAD))
        # Of every replica: round -> its attempt that is on the disk, of which nothing was released yet.
        self._intended: list[dict[int, int]] = [{} for _ in self.configs]
        self._on_devices = -1  # the last round whose devices had noise

    # -- sampling ---------------------------------------------------------------------------

    def draw(self, round_index: int, users: int | None, once: bool) -> Cohort:
        """The cohort of a round, of each replica; one that has ended has no users.

        Random draws are secret, like the noise, and made once a round: asking again gives the same. Rows that
        were added before belong to a round that was given up, and are dropped.

        Args:
            round_index: from 0.
            users: how many users there are, who then are drawn by number; None: sizes only.
            once: users whom an environment declares: in cohorts of fixed size the next U, each of them in
                one round only.

        Raises:
            PrivacyError: there are more users than `population`, not exactly as many where that number is
                public, none is left, or cohorts of fixed size have no draw.
        """
        self._sum = self.empty_sum()
        return self.sampler.draw(round_index, users, once, self._noises, self._ended)

    def expected_cohort(self) -> list[int]:
        """The public number of users of a round, of each replica: U, or 0 for one that has ended."""
        users = self.config.users_per_round
        return [0 if r in self._ended else users for r in range(len(self.configs))]

    # -- the gate ---------------------------------------------------------------------------

    def permit(self, name: str) -> None:
        """Allow un-noised private data past the gate under a declared name, or raise PrivacyError.

        With noise on devices all data that arrive here are private already: everything is allowed.
        """
        if not self.mechanism.on_devices and name not in self.caveats:
            raise PrivacyError(
                f"{name!r} would pass private data beside the gate and is not among the caveats "
                f"{sorted(self.caveats)}"
            )

    def end(self, r: int) -> None:
        """From now on nothing of replica r is released: its values are 0, its ledger stays as it is."""
        self._ended.add(r)

    def announce(self, round_index: int) -> None:
        """Begin to write this round's lines, while users act; `release` waits until they are on the disk.

        A round that is cut off after this counts as released. Optional: `release` writes them itself.
        """
        if round_index < self.rounds:
            alive = [r for r in range(len(self.ledgers)) if r not in self._ended]
            self._announced = (round_index, {r: self._write(r, round_index) for r in alive})

    def sync(self) -> None:
        """Wait until the lines about all releases are on the disk. Raises OSError.

        Whoever lets anything that depends on a release leave the process calls this first.
        """
        waiting = [ledger for ledger in self.ledgers if ledger.waiting]
        if waiting:
            list(self._threads.map(Ledger.sync, waiting))

    def begin_devices(self, round_index: int) -> None:
        """Noise for the users' devices in this round, once its lines are on the disk; none without devices.

        Guarantee: what the devices show of one unit in this round is a Gaussian mechanism with multiplier
        `event(r).z` under any_trajectory_pair adjacency, rewards (unless noised) and ends given.

        Raises PrivacyError: a round beyond those planned.
        """
        if self.devices is None or self._on_devices == round_index:
            return
        self._check_round(round_index)
        attempts = self._attempts(round_index)
        sizes = self.devices.sizes
        self.devices.begin(
            [
                noise.normal(sizes, round_index, attempts[r]) if r in attempts else None
                for r, noise in enumerate(self._noises)
            ]
        )
        self._on_devices = round_index

    def empty_sum(self) -> RowSum:
        """A sum of this gate's rows, for workers."""
        return RowSum(self.blocks, self.mechanism.norm, len(self.configs))

    def add(self, contribution: Contribution) -> None:
        """Clip, cut to the grid and add the rows of some of the next round's users; it is consumed.

        Raises: as `RowSum.add`.
        """
        self._sum.add(contribution)

    def merge(self, rows: RowSum) -> None:
        """Add a sum that a worker made from other users of the next round. Raises: as `RowSum.merge`."""
        self._sum.merge(rows)

    def release(self, round_index: int) -> Released:
        """Write the ledger line, privatise the sum of all rows added, divide by the public U.

        Args:
            round_index: from 0; never more than `rounds`.

        Returns: [R, P_b] noised mean of each block.

        Guarantee: that of the mechanism. `bypass` and `diagnostics` are outside.

        Raises:
            PrivacyError: a wrong number of users, an undeclared bypass, a round out of order, or more rounds
                than planned.
        """
        self._check_round(round_index)
        rows, self._sum = self._sum, self.empty_sum()
        for name in rows.bypass:
            self.permit(name)
        users = 1 if self._pooled else self.slots  # all users' data in one row
        if rows.users != users:
            raise PrivacyError(f"a round has rows of {users} users, got {rows.users}")
        if round_index <= self._last_round:
            raise PrivacyError(f"round {round_index} after round {self._last_round}: out of order")
        if self.devices is not None and self._on_devices != round_index:
            raise PrivacyError(f"the devices had no noise in round {round_index}")
        self._last_round = round_index
        share = rows.at_bound / rows.valid.clamp_min(1)
        self.diagnostics = [
            {"clipped_fraction": float(share[r]), "invalid_users": float(rows.invalid[r])}
            for r in range(len(self.configs))
        ]
        complete = bool((rows.valid == rows.users).all()) and not bool(rows.invalid.any())
        self.mechanism.prepare(rows.smooth, complete)
        attempts = self._attempts(round_index)
        self._announced = None
        replicas = [
            self._release_replica(r, round_index, attempts, rows.sums)
            for r in range(len(self.configs))
        ]
        for r in self._ended:
            for leaked in rows.bypass.values():
                for x in leaked.values():
                    x[r] = 0.0
        return Released(
            values={b.name: torch.stack([one[b.name] for one in replicas]) for b in self.blocks},
            bypass=rows.bypass,
            key=_GATE,
        )

    def _release_replica(
        self, r: int, round_index: int, attempts: dict[int, int], sums: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Noise, public divisor, digest: [P_b] of every block of replica r, whose line is on the disk."""
        if r in self._ended:
            return {block.name: torch.zeros(block.size) for block in self.blocks}
        own = {block.name: sums[block.name][r] for block in self.blocks}
        attempt = Attempt(r, round_index, attempts[r], self._noises[r], self.ledgers[r])
        divisor = 1 if self._pooled else self.config.users_per_round
        units = {b.name: 1.0 if self.mechanism.norm is None else b.unit for b in self.blocks}
        while True:
            noised = self.mechanism.privatize(own, attempt)
            values = {
                b.name: (noised[b.name].double() * (units[b.name] / divisor)).float()
                for b in self.blocks
            }
            if attempt.ledger.came_out(round_index, attempt.number, digest(values)):
                self.mechanism.released(attempt)
                return values
            what = self.mechanism.unrepeatable or self.sampler.unrepeatable
            if what:
                raise PrivacyError(
                    f"round {round_index} was released before from other data; a repeated {what} "
                    "has no analysis (another machine or version? start a new folder)"
                )
            attempt = replace(attempt, number=attempt.ledger.again(round_index))
            self._intended[r].clear()  # the lines of later rounds do not know of this attempt

    def _attempts(self, round_index: int) -> dict[int, int]:
        """Wait for the lines of this round, of every replica that continues: replica -> attempt."""
        if self._announced is None or self._announced[0] != round_index:
            self.announce(round_index)
        assert self._announced is not None
        return {r: line.result() for r, line in self._announced[1].items()}

    def _write(self, r: int, round_index: int) -> Future[int]:
        """The attempt of replica r at this round, once its line is on the disk."""
        if round_index not in self._intended[r]:
            return self._threads.submit(self._intend, r, round_index)
        done: Future[int] = Future()
        done.set_result(self._intended[r].pop(round_index))
        return done

    def _intend(self, r: int, round_index: int) -> int:
        """Write the lines of this round and of some after it."""
        ledger, name = self.ledgers[r], self._noises[r].name
        attempts = {}
        for index in range(round_index, min(round_index + self._ahead, self.rounds)):
            more = self.mechanism.details(r, index, ledger)
            details = {"noise": name, **self.mechanism.settings(r), **more}
            attempts[index] = ledger.intend(
                index, self.event(r), details, repeatable=name == "seeded"
            )
        ledger.sync()
        first = attempts.pop(round_index)
        self._intended[r] = attempts
        return first

    def _check_round(self, round_index: int) -> None:
        """Raise PrivacyError for a round beyond those planned."""
        if round_index >= self.rounds:
            raise PrivacyError(f"round {round_index} is beyond the {self.rounds} planned releases")
