"""The gate. Private data become parameters in `PrivacyPlan.release` and nowhere else.

    clip every user's row -> sum -> ledger line on disk -> noise -> divide by the public U

The plan is built from the privacy configuration alone, so the noise, the clip, the divisor and the
accounted event cannot disagree. Anything that passes beside it must be declared by name before
the run; the name then stands in the guarantee as a caveat.

Why N ledger lines of fixed cohorts cost one user only one release (adaptive parallel composition): a user
is in one round (`Unit.participation`, held by `rollout.py`); her row is a function of her data and of what
was released before (`algos/*.local`, held bit for bit by `privrl-audit leaks`); later rounds see her
through the release alone. So, given everybody else's data, the whole transcript is one Gaussian mechanism
on her row, followed by post-processing. A unit in m rounds is m of them, composed adaptively; Poisson
persons may be in every round. The zero-out neighbour fills the same slot with a row of zeros, which is
also what a user with invalid data sends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.accountant import Release, epsilon, epsilon_paper, joint_z
from privrl_bench.privacy.clip import clip_rows
from privrl_bench.privacy.guarantee import Guarantee, Unit
from privrl_bench.privacy.ledger import Ledger, digest
from privrl_bench.privacy.noise import NoiseSource
from privrl_bench.schema import PrivacyConfig


@dataclass(frozen=True)
class Block:
    """A part of a user's row with its own clip.

    Attributes:
        name: key of the block in a contribution.
        size: P_b, numbers in it.
        clip: L2 bound of one user's block, parameter units.
        noise_ratio: its noise multiplier relative to the other blocks'; the joint stays z.
    """

    name: str
    size: int
    clip: float
    noise_ratio: float = 1.0


def block_multipliers(z: float, blocks: tuple[Block, ...]) -> dict[str, float]:
    """Split a joint multiplier over blocks so that 1/z^2 = sum of 1/z_b^2.

    >>> two = (Block("a", 1, 1.0), Block("c", 1, 1.0))
    >>> {name: round(value, 4) for name, value in block_multipliers(1.0, two).items()}
    {'a': 1.4142, 'c': 1.4142}
    """
    spread = math.sqrt(sum(block.noise_ratio**-2 for block in blocks))
    return {block.name: z * block.noise_ratio * spread for block in blocks}


def on_grid(x: Tensor, std: float) -> Tensor:
    """Round to multiples of a public power of two near std / 1024.

    Post-processing, a thousandth of the noise. It takes away the low bits, where a float64 sum shows
    which numbers were added (Haney et al. 2022); a cast to float32 alone leaves them where sum and
    noise nearly cancel.
    """
    step = 2.0 ** math.floor(math.log2(std / 1024.0))
    return torch.round(x / step) * step


class Contribution:
    """What the users of one round send: rows per block, and declared bypasses. Used once.

    Args:
        rows: block name -> [R, U, P_b].
        valid: [R, U] bool; rows of other users are zeroed.
        bypass: caveat name -> tensors that skip clip and noise.
        diagnostics: private metrics of each replica, for the local log only.
    """

    def __init__(
        self,
        rows: dict[str, Tensor],
        valid: Tensor,
        bypass: dict[str, dict[str, Tensor]] | None = None,
        diagnostics: list[dict[str, float]] | None = None,
    ):
        self._content: tuple[Any, ...] | None = (rows, valid, bypass or {})
        self.diagnostics = diagnostics or []

    def take(self) -> tuple[dict[str, Tensor], Tensor, dict[str, dict[str, Tensor]]]:
        """Hand the content to the gate and forget it. Raises PrivacyError the second time."""
        if self._content is None:
            raise PrivacyError("this contribution was released already; a user counts once")
        content, self._content = self._content, None
        return content


_GATE = object()


@dataclass(frozen=True)
class Released:
    """What everybody may see: the noised mean of every block, [R, P_b]. Only the gate makes one.

    The two diagnostics are exact and private; `for_server` hands on what an algorithm may use.
    """

    values: dict[str, Tensor]
    bypass: dict[str, dict[str, Tensor]]  # un-noised, outside epsilon, named in the caveats
    clipped_fraction: list[float] = field(default_factory=list)  # private diagnostic, per replica
    invalid_users: list[int] = field(default_factory=list)  # private diagnostic, per replica
    key: object = None

    def for_server(self) -> Released:
        """A copy without the private diagnostics."""
        return replace(self, clipped_fraction=[], invalid_users=[])

    def __post_init__(self) -> None:
        if self.key is not _GATE:
            raise PrivacyError("only PrivacyPlan.release may construct Released")


class PrivacyPlan:
    """Sampler, clip, noise, ledger and accounting of R replicas that differ in z and seed.

    Args:
        configs: one privacy configuration for each replica, equal but for z.
        blocks: the parts of a row.
        unit: what one user is.
        rounds: number of releases, fixed in advance.
        noises: noise source of each replica.
        ledgers: ledger of each replica.
        caveats: everything outside the guarantee, name -> reason.
        notes: what the guarantee assumes, name -> reason.
        notion: central | joint | local.
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
        notion: str = "central",
    ):
        if not len(configs) == len(noises) == len(ledgers):
            raise ValueError("one config, noise source and ledger for each replica")
        if len({block.name for block in blocks}) != len(blocks):
            raise ValueError("block names must differ")
        self.configs = configs
        self.config = configs[0]
        self.blocks = blocks
        self.unit = unit
        self.rounds = rounds
        self.ledgers = ledgers
        self.caveats = dict(caveats or {})
        self.notes = dict(notes or {})
        self.notion = notion
        self._noises = noises
        self._ended: set[int] = set()

    # -- sampling ---------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Users a round has room for: U, or the cap of a Poisson cohort."""
        config = self.config
        if config.sampling == "fixed":
            return config.users_per_round
        room = config.users_per_round + 6.0 * math.sqrt(config.users_per_round)
        return min(math.ceil(room), int(config.population or 0))

    def cohort(self, round_index: int) -> list[int]:
        """How many users each replica has in this round (Poisson draws are capped at `slots`)."""
        config = self.config
        if config.sampling == "fixed":
            return [config.users_per_round] * len(self.configs)
        people = int(config.population or 0)
        q = config.users_per_round / people
        return [min(n.binomial(people, q, round_index), self.slots) for n in self._noises]

    # -- the gate ---------------------------------------------------------------------------

    def permit(self, name: str) -> None:
        """Allow un-noised private data past the gate under a declared name, or raise PrivacyError."""
        if name not in self.caveats:
            raise PrivacyError(
                f"{name!r} would pass private data beside the gate and is not among the caveats "
                f"{sorted(self.caveats)}"
            )

    def end(self, r: int) -> None:
        """From now on nothing of replica r is released: its values are 0, its ledger stays as it is."""
        self._ended.add(r)

    def release(self, contribution: Contribution, round_index: int) -> Released:
        """Clip, sum, write the ledger line, add noise, divide by the public U.

        Args:
            contribution: rows of this round's users; consumed.
            round_index: from 0; never more than `rounds`.

        Returns: [R, P_b] noised mean of each block.

        Guarantee: for one user, this is a Gaussian mechanism with multiplier z jointly over all
        blocks under zero-out adjacency (z/2 under replace-one).

        Raises:
            PrivacyError: unknown blocks, a wrong number of users, an undeclared bypass, a contribution
                used twice, or more rounds than planned.
        """
        if round_index >= self.rounds:
            raise PrivacyError(f"round {round_index} is beyond the {self.rounds} planned releases")
        rows, valid, bypass = contribution.take()
        self._check(rows, valid, bypass)
        private = self.config.mechanism != "none"
        clipped: dict[str, Tensor] = {}
        at_bound = torch.zeros(valid.shape, dtype=torch.bool)
        finite = valid.clone()
        for block in self.blocks:
            bound = block.clip if private else math.inf
            clipped[block.name], norms = clip_rows(rows.pop(block.name), bound)
            at_bound |= norms > bound * (1 - 1e-4)
            finite &= torch.isfinite(norms)
        if not finite.all():
            # One bad block voids the user's whole row, so that blocks cannot be played apart.
            for one in clipped.values():
                one[~finite] = 0.0
        # Double precision until the noise is in: rounding a sum must not depend on one user.
        sums = {name: one.sum(dim=1) for name, one in clipped.items()}
        replicas = [self._release_replica(r, round_index, sums) for r in range(len(self.configs))]
        taking_part = valid.sum(dim=1).clamp_min(1)
        return Released(
            values={b.name: torch.stack([one[b.name] for one in replicas]) for b in self.blocks},
            bypass=bypass,
            clipped_fraction=((at_bound & finite).sum(dim=1) / taking_part).tolist(),
            invalid_users=(valid & ~finite).sum(dim=1).tolist(),
            key=_GATE,
        )

    def _release_replica(
        self, r: int, round_index: int, sums: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Ledger line, noise, public divisor, digest: [P_b] of every block of replica r."""
        if r in self._ended:
            return {block.name: torch.zeros(block.size) for block in self.blocks}
        config, ledger, noise = self.configs[r], self.ledgers[r], self._noises[r]
        multipliers = block_multipliers(config.z, self.blocks)
        private = config.mechanism == "gaussian"
        details: dict[str, Any] = {"noise": noise.name}
        if private:
            details["users"] = config.users_per_round
            details["blocks"] = {
                block.name: {"clip": block.clip, "z": multipliers[block.name]}
                for block in self.blocks
            }
        event = self.event(r)
        attempt = ledger.intend(round_index, event, details, repeatable=noise.name == "seeded")
        while True:
            values = {block.name: sums[block.name][r].clone() for block in self.blocks}
            if private and config.z > 0:
                drawn = noise.normal([b.size for b in self.blocks], round_index, attempt)
                for block, one in zip(self.blocks, drawn, strict=True):
                    std = multipliers[block.name] * block.clip
                    values[block.name] = on_grid(values[block.name] + std * one, std)
            divisor = config.users_per_round if private else 1
            values = {name: (x / divisor).float() for name, x in values.items()}
            if ledger.came_out(round_index, attempt, digest(values)):
                return values
            if event.q < 1.0:
                raise PrivacyError(
                    f"round {round_index} was released before from other data; a repeated Poisson "
                    "round has no analysis (another machine or version? start a new folder)"
                )
            attempt = ledger.again(round_index)

    def _check(
        self, rows: dict[str, Tensor], valid: Tensor, bypass: dict[str, dict[str, Tensor]]
    ) -> None:
        for name in bypass:
            self.permit(name)
        expected = {block.name: block.size for block in self.blocks}
        got = {name: x.shape[-1] for name, x in rows.items()}
        if got != expected:
            raise PrivacyError(f"blocks {got} do not match the plan's {expected}")
        replicas, users = len(self.configs), (self.slots if self.config.mechanism != "none" else 1)
        for name, x in rows.items():
            if tuple(x.shape[:2]) != (replicas, users) or tuple(valid.shape) != (replicas, users):
                raise PrivacyError(
                    f"{name}: rows {tuple(x.shape)} and valid {tuple(valid.shape)} must be "
                    f"[{replicas}, {users}, P]"
                )

    # -- accounting -------------------------------------------------------------------------

    def event(self, r: int) -> Release:
        """What one release of replica r is to the accountant."""
        config = self.configs[r]
        if config.mechanism == "none":
            return Release("none", 0.0, config.adjacency)
        z = joint_z(block_multipliers(config.z, self.blocks).values())
        if config.sampling == "fixed":
            # The blocks' multipliers are built from z; reporting z itself avoids rounding.
            if not math.isclose(z, config.z, rel_tol=1e-9):
                raise PrivacyError(f"blocks give joint z {z}, the plan says {config.z}")
            return Release("gaussian", config.z, config.adjacency)
        people = int(config.population or 0)
        q = config.users_per_round / people
        return Release("gaussian", config.z, config.adjacency, q, people, self.slots)

    @property
    def participation(self) -> int | None:
        """In how many rounds one user takes part at most; None: in every one."""
        return None if self.config.sampling == "poisson" else self.unit.participation

    def planned_epsilon(self, r: int) -> float:
        """Epsilon after all planned rounds."""
        count = self.rounds if self.participation is None else self.participation
        spent = [self.event(r)] * min(count, self.rounds)
        return epsilon(spent, self.configs[r].delta, self.configs[r].accountant)

    def spent_epsilon(self, r: int, before: int | None = None) -> float:
        """Epsilon of what the ledger of replica r says was released (in rounds below `before`)."""
        spent = self.ledgers[r].releases(self.participation, before)
        return epsilon(spent, self.configs[r].delta, self.configs[r].accountant)

    def paper_epsilon(self, r: int) -> float:
        """The number that DPPG prints for this z, whatever the run really released."""
        config = self.configs[r]
        return math.inf if config.mechanism == "none" else epsilon_paper(config.z, config.delta)

    def guarantee(self, r: int, *, planned: bool) -> Guarantee:
        """The guarantee of replica r, planned or from its ledger."""
        value = self.planned_epsilon(r) if planned else self.spent_epsilon(r)
        config = self.configs[r]
        return Guarantee(
            epsilon=value,
            delta=config.delta,
            unit=self.unit.text,
            notion=self.notion,
            adjacency=config.adjacency.replace("_", "-"),
            caveats=self.caveats,
            notes=self.notes,
        )
