"""Export of trained adapters and models in peft's format and the hub's layout. peft is not needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from privrl_bench.models.language.extra import need, without_bars

if TYPE_CHECKING:
    from privrl_bench.models.language.adapters import Lora


def save_adapter(folder: Path, adapter: Lora, vector: Tensor, model: Any) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`, for `peft.PeftModel.from_pretrained`.

    peft's lora_A is A transposed, [rank, inputs], and its lora_B is B transposed, [outputs, rank].

    Args:
        folder: Created if needed.
        adapter: The adapter.
        vector: [size] its parameters.
        model: The start model, whose name or folder the configuration refers to.
    """
    save_file = need("safetensors.torch").save_file
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b) in adapter.pairs(vector.cpu()).items():
        place = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{place}.lora_A.weight"] = a.T.contiguous()
        tensors[f"{place}.lora_B.weight"] = b.T.contiguous()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model.config.name_or_path),
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({n.removesuffix(".weight").split(".")[-1] for n in adapter.names}),
        "fan_in_fan_out": True,  # GPT-2's weights are [in, out]
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def save_model(
    folder: Path, weights: Callable[[Tensor], dict[str, Tensor]], vector: Tensor, task: Any
) -> None:
    """Write the complete model with its tokenizer, for `from_pretrained`.

    Args:
        folder: Created if needed.
        weights: From a vector [size] to weights by name.
        vector: [size].
        task: Has the start model and the tokenizer.
    """
    model = copy.deepcopy(task.model).cpu()
    found = weights(vector.to(task.model.device))
    model.load_state_dict({name: x.cpu() for name, x in found.items()}, strict=False)
    with without_bars():
        model.save_pretrained(folder)
    task.tokenizer.save_pretrained(folder)
