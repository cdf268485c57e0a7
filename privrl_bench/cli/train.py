"""The command `privrl-bench`: checks every word of the command line, then lets Hydra run the jobs.

Exit codes: 0 done; 1 a run failed; 2 bad input, nothing was started; 130 or 143 interrupted.
Nothing heavy (torch, wandb, simulators) is imported before the configuration is known to be valid.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ValueType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from privrl_bench.config import compose as config
from privrl_bench.config import diagnostics as mistakes
from privrl_bench.config.overrides import explicit_keys, settle
from privrl_bench.errors import ConfigError
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.experiment.crash import guarded, one_line
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.metrics import shown_epsilon
from privrl_bench.sweep import jobs
from privrl_bench.sweep.jobs import Outcome

CHECKS_PER_VALUE = 16  # jobs of a sweep that are tried before one of its values is called wrong


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Always leaves through `SystemExit`."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # env.id=my_pkg:MyEnv-v0 finds a package in this folder
    words = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _main(words)))


def _main(words: list[str]) -> int:
    flags, overrides = _split(words)
    args = _parse_args([*flags, *overrides])
    if args.help:
        print(config.help_text())
        return 0
    if args.hydra_help or args.info is not None or args.shell_completion:
        return _enter_hydra(words)
    given = set(args.overrides)  # argparse leaves words without "=" among the flags
    flags = [word for word in flags if word not in given]
    overrides = settle(args.overrides)
    words = [*flags, *overrides]
    config.register_algo(overrides)
    if args.cfg is not None:
        config.compose_raw(overrides, args.config_dir)
        return _enter_hydra(words)
    sweep = args.multirun or "hydra.mode=MULTIRUN" in overrides
    if sweep:
        check_sweep(overrides, args.config_dir)
    else:
        check_hardware(config.compose(overrides, args.config_dir))
    with results_file() as path:
        code = _enter_hydra(words)
        outcomes = jobs.recorded(path)
    return finish_sweep(outcomes, code) if sweep else finish_run(outcomes, code)


# --- before anything runs


def check_sweep(overrides: Sequence[str], config_dir: str | None = None) -> None:
    """Raise `ConfigError` for a value of a sweep that is wrong in every job it takes part in.

    Each value is tried once, not each combination: a combination that has no meaning fails alone,
    when its turn comes.
    """
    columns: dict[str, list[str]] = {}
    for override in mistakes.parse(overrides):
        key = override.get_key_element()
        if not override.is_sweep_override():
            columns[key] = [override.input_line or ""]
        elif override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            raise ConfigError(key, f"glob is not supported; write the names, {key}=a,b")
        elif override.is_discrete_sweep():
            columns[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not columns[key]:
                raise ConfigError(key, f"{override.get_value_string()} is empty")
    base = config.compose_raw([column[0] for column in columns.values()], config_dir)
    explicit = explicit_keys(column[0] for column in columns.values())
    if not columns:
        check_hardware(config.to_run_config(base))
    for column in columns.values():
        for word in column:
            try:
                check_hardware(config.replace(base, word, explicit))
            except ConfigError:
                others = [[word] if other is column else other for other in columns.values()]
                _check_some_job(others, config_dir)


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


def _parse_args(words: list[str]) -> Any:
    """Hydra's flags and the overrides. Raises `ConfigError` for a flag that does not exist."""
    if "--version" in words:
        print(f"privrl-bench {_version()}")
        raise SystemExit(0)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            args = get_args_parser().parse_args(words)
    except SystemExit:
        text = complaint.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError("", f"{text}; see privrl-bench --help") from None
    if args.package is not None and args.cfg is None:
        raise ConfigError("--package", "goes with --cfg; see privrl-bench --help")
    if args.multirun and args.cfg is not None:
        raise ConfigError("--cfg", "shows one run, and -m is a sweep; leave -m out")
    for name in ("config_name", "config_path", "experimental_rerun"):
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(flag, "is not supported; --config-dir adds a folder of YAML files")
    return args


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags and overrides, so that `seed=1 -m env=a,b` is understood as well."""
    overrides = [w for w in words if w.startswith("~") or ("=" in w and not w.startswith("-"))]
    return [word for word in words if word not in overrides], overrides


def _version() -> str:
    try:
        return importlib.metadata.version("privrl_bench")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


# --- running


def _enter_hydra(words: list[str]) -> int:
    """Run Hydra's own main on `words`. Raises `ConfigError` for what Hydra refuses."""
    decorate = hydra.main(
        version_base=config.VERSION_BASE,
        config_path=str(config.conf_dir()),
        config_name=mistakes.CONFIG_NAME,
    )
    saved = sys.argv
    sys.argv = ["privrl-bench", *words]
    _register_launcher()
    try:
        with _environment("HYDRA_FULL_ERROR", "1"):  # errors arrive here instead of being printed
            decorate(job)()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except KeyboardInterrupt:
        return 130
    except mistakes.HYDRA_ERRORS as error:
        raise ConfigError("", mistakes.first_line(error)) from error
    except OSError as error:
        if error.filename is None:
            raise
        # A job's own errors do not arrive here: Hydra could not make the job's folder.
        key = "hydra.sweep.dir" if "-m" in words or "--multirun" in words else "hydra.run.dir"
        raise ConfigError(
            key, f"cannot make the folder {error.filename}: {error.strerror}"
        ) from error
    finally:
        sys.argv = saved
    return 0


