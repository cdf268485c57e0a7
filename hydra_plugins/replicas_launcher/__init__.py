"""Sweeps: jobs that differ in seed and z are trained together, in groups.

Hydra finds plugins in the namespace package `hydra_plugins`. This one turns what Hydra composes into jobs
of privrl_bench; grouping and processes are in `privrl_bench/training/sweep.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from privrl_bench.composition.plugins import additions, restore
from privrl_bench.training.sweep import Job, Outcome


class GridSweeper(Sweeper):
    """Composes every combination of the values once, then trains all of them as one sweep.

    With `hydra/launcher=basic`, the default, that is in this process and its workers. Another launcher
    (`joblib`, `ray`, `submitit_slurm`) gets one task for each group of jobs.
    """

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra."""
        self._context, self._config = hydra_context, config
        self._groups = TrainGroup()
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=self._groups, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Train one job for each combination. Called by Hydra with the overrides.

        Returns: one batch; what each job returned is its `Outcome`.
        """
        from privrl_bench.api.launch import columns
        from privrl_bench.training.sweep import run_jobs

        words = [list(words) for words in itertools.product(*columns(arguments).values())]
        returns = compose_jobs(self._context, self._config, words)
        jobs = [ret.return_value for ret in returns if isinstance(ret.return_value, Job)]
        here = isinstance(self.launcher, BasicLauncher)
        outcomes = run_jobs(jobs) if here else self._launch(jobs, words)
        found = {outcome.number: outcome for outcome in outcomes}
        for number, ret in enumerate(returns):
            ret.return_value = found.get(number, ret.return_value)
        return [returns]

    def _launch(self, jobs: list[Job], words: list[list[str]]) -> list[Outcome]:
        """Train jobs with the launcher, a task for each group."""
        from privrl_bench.training.sweep import schedule

        assert self.launcher is not None
        self._groups.groups = schedule(jobs)
        print(
            f"sweep   {len(jobs)} jobs in {len(self._groups.groups)} tasks of the launcher",
            flush=True,
        )
        first = [words[group[0].number] for group in self._groups.groups]  # names the task
        tasks = self.launcher.launch(first, initial_job_idx=0)
        return [one for task in tasks for one in task.return_value]


class TrainGroup:
    """The task of another launcher: trains the group that has the task's number.

    Attributes:
        groups: of the sweep.
    """

    def __init__(self) -> None:
        self.groups: list[list[Job]] = []
        self._outside = additions()

    def __call__(self, cfg: DictConfig) -> list[Outcome]:
        """Train a group. The rounds of a group have one process, unless `hardware.workers` gives more."""
        from privrl_bench.kernels.machine import use_cores
        from privrl_bench.training.sweep import train

        restore(self._outside)
        group = self.groups[int(HydraConfig.get().job.num)]
        use_cores(group[0].config.hardware.workers or 1)
        return train(group)


def compose_jobs(
    context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]]
) -> list[JobReturn]:
    """Compose the jobs of a sweep: each returns a `Job`, or the `Outcome` of one that is refused."""
    from privrl_bench.api.launch import prepare_in_sweep

    setup_globals()
    returns: list[JobReturn] = []
    for number, overrides in enumerate(job_overrides):
        job = context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(job):
            job.hydra.job.id = job.hydra.job.num = number
        returns.append(
            run_job(
                hydra_context=context,
                task_function=prepare_in_sweep,
                config=job,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        )
        if len(returns) % 10 == 0:  # a third of a second for each job
            print(f"sweep   {len(returns)} jobs composed", file=sys.stderr, flush=True)
    return returns
