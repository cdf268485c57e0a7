"""Golden runs: tiny runs of every algorithm, recorded once, that later code must repeat.

A case is a command line (golden/cases.yaml). It is run by the public command, in this process and
in a temporary folder, and only files of its run folders are read. What is kept of them is a
*record* of plain JSON: released values, ledger, guarantee, plan and metrics. It holds no prose,
which may be rewritten, but for the unit of the guarantee (`IGNORED` can leave it out).

Records are compared in one of two ways:

* exact: every text and every number is equal, and so are the hashes of released tensors;
* tolerant, for another machine: shapes and texts are equal, epsilon to a relative 1e-9, other
  numbers to a relative 1e-4; hashes and digests are not compared.

`scripts/golden.py` records and compares from the command line, `test_golden.py` compares every
case. No field was found that differs between two runs of the same code on one machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from privrl_bench.cli.train import main
from privrl_bench.training.provenance import processor

HERE = Path(__file__).parent
CASES = HERE / "golden" / "cases.yaml"
RUNS = HERE / "golden" / "runs.json"

# Field -> why it is not compared. A field is named as a difference names it, without the number of
# the job in front, for example `summary.guarantee.unit`.
IGNORED: dict[str, str] = {}

# Where config.yaml says what a case covers.
SETTINGS = {
    "algo": ("algo", "name"),
    "mechanism": ("privacy", "mechanism"),
    "sampling": ("privacy", "sampling"),
    "adjacency": ("privacy", "adjacency"),
    "accountant": ("privacy", "accountant"),
    "user": ("env", "user"),
}
CLOCK = ("wall_seconds", "steps_per_second")
# Computed from the same returns as their mean, by a bootstrap that has tests of its own.
INTERVAL = ("eval/return_low", "eval/return_high")
PLAN = (
    *("seed", "z", "delta", "epsilon", "epsilon_paper", "rounds", "releases", "releases_per_user"),
    *(
        "users_per_round",
        "users",
        "steps_per_user",
        "steps",
        "parameters",
        "clip",
        "event",
        "local",
    ),
)
SUMMARY = ("epsilon", "epsilon_planned", "epsilon_paper", "delta", "steps", "ledger")
HASHES = ("sha256", "digest")
CLOSE, CLOSE_EPSILON = 1e-4, 1e-9  # relative
DIFFERENCES = {"eval/kl": 1e-6}  # absolute: the mean difference of equal log-probabilities


# --- cases


@cache
def cases() -> dict[str, str]:
    """Words of the command line of every case, by its name."""
    found = yaml.safe_load(CASES.read_text())
    shared = found["shared"]

    def full(words: str) -> str:
        for name, value in shared.items():
            words = words.replace(f"{{{name}}}", value)
        return words

    return {name: f"{found['common']} {full(words)}" for name, words in found["cases"].items()}


def run(name: str, made: Path, *more: str) -> dict[str, Any]:
    """The record of a case, run in a temporary folder.

    Args:
        name: of the case.
        made: the folder that `make` filled.
        more: further words.

    Raises:
        RuntimeError: the command did not end with 0; the message holds what it printed.
    """
    given = [*shlex.split(cases()[name]), *more]
    words = list({word.partition("=")[0]: word for word in given}.values())  # of two the later one
    places = ["hydra.run.dir=run/0", "hydra.sweep.dir=run", "hydra.sweep.subdir=${hydra:job.num}"]
    printed = io.StringIO()
    # In `made`, so that words name it as `..`: the noise depends on settings, paths among them.
    with tempfile.TemporaryDirectory(dir=made) as folder, _apart(Path(folder), made):
        code: Any = 1
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main([*words, *(places[:1] if "-m" not in words else places[1:])])
        except SystemExit as leave:
            code = leave.code
        except Exception:
            printed.write(traceback.format_exc())
        if code != 0:
            raise RuntimeError(f"{name} ended with {code}:\n{printed.getvalue()}")
        jobs = sorted(
            (Path(folder) / "run").glob("*/plan.json"), key=lambda at: int(at.parent.name)
        )
        return {job.parent.name: record_of(job.parent) for job in jobs}


@contextlib.contextmanager
def _apart(folder: Path, made: Path) -> Iterator[None]:
    """In `folder`, with the datasets below `made`, and tests/ on the path for `my_pkg`."""
    before, path = os.environ.get("MINARI_DATASETS_PATH"), list(sys.path)
    os.environ["MINARI_DATASETS_PATH"] = str(made / "sets")
    sys.path.append(str(HERE))
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = path
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


# --- what cases learn from


def make(folder: Path) -> Path:
    """Write the dataset, the language models and the policy of the cases; returns the folder."""
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        _make_dataset(folder / "sets")
        _make_walk(folder / "sets")
        _make_texts(folder)
    shutil.copy(HERE / "golden" / "policy.pt", folder)
    return folder


def _make_dataset(root: Path) -> None:
    """40 episodes of random play on Pendulum, 20 to 40 steps each, by Minari's own means."""
    import gymnasium as gym
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    env = gym.make("Pendulum-v1")

    def played(number: int, steps: int) -> EpisodeBuffer:
        rng = np.random.default_rng(number)
        obs, rewards = [env.reset(seed=number)[0]], []
        actions = rng.uniform(-2, 2, (steps, 1)).astype(np.float32)
        for action in actions:
            after, reward, *_ = env.step(action)
            obs.append(after)
            rewards.append(reward)
        return EpisodeBuffer(
            observations=np.stack(obs),
            actions=actions,
            rewards=np.array(rewards),
            terminations=np.zeros(steps, bool),
            truncations=np.arange(steps) == steps - 1,
            infos={},
        )

    data = root / "golden" / "pendulum-v0" / "data"
    data.mkdir(parents=True)
    storage = MinariStorage.new(
        data,
        observation_space=env.observation_space,
        action_space=env.action_space,
        env_spec=env.spec,
        data_format="hdf5",
    )
    about = {"dataset_id": "golden/pendulum-v0", "minari_version": _minari()}
    storage.update_metadata({**about, "users": "simulated"})
    storage.update_episodes([played(k, 20 + k % 21) for k in range(40)])
    env.close()


