"""The command `privrl-bench`: checks the command line, then lets Hydra compose and start the jobs.

Exit codes: 0 done; 1 a run failed; 2 bad input, nothing was started; 130 or 143 interrupted.
Nothing heavy (torch, wandb, simulators) is imported before the configuration is known to be valid.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ValueType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from privrl_bench.cli.outcomes import show
from privrl_bench.cli.parsing import Parser, add_working_directory, given
from privrl_bench.config import compose as config
from privrl_bench.config.diagnostics import first_line
from privrl_bench.config.overrides import CONFIG_NAME, explicit_keys
from privrl_bench.errors import ConfigError
from privrl_bench.experiment.crash import guarded, version
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.sweep import jobs
from privrl_bench.sweep.jobs import Job, Outcome

# Hydra's flags.
SWITCHES = (
    *("--help -h", "--version", "--multirun -m", "--run -r", "--resolve", "--hydra-help"),
    "--shell-completion -sc",
)
OPTIONS = ("--package -p", "--config-dir -cd")
UNSUPPORTED = ("--config-name -cn", "--config-path -cp", "--experimental-rerun")
ABOUT = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")  # of --info
CHECKS_PER_VALUE = 16  # jobs of a sweep that are tried before one of its values is refused


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
    if args.help:
        print(config.help_text())
        return 0
    if args.hydra_help or args.info is not None or args.shell_completion:
        return _pass_on(words)
    overrides = config.settle(args.overrides)
    config.register_algo(overrides)
    if args.cfg is not None:
        config.compose_raw(overrides, args.config_dir)
        return _pass_on([*(word for word in words if word not in args.overrides), *overrides])
    sweep = args.multirun or "hydra.mode=MULTIRUN" in overrides
    if sweep:
        check_sweep(overrides, args.config_dir)
    else:
        check_hardware(config.compose(overrides, args.config_dir))
    outcomes = _run(overrides, args.config_dir, sweep)
    refused = [outcome.reason for outcome in outcomes if outcome.bad_input]
    if outcomes and len(refused) == len(outcomes):
        count = f" (and so are all {len(outcomes)} jobs)" if len(outcomes) > 1 else ""
        raise ConfigError("", f"{refused[0]}{count}")
    if not sweep:
        return outcomes[0].exit_code
    show(outcomes, columns(overrides))
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


def check_sweep(overrides: Sequence[str], config_dir: str | None = None) -> None:
    """Raise `ConfigError` for a value of a sweep that is invalid in every job it takes part in.

    Each value is tried once, not each combination: an invalid combination fails alone, when it is started.
    """
    values = columns(overrides)
    base = config.compose_raw([column[0] for column in values.values()], config_dir)
    explicit = explicit_keys(column[0] for column in values.values())
    if not values:
        check_hardware(config.to_run_config(base))
    for column in values.values():
        for word in column:
            try:
                check_hardware(config.replace(base, word, explicit))
            except ConfigError:
                others = [[word] if other is column else other for other in values.values()]
                _check_some_job(others, config_dir)


def columns(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides of a sweep by key, one for each value. Raises `ConfigError`."""
    found: dict[str, list[str]] = {}
    for override in config.parse(overrides):
        key = override.get_key_element()
        if not override.is_sweep_override():
            found[key] = [override.input_line or ""]
        elif override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            raise ConfigError(key, f"glob is not supported; write the names, {key}=a,b")
        else:
            found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not found[key]:
                raise ConfigError(key, f"{override.get_value_string()} is empty")
    return found


def _check_some_job(columns: list[list[str]], config_dir: str | None) -> None:
    """Raise the first job's `ConfigError` when none of the first few jobs is valid."""
    few = [column if len(column) <= 4 else column[:1] for column in columns]
    first_error = None
    for words in itertools.islice(itertools.product(*few), CHECKS_PER_VALUE):
        cfg = config.compose_raw(words, config_dir)  # Hydra refuses all jobs for one typo: no retry
        try:
            return check_hardware(config.to_run_config(cfg, explicit_keys(words)))
        except ConfigError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


# --- running


def _run(overrides: list[str], config_dir: str | None, sweep: bool) -> list[Outcome]:
    """Run one job or a sweep. Raises `ConfigError` for what Hydra refuses."""
    from hydra_plugins.replicas_launcher import GridSweeper, ReplicasLauncher

    for plugin in (GridSweeper, ReplicasLauncher):  # Hydra's scan does not see an editable install
        Plugins.instance().register(plugin)
    words = list(overrides)
    if config_dir is not None:
        words.append(f"hydra.searchpath=['file://{Path(config_dir).resolve()}']")
    with initialize_config_dir(
        str(config.conf_dir()), job_name="privrl_bench", version_base=config.VERSION_BASE
    ):
        app = GlobalHydra.instance().hydra
        assert app is not None
        try:
            if not sweep:
                return [app.run(CONFIG_NAME, TrainJob(), words).return_value]
            batches = app.multirun(CONFIG_NAME, TrainJob(), words)
            return [one.return_value for batch in batches for one in batch]
        except config.HYDRA_ERRORS as error:
            raise ConfigError("", first_line(error)) from error
        except OSError as error:
            if error.filename is None:
                raise
            # A job's own errors do not arrive here: Hydra could not make the job's folder.
            raise ConfigError(
                "hydra.sweep.dir" if sweep else "hydra.run.dir",
                f"cannot make the folder {error.filename}: {error.strerror}",
            ) from error


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


class TrainJob:
    """What Hydra calls for a job that is trained alone: the returned value is its `Outcome`."""

    def __init__(self) -> None:
        self._code = 0  # of the interruption after which no job is started

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Train the job of a composed configuration."""
        job = prepare(cfg)
        if isinstance(job, Outcome):
            return job
        if self._code:
            return jobs.not_started(job, self._code)
        (outcome,) = jobs.train([job])
        self._code = jobs.interruption([outcome])
        return outcome


def prepare(cfg: DictConfig) -> Job | Outcome:
    """Return the job of a configuration that Hydra composed, or the outcome of one that is refused."""
    info = HydraConfig.get()
    folder, words = Path(info.runtime.output_dir), list(info.overrides.task)
    number = 0 if OmegaConf.is_missing(info.job, "num") else int(info.job.num)
    return jobs.prepare(
        lambda: config.to_run_config(cfg, explicit_keys(words)), number, folder, words
    )


def prepare_in_sweep(cfg: DictConfig) -> Job | Outcome:
    """`prepare`, without the folder that Hydra makes at once: a run makes its own when it starts."""
    jobs.remove_empty(Path(HydraConfig.get().runtime.output_dir))
    return prepare(cfg)


if __name__ == "__main__":
    main()
