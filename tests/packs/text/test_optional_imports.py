"""The core works without the extra `rlhf`, and a run loads no more of the packs than what they declare."""

import json
import subprocess
import sys

import pytest

OPTIONAL = (
    "privrl_bench.packs.text.",
    "privrl_bench.packs.offline.ope.",
    "privrl_bench.packs.imitations.dqn_replay",  # its mechanisms are declarations, which are read
    "privrl_bench.packs.tuning.",
)
TEMPLATE = """
import importlib, json, sys
for name in ("transformers", "tokenizers", "peft"):
    sys.modules[name] = None  # an import raises ImportError
{body}
print(json.dumps([m for m in sys.modules if m.startswith({optional!r})]))
"""
RUN = """
import privrl_bench
from privrl_bench.cli.train import main
sys.argv = ["privrl-bench", *{arguments!r}]
try:
    code = main()
except SystemExit as error:
    code = error.code
assert not code, code
"""
LAYERS = """
import privrl_bench, privrl_bench.envs.registry, privrl_bench.algorithms
import privrl_bench.models.policy, privrl_bench.packs.offline.datasets.minari_files
from privrl_bench.algorithms.registry import algorithm
for name in ("dppg", "ppo", "dppg_l2", "dppg_kl"):
    algorithm(name)
"""


def loaded(body, folder):
    """Optional modules that a new process without the extra has loaded after `body`."""
    code = TEMPLATE.format(body=body, optional=OPTIONAL)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_of(folder):
    small = [
        "algo=dppg",
        "env=cartpole",
        "rounds=1",
        "privacy.users_per_round=4",
        "env.user_steps=8",
    ]
    return RUN.format(arguments=[*small, "eval.episodes=1", f"hydra.run.dir={folder}/run"])


@pytest.mark.slow
def test_environments_and_algorithms_do_not_load_optional_code(tmp_path):
    assert loaded(LAYERS, tmp_path) == []


@pytest.mark.slow
def test_a_run_works_without_the_extra_and_loads_no_optional_code(tmp_path):
    assert loaded(run_of(tmp_path), tmp_path) == []
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "done"
