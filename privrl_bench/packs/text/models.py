"""Language models and classifiers: the package's own small ones, folders in the hub's layout, or hub names.

Nothing is downloaded. The optional packages (extra `rlhf`) are imported when they are first used.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privrl_bench.config.schema import MADE
from privrl_bench.errors import ConfigError

SMALL = Path(__file__).parent / "small"  # made by scripts/make_small_models.py
BATCH = 128


def need(module: str) -> Any:
    """Import and return an optional module.

    Raises:
        ConfigError: The extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "env",
            f"text environments need the package {module} ({error}); install it with: "
            "pip install 'privrl-bench[rlhf]'",
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """`transformers` without progress bars (a run has its own) and warnings, which `_model` checks."""
    bars, loud = need("transformers").utils.logging, logging.getLogger("transformers")
    shown, level = bars.is_progress_bar_enabled(), loud.level
    bars.disable_progress_bar()
    loud.setLevel(logging.ERROR)
    try:
        yield
    finally:
        loud.setLevel(level)
        if shown:
            bars.enable_progress_bar()


# --- the package's own


def read_card() -> dict[str, Any]:
    """Return the card of the small models: recipe, versions, digests of files, measured quality."""
    card: dict[str, Any] = json.loads((SMALL / "card.json").read_text())
    return card


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of both models, by its path in the folder."""
    found = [p for part in ("policy", "classifier") for p in sorted((folder / part).iterdir())]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def small() -> Path:
    """Return the folder of the package's models.

    Raises:
        ConfigError: Its files do not match the digests in its card.
    """
    try:
        whole = read_card()["files"] == digests(SMALL)
    except (OSError, ValueError, KeyError):
        whole = False
    if not whole:
        what = f"the small text models in {SMALL} are damaged (digests in card.json)"
        raise ConfigError("env.text", f"{what}; install the package again")
    return SMALL


# --- loading


def load_policy(name: str) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer: `made`, a folder, or a name in the hub's local cache.

    Raises:
        ConfigError: The model is not on this machine, is not a causal language model, or has no end-of-text
            token.
    """
    key = "env.text.policy"
    name = str(small() / "policy") if name == MADE else name
    model = _model(key, name, "AutoModelForCausalLM")
    tokenizer = from_disk(key, name, "AutoTokenizer")
    if model.config.eos_token_id is None:
        raise ConfigError(key, f"{name}: its config.json names no eos_token_id")
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            key,
            f"{name}: the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}",
        )
    return model, tokenizer


def load_classifier(name: str) -> tuple[Any, Any]:
    """Load a sequence classifier and its tokenizer, as `load_policy`.

    Raises:
        ConfigError: The model is not on this machine or is not a classifier.
    """
    key = "env.text.classifier"
    name = str(small() / "classifier") if name == MADE else name
    model = _model(key, name, "AutoModelForSequenceClassification")
    return model, from_disk(key, name, "AutoTokenizer")


def _model(key: str, name: str, kind: str) -> Any:
    """Load a frozen model in float32, with eager attention, which `vmap` supports."""
    more = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    model, report = from_disk(key, name, kind, **more)
    missing = sorted(report["missing_keys"])
    if missing or report.get("mismatched_keys"):
        raise ConfigError(
            key,
            f"{name} is another kind of model: no weights for {missing[0] if missing else 'its shape'}",
        )
    return model.eval().requires_grad_(False)


def _folder(key: str, name: str) -> Path:
    """The folder of that name, or the local cache of a hub repository, without network access.

    Loaders are given folders only: with a name, some loaders of transformers access the network even for
    local files.

    Raises:
        ConfigError: Neither is on this machine, or it has no config.json.
    """
    found = Path(name).expanduser()
    if not found.is_dir():
        hub = need("huggingface_hub")
        try:
            found = Path(hub.snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            problem = f"{name!r} is not on this machine; download it with: hf download {name}"
            raise ConfigError(key, problem) from None
    if not (found / "config.json").is_file():
        raise ConfigError(key, f"{found} has no config.json; it must be in the hub's layout")
    return found


def from_disk(key: str, name: str, kind: str, **more: Any) -> Any:
    """Call `transformers.<kind>.from_pretrained` with local files. Raises ConfigError with one line."""
    folder, loader = _folder(key, name), getattr(need("transformers"), kind)
    try:
        with quiet():
            return loader.from_pretrained(str(folder), local_files_only=True, **more)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(key, f"cannot load {name}: {first}") from None


# --- scores


def score_id(config: Any) -> int:
    """Return the index of the logit that is the score: the only one, or that of POSITIVE (or LABEL_1).

    Args:
        config: Of a sequence classifier, with `id2label`; one label: a reward model.

    Raises:
        ConfigError: There are several labels, and not exactly one is POSITIVE.
    """
    labels = {int(i): str(name).upper() for i, name in (config.id2label or {}).items()}
    found = [i for i, name in labels.items() if name in ("POSITIVE", "LABEL_1")]
    if len(labels) == 1:
        found = list(labels)
    if len(found) != 1:
        rule = "must have one label (a reward model), or several with one POSITIVE (or LABEL_1)"
        got = ", ".join(labels.values()) or "none"
        raise ConfigError("env.text.classifier", f"{rule}, got {got}")
    return found[0]


class Scorer:
    """Score of texts: the logit of `score_id`.

    Every text is truncated or padded to the same width, so a score does not depend on the other texts.

    Args:
        model: A sequence classifier. One that reads the last token needs `pad_token_id` to find it, and gets
            that of the tokenizer where its configuration has none.
        tokenizer: Of the model.
        width: Number of tokens, including special ones.

    Raises:
        ConfigError: See `score_id`.
    """

    def __init__(self, model: Any, tokenizer: Any, width: int):
        self._model = model
        self._tokenizer = tokenizer
        self._width = min(width, int(model.config.max_position_embeddings))
        self._score = score_id(model.config)
        known = (model.config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._pad = int(next(token for token in known if token is not None))
        model.config.pad_token_id = self._pad

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> Tensor:
        """Return scores [B] on the CPU; an empty text is scored like any other."""
        scores = []
        for at in range(0, len(texts), BATCH):
            rows = self._tokenizer(texts[at : at + BATCH], truncation=True, max_length=self._width)[
                "input_ids"
            ]
            ids = torch.tensor([[*row, *[self._pad] * (self._width - len(row))] for row in rows])
            mask = torch.arange(self._width) < torch.tensor([max(len(r), 1) for r in rows])[:, None]
            where = self._model.device
            logits = self._model(
                input_ids=ids.to(where), attention_mask=mask.long().to(where)
            ).logits
            scores.append(logits[:, self._score].float().cpu())
        return torch.cat(scores) if scores else torch.zeros(0)
