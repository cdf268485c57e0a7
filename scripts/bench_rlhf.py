"""Local updates of a language model's users: one after the other against all at once.

    python scripts/bench_rlhf.py [--users 32] [--device cpu] [--shape small|gpt2] [--repeats 3] [key=value ...]

Weights are random: time does not depend on them. `small` is about the size of env=sentiment_small, `gpt2`
that of GPT-2 (124 million parameters). Overrides are settings of algo=dppg_text. Prints seconds of a
round's user updates, how far the two are apart, and on a GPU the peak of its memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from privrl_bench.composition.compose import compose
from privrl_bench.packs.text.fine_tuning import AnswerBatch, AnswerTrainer, make_adapter
from privrl_bench.packs.text.models import need
from privrl_bench.packs.text.text_settings import DppgTextConfig

SHAPES = {
    "small": {"vocab_size": 1000, "n_positions": 128, "n_embd": 64, "n_layer": 3, "n_head": 4},
    "gpt2": {},
}
WIDTH, STEPS = 7, 24  # tokens of a prompt and of an answer


def model_of(shape: str, device: str) -> torch.nn.Module:
    """A GPT-2 with random weights, frozen."""
    transformers = need("transformers")
    torch.manual_seed(0)
    sizes = SHAPES[shape]
    ends = {"bos_token_id": 0, "eos_token_id": 0} if sizes else {}
    config = transformers.GPT2Config(**sizes, **ends, attn_implementation="eager")
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model.eval().requires_grad_(False).to(device)


def random_answers(trainer: AnswerTrainer, vector: Tensor, users: int, words: int) -> AnswerBatch:
    """Random answers of full length, with random advantages."""
    tokens = torch.randint(words, (users, WIDTH + STEPS), device=vector.device)
    seen = torch.ones_like(tokens, dtype=torch.bool)
    with torch.no_grad():
        old = trainer.logprobs(vector, tokens, seen, STEPS)
    advantages = torch.rand(users, STEPS, device=vector.device) - 0.5
    return AnswerBatch(tokens, seen, old, advantages)


def timed(what: Callable[[], Tensor], repeats: int, device: str) -> tuple[float, Tensor]:
    """(seconds of the fastest call after a first one, result)."""
    best, found = float("inf"), what()
    for _ in range(repeats):
        start = time.perf_counter()
        found = what()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, found


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="small", choices=tuple(SHAPES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = compose(["env=sentiment_small", *args.overrides]).algo
    assert isinstance(config, DppgTextConfig)
    model = model_of(args.shape, args.device)
    adapter = make_adapter(config, model)
    trainer = AnswerTrainer(model, adapter)
    vector = adapter.init(torch.Generator().manual_seed(1)).to(args.device)
    batch = random_answers(trainer, vector, args.users, SHAPES[args.shape].get("vocab_size", 50257))
    descent = (config, config.lr, 1.0)

    def sequential() -> Tensor:
        alone = (AnswerBatch(*(x[u : u + 1] for x in batch)) for u in range(args.users))
        return torch.cat([trainer(vector, one, *descent) for one in alone])

    slow, expected = timed(sequential, args.repeats, args.device)
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    fast, found = timed(lambda: trainer(vector, batch, *descent), args.repeats, args.device)
    print(
        f"{args.shape}, {args.users} users, {adapter.trained} of {adapter.size} numbers trained, "
        f"{config.epochs} steps of a user, {args.device}: one by one {slow:.3f} s, at once {fast:.3f} s, "
        f"{slow / fast:.1f} times as fast; largest difference {float((found - expected).abs().max()):.1g}"
    )
    if args.device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
