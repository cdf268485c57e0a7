"""Adapters: flat parameter vectors that modify the weights of a frozen language model.

The module itself is not modified; `weights` returns the changed weights by name, for
`torch.func.functional_call`. Only the last `trained` entries of a vector are trained; the others are public
and drawn once. Trained ones are exported in peft's format and the hub's layout; peft is not needed.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privrl_bench.packs.text.models import need, quiet

# Modules of GPT-2 whose `weight` [in, out] (transformers' Conv1D) has a LoRA.
TARGETS = {
    "attention": ("attn.c_attn",),
    "linear": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
}


class Factor(NamedTuple):
    """A weight W [inputs, outputs], changed to W + scale * A B; A [inputs, rank], B [rank, outputs]."""

    name: str
    inputs: int
    outputs: int


class Lora:
    """Low-rank changes of a GPT-2's attention weights or of all its linear layers.

    A vector is all A followed by all B; B starts at zero. With `train="b"` the A are fixed: the change is then
    linear in the trained parameters, and fewer parameters are noised (Sun et al. 2024).

    Args:
        model: A GPT-2.
        rank: r.
        alpha: The change is scaled by alpha / r.
        targets: attention | linear.
        train: both | b.

    Raises:
        ValueError: The model has no such weights.

    Attributes:
        size: Length of a vector.
        trained: Number of trained entries, the last ones of a vector.
        names: Of the weights that it changes.

    Source:
        Hu et al. 2021, section 4.1; A is initialised as in peft, uniform on +- 1/sqrt(inputs).
    """

    def __init__(
        self, model: torch.nn.Module, rank: int, alpha: float, targets: str, train: str = "both"
    ):
        self._frozen = {
            name: p.detach()
            for name, p in model.named_parameters()
            if name.removesuffix(".weight").endswith(TARGETS[targets]) and name.endswith(".weight")
        }
        if not self._frozen:
            raise ValueError(f"the model has no weights called {', '.join(TARGETS[targets])}")
        self.names = tuple(self._frozen)
        self.rank, self.alpha = rank, alpha
        self.factors = [Factor(name, *w.shape) for name, w in self._frozen.items()]
        first = sum(f.inputs for f in self.factors) * rank
        second = sum(f.outputs for f in self.factors) * rank
        self.size = first + second
        self.trained = second if train == "b" else self.size

    def init(self, generator: torch.Generator) -> Tensor:
        """Return an initial vector [size], which leaves the model unchanged."""
        first = [
            (2.0 * torch.rand(f.inputs * self.rank, generator=generator) - 1.0)
            / math.sqrt(f.inputs)
            for f in self.factors
        ]
        second = torch.zeros(sum(f.outputs for f in self.factors) * self.rank)
        return torch.cat([*first, second])

    def pairs(self, vector: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return (A [inputs, rank], B [rank, outputs]) by name of the weight, for a vector [size]."""
        sizes = [f.inputs * self.rank for f in self.factors]
        sizes += [f.outputs * self.rank for f in self.factors]
        pieces = vector.split(sizes)
        count = len(self.factors)
        return {
            f.name: (a.view(f.inputs, self.rank), b.view(self.rank, f.outputs))
            for f, a, b in zip(self.factors, pieces[:count], pieces[count:], strict=True)
        }

    def weights(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the changed weights by name for a vector [size]; differentiable."""
        scale = self.alpha / self.rank
        return {
            name: torch.addmm(self._frozen[name], a, b, alpha=scale)
            for name, (a, b) in self.pairs(vector).items()
        }

    def save(self, folder: Path, vector: Tensor, task: Any) -> Path:
        """Write `adapter/` with `adapter_config.json` and `adapter_model.safetensors`, for peft's `PeftModel`.

        peft's lora_A is A transposed, [rank, inputs], and its lora_B is B transposed, [outputs, rank]. The
        configuration refers to the start model by its name or folder. `task` has model and tokenizer.
        """
        folder = folder / "adapter"
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, (a, b) in self.pairs(vector.cpu()).items():
            place = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{place}.lora_A.weight"] = a.T.contiguous()
            tensors[f"{place}.lora_B.weight"] = b.T.contiguous()
        save_file = need("safetensors.torch").save_file
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(task.model.config.name_or_path),
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": sorted(
                {n.removesuffix(".weight").split(".")[-1] for n in self.names}
            ),
            "fan_in_fan_out": True,  # GPT-2's weights are [in, out]
            "bias": "none",
            "inference_mode": True,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        return folder


class AllWeights:
    """All weights of a model. A vector is added to them; it starts at zero. Attributes as `Lora`."""

    def __init__(self, model: torch.nn.Module):
        self._frozen = {name: p.detach() for name, p in model.named_parameters()}
        self.names = tuple(self._frozen)
        self.size = self.trained = sum(p.numel() for p in self._frozen.values())

    def init(self, generator: torch.Generator) -> Tensor:
        """See `Lora.init`."""
        return torch.zeros(self.size)

    def weights(self, vector: Tensor) -> dict[str, Tensor]:
        """See `Lora.weights`."""
        pieces = vector.split([p.numel() for p in self._frozen.values()])
        return {
            name: p + piece.view_as(p)
            for (name, p), piece in zip(self._frozen.items(), pieces, strict=True)
        }

    def save(self, folder: Path, vector: Tensor, task: Any) -> Path:
        """Write `model/`, the complete model with its tokenizer, for `from_pretrained`."""
        folder = folder / "model"
        model = copy.deepcopy(task.model).cpu()
        found = self.weights(vector.to(task.model.device))
        model.load_state_dict({name: x.cpu() for name, x in found.items()}, strict=False)
        with quiet():
            model.save_pretrained(folder)
        task.tokenizer.save_pretrained(folder)
        return folder


Adapter = Lora | AllWeights
