"""What leaves a run: the list of files is complete, and what is not on a list is refused or compared."""

from collections import deque

import numpy as np
import pytest
import torch

import privrl_bench as pb
from privrl_bench.audit.compare import distance
from privrl_bench.audit.outputs import as_bytes, folder_content, memory
from privrl_bench.config.schema import LogConfig
from privrl_bench.metrics import SUMMARY, check_summary
from privrl_bench.packs.tuning.search_leaks import SEARCH_FILES
from privrl_bench.training.folder import FILES, RunDir
from privrl_bench.training.loop import Experiment
from privrl_bench.training.wandb_logger import WandbLogger

RUN = [
    *("algo=dppg", "env=cartpole", "algo.hidden=[4]", "privacy.users_per_round=4"),
    *("env.user_steps=16", "env.max_episode_steps=30", "total_steps=256", "eval.episodes=2"),
    *("log.wandb=offline", "log.progress=false"),
]
SEARCH = ("algo.lr=loguniform(1e-3,1e-2)", "tune.score=public", "tune.runs=fixed(2)")


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_every_file_of_a_run_is_listed(tmp_path, monkeypatch):
    folder = pb.run([*RUN, f"hydra.run.dir={tmp_path}/done"], quiet=True).folder
    assert names(folder) <= set(FILES)
    machine = {name for name, who in FILES.items() if who == "machine"}
    assert names(folder) >= machine - {"budget.json"}  # of runs that are charged to one

    def fail(self):
        raise RuntimeError("planted")

    monkeypatch.setattr(Experiment, "_checkpoint", fail)
    with pytest.raises(pb.RunFailed):
        pb.run([*RUN, f"hydra.run.dir={tmp_path}/failed"], quiet=True)
    assert "error.txt" in names(tmp_path / "failed") <= set(FILES)


def test_every_file_of_a_search_is_listed(tmp_path):
    words = [word for word in RUN if not word.startswith("log.wandb")]
    folder = pb.tune([*words, *SEARCH, f"hydra.run.dir={tmp_path}/search"], quiet=True).folder
    assert set(SEARCH_FILES) - {"final"} <= names(folder) <= {*FILES, *SEARCH_FILES}


def test_every_file_of_a_text_run_is_listed(tmp_path, texts):
    words = [
        *("algo=dppg_text", "env=sentiment_small", *texts, "env.text.min_characters=0"),
        *("env.text.holdout=8", "env.text.new_tokens=4", "privacy.users_per_round=2"),
        *("algo.baseline_prompts=2", "eval.episodes=1", "env.text.prompt_tokens=[1,4]"),
        *("rounds=2", "log=none", f"hydra.run.dir={tmp_path}/text"),
    ]
    assert names(pb.run(words, quiet=True).folder) <= {*FILES, "adapter"}


def test_a_path_that_is_not_listed_is_refused(tmp_path):
    assert RunDir(tmp_path) / "summary.json" == tmp_path / "summary.json"
    with pytest.raises(KeyError, match=r"users\.csv is not among the files"):
        RunDir(tmp_path) / "users.csv"


def test_files_are_compared_unless_a_list_says_that_they_are_private(tmp_path):
    for name in (*FILES, "unknown.txt", "adapter"):
        (tmp_path / name).mkdir() if name in ("wandb", "adapter") else (tmp_path / name).write_text(
            "{}\n"
        )
    (tmp_path / "adapter" / "part.bin").write_bytes(b"x")
    torch.save({"actor": torch.zeros(2)}, tmp_path / "policy.pt")
    (tmp_path / "metrics.jsonl").write_text('{"train/return_mean": 1.0, "release/norm": 2.0}\n')
    found = folder_content(tmp_path, tmp_path)
    assert {"unknown.txt", "adapter/part.bin", "curve.png"} <= set(found["file"])
    assert set(found["metrics.jsonl"]) == {"release/norm"}
    assert set(found["policy.pt"]) == {"actor"}
    hidden = {name for name, who in FILES.items() if who in ("private", "machine")}
    assert not hidden & {*found, *found["file"]}


def test_wandb_refuses_a_summary_with_a_field_that_is_not_declared(tmp_path):
    known = dict.fromkeys(SUMMARY, 0.0)
    check_summary(known)
    logger = WandbLogger(LogConfig(wandb="none"), tmp_path, {}, {})
    with pytest.raises(KeyError, match=r"undeclared fields \['users'\]"):
        logger.finish(known | {"users": 3})


def test_the_name_of_a_folder_is_left_out(tmp_path):
    one, other = (as_bytes({"policy": f"{tmp_path}/{k}/run"}, tmp_path / k) for k in "ab")
    assert torch.equal(one, other)


def test_memory_reads_objects_collections_generators_and_closures():
    class Part:
        __slots__ = ("size",)

        def __init__(self):
            self.size = 3

    class Other(Part):
        __slots__ = "more"

    class Algo:
        pass

    def counter():
        seen = [0.0]
        return lambda: seen

    def held():
        algo = Algo()
        algo.left, algo.parts, algo.names = torch.ones(2), [Part(), torch.zeros(1)], {"b", "a"}
        algo.last, algo.other, algo.call = deque([1.0, 2.0], maxlen=2), Other(), counter()
        algo.net, algo.random = torch.nn.Linear(1, 1), np.random.default_rng(0)
        algo.draws, algo.objects = torch.Generator(), np.array([torch.ones(1), None], dtype=object)
        algo.itself, algo.many = algo, torch.zeros(1_000_001)
        with torch.no_grad():
            algo.net.weight.zero_(), algo.net.bias.zero_()
        return algo

    def differing(change):
        one, other = held(), held()
        change(other)
        a, b = memory(one), memory(other)
        return [name for name in {**a, **b} if distance(a.get(name), b.get(name)) is not None]

    assert not differing(lambda algo: None)
    assert differing(lambda algo: algo.left.add_(1)) == ["left"]
    assert differing(lambda algo: setattr(algo.parts[0], "size", 4)) == ["parts.0"]
    assert differing(lambda algo: setattr(algo.other, "more", 4)) == ["other"]
    assert differing(lambda algo: algo.last.append(3.0)) == ["last"]
    assert differing(lambda algo: algo.names.add("c")) == ["names"]
    assert differing(lambda algo: algo.call().append(1.0)) == ["call.cell0"]
    assert differing(lambda algo: algo.random.random()) == ["random"]
    assert differing(lambda algo: torch.rand(1, generator=algo.draws)) == ["draws.state"]
    assert differing(lambda algo: algo.net.bias.data.add_(1)) == ["net._parameters.bias"]
    assert differing(lambda algo: algo.objects[0].add_(1)) == ["objects.0"]
    assert differing(lambda algo: algo.many.add_(1)) == ["many"]
    assert differing(lambda algo: setattr(algo, "new", 1.0)) == ["new"]
