"""The code and the commands of docs/own_data.md."""

import re
import shlex
from pathlib import Path

import pytest

from privrl_bench.cli import main as privrl
from privrl_bench.packs.offline.datasets.minari_files import local_ids, open_dataset

GUIDE = (Path(__file__).parents[3] / "docs" / "own_data.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_makes_datasets_that_the_commands_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    exec(compile(code, "own_data.md", "exec"), {})
    assert local_ids() == ["mine/cartpole-v0", "mine/pendulum-v0"]
    found = open_dataset("mine/cartpole-v0")
    assert (found.episodes, found.user_key, max(found.users)) == (200, "user", 99)
    commands = re.findall(r"^    privrl-bench (.*)$", GUIDE, re.M)
    assert [command.split()[0] for command in commands] == ["algo=gpope", "algo=primorl"]
    for command in commands:
        assert privrl.main(["plan", *shlex.split(command)]) == 0
        assert "users in all" in capsys.readouterr().out
    (command,) = re.findall(r"`privrl (collect .*?episodes=.*?)`", GUIDE)
    assert privrl.main(command.replace("episodes=60", "episodes=2").split()) == 0
    assert "mine/random-v0" in local_ids()
