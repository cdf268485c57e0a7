"""From words to trained runs: Hydra composes the jobs and calls the launcher."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override, ValueType
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import checked, compose, replaced
from privrl_bench.composition.hydra_files import composing, name_own_files
from privrl_bench.config.diagnostics import drawn, first_line
from privrl_bench.config.overrides import CONFIG_NAME, OWN_FOLDER, explicit_keys, own, own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import check_hardware
from privrl_bench.training import sweep as jobs
from privrl_bench.training.sweep import Job, Outcome

_GRIDS = ("GridSweeper", "BasicSweeper")  # sweepers whose jobs do not depend on results
ended: list[Outcome] = []  # jobs of this sweep, for sweepers that return nothing
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
    refused = [outcome.reason for outcome in outcomes if outcome.bad_input]
    if outcomes and len(refused) == len(outcomes):
        reasons = list(dict.fromkeys(refused))
        other = f"; another reason: {reasons[1]}" if len(reasons) > 1 else ""
        count = f" (all {len(refused)} jobs were refused{other})" if len(refused) > 1 else ""
        raise ConfigError("", f"{reasons[0]}{count}")
    return outcomes


def check_sweep(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for a value of a sweep that is invalid in every job it takes part in.

    Each value is tried once, not each combination: an invalid combination fails alone, when it is started.
    """
    values = columns(overrides)
    base = config.compose_raw([column[0] for column in values.values()])
    explicit = explicit_keys(column[0] for column in values.values())
    if not values:
        check_hardware(checked(base))
    for column in values.values():
        for word in column:
            try:
                check_hardware(replaced(base, [word], explicit))
            except ConfigError:
                others = [[word] if other is column else other for other in values.values()]
                _check_some_job(others)


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
            found[key] = _ends(override, overrides)
        else:
            found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not found[key]:
                raise ConfigError(key, f"{override.get_value_string()} is empty")
            _check_distinct(key, found[key])
    return found


def _check_distinct(key: str, words: Sequence[str]) -> None:
    """Check that a sweep has no value twice: its runs would be equal and count as two.

    Raises:
        ConfigError: names the values, which may be two spellings of one number.
    """
    seen: dict[object, str] = {}
    for word in words:
        text = word.partition("=")[2]
        try:
            value: object = float(text)
        except ValueError:
            value = text
        if value in seen:
            same = (
                f"{text} twice"
                if seen[value] == text
                else f"{seen[value]} and {text}, which are equal"
            )
            raise ConfigError(key, f"the sweep has {same}; give each value once")
        seen[value] = text


def _ends(override: Override, overrides: Sequence[str]) -> list[str]:
    """Both ends of an interval, for a sweeper that draws from it. Raises `ConfigError`: the grid does not."""
    key, value = override.get_key_element(), cast(Any, override.value())
    own = [word for word in overrides if word.startswith("hydra/sweeper=")]
    if not own or own[-1] == "hydra/sweeper=grid":
        raise drawn(key, override.get_value_string())
    return [f"{key}={value.start}", f"{key}={value.end}"]


def _check_some_job(columns: list[list[str]]) -> None:
    """Raise the first job's `ConfigError` when none of the first few jobs is valid."""
    few = [column if len(column) <= 4 else column[:1] for column in columns]
    first_error = None
    for words in itertools.islice(itertools.product(*few), CHECKS_PER_VALUE):
        cfg = config.compose_raw(words)  # Hydra refuses all jobs for one typo: no retry
        try:
            return check_hardware(checked(cfg, explicit_keys(words)))
        except ConfigError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _run(overrides: list[str], sweep: bool) -> list[Outcome]:
    """Run one job or a sweep. Raises `ConfigError` for what Hydra refuses."""
    from hydra_plugins.replicas_launcher import GridSweeper, ReplicasLauncher

    for plugin in (GridSweeper, ReplicasLauncher):  # Hydra's scan does not see an editable install
        Plugins.instance().register(plugin)
    with composing(job_name="privrl_bench"):
        app = GlobalHydra.instance().hydra
        assert app is not None
        try:
            if not sweep:
                return [app.run(CONFIG_NAME, TrainJob(), overrides).return_value]
            ended.clear()
            batches = app.multirun(CONFIG_NAME, TrainJob(), overrides)
            if batches is None:  # of a sweeper that returns nothing
                return list(ended)
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
        ended.append(outcome)
        return outcome


def prepare(cfg: DictConfig) -> Job | Outcome:
    """Return the job of a configuration that Hydra composed, or the outcome of one that is refused."""
    info = HydraConfig.get()
    folder, words = Path(info.runtime.output_dir), list(info.overrides.task)
    number = 0 if OmegaConf.is_missing(info.job, "num") else int(info.job.num)
    sources = {one.provider: one.path for one in info.runtime.config_sources}

    def labelled() -> RunConfig:
        # The process may be another launcher's, which has the search path only.
        with own_folder(own() or sources.get(OWN_FOLDER)):
            name_own_files(cfg, [*info.overrides.hydra, *words])
            return _labelled(checked(cfg, explicit_keys(words)), info)

    return jobs.prepare(labelled, number, folder, words)


def _labelled(run: RunConfig, info: Any) -> RunConfig:
    """With the caveat of a search, if a sweeper other than the package's own may choose runs by results."""
    sweeper, alone = str(info.sweeper._target_), OmegaConf.is_missing(info.job, "num")
    if alone or sweeper.rpartition(".")[2] in _GRIDS:
        return run
    return replace(run, search=f"no epsilon covers all of them ({sweeper})")


def prepare_in_sweep(cfg: DictConfig) -> Job | Outcome:
    """`prepare`, without the folder that Hydra makes at once: a run makes its own when it starts."""
    jobs.remove_empty(Path(HydraConfig.get().runtime.output_dir))
    return prepare(cfg)
