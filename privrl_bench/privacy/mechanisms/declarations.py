"""What a mechanism says of itself; read by configurations, algorithms, samplers and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from privrl_bench.config.traits import Rows


class Declarations:
    """What a mechanism says of itself, without an object of it.

    Class attributes:
        name: value of `privacy.mechanism`.
        records: values of `mechanism` in ledger lines whose accounting this class defines (`composed`).
        notion: central | joint | local.
        adjacencies: relations under which it is analysed.
        accountants: values of `privacy.accountant` that it takes.
        private: whether anything is bounded at all.
        pooled: all users' data are pooled in one row, which the gate neither clips nor noises.
        norm: in which rows are clipped in the gate, L1 or L2, before they are added on the integer grid
            (`grid.py`); None: they are not clipped.
        on_devices: noise is added on the users' devices, before anything reaches the gate.
        subsampled: one release is a Gaussian mechanism on one user's row, to which the theorems of
            amplification by sampling apply.
        one_release: a run has one release about all users.
        running_sums: releases are increments of sums over all rounds.
        transition_noise: the algorithm adds noise to the gradients of single transitions.
        imitation: it repeats published code that has no guarantee; a caveat says why.
        takes: what it takes of an algorithm; None: nothing at the gate (`on_devices`).
        calibrated: z can be chosen for a target epsilon.
        in_papers: papers print an epsilon for its releases; see `Account.paper_epsilon`.
        analysed_by: the only accountant of its events, whatever `privacy.accountant` is; empty: that one.
        not_auditable: why canaries do not apply to it; empty: they do.
        unrepeatable: what a repeated round would repeat that has no analysis; empty: nothing.
        own: names of the `privacy` keys that only this mechanism reads.
        public: what the guarantee takes as public because of it.
        caveats: what it lets past its own guarantee, name -> reason.
    """

    name: ClassVar[str]
    records: ClassVar[tuple[str, ...]] = ()
    notion: ClassVar[str] = "central"
    adjacencies: ClassVar[tuple[str, ...]] = ("zero_out", "replace_one", "add_or_remove")
    accountants: ClassVar[tuple[str, ...]] = ("pld", "rdp", "gaussian")
    private: ClassVar[bool] = True
    pooled: ClassVar[bool] = False
    norm: ClassVar[int | None] = None
    on_devices: ClassVar[bool] = False
    subsampled: ClassVar[bool] = False
    one_release: ClassVar[bool] = False
    running_sums: ClassVar[bool] = False
    transition_noise: ClassVar[bool] = False
    imitation: ClassVar[bool] = False
    takes: ClassVar[Rows | None] = None
    calibrated: ClassVar[bool] = False
    in_papers: ClassVar[bool] = False
    analysed_by: ClassVar[str] = ""
    not_auditable: ClassVar[str] = ""
    unrepeatable: ClassVar[str] = ""
    own: ClassVar[tuple[str, ...]] = ()
    public: ClassVar[tuple[str, ...]] = ()
    caveats: ClassVar[Mapping[str, str]] = {}
