"""The command `privrl-bench`: checks the command line, then lets Hydra compose and start the jobs.

Exit codes: 0 done; 1 a run failed; 2 bad input, nothing was started; 130 or 143 interrupted.
Nothing heavy (torch, wandb, simulators) is imported before the configuration is known to be valid.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra

from privrl_bench.api.launch import launch
from privrl_bench.cli.console import print_table
from privrl_bench.cli.parsing import Parser, add_working_directory, given
from privrl_bench.config import compose as config
from privrl_bench.config.diagnostics import first_line
from privrl_bench.config.overrides import CONFIG_NAME
from privrl_bench.config.plugins import load_given
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.experiment.crash import guarded, one_line, version
from privrl_bench.metrics import shown_epsilon
from privrl_bench.sweep import jobs
from privrl_bench.sweep.jobs import Outcome

# Hydra's flags.
SWITCHES = (
    *("--help -h", "--version", "--multirun -m", "--run -r", "--resolve", "--hydra-help"),
    "--shell-completion -sc",
)
OPTIONS = ("--package -p", "--config-dir -cd")
UNSUPPORTED = ("--config-name -cn", "--config-path -cp", "--experimental-rerun")
ABOUT = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # of --info


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Always leaves through `SystemExit`."""
    add_working_directory()
    words = given(argv)
    sys.exit(guarded(lambda: _main(words)))


def _main(words: list[str]) -> int:
    args = _parse_args(words)
    if args.version:
        print(f"privrl-bench {version()}")
        return 0
    load_given(args.overrides)
    if args.help:
        print(config.help_text())
        return 0
    if args.hydra_help or args.info is not None or args.shell_completion:
        return _pass_on(words)
    if args.cfg is not None:
        overrides = config.settle(args.overrides)
        config.compose_raw(overrides, args.config_dir)
        return _pass_on([*(word for word in words if word not in args.overrides), *overrides])
    sweep = args.multirun or "hydra.mode=MULTIRUN" in args.overrides
    outcomes = launch(args.overrides, args.config_dir, args.multirun)
    if not sweep:
        return outcomes[0].exit_code
    show(outcomes)
    return jobs.interruption(outcomes) or int(any(one.status == "failed" for one in outcomes))


# --- before anything runs


def _parse_args(words: list[str]) -> argparse.Namespace:
    """Return Hydra's flags and the overrides. Raises `ConfigError` for an unknown flag."""
    parser = Parser("privrl-bench", "", add_help=False)
    for names in SWITCHES:
        parser.add_argument(*names.split(), action="store_true")
    for names in (*OPTIONS, *UNSUPPORTED):
        parser.add_argument(*names.split())
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=ABOUT)
    parser.add_argument("overrides", nargs="*")
    args = parser.read(words)
    if args.package is not None and args.cfg is None:
        raise ConfigError("--package", "goes with --cfg; see privrl-bench --help")
    if args.multirun and args.cfg is not None:
        raise ConfigError("--cfg", "shows one run, and -m is a sweep; leave -m out")
    for flag in (names.split()[0] for names in UNSUPPORTED):
        if getattr(args, flag[2:].replace("-", "_")) is not None:
            raise ConfigError(flag, "is not supported; --config-dir adds a folder of YAML files")
    return args


def _pass_on(words: list[str]) -> int:
    """Let Hydra answer `--cfg`, `--info`, `--hydra-help` and `--shell-completion`."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # raise errors instead of printing them
    answer = hydra.main(
        version_base=config.VERSION_BASE,
        config_path=str(config.conf_dir()),
        config_name=CONFIG_NAME,
    )(lambda cfg: None)
    saved, sys.argv = sys.argv, ["privrl-bench", *words]
    try:
        answer()
    except config.HYDRA_ERRORS as error:
        raise ConfigError("", first_line(error)) from error
    finally:
        sys.argv = saved
    return 0


# --- afterwards


STYLES = {"failed": "red", "interrupted": "yellow", "skipped": "dim"}


def show(outcomes: list[Outcome]) -> None:
    """Print a table with one line for each job: folder, status, mean return, epsilon, reason."""
    measures = [objective_of(outcome.summary) for outcome in outcomes]
    names = "/".join(dict.fromkeys(measure.name for measure in measures))
    rows = [
        (
            _short(outcome.folder),
            outcome.status,
            _number((outcome.summary.get(measure.name) or {}).get("mean")),
            shown_epsilon(epsilon) if isinstance(epsilon, float) else _number(epsilon),
            one_line(outcome.reason),
        )
        for outcome, measure in zip(outcomes, measures, strict=True)
        for epsilon in [outcome.summary.get("epsilon")]
    ]
    print()
    head = ("folder", "status", names, "epsilon", "reason")
    styles = [STYLES.get(outcome.status, "") for outcome in outcomes]
    print_table(head, rows, styles, fold=("folder", "reason"))
    failed, interrupted = (
        sum(one.status == status for one in outcomes) for status in ("failed", "interrupted")
    )
    more = f", {interrupted} interrupted; rerun the same command to resume" if interrupted else ""
    print(f"{len(outcomes)} jobs, {failed} failed{more}", flush=True)


def _number(value: Any) -> str:
    if isinstance(value, str):  # summaries may have "inf", which JSON cannot express
        return value
    return "-" if value is None or math.isnan(value) else f"{float(value):.4g}"


def _short(folder: str) -> str:
    """Return the folder relative to the working directory, if it is below it."""
    path, here = Path(folder), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else folder


if __name__ == "__main__":
    main()
