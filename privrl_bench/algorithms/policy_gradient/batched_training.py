"""`local.LocalTrainer` by tensor operations on all users at once: for a GPU, and for double precision.

A local step of networks this small is some thirty kernels of a few microseconds, which take longer to
launch than to run. On a GPU the step is therefore captured once as a CUDA graph over tensors that keep
their place, and replayed for every minibatch of every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from privrl_bench.functional.optim import Adam, adam_step, project

if TYPE_CHECKING:
    from privrl_bench.algorithms.policy_gradient.local_training import Objective

_WARM_UP = 3  # steps before a capture, so that libraries have their workspaces


class LocalOptimizerConfig(NamedTuple):
    """How every user descends on her own data."""

    order: Tensor  # [E, N, M, B] from `base.step_order`
    lr: float  # step size of Adam
    radius: float  # L2 bound of the displacement, enforced after every step
    adam: Adam  # moments to start from


class BatchedLocalTrainer:
    """Trains users with the same shapes round after round. Arguments and result as `LocalTrainer`."""

    def __init__(self, objective: Objective, device: str):
        self._objective = objective
        self._device = torch.device(device)
        self._step: LocalStep | None = None

    def __call__(
        self, start: Tensor, data: dict[str, Tensor], descent: LocalOptimizerConfig
    ) -> Tensor:
        """See `LocalTrainer`."""
        data = {name: data[name] for name in self._objective.columns}
        order = descent.order.to(self._device)
        with torch.inference_mode():
            if self._step is None or not self._step.fits(start, data, order.shape[-1]):
                self._step = LocalStep(self._objective, start, data, order.shape[-1], self._device)
            step = self._step
            step.load(start, data, descent)
            for epoch in order:
                for minibatch in epoch.unbind(1):
                    step(minibatch)
            change = (step.params - step.start).cpu().clone()
            step.forget()
        return change


class LocalStep:
    """One step of Adam and back into the ball, for all users, over tensors that keep their place.

    Args:
        objective: what every user descends on.
        start, data: give shapes and types.
        size: B, steps in a minibatch.
        device: where to compute.
    """

    def __init__(
        self,
        objective: Objective,
        start: Tensor,
        data: dict[str, Tensor],
        size: int,
        device: torch.device,
    ):
        self._objective = objective
        self.start, self.params, self._m, self._v = (
            torch.zeros_like(start, device=device) for _ in range(4)
        )
        self._data = {name: torch.zeros_like(x, device=device) for name, x in data.items()}
        self._index = torch.zeros(len(start), size, dtype=torch.long, device=device)
        self._count, self._lr, self._radius = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        self._graph = self._captured() if device.type == "cuda" else None

    def fits(self, start: Tensor, data: dict[str, Tensor], size: int) -> bool:
        """Whether these can be loaded."""
        shapes = {name: (x.shape, x.dtype) for name, x in self._data.items()}
        same = shapes == {name: (x.shape, x.dtype) for name, x in data.items()}
        alike = (self.start.shape, self.start.dtype) == (start.shape, start.dtype)
        return same and alike and self._index.shape[1] == size

    def load(self, start: Tensor, data: dict[str, Tensor], descent: LocalOptimizerConfig) -> None:
        """Begin anew from `start`."""
        for mine, given in ((self.start, start), (self.params, start)):
            mine.copy_(given)
        self._m.copy_(descent.adam.m)
        self._v.copy_(descent.adam.v)
        self._count.fill_(descent.adam.step)
        self._lr.fill_(descent.lr)
        self._radius.fill_(descent.radius)
        for name, x in data.items():
            self._data[name].copy_(x)

    def forget(self) -> None:
        """Leave nothing of anybody's data behind."""
        for x in (*self._data.values(), self.params, self._m, self._v):
            x.zero_()

    def __call__(self, index: Tensor) -> None:
        """Every user's step on her own steps `index` [N, B]."""
        self._index.copy_(index)
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _run(self) -> None:
        batch = {
            name: torch.take_along_dim(
                x, self._index.view(*self._index.shape, *[1] * (x.dim() - 2)), 1
            )
            for name, x in self._data.items()
        }
        grad = self._objective.gradient(self.params, batch)
        adam = Adam(self._m, self._v, self._count)
        moved, adam = adam_step(self.params, grad, adam, self._lr.to(grad.dtype))
        self.params.copy_(self.start + project(moved - self.start, self._radius.to(grad.dtype)))
        self._m.copy_(adam.m)
        self._v.copy_(adam.v)
        self._count.add_(1.0)

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                self._run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph
