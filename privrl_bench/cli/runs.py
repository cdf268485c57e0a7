"""The commands about one finished run: `privrl play`, `evaluate`, `export` and `explain`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from privrl_bench.cli.parsing import CONFIG_DIR, Parser, check_at_least
from privrl_bench.errors import ConfigError
from privrl_bench.metrics import shown_epsilon

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
EXPLAIN = """Explain the guarantee of a run: what epsilon is of, every caveat, note and assumption.

RUN is a run folder. Reads its summary.json, or plan.json while the run is not finished."""


@contextmanager
def _typed() -> Iterator[None]:
    """Errors name the arguments of the command, not those of the Python function that it calls."""
    try:
        yield
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


def play(words: Sequence[str], prog: str) -> int:
    """Play episodes of each policy. Returns the exit code."""
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

    settings = {name: value for name, value in vars(args).items() if name != "runs"}
    for run in args.runs:
        with _typed():
            found = played(run, **settings)
        returns = ", ".join(f"{x:.1f}" for x in found.returns)
        print(f"played  {found.env}: {found.pictures} pictures, returns {returns}", flush=True)
        if found.file is not None:
            print(f"        {found.file}", flush=True)
    return 0


def evaluate(words: Sequence[str], prog: str) -> int:
    """Evaluate each policy and print a line, or a JSON object. Returns the exit code."""
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
    from privrl_bench.training.trained_policy import read_policy

    greedy = True if args.greedy else False if args.stochastic else None
    for run in args.runs:
        with _typed():
            guarantee = read_policy(run).guarantee
            found = evaluated(
                run,
                episodes=args.episodes,
                env=args.env,
                greedy=greedy,
                seed=args.seed,
                config_dir=args.config_dir,
            )
        low, high = found.interval
        if args.json:
            row = {"run": run, "env": found.env, "mean": found.mean, "low": low, "high": high}
            lists = {"returns": found.returns.tolist(), "lengths": found.lengths.tolist()}
            print(json.dumps({**row, **lists, "guarantee": guarantee}), flush=True)
            continue
        print(
            f"evaluated  {found.env}: return {found.mean:.1f} ({low:.1f} to {high:.1f}) over "
            f"{len(found.returns)} episodes, {found.returns.min():.1f} to {found.returns.max():.1f}; "
            f"{found.lengths.mean():.1f} steps"
        )
        print(
            f"           epsilon {shown_epsilon(guarantee['epsilon'])} at delta {guarantee['delta']:g} "
            f"({guarantee['status']}), as trained: these episodes are simulated",
            flush=True,
        )
    return 0


def export(words: Sequence[str], prog: str) -> int:
    """Write the policy of one run. Returns the exit code."""
    parser = _parser(prog, EXPORT, many=False)
    parser.add_argument("--to", default="onnx", help="onnx (default) or torchscript")
    parser.add_argument("--out", metavar="FILE", help="default: policy.onnx or policy.ts in RUN")
    args = parser.read(words)
    from privrl_bench.api.policies import export as exported

    (run,) = args.runs
    with _typed():
        target = exported(run, args.to, args.out)
    print(
        f"exported  {target}\n"
        "          input observations [batch, D] float32, output greedy actions of the environment",
        flush=True,
    )
    return 0


def explain(words: Sequence[str], prog: str) -> int:
    """Explain the guarantee of one run. Returns the exit code."""
    parser = Parser(prog, EXPLAIN)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    folder = parser.read(words).run
    from privrl_bench.api.explaining import explain as explained
    from privrl_bench.training.progress import coloured

    width = min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)
    print(coloured("\n".join(explained(folder).lines(width))))
    return 0
