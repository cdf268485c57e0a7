"""Laplace(z clip) noise on every number of a sum of rows that have an L1 norm of at most `clip`.

Guarantee: one release is (1 / z, 0)-private under zero-out. Sensitivity: the gate clips and rounds in L1 norm;
the discrete Laplace on its grid costs at most what the continuous one does (`privacy/grid.py`, 5).
"""

from privrl_bench.privacy.grid import L1
from privrl_bench.privacy.mechanisms.on_grid import OnGrid


class Laplace(OnGrid):
    name = "laplace"
    records = ("laplace",)
    norm = L1
    adjacencies = ("zero_out",)
    accountants = ("pld",)
    not_auditable = "the attack assumes Gaussian noise"

    def unit_noise(self, block):
        return 2.0**0.5 * block.clip

    def noise(self, attempt):
        scales = [std / 2.0**0.5 for std in self.grid_stds(attempt.replica)]
        return attempt.laplace(self.sizes, scales)

    def event(self, r):
        return self.recorded(r, "laplace", self.joint_z(r))

    @classmethod
    def single(cls, release):
        from dp_accounting import LaplaceDpEvent

        return LaplaceDpEvent(release.z)


MECHANISM = Laplace
