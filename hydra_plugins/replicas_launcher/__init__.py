"""`hydra/launcher=replicas`: the jobs of a sweep that differ in seed and z are trained together.

Hydra finds launchers in the namespace package `hydra_plugins`. This one only turns Hydra's jobs into
privrl_bench's and hands them over; grouping and processes are in `privrl_bench/sweep/grouping.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class ComposedJobs:
    """Hydra's sweeper composes every job to see whether it can be; this keeps what it composed.

    Composing takes a third of a second for each job, so a large sweep says how far it is.
    """

    def __init__(self, load: Callable[[DictConfig, list[str]], DictConfig]):
        self._load = load
        self._kept: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The sweeper's call."""
        job = self._load(master_config, sweep_overrides)
        self._kept[tuple(sweep_overrides)] = job
        if len(self._kept) % 10 == 0:
            print(f"sweep   {len(self._kept)} jobs composed", file=sys.stderr, flush=True)
        return job

    def take(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        """The configuration of a job, to be changed by whoever takes it."""
        kept = self._kept.pop(tuple(overrides), None)
        return self._load(master, overrides) if kept is None else kept


class ReplicasLauncher(Launcher):
    """Composes every job as the basic launcher does, then trains all of them as one sweep."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra. `task_function` is not used: it would train one job."""
        self._context = hydra_context
        self._config = config
        self._jobs = ComposedJobs(hydra_context.config_loader.load_sweep_config)
        hydra_context.config_loader.load_sweep_config = self._jobs  # type: ignore[method-assign]

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Called by Hydra with the overrides of all jobs. Raises SystemExit when interrupted."""
        from privrl_bench.sweep.grouping import run_jobs

        setup_globals()
        returns = []
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            job = self._jobs.take(self._config, list(overrides))
            with open_dict(job):
                job.hydra.job.id = job.hydra.job.num = number
            returns.append(
                run_job(
                    hydra_context=self._context,
                    task_function=_prepare,
                    config=job,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                )
            )
        code = run_jobs([ret.return_value for ret in returns if ret.return_value is not None])
        if code:
            raise SystemExit(code)
        return returns


def _prepare(cfg: DictConfig) -> object:
    """The job of a composed configuration; None when it is refused."""
    from privrl_bench.config import compose as config
    from privrl_bench.config.overrides import explicit_keys
    from privrl_bench.sweep.jobs import prepare, remove_empty

    info = HydraConfig.get()
    folder = Path(info.runtime.output_dir)
    remove_empty(folder)  # Hydra makes it at once; a run makes its own when its turn comes
    words = list(info.overrides.task)
    explicit = explicit_keys(words)
    return prepare(lambda: config.to_run_config(cfg, explicit), int(info.job.num), folder, words)
