"""The command of `privrl collect` that makes a dataset."""

from __future__ import annotations

import re

import yaml

from privrl_bench.config.overrides import choices, file_of

_COLLECTORS = ("ddpg", "sac", "ppo", "a2c")


def collect_command(dataset_id: str) -> str | None:
    """The command that makes a dataset of this id; None if the id does not name an environment of the package.

    >>> collect_command("pendulum/ddpg-v0")
    'privrl collect +collect=primorl env=pendulum'
    >>> collect_command("cartpole/ppo-v0")
    'privrl collect env=cartpole algo=ppo name=cartpole/ppo-v0'
    """
    for preset in choices("collect"):
        path = file_of("collect", preset)
        datasets = {} if path is None else yaml.safe_load(path.read_text())
        for env, made in datasets.items():
            if made.get("name") == dataset_id:
                return f"privrl collect +collect={preset} env={env}"
    parts = re.fullmatch(r"([a-z0-9-]+)/([a-z0-9-]+)-v\d+", dataset_id)
    env = parts[1].replace("-", "_") if parts else ""
    if parts is None or env not in choices("env"):
        return None
    algo = f" algo={parts[2]}" if parts[2] in _COLLECTORS else ""
    return f"privrl collect env={env}{algo} name={dataset_id}"
