"""`hydra/launcher=replicas`: the jobs of a sweep that differ in seed and z are trained together.

Hydra finds plugins in the namespace package `hydra_plugins`. These two turn what Hydra composes into jobs
of privrl_bench; grouping and processes are in `privrl_bench/sweep/`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class GridSweeper(Sweeper):
    """Every combination of the values. Unlike Hydra's own sweeper it leaves composing to the launcher."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra."""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Launch one job for each combination. Called by Hydra with the overrides."""
        from privrl_bench.cli.train import columns

        jobs = [list(words) for words in itertools.product(*columns(arguments).values())]
        assert self.launcher is not None
        return [self.launcher.launch(jobs, initial_job_idx=0)]


class ReplicasLauncher(Launcher):
    """Composes every job as Hydra's basic launcher does, then trains all of them as one sweep."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra. `task_function` is not used: it would train one job."""
        self._context = hydra_context
        self._config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Called by Hydra with the overrides of all jobs. Each returns its `Outcome`."""
        from privrl_bench.cli.train import prepare_in_sweep
        from privrl_bench.sweep.jobs import Job
        from privrl_bench.sweep.workers import run_jobs

        setup_globals()
        returns: list[JobReturn] = []
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            job = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            with open_dict(job):
                job.hydra.job.id = job.hydra.job.num = number
            returns.append(
                run_job(
                    hydra_context=self._context,
                    task_function=prepare_in_sweep,
                    config=job,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                )
            )
            if len(returns) % 10 == 0:  # a third of a second for each job
                print(f"sweep   {len(returns)} jobs composed", file=sys.stderr, flush=True)
        jobs = [ret.return_value for ret in returns if isinstance(ret.return_value, Job)]
        outcomes = {outcome.number: outcome for outcome in run_jobs(jobs)}
        for number, ret in enumerate(returns, start=initial_job_idx):
            ret.return_value = outcomes.get(number, ret.return_value)
        return returns
