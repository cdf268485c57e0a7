"""Events that dp-accounting does not have: releases that state their own guarantee.

Importing this module imports dp-accounting, so callers import it where they need it.
"""

from __future__ import annotations

import attr
from dp_accounting import DpEvent


@attr.s(frozen=True, slots=True, auto_attribs=True)
class LabelDpEvent(DpEvent):
    """A release without an analysis. `epsilon` is what published code prints for it; it does not add up."""

    epsilon: float


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SmoothDpEvent(DpEvent):
    """One output perturbation by smooth sensitivity, (epsilon, delta)-DP by its own theorem."""

    epsilon: float
    delta: float
