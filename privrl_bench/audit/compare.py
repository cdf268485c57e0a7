"""Bit-for-bit comparison of two runs of the leak test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from privrl_bench.envs.scaling import RUNNING_OBS, RUNNING_REWARD
from privrl_bench.users.collectors.returning_users import KEPT
from privrl_bench.users.simulated import CARRIED_OVER

SAME_ROUND = "same round's"  # before `users` and `rows`: of other users in the user's own round
# What a collector carries to later rounds: start of the tensor's name -> name of the path.
_CARRIED = {
    "scaler.obs": RUNNING_OBS,
    "scaler.return": RUNNING_REWARD,
    "scaler.running_return": RUNNING_REWARD,
}
OTHER_REPLICA = "another replica's"  # before the tensor: of runs that are trained together


@dataclass(frozen=True)
class Difference:
    """A tensor that depends on the user, although only the release may.

    Attributes:
        path: what it is a part of: a caveat's name, or stage and tensor where no caveat is known.
        tensor: the tensor's name.
        round: where it was found, from 0.
        size: largest absolute difference, in the tensor's unit; infinity for other shapes.
        substitute: see `users/collectors/substitutes.py`.
    """

    path: str
    tensor: str
    round: int
    size: float
    substitute: str


def distance(a: Tensor | None, b: Tensor | None) -> float | None:
    """Largest absolute difference; None if equal. NaN equals NaN; other shapes are never equal."""
    if a is None or b is None or a.shape != b.shape:
        return float("inf")
    if a.dtype == b.dtype and torch.equal(a, b):
        return None
    if a.dtype != b.dtype:
        return float("inf")
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return None
    size = (a - b if a.is_complex() else a.double() - b.double()).abs()[~same]
    return max(float(size.nan_to_num(nan=float("inf")).max()), 1e-300)


def without(x: Tensor, u: int) -> Tensor:
    """[R, U, ...] without slot u."""
    return torch.cat([x[:, :u], x[:, u + 1 :]], dim=1)


def pairs(
    a: Tensor | None, b: Tensor | None, own: int | None, by_replica: bool
) -> Iterator[tuple[bool, float | None]]:
    """Distances of two tensors: (whether it is of replicas 1 and later, distance or None).

    Args:
        a: [R, ...] with `by_replica`.
        b: as `a`, of the other run.
        own: the user's slot in replica 0, which is left out; [R, U, ...] then.
        by_replica: replica 0, which has the user, and the others are compared separately.
    """
    if not by_replica or a is None or b is None:
        yield False, distance(a, b)
        return
    first, other = a[:1], b[:1]
    if own is not None:
        first, other = without(first, own), without(other, own)
    yield False, distance(first, other)
    if len(a) > 1 or len(b) > 1:
        yield True, distance(a[1:], b[1:])


class Stages:
    """The last output of each stage of a run, and its differences from the model's.

    Args:
        model: to compare with; None: nothing is compared.
        substitute: the user's replacement, see `users/collectors/substitutes.py`.
    """

    def __init__(self, model: Stages | None, substitute: str):
        self.differences: list[Difference] = []
        self.compared = 0
        self._model, self._substitute = model, substitute
        self._seen: dict[tuple[str, int], dict[str, Tensor]] = {}

    def record(
        self,
        index: int,
        stage: str,
        tensors: dict[str, Tensor],
        path: str | None = None,
        own: int | None = None,
        by_replica: bool = True,
        part: int = 0,
    ) -> None:
        """Record the output of a stage and compare it with the model's.

        Args:
            index: the round.
            stage: name of the stage.
            tensors: [R, ...] by name.
            path: the caveat's name, if the stage is one.
            own: the user's slot in replica 0, which may differ; [R, U, ...] then.
            by_replica: the replicas are compared separately; else tensors may have any shape.
            part: of a stage that a round has several times.
        """
        self._seen[stage, part] = {name: x.detach().clone() for name, x in tensors.items()}
        if self._model is None:
            return
        there = self._model._seen.get((stage, part), {})
        for name in {**there, **tensors}:
            for elsewhere, size in pairs(there.get(name), tensors.get(name), own, by_replica):
                self.compared += 1
                if size is None:
                    continue
                label = f"{stage} {name}"
                if elsewhere:
                    label = where = f"{OTHER_REPLICA} {label}"
                elif own is not None and stage in ("users", "rows"):
                    label = where = f"{SAME_ROUND} {label}"
                elif stage == "collector":
                    known = (p for s, p in _CARRIED.items() if name.startswith(s))
                    where = next(known, CARRIED_OVER)
                else:
                    where = path or label
                self.differences.append(Difference(where, label, index, size, self._substitute))


def padded(name: str, x: Tensor, steps: int, max_episode_steps: int) -> Tensor:
    """A tensor of a checkpoint, padded so that its size does not depend on the longest user.

    Args:
        name: of the tensor.
        x: [R, U, t, ...] with as many steps as were needed.
        steps: T, of returning users.
        max_episode_steps: steps of an episode at most, which a slot's history has.
    """
    kept = name.startswith(KEPT)
    if not (kept or name == "history"):
        return x
    short = (
        *[0, 0] * (x.dim() - 3),
        0,
        max((steps if kept else max_episode_steps) - x.shape[2], 0),
    )
    return torch.nn.functional.pad(x, short)
