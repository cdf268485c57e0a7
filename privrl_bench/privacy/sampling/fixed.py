"""Cohorts of exactly U users, filled by arrival; each user is used once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from privrl_bench.config.traits import Draws
from privrl_bench.errors import PrivacyError
from privrl_bench.privacy.sampling.sampler import Sampler

if TYPE_CHECKING:
    import numpy as np

    from privrl_bench.privacy.mechanisms.declarations import Declarations
    from privrl_bench.privacy.noise import NoiseSource


class Fixed(Sampler):
    """No draw, and no amplification."""

    name = "fixed"
    draws = Draws.NEXT
    adjacencies = ("zero_out", "replace_one", "any_trajectory_pair")
    adjacency_reason = " (removing one user moves the others; use privacy.sampling=poisson)"
    every_round = False
    unrepeatable = ""

    @classmethod
    def accepts(cls, mechanism: type[Declarations]) -> bool:
        """See `Sampler.accepts`."""
        return not mechanism.one_release

    def members(
        self,
        round_index: int,
        users: int,
        once: bool,
        sizes: list[int],
        noises: Sequence[NoiseSource],
    ) -> list[np.ndarray]:
        """The next U users, each of them in one round only.

        Raises PrivacyError: no user is left; or `once` is false and the release is private.
        """
        import numpy as np

        if not once:
            if self._private:
                raise PrivacyError("who is in a cohort of fixed size is not drawn here")
            return super().members(round_index, users, once, sizes, noises)
        first = round_index * self.privacy.users_per_round
        if first + self.privacy.users_per_round > users:
            raise PrivacyError(f"round {round_index} would use one of {users} users again")
        return [np.arange(first, first + size) for size in sizes]


SAMPLER = Fixed
