"""The command `privrl-bench`: checks the command line, then lets Hydra compose and start the jobs.

Exit codes: 0 done; 1 a run failed; 2 bad input, nothing was started; 128 + the signal's number interrupted.
Nothing heavy (torch, wandb, simulators) is imported before the configuration is known to be valid, and nothing
but the standard library before `guarded`, which turns Ctrl-C into one line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from privrl_bench.cli.parsing import Parser, add_working_directory, given
from privrl_bench.errors import ConfigError
from privrl_bench.training.crash import guarded, version

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
    from privrl_bench.config.overrides import own_folder

    with own_folder(args.config_dir):
        return _run(args, words)


def _run(args: argparse.Namespace, words: list[str]) -> int:
    """Train, or let Hydra answer a question."""
    from privrl_bench.api.launch import columns, launch
    from privrl_bench.cli.outcomes import show
    from privrl_bench.composition import hydra_compose as config
    from privrl_bench.composition.plugins import load_given
    from privrl_bench.training import sweep as jobs

    load_given(args.overrides)
    if args.help or not (args.overrides or args.multirun or args.full or args.cfg or args.resolve):
        print(config.help_text())
        return 0
    if args.full:
        args.overrides.append("log.full=true")
    if args.hydra_help or args.info is not None or args.shell_completion:
        return _pass_on(words)
    if args.cfg is not None:
        overrides = config.hydra_overrides(args.overrides)
        config.compose_raw(overrides)
        return _pass_on([*(word for word in words if word not in args.overrides), *overrides])
    sweep = args.multirun or "hydra.mode=MULTIRUN" in args.overrides
    outcomes = launch(args.overrides, multirun=args.multirun)
    if not sweep:
        return outcomes[0].exit_code
    show(outcomes, columns(config.hydra_overrides(args.overrides)))
    return jobs.interruption(outcomes) or int(any(one.status == "failed" for one in outcomes))


# --- before anything runs


def _parse_args(words: list[str]) -> argparse.Namespace:
    """Return Hydra's flags and the overrides. Raises `ConfigError` for an unknown flag."""
    parser = Parser("privrl-bench", "", add_help=False)
    for names in SWITCHES:
        parser.add_argument(*names.split(), action="store_true")
    for names in (*OPTIONS, *UNSUPPORTED):
        parser.add_argument(*names.split())
    parser.add_argument("--full", action="store_true")
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
    import hydra

    from privrl_bench.composition import hydra_compose as config
    from privrl_bench.config.diagnostics import first_line
    from privrl_bench.config.overrides import CONFIG_NAME

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


if __name__ == "__main__":
    main()
