"""Policies as ONNX and TorchScript files."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privrl_bench.envs.spaces import ActionMap
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.policy_file import PolicyFile

Writer = Callable[["GreedyModule", PolicyFile, Path], None]


class GreedyModule(nn.Module):
    """From observations [B, D] to the greedy actions of the environment.

    Args:
        file: of the policy.

    Raises:
        ConfigError: the policy depends on the step of the episode.
    """

    params: Tensor
    mean: Tensor
    std: Tensor
    least: Tensor
    most: Tensor
    centre: Tensor
    half_width: Tensor
    start: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, file: PolicyFile):
        super().__init__()
        if getattr(file.policy, "by_step", False):
            raise ConfigError(
                "path",
                f"{file.path}: a policy with a table for each step cannot be exported; use load_policy",
            )
        self._policy, self._clip = file.policy, float(file.scaling.clip)
        self.register_buffer("params", file.params.clone().unsqueeze(0))
        scaling = file.scaling
        mean = np.zeros(file.spec.obs_dim) if scaling.mean is None else scaling.mean
        std = np.ones(file.spec.obs_dim) if scaling.std is None else scaling.std
        self._scaled = scaling.mean is not None
        self.register_buffer("mean", torch.as_tensor(np.asarray(mean).reshape(1, -1)).float())
        self.register_buffer("std", torch.as_tensor(np.asarray(std).reshape(1, -1)).float())
        bounds = file.policy.bounds()
        self._bounded = bounds is not None
        for name, x in zip(("least", "most", "centre", "half_width"), bounds or (), strict=False):
            self.register_buffer(name, torch.as_tensor(x).float().reshape(1, -1))
        # Choices are integers; of several at once, one each.
        self._integers = file.spec.discrete or file.spec.choices is not None
        start = np.asarray(getattr(file.spec.action_space, "start", 0)).reshape(-1)
        self.register_buffer("start", torch.as_tensor(start).long())
        self._box = None if self._integers else ActionMap(file.spec.action_space)
        if self._box is not None:
            self._type = torch.as_tensor(np.zeros(0, file.spec.action_space.dtype)).dtype
            # Single precision holds the bounds of these types exactly; other types need double.
            exact = (torch.float16, torch.float32, torch.int8, torch.uint8, torch.int16)
            self._wide = torch.float32 if self._type in exact else torch.float64
            for name, bound in (("low", self._box.low), ("high", self._box.high)):
                self.register_buffer(name, torch.as_tensor(bound).to(self._wide).unsqueeze(0))

    def forward(self, observations: Tensor) -> Tensor:
        """Actions [B] or [B, A]."""
        x = observations
        if self._scaled:
            x = ((x - self.mean) / self.std).clamp(-self._clip, self._clip)
        actions = self._policy.greedy(self.params, x.unsqueeze(0)).squeeze(0)
        if self._bounded:
            cut = torch.minimum(torch.maximum(actions, self.least), self.most)
            actions = self.centre + self.half_width * cut
        if self._box is not None:  # as `ActionMap.inside`
            numbers = actions.to(self._wide)
            numbers = torch.floor(numbers + 0.5) if self._box.whole else numbers
            return torch.minimum(torch.maximum(numbers, self.low), self.high).to(self._type)
        first = self.start[0] if actions.dim() == 1 else self.start
        return actions.long() + first


def _example(file: PolicyFile) -> Tensor:
    return torch.zeros(2, file.spec.obs_dim)


@contextmanager
def _quiet() -> Iterator[None]:
    """No log messages of the exporter about its own steps."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _onnx(module: GreedyModule, file: PolicyFile, target: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "to",
            f"onnx needs {' and '.join(missing)}: pip install 'privrl-bench[export]', or to=torchscript",
        )
    import onnx

    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (_example(file),),
            str(target),
            input_names=["observations"],
            output_names=["actions"],
            dynamic_shapes={"observations": {0: torch.export.Dim("batch")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(target))
    for key, value in _metadata(file).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    onnx.save(model, str(target))


def _torchscript(module: GreedyModule, file: PolicyFile, target: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TorchScript's future
        traced: Any = torch.jit.trace(module, _example(file))
        files = {"privrl_bench.json": json.dumps(_metadata(file))}
        torch.jit.save(traced, str(target), _extra_files=files)


def _metadata(file: PolicyFile) -> dict[str, Any]:
    from privrl_bench.api.policies import metadata

    return metadata(file)


# name -> suffix of the file, function that writes it
FORMATS: dict[str, tuple[str, Writer]] = {
    "onnx": (".onnx", _onnx),
    "torchscript": (".ts", _torchscript),
}
