"""The gate. Private data become parameters in `Gate.release` and nowhere else.

    clip every user's row -> sum -> ledger line on disk -> noise -> divide by the public U

With `mechanism=local` the gate is on every user's device (`local.py`): the line is on the disk before its noise
is drawn (`begin_local`), what users tell is private already, and `release` only adds their rows up.

The plan is built from the privacy configuration alone, so the noise, the clip, the divisor and the
accounted event cannot disagree. Anything that passes beside it must be declared by name before
the run; the name then stands in the guarantee as a caveat.

What is proven here, given what is assumed below:

1. One release is a Gaussian mechanism with multiplier z on one user's row, jointly over its blocks
   (`release`; sensitivity: `clip.py`; rounding: `noise.py`). With `mechanism=tree` releases are what rounds add
   to running sums, and all of them together are one mechanism on her row (`tree.py`).
2. The transcript of all rounds is, for one user and given everybody else's data, the composition of the
   releases she is in; what comes after the gate is post-processing. A user who is in one round pays for one
   release (adaptive parallel composition). A Poisson person may be in every round.
3. Every release has a line in the ledger before its noise is drawn, and epsilon is computed from the
   lines (`guarantee` refuses a ledger with gaps or with lines of other settings). A round that was attempted
   again counts as often as it was attempted.

What is assumed, and what holds it:

a. A row, and whether it is valid, is a function of that user's data and of earlier releases only:
   `algos/*.local`. Held bit for bit by `privrl-audit leaks` (tests/audit/test_leaks.py, every shipped algorithm
   and option). What breaks it on purpose must be permitted here by name and stands in the guarantee.
b. A unit is in at most `Unit.participation` rounds, in one slot of a round, and a round has the same users
   at every attempt: `collectors/simulated.py` (tests/collectors/test_simulated.py); Poisson cohorts may differ, a caveat then says so.
   Users whom an environment declares are named to it by number; in fixed cohorts each is in one round
   (`enrolled`: tests/experiment/test_declared_users.py).
c. Poisson: `population` N is a public bound, neighbouring datasets both stay within it, and q = U / N and the
   cap are functions of these numbers. The number of people is drawn here, once for a round (`experiment/trainer.py`; slots
   beyond it are not valid: tests/collectors/test_simulated.py); who they are too where they stand in a dataset (`members`,
   `collectors/dataset.py`), or an environment declares them (`enrolled`). Other live ones are simulated, independently in
   every round: a deployment must draw them uniformly, afresh and in secret (a note).
d. U, z, clip, blocks, the number of rounds and delta are public: they are configuration, and the plan
   takes nothing else. A replica ends early when its parameters, which are released, are not finite, or when a
   person or a signal stops the program; its guarantee stays that of all planned rounds.
e. Nothing private leaves by another door: metrics have an audience (`metrics.py`), only those `released`
   are sent, checkpoints stay, `policy.pt` holds released values. Timing is not protected.
f. The adversary sees every intermediate release, the ledger and the configuration, but with seeded noise not
   the seed, and not whether a seeded round was attempted again (notes say so).
g. R replicas and other runs are experiments on the same users: each epsilon is for its run alone (a note
   says so).
h. A resumed run has the same configuration, alone in its folder: `experiment/runner.py`, `experiment/run_dir.py` (lock, comparison).
i. Local: nothing of an environment's observations (nor of rewards, if noised) goes further than `LocalNoise`:
   `collectors/simulated.py`, held by the leak test, whose worlds then differ in what one device sees, not in what it shows.
j. Parameters change through `Released` alone: `experiment/trainer.py` has one call of `server`. An algorithm that kept
   something of a row elsewhere would be found by the leak test, not by the imports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import MECHANISMS, PrivacyConfig
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accountant import ReleaseEvent, epsilon, epsilon_paper, joint_z
from privrl_bench.privacy.clip import clip_rows
from privrl_bench.privacy.contribution import (
    _GATE,
    Block,
    Contribution,
    Released,
    block_multipliers,
    check_private,
    on_grid,
)
from privrl_bench.privacy.guarantee import WEAK_DELTA, Guarantee, Unit, weak_delta
from privrl_bench.privacy.ledger import Ledger, digest, event_of
from privrl_bench.privacy.local import LocalNoise
from privrl_bench.privacy.noise import MOST_USERS, NoiseSource, SecureNoise, SeededNoise
from privrl_bench.privacy.smooth import noise_factor, require_admissible
from privrl_bench.privacy.tree import IMITATION, RunningNoise, levels

_WRITERS = 8  # threads that wait for the disk


@dataclass(frozen=True)
class Cohort:
    """The users of a round: how many of each replica and, where they are numbered, who."""

    sizes: list[int]
    members: list[np.ndarray] | None


class Gate:
    """Sampler, clip, noise, ledger and accounting of R replicas that differ in z and seed.

    Args:
        configs: one privacy configuration for each replica, equal but for z.
        blocks: the parts of a row.
        unit: what one user is.
        rounds: number of releases, fixed in advance.
        noises: noise source of each replica.
        ledgers: ledger of each replica.
        caveats: everything outside the guarantee, name -> reason.
        notes: what the guarantee assumes, name -> reason; that of the noise is added.
        local: the users' devices, with `mechanism=local` only.
        pooled: the algorithm sends one row that is everybody's (without a mechanism all do).

    Raises:
        PrivacyError: configurations differ in more than z, an unknown mechanism, or a ledger of other
            settings.

    `diagnostics` are exact, private numbers about the last release, for the local log: for each replica the
    share of users at the clip bound and the number whose rows were not finite.
    """

    def __init__(
        self,
        configs: list[PrivacyConfig],
        blocks: tuple[Block, ...],
        unit: Unit,
        rounds: int,
        noises: list[NoiseSource],
        ledgers: list[Ledger],
        caveats: dict[str, str] | None = None,
        notes: dict[str, str] | None = None,
        local: LocalNoise | None = None,
        pooled: bool = False,
    ):
        if not len(configs) == len(noises) == len(ledgers):
            raise ValueError("one config, noise source and ledger for each replica")
        for config in configs:
            _check_config(config)
        if any(replace(one, z=configs[0].z) != configs[0] for one in configs):
            raise PrivacyError("replicas may differ in z only")
        if configs[0].mechanism == "per_transition" and unit.draw is None:
            raise PrivacyError("noise on transitions needs a unit that says how they are drawn")
        if configs[0].mechanism in ("tree", "fresh_noise_per_round") and unit.participation != 1:
            raise PrivacyError("sums over rounds are analysed for units that are in one round only")
        if len({block.name for block in blocks}) != len(blocks):
            raise ValueError("block names must differ")
        if any(not (0 < b.clip < math.inf and 0 < b.noise_ratio < math.inf) for b in blocks):
            raise PrivacyError("every block needs a finite clip and noise ratio > 0")
        if (configs[0].mechanism == "local") != (local is not None):
            raise PrivacyError("noise on users' devices and mechanism=local go together")
        self.configs = configs
        self.config = configs[0]
        self.local = local
        self._gated = not configs[0].pooled and local is None  # clip and noise are here
        self._pooled = configs[0].pooled or (pooled and local is not None)
        self.blocks = blocks
        self.unit = unit
        self.rounds = rounds
        self.ledgers = ledgers
        beside = dict(caveats or {})
        if configs[0].mechanism == "fresh_noise_per_round":
            beside[IMITATION[0]] = IMITATION[1]
        self.caveats: Mapping[str, str] = MappingProxyType(beside)
        self.notes = dict(notes or {})
        if configs[0].mechanism != "none":
            self.notes["runs"] = (
                "epsilon is for this run alone; others about the same people compose"
            )
        drawn = configs[0].sampling in ("poisson", "uniform_single_user")
        if drawn and not {"dataset", "users"} & set(self.notes):
            self.notes["sampling"] = (
                "simulated: a deployment must draw among all people, afresh and in secret"
            )
        for noise in noises:
            if type(noise) not in (SeededNoise, SecureNoise):
                raise PrivacyError(f"noise comes from noise.py, not from {type(noise).__name__}")
            if noise.note and self.config.mechanism != "none":
                name, why = noise.note
                self.notes[name] = why
        self.diagnostics: list[dict[str, float]] = []
        self._noises = noises
        running = configs[0].mechanism in ("tree", "fresh_noise_per_round")
        imitated = configs[0].mechanism == "fresh_noise_per_round"
        self._sums = {r: RunningNoise(imitated) for r in range(len(configs))} if running else {}
        self._joined: tuple[tuple[int, int, int], list[Tensor]] | None = None
        self._ended: set[int] = set()
        self._cohort: tuple[int, list[int]] | None = None  # of one round
        self._last_round = -1
        self._writer: ThreadPoolExecutor | None = None
        self._announced: tuple[int, Future[dict[int, int]]] | None = None
        self._told = -1  # the last round whose devices had noise
        # Of the last draw: (round, people) and who joined.
        self._members: tuple[tuple[int, int], list[np.ndarray]] | None = None
        people = self.config.population
        if self.config.sampling == "poisson" and not self.config.users_per_round <= (people or 0):
            raise PrivacyError(
                f"U = {self.config.users_per_round} users of a population of {people}"
            )
        exact = self.config.sampling in ("uniform_single_user", "full_batch")
        if exact and not (self.config.population or 0) >= 1:
            raise PrivacyError(f"a population of {people} people")
        if self.config.mechanism == "smooth":
            goal = float(self.config.epsilon or 0.0), self.config.delta
            require_admissible(*goal, sum(block.size for block in blocks))
        if self.slots > MOST_USERS:
            raise PrivacyError(f"a round has {self.slots} users; sums are exact up to {MOST_USERS}")
        for r, ledger in enumerate(ledgers):
            for line in ledger.lines:
                if event_of(line) != self.event(r):
                    raise PrivacyError(
                        f"the ledger's line of round {line['round']} is of other settings: "
                        f"{event_of(line)}, not {self.event(r)}"
                    )

    # -- sampling ---------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Users a round has room for: U (everybody's row is one), or the cap of a Poisson cohort."""
        config = self.config
        if config.sampling != "poisson":
            return config.users_per_round
        room = config.users_per_round + 6.0 * math.sqrt(config.users_per_round)
        return min(math.ceil(room), int(config.population or 0))

    def draw(self, round_index: int, population: int | None, used_once: bool) -> Cohort:
        """The users of a round, of `population` numbered ones or, if None, without numbers."""
        if population is None:
            return Cohort(self.cohort(round_index), None)
        members = (self.enrolled if used_once else self.members)(round_index, population)
        return Cohort([len(who) for who in members], members)

    def cohort(self, round_index: int) -> list[int]:
        """How many users each replica has in this round (Poisson draws are capped at `slots`).

        Poisson sizes are secret, like the noise, and drawn once a round: asking again gives the same. A replica
        that has ended has no users.
        """
        if self._cohort is None or self._cohort[0] != round_index:
            self._cohort = (round_index, self._draw_cohort(round_index))
        return [0 if r in self._ended else size for r, size in enumerate(self._cohort[1])]

    def _draw_cohort(self, round_index: int) -> list[int]:
        config, people = self.config, int(self.config.population or 0)
        if config.sampling == "full_batch":
            return [people] * len(self.configs)
        if config.sampling != "poisson":
            return [config.users_per_round] * len(self.configs)
        q = config.users_per_round / people
        return [min(n.binomial(people, q, round_index), self.slots) for n in self._noises]

    def expected_cohort(self) -> list[int]:
        """The public number of users of a round, of each replica: U, or 0 for one that has ended."""
        users = self.config.users_per_round
        return [0 if r in self._ended else users for r in range(len(self.configs))]

    def members(self, round_index: int, people: int) -> list[np.ndarray]:
        """Who of the `people` in a dataset join, by number: [cohort] of each replica.

        Given its size, every set is as likely; so each of `population` people joins with q by herself. A number
        that nobody has is an absent person's. Without a mechanism any U of them: nothing is promised.
        `uniform_single_user`: one, everybody as likely; `full_batch`: all.

        Drawn once: a second call in the same round gives the same people.

        Raises PrivacyError: cohorts of fixed size have no draw, there are more people than `population`, or
        not exactly as many where that number is public.
        """
        if self._members is None or self._members[0] != (round_index, people):
            self._members = (round_index, people), self._draw_members(round_index, people)
        return [who.copy() for who in self._members[1]]

    def enrolled(self, round_index: int, people: int) -> list[np.ndarray]:
        """Which of the `people` whom an environment declares take part, by number: [cohort] of each replica.

        Drawn (`members`), or in cohorts of fixed size the next U, each of them in one round only.

        Raises PrivacyError: see `members`; or no user is left for a cohort of fixed size.
        """
        if self.config.sampling != "fixed":
            return self.members(round_index, people)
        first = round_index * self.config.users_per_round
        if first + self.config.users_per_round > people:
            raise PrivacyError(f"round {round_index} would use one of {people} users again")
        return [np.arange(first, first + size) for size in self.cohort(round_index)]

    def _draw_members(self, round_index: int, people: int) -> list[np.ndarray]:
        """See `members`."""
        if self.config.sampling in ("uniform_single_user", "full_batch"):
            if people != self.config.population:
                raise PrivacyError(f"{people} people, and n = {self.config.population} is public")
            if self.config.sampling == "full_batch":
                return [np.arange(size) for size in self.cohort(round_index)]
        if self.config.mechanism != "none":
            if self.config.sampling == "fixed":
                raise PrivacyError("who is in a cohort of fixed size is not drawn here")
            if people > int(self.config.population or 0):
                raise PrivacyError(f"{people} people in a population of {self.config.population}")
            people = int(self.config.population or 0)
        sizes = self.cohort(round_index)
        return [
            noise.choose(people, min(size, people), round_index)
            for noise, size in zip(self._noises, sizes, strict=True)
        ]

    # -- the gate ---------------------------------------------------------------------------

    def permit(self, name: str) -> None:
        """Allow un-noised private data past the gate under a declared name, or raise PrivacyError.

        With local noise nothing that arrives here is without: everything is allowed.
        """
        if self.local is None and name not in self.caveats:
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
            self._announced = (round_index, self._threads().submit(self._intend, round_index))

    def begin_local(self, round_index: int) -> None:
        """Noise for the users' devices in this round, once its lines are on the disk; none if not local.

        Guarantee: what the devices show of one unit in this round is a Gaussian mechanism with multiplier
        `event(r).z` under any_trajectory_pair adjacency, rewards (unless noised) and ends given.

        Raises PrivacyError: a round beyond those planned.
        """
        if self.local is None:
            return
        if round_index >= self.rounds:
            raise PrivacyError(f"round {round_index} is beyond the {self.rounds} planned releases")
        if self._announced is None or self._announced[0] != round_index:
            self.announce(round_index)
        assert self._announced is not None
        attempts = self._announced[1].result()
        sizes = self.local.sizes
        self.local.begin(
            [
                noise.normal(sizes, round_index, attempts[r]) if r in attempts else None
                for r, noise in enumerate(self._noises)
            ]
        )
        self._told = round_index

    def _threads(self) -> ThreadPoolExecutor:
        """That wait for the disk."""
        if self._writer is None:
            self._writer = ThreadPoolExecutor(_WRITERS, "ledger")
        return self._writer

    def release(self, contribution: Contribution, round_index: int) -> Released:
        """Clip, sum, write the ledger line, add noise, divide by the public U.

        Args:
            contribution: rows of this round's users; consumed.
            round_index: from 0; never more than `rounds`.

        Returns: [R, P_b] noised mean of each block.

        Guarantee: for one user in one slot, one attempt is a Gaussian mechanism with multiplier z jointly
        over all blocks under zero-out adjacency (z/2 under replace-one: `accountant._exact` doubles the
        distance). `bypass` and `diagnostics` are outside. With local noise rows are neither clipped nor noised:
        post-processing of what devices showed (`begin_local`).

        Raises:
            PrivacyError: unknown blocks, a wrong number of users, an undeclared bypass, diagnostics under
                a name that may leave, a contribution used twice, a round out of order, or more rounds than
                planned.
        """
        if round_index >= self.rounds:
            raise PrivacyError(f"round {round_index} is beyond the {self.rounds} planned releases")
        check_private(contribution.diagnostics)
        rows, valid, bypass = contribution.take()
        self._check(rows, valid, bypass)
        if round_index <= self._last_round:
            raise PrivacyError(f"round {round_index} after round {self._last_round}: out of order")
        if self.local is not None and self._told != round_index:
            raise PrivacyError(f"the devices had no noise in round {round_index}")
        self._last_round = round_index
        clipped: dict[str, Tensor] = {}
        at_bound = torch.zeros(valid.shape, dtype=torch.bool)
        finite = valid.clone()
        for block in self.blocks:
            bound = block.clip if self._gated else math.inf
            clipped[block.name], norms = clip_rows(rows.pop(block.name), bound)
            at_bound |= norms > bound * (1 - 1e-4)
            finite &= torch.isfinite(norms)
        spread = self._spread(contribution, finite)
        if not finite.all():
            # One bad block voids the user's whole row, so that blocks cannot be played apart.
            for one in clipped.values():
                one[~finite] = 0.0
        # Double precision until the noise is in: rounding a sum must not depend on one user.
        sums = {name: one.sum(dim=1) for name, one in clipped.items()}
        announced, self._announced = self._announced, None
        attempts = {} if announced is None else announced[1].result()
        if announced is None or announced[0] != round_index:
            attempts = self._intend(round_index)
        replicas = [
            self._release_replica(r, round_index, attempts, sums, spread)
            for r in range(len(self.configs))
        ]
        list(self._threads().map(Ledger.sync, self.ledgers))  # digests, before anything leaves
        for r in self._ended:
            for leaked in bypass.values():
                for x in leaked.values():
                    x[r] = 0.0
        share = (at_bound & finite).sum(dim=1) / valid.sum(dim=1).clamp_min(1)
        invalid = (valid & ~finite).sum(dim=1)
        self.diagnostics = [
            {"clipped_fraction": float(share[r]), "invalid_users": float(invalid[r])}
            for r in range(len(self.configs))
        ]
        return Released(
            values={b.name: torch.stack([one[b.name] for one in replicas]) for b in self.blocks},
            bypass=bypass,
            key=_GATE,
        )

    def _release_replica(
        self,
        r: int,
        round_index: int,
        attempts: dict[int, int],
        sums: dict[str, Tensor],
        spread: Tensor | None,
    ) -> dict[str, Tensor]:
        """Noise, public divisor, digest: [P_b] of every block of replica r, whose line is on the disk.

        `spread` [R] is the standard deviation of the noise of an output perturbation.
        """
        if r in self._ended:
            return {block.name: torch.zeros(block.size) for block in self.blocks}
        config, ledger = self.configs[r], self.ledgers[r]
        attempt = attempts[r]
        multipliers = block_multipliers(config.z, self.blocks)
        imitated = config.mechanism == "fresh_noise_per_round"
        while True:
            values = {block.name: sums[block.name][r].clone() for block in self.blocks}
            if self._gated and config.z > 0:
                drawn = self._noise(r, round_index, attempt)
                for block, one in zip(self.blocks, drawn, strict=True):
                    std = multipliers[block.name] * (1.0 if imitated else block.clip)
                    values[block.name] = on_grid(values[block.name] + std * one, std)
            if spread is not None:
                drawn = self._noise(r, round_index, attempt)
                for block, one in zip(self.blocks, drawn, strict=True):
                    # The grid is public: that of the least noise, which block.clip stands for.
                    least = block.clip * self._factor
                    values[block.name] = on_grid(values[block.name] + spread[r] * one, least)
            divisor = 1 if self._pooled else config.users_per_round
            values = {name: (x / divisor).float() for name, x in values.items()}
            if ledger.came_out(round_index, attempt, digest(values)):
                if r in self._sums and config.z > 0:
                    self._sums[r].keep(round_index, self._joining(r, round_index, attempt))
                return values
            if config.drawn or self.local is not None:
                what = "round of noised observations" if self.local else "round of drawn people"
                raise PrivacyError(
                    f"round {round_index} was released before from other data; a repeated {what} "
                    "has no analysis (another machine or version? start a new folder)"
                )
            attempt = ledger.again(round_index)

    @property
    def _factor(self) -> float:
        """Noise std / smooth bound of an output perturbation."""
        return noise_factor(float(self.config.epsilon or 0.0), self.config.delta)

    def _spread(self, contribution: Contribution, finite: Tensor) -> Tensor | None:
        """[R] noise std of an output perturbation; None for other mechanisms. Raises PrivacyError."""
        if (self.config.mechanism == "smooth") != (contribution.smooth is not None):
            raise PrivacyError("an output with a smooth bound and mechanism=smooth go together")
        if contribution.smooth is None:
            return None
        bound = contribution.smooth.double()
        least = min(block.clip for block in self.blocks)
        if not bool(finite.all()) or not bool((bound >= least * (1 - 1e-9)).all()):
            raise PrivacyError("an output or its smooth bound is no number, or below the least one")
        return bound * self._factor

    def _joining(self, r: int, round_index: int, attempt: int) -> list[Tensor]:
        """Noise that joins the running sums of replica r in this round."""
        key = (r, round_index, attempt)
        if self._joined is None or self._joined[0] != key:

            def draw(sizes: list[int]) -> list[Tensor]:
                return self._noises[r].normal(sizes, round_index, attempt)

            sizes = [block.size for block in self.blocks]
            self._joined = (key, self._sums[r].joining(sizes, round_index, draw))
        return self._joined[1]

    def _noise(self, r: int, round_index: int, attempt: int) -> list[Tensor]:
        """Standard noise of one attempt: fresh, or the change of that of running sums."""
        if r not in self._sums:
            return self._noises[r].normal([b.size for b in self.blocks], round_index, attempt)
        sums = self._sums[r]
        if self._noises[r].name == "seeded":  # after a restart it can be drawn again
            for index in sums.leaving(round_index):
                made = self.ledgers[r].attempts(index)
                if index not in sums.kept and made:  # a round without a line added no noise
                    sums.kept[index] = self._joining(r, index, made - 1)
        return sums.change(round_index, self._joining(r, round_index, attempt))

    def _intend(self, round_index: int) -> dict[int, int]:
        """Lines of this round on the disk, for every replica that goes on: replica -> attempt."""
        attempts = {}
        for r, (config, ledger) in enumerate(zip(self.configs, self.ledgers, strict=True)):
            if r in self._ended:
                continue
            name = self._noises[r].name
            details: dict[str, Any] = {"noise": name}
            if self.local is not None:
                told = {"observations": self.local.observations, "rewards": self.local.rewards}
                details |= {"users": config.users_per_round, "told": told}
            elif not config.pooled:
                multipliers = block_multipliers(config.z, self.blocks)
                details["users"] = config.users_per_round
                details["blocks"] = {
                    block.name: {"clip": block.clip, "z": multipliers[block.name]}
                    for block in self.blocks
                }
            attempts[r] = ledger.intend(
                round_index, self.event(r), details, repeatable=name == "seeded"
            )
        return attempts

    def _check(
        self, rows: dict[str, Tensor], valid: Tensor, bypass: dict[str, dict[str, Tensor]]
    ) -> None:
        for name in bypass:
            self.permit(name)
        if valid.dtype != torch.bool:
            raise PrivacyError(f"valid must be bool, got {valid.dtype}")
        expected = {block.name: block.size for block in self.blocks}
        got = {name: x.shape[-1] for name, x in rows.items()}
        if got != expected:
            raise PrivacyError(f"blocks {got} do not match the plan's {expected}")
        replicas = len(self.configs)
        users = 1 if self._pooled else self.slots  # all people in one row
        for name, x in rows.items():
            if (*x.shape[:-1],) != (replicas, users) or tuple(valid.shape) != (replicas, users):
                raise PrivacyError(
                    f"{name}: rows {tuple(x.shape)} and valid {tuple(valid.shape)} must be "
                    f"[{replicas}, {users}, P]"
                )

    # -- accounting -------------------------------------------------------------------------

    def event(self, r: int) -> ReleaseEvent:
        """What one release of replica r is to the accountant."""
        config = self.configs[r]
        if config.mechanism == "none":
            return ReleaseEvent("none", 0.0, config.adjacency)
        if config.mechanism == "smooth":
            goal = config.epsilon, config.delta
            people = config.population
            return ReleaseEvent("smooth", 0.0, config.adjacency, 1.0, people, None, *goal)
        if config.mechanism == "fresh_noise_per_round":
            return ReleaseEvent("label", config.z, config.adjacency)
        if self.local is not None:
            return ReleaseEvent("gaussian", self.local.multiplier(r), config.adjacency)
        if config.mechanism == "per_transition":
            batch, memory = self.unit.draw or (0, 0)
            return ReleaseEvent(
                "per_transition", config.z, config.adjacency, 1.0, population=memory, cap=batch
            )
        z = joint_z(block_multipliers(config.z, self.blocks).values())
        if config.sampling == "fixed":
            # The blocks' multipliers are built from z; reporting z itself avoids rounding.
            if not math.isclose(z, config.z, rel_tol=1e-9):
                raise PrivacyError(f"blocks give joint z {z}, the plan says {config.z}")
            # A row of a running sum is under the noise of that many nodes (`tree.py`).
            nodes = levels(self.rounds) if config.mechanism == "tree" else 1
            return ReleaseEvent("gaussian", config.z / math.sqrt(nodes), config.adjacency)
        people = int(config.population or 0)
        q = config.users_per_round / people
        if config.sampling == "uniform_single_user" and not math.isclose(z, config.z, rel_tol=1e-9):
            raise PrivacyError(f"blocks give joint z {z}, the plan says {config.z}")
        return ReleaseEvent("gaussian", config.z, config.adjacency, q, people, self.slots)

    @property
    def participation(self) -> int | None:
        """In how many rounds one user takes part at most; None: in every one."""
        return None if self.config.drawn else self.unit.participation

    def planned_epsilon(self, r: int) -> float:
        """Epsilon after all planned rounds."""
        count = self.rounds if self.participation is None else self.participation
        spent = [self.event(r)] * min(count, self.rounds)
        return epsilon(spent, self.configs[r].delta, self.configs[r].accountant)

    def spent_epsilon(self, r: int, below_round: int | None = None) -> float:
        """Epsilon of what the ledger of replica r says was released.

        `below_round` leaves out what came later: for a curve of a resumed run, which repeats rounds that it
        knows, never for a guarantee.
        """
        ledger, config = self.ledgers[r], self.configs[r]
        if config.mechanism == "tree" and ledger.lines:
            nodes = levels(self.rounds) + ledger.repeats(below_round)
            one = replace(self.event(r), z=config.z / math.sqrt(nodes))
            return epsilon([one], config.delta, config.accountant)
        spent = ledger.releases(self.participation, below_round)
        found = epsilon(spent, config.delta, config.accountant)
        if config.drawn and ledger.summary()["repeated"]:
            # A repeated round met the same people or others; neither is the worse in all cases.
            together = ledger.releases_merged(below_round)
            found = max(found, epsilon(together, config.delta, config.accountant))
        return found

    def paper_epsilon(self, r: int) -> float:
        """The number that a paper prints: PriMORL's moments accountant for Poisson cohorts, else DPPG's formula
        for this z, whatever the run really released.
        """
        config, event = self.configs[r], self.event(r)
        if config.mechanism in ("none", "per_transition", "local"):  # D&O print no epsilon
            return math.inf
        if config.mechanism == "smooth":
            return float(config.epsilon or math.inf)
        if config.sampling == "uniform_single_user":
            return epsilon([event] * self.rounds, config.delta, "rdp")
        if event.q < 1.0:
            uncut = replace(event, population=None, cap=None)
            return epsilon(Counter({uncut: self.rounds}), config.delta, "rdp")
        return epsilon_paper(config.z, config.delta)

    def guarantee(self, r: int, done: int | None = None) -> Guarantee:
        """The guarantee of replica r: as planned, or, with `done`, of parameters that have seen so many rounds.

        Never less than planned: a run that ends early may end because of what it released, and then no theorem
        covers the smaller number. Never less than the ledger's lines, all of them.

        Raises PrivacyError if the ledger lacks one of these rounds: then nothing true can be said.
        """
        gaps = self.ledgers[r].missing(done or 0)
        if gaps:
            raise PrivacyError(f"the ledger has no line of round {gaps[0]}: epsilon is unknown")
        value = max(self.planned_epsilon(r), self.spent_epsilon(r))
        caveats, repeated = dict(self.caveats), self.ledgers[r].summary()["repeated"]
        if repeated and self.config.drawn:
            caveats["repeated rounds"] = (
                "epsilon is the larger of two analyses, neither proven for both"
            )
        config, notes = self.configs[r], dict(self.notes)
        notion = "joint" if config.mechanism in ("tree", "fresh_noise_per_round") else "central"
        if self._noises[r].name == "seeded" and repeated:
            notes["attempts"] = "which rounds were repeated is not covered: it depends on the data"
        people = config.population
        users = people or self.rounds * config.users_per_round
        weak = weak_delta(config.delta, users, known=people is not None)
        if weak is not None and config.mechanism != "none":
            (caveats if weak[0] else notes)[WEAK_DELTA] = weak[1]
        return Guarantee(
            epsilon=value,
            delta=config.delta,
            unit=self.unit.text,
            notion=notion if self.local is None else "local",
            adjacency=config.adjacency.replace("_", "-"),
            caveats=caveats,
            notes=notes,
        )


def _check_config(config: PrivacyConfig) -> None:
    """What the accountant relies on, whoever made the configuration. Raises PrivacyError."""
    if config.mechanism not in MECHANISMS:
        raise PrivacyError(f"no mechanism is called {config.mechanism!r}")
    if not 0 <= config.z < math.inf or not 0 < config.clip < math.inf:
        raise PrivacyError(f"z = {config.z}, clip = {config.clip}: no such mechanism")
    if not 0 < config.delta < 1:
        raise PrivacyError(f"delta = {config.delta} is no probability")
    other = "add_or_remove" if config.sampling == "poisson" else "replace_one"
    relations: tuple[str, ...] = ("zero_out", other)
    if config.sampling in ("uniform_single_user", "full_batch") and config.mechanism != "none":
        relations = ("replace_one",)
    if config.mechanism == "local":
        relations = ("any_trajectory_pair",)
    fits = {
        "poisson": ("gaussian", "none"),
        "uniform_single_user": ("gaussian",),
        "full_batch": ("smooth", "none"),
    }.get(config.sampling, tuple(m for m in MECHANISMS if m != "smooth"))
    if config.mechanism not in fits:
        raise PrivacyError(f"{config.mechanism} has no analysis under {config.sampling} sampling")
    if config.sampling in ("uniform_single_user", "full_batch") and config.users_per_round != 1:
        raise PrivacyError(f"{config.sampling} sampling releases one row")
    if config.mechanism == "smooth" and not 0 < (config.epsilon or 0) < math.inf:
        raise PrivacyError("smooth sensitivity needs an epsilon > 0")
    if config.adjacency not in relations:
        raise PrivacyError(f"{config.sampling} sampling is analysed for {', '.join(relations)}")
