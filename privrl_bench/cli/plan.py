"""The command `privrl plan`: what a run will do and cost, before any training."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Sequence
from pathlib import Path

from privrl_bench.cli.parsing import CONFIG_DIR, OVERRIDES, Parser
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import own_folder
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.training.progress import folded

ABOUT = """Show rounds, users, noise and epsilon of a run, and measured results near it. Trains nothing.

privacy.epsilon=2 alone finds the least noise (privacy.z=auto) with which all rounds cost at most 2.
With privacy.population=10_000 a user is used once, and there are at most as many rounds as there are users for.

Example: privrl plan algo=dppg env=cartpole privacy.epsilon=2 privacy.population=10_000"""


def main(words: Sequence[str], prog: str = "privrl plan") -> int:
    """Run the command and return its exit code. Raises `ConfigError`."""
    parser = Parser(prog, ABOUT)
    parser.add_argument("overrides", nargs="*", metavar="override", help=OVERRIDES)
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="a results store, DIR/<paper>/<item>/runs.csv (default: outputs/paper of the source tree)",
    )
    args = parser.read(words)
    if args.results is not None and not args.results.is_dir():
        raise ConfigError("--results", f"no such folder: {args.results}")
    with own_folder(args.config_dir):
        config = compose(args.overrides)
        check_hardware(config)

        gc.disable()  # what is imported stays: a fifth of the time
        from privrl_bench.training.describe import report_of
        from privrl_bench.training.plan import make_plan

        gc.freeze()
        gc.enable()
        plan = report_of(make_plan([config]), results=args.results)
    if args.json:
        print(json.dumps(plan.to_dict(), indent=2, allow_nan=False))
        return 0
    for line in plan.lines():
        head = re.match(r" *(?:\S+(?: \S+)* {2,})?", line)[0]  # type: ignore[index]
        print(folded(head, line[len(head) :]))
    return 0