def _register_launcher() -> None:
    """Hydra finds the launcher in an installed wheel; its scan does not see an editable install."""
    from hydra_plugins.replicas_launcher import ReplicasLauncher

    Plugins.instance().register(ReplicasLauncher)


def job(cfg: DictConfig) -> None:
    """One job by itself. Its outcome goes to the results file; only an interruption raises."""
    info = HydraConfig.get()
    folder, words = Path(info.runtime.output_dir), list(info.overrides.task)
    number = 0 if OmegaConf.is_missing(info.job, "num") else int(info.job.num)
    one = jobs.prepare(
        lambda: config.to_run_config(cfg, explicit_keys(words)), number, folder, words
    )
    if one is None:
        return
    outcomes = jobs.train([one])
    for outcome in outcomes:
        jobs.record(outcome)
    if code := jobs.interruption(outcomes):
        raise SystemExit(code)  # starts no further jobs


@contextlib.contextmanager
def results_file() -> Iterator[Path]:
    """A file where jobs leave their outcomes while the block runs (`jobs.recorded`)."""
    with tempfile.TemporaryDirectory(prefix="privrl_bench_") as folder:
        path = Path(folder) / "results.jsonl"
        path.touch()
        with _environment(jobs.RESULTS_FILE, str(path)):
            yield path


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# --- afterwards


def finish_run(outcomes: list[Outcome], code: int) -> int:
    """Exit code of a lone run. Raises `ConfigError` for bad input found while building."""
    if outcomes and outcomes[0].bad_input:
        raise ConfigError("", outcomes[0].reason)
    return outcomes[0].exit_code if outcomes else code


def finish_sweep(outcomes: list[Outcome], code: int) -> int:
    """Print the table of a sweep and return its exit code. Raises `ConfigError` if every job is refused."""
    if outcomes and all(outcome.bad_input for outcome in outcomes):
        for outcome in outcomes:
            jobs.remove_empty(Path(outcome.folder), "multirun.yaml")
        count = f" (and so are all {len(outcomes)} jobs)" if len(outcomes) > 1 else ""
        raise ConfigError("", f"{outcomes[0].reason}{count}")
    print(report(outcomes))
    if code:
        return code
    return int(any(outcome.status == "failed" for outcome in outcomes))


def report(outcomes: list[Outcome]) -> str:
    """A table with one line per job: folder, status, mean return, epsilon, reason."""
    measures = [objective_of(outcome.summary) for outcome in outcomes]
    names = "/".join(dict.fromkeys(measure.name for measure in measures))
    rows = [("folder", "status", names, "epsilon", "reason")]
    rows += [
        (
            _short(outcome.folder),
            outcome.status,
            _number((outcome.summary.get(measure.name) or {}).get("mean")),
            _epsilon(outcome.summary.get("epsilon")),
            one_line(outcome.reason),
        )
        for outcome, measure in zip(outcomes, measures, strict=True)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join(
            [
                *(cell.ljust(width) for cell, width in zip(row, widths, strict=False)),
                row[4],
            ]
        )
        for row in rows
    ]
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    done = f"{len(outcomes)} jobs, {failed} failed"
    return "\n".join(["", *(line.rstrip() for line in lines), done])


def _number(value: Any) -> str:
    if isinstance(value, str):  # summaries may hold "inf", which JSON has no number for
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{float(value):.4g}"


def _epsilon(value: Any) -> str:
    return shown_epsilon(value) if isinstance(value, float) else _number(value)


def _short(folder: str) -> str:
    """The folder as seen from here, when it lies below."""
    path, here = Path(folder), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else folder


if __name__ == "__main__":
    main()