def _make_walk(root: Path) -> None:
    """40 users of two episodes each, without a simulator."""
    from unittest import mock

    with mock.patch.object(sys, "path", [str(HERE), *sys.path]):
        from walk_logs import walk_logs
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(root)):
        walk_logs("golden/walk-v0", users=40, episodes=2)


def _minari() -> str:
    return importlib.metadata.version("minari")


WORDS = (
    *("the", "a", "film", "plot", "cast", "was", "is", "so", "very", "and", "but"),
    *("good", "great", "fine", "bad", "dull", "weak", "long", "short", "it"),
)
END = "<|endoftext|>"


def _make_texts(folder: Path) -> None:
    """A language model, a classifier and 120 reviews, all random from fixed seeds."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GPT2Config,
        GPT2ForSequenceClassification,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    known = {word: i for i, word in enumerate([END, *WORDS])}
    split = Tokenizer(models.WordLevel(known, unk_token=END))
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, eos_token=END, pad_token=END)
    sizes = {"vocab_size": len(known), "n_positions": 24, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    labels = {
        "id2label": {0: "NEGATIVE", 1: "POSITIVE"},
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        policy = GPT2LMHeadModel(GPT2Config(**sizes, **ends))
        judge = GPT2ForSequenceClassification(GPT2Config(**sizes, **ends, **labels))
        _fill((policy, judge))
    for name, model in (("policy", policy), ("classifier", judge)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rng = np.random.default_rng(4)
    reviews = [" ".join(rng.choice(WORDS, 5)) for _ in range(120)]
    (folder / "reviews.txt").write_text("\n".join(reviews) + "\n")


def _fill(models: tuple[torch.nn.Module, ...]) -> None:
    """Weights from one generator, so that they do not depend on how `transformers` draws them."""
    rng = np.random.default_rng(3)
    for model in models:
        with torch.no_grad():
            for name, weight in sorted(model.named_parameters()):
                if weight.ndim > 1:
                    drawn = 0.3 * rng.standard_normal(tuple(weight.shape))
                    weight.copy_(torch.from_numpy(drawn))
                else:
                    weight.fill_(1.0 if name.endswith(".weight") else 0.0)


# --- what is kept of a run folder


def record_of(folder: Path) -> dict[str, Any]:
    """The record of one run folder."""
    plan = _read(folder / "plan.json")
    summary = _read(folder / "summary.json")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    content = torch.load(folder / "policy.pt", weights_only=True, map_location="cpu")
    return {
        "settings": {
            **{name: config[group][key] for name, (group, key) in SETTINGS.items()},
            "identity": _identity(folder / "identity.json"),
        },
        "policy": {name: _tensor(x) for name, x in _tensors("", content)},
        "ledger": [_without(line, ("previous",)) for line in _lines(folder / "ledger.jsonl")],
        "summary": {
            **{key: summary[key] for key in SUMMARY if key in summary},
            **{
                key: _without(_numbers(summary[key]), ("low", "high"))
                for key in _measure(summary)
                if key in summary
            },
            "guarantee": _guarantee(summary["guarantee"]),
        },
        "plan": {key: plan[key] for key in PLAN if key in plan},
        "metrics": [_without(row, (*CLOCK, *INTERVAL)) for row in _lines(folder / "metrics.jsonl")],
    }


def _identity(path: Path) -> str:
    """Of all that selects a run's noise: where it differs, released values cannot be equal."""
    return hashlib.sha256(json.dumps(_read(path), sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _without(row: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _measure(summary: dict[str, Any]) -> tuple[str, ...]:
    """The name of what the run is judged by, under which the summary has its numbers."""
    return (summary["measure"],) if "measure" in summary else ()


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Without texts, which are prose."""
    return {
        key: _numbers(one) if isinstance(one, dict) else one
        for key, one in value.items()
        if not isinstance(one, str)
    }


def _guarantee(said: dict[str, Any]) -> dict[str, Any]:
    """Status, unit, notion and adjacency; of caveats and notes only their names."""
    named = {key: sorted(x.split(": ")[0] for x in said[key]) for key in ("caveats", "notes")}
    return {**{key: said[key] for key in ("status", "unit", "notion", "adjacency")}, **named}


def _tensors(at: str, content: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(key path, tensor) of every tensor in nested mappings and sequences."""
    if isinstance(content, torch.Tensor):
        yield at, content
    elif isinstance(content, Mapping):
        for key in content:
            yield from _tensors(f"{at}/{key}" if at else str(key), content[key])
    elif isinstance(content, list | tuple):
        for number, one in enumerate(content):
            yield from _tensors(f"{at}/{number}" if at else str(number), one)


def _tensor(x: torch.Tensor) -> dict[str, Any]:
    """Shape, kind, hash and some numbers; `norm` is the scale of errors in the other two."""
    array = x.detach().contiguous().numpy()
    plain = array.astype(np.float64).reshape(-1)
    return {
        "shape": list(array.shape),
        "kind": str(array.dtype),
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        "first": plain[:4].tolist(),
        "sum": math.fsum(plain) if np.isfinite(plain).all() else float(plain.sum()),
        "norm": float(np.sqrt(math.fsum(plain * plain))) if np.isfinite(plain).all() else None,
    }


# --- comparing


def differences(recorded: dict[str, Any], now: dict[str, Any], *, exact: bool) -> list[str]:
    """One line for every field of a case that differs; none: it is repeated."""
    return list(_differ((), recorded, now, exact, 0.0))


def _differ(at: tuple[str, ...], a: Any, b: Any, exact: bool, slack: float) -> Iterator[str]:
    """Differences below a field.

    Args:
        at: where the field is.
        a: what was recorded.
        b: what is there now.
        exact: equal to the last bit.
        slack: absolute error that is allowed for numbers, if not exact.
    """
    if ".".join(at[1:]) in IGNORED or (not exact and at and at[-1] in HASHES):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        # A block of parameters may be called norm, too.
        if not exact and isinstance(a.get("norm"), float):
            slack = CLOSE * a["norm"]
        for key in dict.fromkeys([*a, *b]):
            if key not in a or key not in b:
                yield f"{'.'.join([*at, key])}: {'new' if key not in a else 'missing'}"
            else:
                yield from _differ((*at, key), a[key], b[key], exact, slack)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{'.'.join(at)}: recorded {len(a)} items, now {len(b)}"
        for number, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from _differ((*at, str(number)), one, other, exact, slack)
    elif not _same(at, a, b, exact, slack):
        yield f"{'.'.join(at)}: recorded {a!r}, now {b!r}"


def _same(at: tuple[str, ...], a: Any, b: Any, exact: bool, slack: float) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    if not numbers:
        return type(a) is type(b) and bool(a == b)
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    # JSON keeps every bit of a float, and 1 apart from 1.0.
    if exact or "ledger" in at:
        return type(a) is type(b) and bool(a == b)
    if any("epsilon" in name for name in at):
        return math.isclose(a, b, rel_tol=CLOSE_EPSILON)
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=max(slack, DIFFERENCES.get(at[-1], 1e-9)))


# --- the file


def fingerprint() -> dict[str, str]:
    """What decides the last bits on a machine: the processor and the libraries that compute."""
    packages = ("torch", "numpy", "numba", "scipy", "mujoco", "transformers", "gymnasium")
    return {
        "processor": processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def load() -> dict[str, Any]:
    """What was recorded: `machine`, and under `cases` the record of every case."""
    return _read(RUNS)


def save(found: dict[str, Any]) -> None:
    """Write the file, one line for every case, so that a diff shows which case changed."""
    lines = [f"{json.dumps(name)}: {_compact(one)}" for name, one in found["cases"].items()]
    head = f'{{"machine": {_compact(found["machine"])},\n"cases": {{\n'
    RUNS.write_text(head + ",\n".join(lines) + "\n}}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def normal(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it reads from the file."""
    return dict(json.loads(_compact(record)))
