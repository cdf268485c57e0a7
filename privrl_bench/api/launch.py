"""From words to trained runs: Hydra composes the jobs and calls the launcher."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ValueType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import checked, compose
from privrl_bench.composition.hydra_files import composing, name_own_files
from privrl_bench.config.diagnostics import drawn, first_line
from privrl_bench.config.overrides import CONFIG_NAME, OWN_FOLDER, explicit_keys, own, own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.training import sweep as jobs
from privrl_bench.training.sweep import Job, Outcome

CHECKS_PER_VALUE = 16  # jobs of a sweep that are tried before one of its values is refused


def launch(
    words: Sequence[str], config_dir: str | None = None, multirun: bool = False
) -> list[Outcome]:
    """Check the words, then train what they ask for.

    Args:
        words: overrides, as on the command line.
        config_dir: a folder with YAML files, which win over the package's of their names.
        multirun: the words are a sweep.

    Returns:
        How each job ended, in order.

    Raises:
        ConfigError: nothing was trained: the words are wrong, or every job of a sweep was refused.
    """
    with own_folder(config_dir):
        overrides = config.hydra_overrides(words)
        config.register_algo(overrides)
        sweep = multirun or "hydra.mode=MULTIRUN" in overrides
        if sweep:
            check_sweep(overrides)
        else:
            check_hardware(compose(overrides))
        outcomes = _run(overrides, sweep)
    jobs.check_refused(outcomes)
    return outcomes


def check_sweep(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for a value of a sweep that is invalid in every job it takes part in.

    Each value is tried once, not each combination: an invalid combination fails alone, when it is started.
    """
    values = list(columns(overrides).values())
    if not values:
        _check_some_job([])
    for column in values:
        for word in column:
            _check_some_job([[word] if other is column else other for other in values])


def columns(overrides: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides of a sweep by key, one for each value. Raises `ConfigError`."""
    found: dict[str, list[str]] = {}
    for override in config.parse(overrides):
        key = override.get_key_element()
        if not override.is_sweep_override():
            found[key] = [override.input_line or ""]
        elif override.value_type is ValueType.GLOB_CHOICE_SWEEP:
            raise ConfigError(key, f"glob is not supported; write the names, {key}=a,b")
        elif override.value_type is ValueType.INTERVAL_SWEEP:
            raise drawn(key, override.get_value_string())
        else:
            found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not found[key]:
                raise ConfigError(key, f"{override.get_value_string()} is empty")
            values = list(override.sweep_iterator())
            if any(value in values[:i] for i, value in enumerate(values)):
                text = override.get_value_string()  # its runs would be equal and count as two
                raise ConfigError(key, f"{text} has a value twice; give each value once")
    return found


def _check_some_job(columns: list[list[str]]) -> None:
    """Raise the first job's `ConfigError` when none of the first few jobs is valid."""
    few = [column if len(column) <= 4 else column[:1] for column in columns]
    errors: list[ConfigError] = []
    for words in itertools.islice(itertools.product(*few), CHECKS_PER_VALUE):
        cfg = config.compose_raw(words)  # Hydra refuses all jobs for one typo: no retry
        try:
            return check_hardware(checked(cfg, explicit_keys(words)))
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _run(overrides: list[str], sweep: bool) -> list[Outcome]:
    """Run one job or a sweep. Raises `ConfigError` for what Hydra refuses."""
    from hydra_plugins.replicas_launcher import GridSweeper

    Plugins.instance().register(GridSweeper)  # Hydra's scan does not see an editable install
    with composing(job_name="privrl_bench"):
        app = GlobalHydra.instance().hydra
        assert app is not None
        try:
            if not sweep:
                return [app.run(CONFIG_NAME, _train, overrides).return_value]
            (batch,) = app.multirun(CONFIG_NAME, _train, overrides)
            return [one.return_value for one in batch]
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


def _train(cfg: DictConfig) -> Outcome:
    """Train the job of a composed configuration, which is alone.

    Raises:
        ConfigError: it is one of another sweeper, which may choose runs by their results.
    """
    if not OmegaConf.is_missing(HydraConfig.get().job, "num"):
        raise ConfigError("hydra/sweeper", "must be grid: no epsilon covers a choice of runs")
    job = prepare(cfg)
    return job if isinstance(job, Outcome) else jobs.train([job])[0]


def prepare(cfg: DictConfig) -> Job | Outcome:
    """Return the job of a configuration that Hydra composed, or the outcome of one that is refused."""
    info = HydraConfig.get()
    folder, words = Path(info.runtime.output_dir), list(info.overrides.task)
    number = 0 if OmegaConf.is_missing(info.job, "num") else int(info.job.num)
    sources = {one.provider: one.path for one in info.runtime.config_sources}

    def composed() -> RunConfig:
        # The process may be another launcher's, which has the search path only.
        with own_folder(own() or sources.get(OWN_FOLDER)):
            name_own_files(cfg, [*info.overrides.hydra, *words])
            return checked(cfg, explicit_keys(words))

    return jobs.prepare(composed, number, folder, words)


def prepare_in_sweep(cfg: DictConfig) -> Job | Outcome:
    """`prepare`, without the folder that Hydra makes at once: a run makes its own when it starts."""
    jobs.remove_empty(Path(HydraConfig.get().runtime.output_dir))
    return prepare(cfg)
