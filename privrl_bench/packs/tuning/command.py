"""The command `privrl tune`: a search for hyperparameters whose epsilon covers the search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from privrl_bench.audit.options import Options, check_options
from privrl_bench.cli.parsing import (
    CONFIG_DIR,
    OVERRIDES,
    Parser,
    add_working_directory,
    check_at_least,
    given,
)
from privrl_bench.config.overrides import own_folder
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.run.crash import guarded

ABOUT = """Search for hyperparameters inside the guarantee: draw runs, train and score them, keep the best.

Distributions: KEY=uniform(low,high), loguniform(low,high), randint(low,high), choice(a,b,...).
tune.runs       poisson(8) (default), geometric(8), logarithmic(8), negative_binomial(8, 0.5): a random, secret
                number of runs, of which only the best is released; fixed(8), grid: epsilon covers all runs
tune.score      private: the noised mean return of users who did not train (tune.score_range=[low,high],
                tune.score_users, tune.score_z); public: simulated episodes of no user
tune.users      search on this share of privacy.population; the others train the kept settings
tune.public     words of a public simulator to search on, which costs nothing
tune.sampler    random; tpe: Optuna's, with tune.runs=fixed(n)

Example: privrl tune algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000 \\
         'algo.lr=loguniform(1e-3,1e-2)' 'tune.score_range=[0,500]'"""

# Option -> the mode that it belongs to, type, metavar, help.
OPTIONS = {
    "json": ("plan", None, None, "--plan: print the plan as JSON"),
    "user": ("leaks", int, "U", "--audit leaks: the replaced user, from 0 (default 0)"),
    "scores": ("epsilon", int, "N", "--audit epsilon: runs of all searches together (20000)"),
    "per_round": ("epsilon", int, "N", "--audit epsilon: canary units of one round (4)"),
    "confidence": ("epsilon", float, "P", "--audit epsilon: confidence of the bound (0.95)"),
    "folder": ("epsilon", Path, "DIR", "--audit epsilon: for audit.json and audit.png"),
}


def main(arguments: Sequence[str] | None = None, prog: str = "privrl tune") -> int:
    """Run the command and return its exit code."""
    add_working_directory()
    words = given(arguments)
    return guarded(lambda: _tune(words, prog))


def _tune(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="override",
        help=f"{OVERRIDES}, tune.key=value, distributions",
    )
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--plan", action="store_true", help="show what the search costs; train nothing"
    )
    modes.add_argument(
        "--audit",
        choices=("leaks", "epsilon"),
        help="test the search: what it publishes, bit for bit; or its epsilon, with canaries",
    )
    for name, (_, kind, metavar, text) in OPTIONS.items():
        how = {"type": kind, "metavar": metavar} if kind else {"action": "store_true"}
        parser.add_argument(_flag(name), default=None, help=text, **how)
    args = parser.read(words)
    mode = "plan" if args.plan else args.audit
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    for name in options:
        if OPTIONS[name][0] != mode:
            raise ConfigError(_flag(name), f"is for {OPTIONS[name][3].partition(':')[0]}")
    if mode == "plan":
        return _show(args.overrides, args.config_dir, "json" in options)
    if mode == "leaks":
        check_at_least("--user", args.user, 0)
        return _leaks(args.overrides, args.config_dir, args.user or 0)
    if mode == "epsilon":
        folder = options.pop("folder", None)
        sizes = Options(**options)
        check_options(sizes, _flag)
        return _epsilon(args.overrides, args.config_dir, folder, sizes)

    from privrl_bench.packs.tuning.tune_runs import lines_of, search

    with own_folder(args.config_dir):
        result = search(args.overrides, print)
    print("\n".join(lines_of(result)), flush=True)
    return result.exit_code


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _show(words: Sequence[str], config_dir: str | None, as_json: bool) -> int:
    from privrl_bench.packs.tuning.api import tune_plan

    plan = tune_plan(words, config_dir=config_dir)
    lines = [json.dumps(plan.to_dict(), indent=2, allow_nan=False)] if as_json else plan.lines()
    print("\n".join(lines), flush=True)
    return 0


def _leaks(words: Sequence[str], config_dir: str | None, user: int) -> int:
    from privrl_bench.cli.audit import show_leaks
    from privrl_bench.packs.tuning.api import tune_leaks

    try:
        return show_leaks(tune_leaks(words, user=user, config_dir=config_dir), None)
    except PrivacyError as error:
        print(f"verdict  the gate refused: {error}")
        return 1


def _epsilon(
    words: Sequence[str], config_dir: str | None, folder: Path | None, options: Options
) -> int:
    from privrl_bench.cli.audit import say, show_bounds
    from privrl_bench.packs.tuning.api import tune_epsilon

    found = tune_epsilon(words, folder=folder, config_dir=config_dir, options=options, say=say)
    return show_bounds(found, options.confidence)
