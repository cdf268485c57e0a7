"""The commands `privrl play`, `privrl evaluate` and `privrl export`: trained policies in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from privrl_bench.cli.parsing import (
    CONFIG_DIR,
    Parser,
    add_working_directory,
    check_at_least,
    given,
)
from privrl_bench.errors import ConfigError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.run.crash import guarded

# Arguments of the Python functions -> arguments of the commands.
_TYPED = {"path": "RUN", "to": "--to", "out": "--out", "video": "--video"}
RUN = "a run folder, or its policy.pt"
PLAY = """Play episodes of trained policies, in a window or into a video file.

  {0} outputs/dppg/hopper/z=0.1,seed=0 --video hopper.gif
  {0} RUN --env env=walker_of_mine --episodes 3 --video walk.mp4"""
EVALUATE = """Evaluate trained policies in whole simulated episodes. It costs no privacy.

  {0} outputs/dppg/hopper/z=0.1,seed=0 --episodes 100
  {0} RUN --env env.max_episode_steps=200 --greedy"""
EXPORT = """Write the greedy policy of a run for other programs: ONNX or TorchScript.

  {0} outputs/dppg/hopper/z=0.1,seed=0 --to onnx"""


def play(arguments: Sequence[str] | None = None, prog: str = "privrl play") -> int:
    """Run `privrl play` and return its exit code."""
    return guarded(lambda: _as_typed(_play, given(arguments), prog))


def evaluate(arguments: Sequence[str] | None = None, prog: str = "privrl evaluate") -> int:
    """Run `privrl evaluate` and return its exit code."""
    return guarded(lambda: _as_typed(_evaluate, given(arguments), prog))


def export(arguments: Sequence[str] | None = None, prog: str = "privrl export") -> int:
    """Run `privrl export` and return its exit code."""
    return guarded(lambda: _as_typed(_export, given(arguments), prog))


def _as_typed(command: Callable[[list[str], str], int], words: list[str], prog: str) -> int:
    """Run a command. Errors name its arguments, not those of the Python function that it calls."""
    try:
        return command(words, prog)
    except ConfigError as error:
        raise ConfigError(_TYPED.get(error.key, error.key), error.problem) from error


def _parser(prog: str, about: str, many: bool) -> Parser:
    parser = Parser(prog, about.format(prog))
    parser.add_argument("runs", nargs="+" if many else 1, metavar="RUN", help=RUN)
    return parser


def _add_env(parser: Parser) -> None:
    parser.add_argument("--env", nargs="+", default=[], metavar="WORD", help="another environment")
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")


def _play(words: list[str], prog: str) -> int:
    add_working_directory()
    parser = _parser(prog, PLAY, many=True)
    parser.add_argument("--video", metavar="FILE", help="a .gif or .mp4 file instead of a window")
    parser.add_argument("--episodes", type=int, default=1, metavar="N")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="most of an episode")
    parser.add_argument("--greedy", action="store_true", help="the most likely actions")
    _add_env(parser)
    args = parser.read(words)
    check_at_least("--episodes", args.episodes, 1)
    check_at_least("--steps", args.steps, 1)
    check_at_least("--seed", args.seed, 0)
    if args.video and len(args.runs) > 1:
        raise ConfigError("--video", "is one file; name one run")
    from privrl_bench.api.video import play as played

    for run in args.runs:
        found = played(
            run,
            video=args.video,
            episodes=args.episodes,
            steps=args.steps,
            env=args.env,
            greedy=args.greedy,
            seed=args.seed,
            config_dir=args.config_dir,
        )
        returns = ", ".join(f"{x:.1f}" for x in found.returns)
        pictures = f"{found.pictures} pictures"
        if found.frames < found.pictures:
            pictures += f" in {found.frames} frames (equal ones in a row are one)"
        print(f"played  {found.env}: {pictures}, returns {returns}", flush=True)
        if found.file is not None:
            print(f"        {found.file}", flush=True)
    return 0


def _evaluate(words: list[str], prog: str) -> int:
    add_working_directory()
    parser = _parser(prog, EVALUATE, many=True)
    parser.add_argument("--episodes", type=int, default=100, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--greedy", action="store_true", help="the most likely actions")
    actions.add_argument("--stochastic", action="store_true", help="default: as the run evaluated")
    _add_env(parser)
    args = parser.read(words)
    check_at_least("--episodes", args.episodes, 2)
    check_at_least("--seed", args.seed, 0)
    from privrl_bench.api.policies import evaluate as evaluated
    from privrl_bench.run.trained_policy import read_policy

    greedy = True if args.greedy else False if args.stochastic else None
    for run in args.runs:
        guarantee = read_policy(run).guarantee
        found = evaluated(
            run,
            episodes=args.episodes,
            env=args.env,
            greedy=greedy,
            seed=args.seed,
            config_dir=args.config_dir,
        )
        if args.json:
            print(json.dumps(_row(run, found, guarantee)), flush=True)
            continue
        low, high = found.interval
        least, middle, most = (float(f(found.returns)) for f in (min, _median, max))
        print(
            f"evaluated  {found.env}: return {found.mean:.1f} ({low:.1f} to {high:.1f}) over "
            f"{len(found.returns)} episodes; least {least:.1f}, median {middle:.1f}, most {most:.1f}; "
            f"{found.lengths.mean():.1f} steps"
        )
        print(
            f"           epsilon {shown_epsilon(guarantee['epsilon'])} at delta {guarantee['delta']:g} "
            f"({guarantee['status']}), as trained: these episodes are simulated",
            flush=True,
        )
    return 0


def _median(values: Any) -> float:
    import numpy as np

    return float(np.median(values))


def _row(run: str, found: Any, guarantee: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": run,
        "env": found.env,
        "mean": found.mean,
        "low": found.interval[0],
        "high": found.interval[1],
        "returns": found.returns.tolist(),
        "lengths": found.lengths.tolist(),
        "guarantee": guarantee,
    }


def _export(words: list[str], prog: str) -> int:
    add_working_directory()
    parser = _parser(prog, EXPORT, many=False)
    parser.add_argument("--to", default="onnx", help="onnx (default) or torchscript")
    parser.add_argument("--out", metavar="FILE", help="default: policy.onnx or policy.ts in RUN")
    args = parser.read(words)
    from privrl_bench.api.policies import export as exported

    (run,) = args.runs
    target = exported(run, args.to, args.out)
    print(
        f"exported  {target}\n"
        "          input observations [batch, D] float32, output greedy actions of the environment",
        flush=True,
    )
    return 0
