"""How much the users' rows of DPPG have in common, for kinds of rows, at a policy of a finished run.

    python scripts/measure_rows.py RUN [--users 128] [--json FILE]

Two cohorts of new simulated users act with the final policy and critic of the run, and send rows that are not
bounded. For each kind of row:

    norm  mean norm of a row
    rho   sqrt(inner product of the cohorts' mean rows) / norm: the part of the norm that all users share
    gain  inner product of a cohort's mean row and the other's mean gradient / (norm * norm of the gradient):
          how far a row moves the policy uphill, for the norm that noise is added for

Both are estimates from two cohorts; a negative inner product is shown with its sign. The gradient is that of
one gradient with 512 steps.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from privrl_bench.composition.compose import compose
from privrl_bench.run.plan import make_plan
from privrl_bench.run.trainer import Trainer
from privrl_bench.types import State

GRADIENT = ("algo.user_update=gradient", "algo.epochs=1", "algo.minibatches=1")
ADAM = ("algo.user_update=adam", "algo.lr=4e-4")
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {  # name: (T, words)
    "one gradient, T = 512": (512, GRADIENT),
    "one gradient, T = 256": (256, GRADIENT),
    "one gradient, T = 1024": (1024, GRADIENT),
    "one gradient, lambda 0.8": (512, (*GRADIENT, "algo.gae_lambda=0.8")),
    "Adam, 8 x 16": (512, (*ADAM, "algo.epochs=8", "algo.minibatches=16")),
    "Adam, 8 x 16, ratio clip 0.2": (
        512,
        (*ADAM, "algo.epochs=8", "algo.minibatches=16", "algo.ratio_clip=0.2"),
    ),
    "Adam, 2 x 16, ratio clip 0.2": (
        512,
        (*ADAM, "algo.epochs=2", "algo.minibatches=16", "algo.ratio_clip=0.2"),
    ),
    "Adam, 8 x 1, ratio clip 0.2": (
        512,
        (*ADAM, "algo.epochs=8", "algo.minibatches=1", "algo.ratio_clip=0.2"),
    ),
}
SETTINGS = ("privacy.clip=1e6", "rounds=3", "privacy.z=1")


def rows_of(run: Path, steps: int, words: tuple[str, ...], users: int) -> list[Tensor]:
    """Rows [U, P] of two cohorts, float64."""
    given = json.loads((run / "plan.json").read_text())["env"]
    size = (f"privacy.users_per_round={users}", f"env.user_steps={steps}")
    parts = make_plan([compose(["algo=dppg", f"env={given}", *SETTINGS, *size, *words])])
    saved = torch.load(run / "checkpoint.pt", weights_only=False)["state"]
    session = Trainer(parts)
    tensors = dict(session.state.tensors)
    tensors |= {name: saved[name][:1] for name in ("actor", "critic")}
    found = []
    for index in range(2):
        cohort = session.collect(tensors["actor"], index)
        rows = parts.algo.user_update(State(index, tensors), cohort, parts.streams).take()[0]
        found.append(rows["actor"][0].double())
    session.close()
    return found


def signed_root(x: float) -> float:
    """Root of |x| with the sign of x."""
    return math.copysign(math.sqrt(abs(x)), x)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--users", type=int, default=128)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    result, gradients = {}, [x.mean(0) for x in rows_of(given.run, 512, GRADIENT, given.users)]
    size = abs(signed_root(float(gradients[0] @ gradients[1])))
    for name, (steps, words) in KINDS.items():
        a, b = rows_of(given.run, steps, words, given.users)
        norm = float(torch.cat([a, b]).norm(dim=-1).mean())
        means = a.mean(0), b.mean(0)
        rho = signed_root(float(means[0] @ means[1])) / norm
        gain = float(means[0] @ gradients[1] + means[1] @ gradients[0]) / (2 * norm * size)
        result[name] = {"norm": norm, "rho": rho, "gain": gain}
        print(f"{name:32s} norm {norm:10.4g}  rho {rho:6.3f}  gain {gain:6.3f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
