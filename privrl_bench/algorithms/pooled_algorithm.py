"""Base class of algorithms whose row is the change of a policy on the pooled data of all users. Not private."""

from __future__ import annotations

from typing import Any

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.privacy.contribution import Block, Released
from privrl_bench.types import State

POOLED = "pooled training"
POOLED_CAVEAT = {POOLED: "all users' data enter the parameters without clipping or noise"}


class PooledAlgorithm(Algorithm):
    """One row per replica; the other trained tensors bypass the gate.

    It runs through the same loop and gate as private algorithms, with `privacy=none`, which neither clips nor
    adds noise and is reported as no privacy. Subclasses set `policy`.

    Args:
        config: settings of the algorithm.
        context: Context of the run.
    """

    def __init__(self, config: Any, context: AlgorithmContext):
        self.config, self._context = config, context

    def blocks(self) -> tuple[Block, ...]:
        """One block, the policy."""
        return (Block("actor", self.policy.size, self._context.privacy.clip),)

    def terms(self) -> AlgorithmTerms:
        """All data bypass the gate."""
        return AlgorithmTerms(caveats=POOLED_CAVEAT)

    def server(self, state: State, released: Released) -> State:
        """Take the new tensors as the state."""
        tensors = dict(state.tensors) | released.bypass[POOLED]
        tensors["actor"] = state.tensors["actor"] + released.values["actor"]
        return State(state.round + 1, tensors)
