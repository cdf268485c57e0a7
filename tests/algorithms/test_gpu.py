"""The same training on a GPU as on the CPU, and twice the same on a GPU. Skipped where there is none."""

import json
from dataclasses import replace

import pytest
import test_user_ensemble as ensembles
import test_user_training as local
import text_runs
import torch
from offline_runs import assert_same
from offline_runs import config_of as offline_config

import privrl_bench as pb
from privrl_bench.algorithms.policy_gradient.user_training import (
    UserOptimizerConfig,
    UserTrainer,
)
from privrl_bench.audit.leaks import find_leaks
from privrl_bench.audit.shrink import shrink
from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import noise_key
from privrl_bench.functional.optim import adam_start
from privrl_bench.packs.offline.model_based import user_ensemble
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SMALL = (
    *("algo.hidden=[8,5]", "privacy.users_per_round=6", "eval.episodes=1", "eval.every=0"),
    *("log=none", "log.plot=false", "log.progress=false", "total_steps=10000", "seed=3"),
)
NO_NOISE = "privacy.z=0"  # seeded noise depends on the device, which is part of a run's identity
RUNS = {
    "discrete actions": "algo=dppg env=cartpole env.user_steps=32",
    "boxes, shared critic": "algo=dppg env=pendulum env.user_steps=32 algo.critic=shared env.user=segment",
    "private critic": "algo=dppg env=cartpole env.user_steps=32 algo.critic=private",
    "worlds": "algo=dppg env=cartpole env.user_steps=32 env.backend=torch",
    "worlds, boxes": "algo=dppg env=pendulum env.user_steps=32 env.backend=torch",
    "all steps at once": "algo=ppo env=pendulum privacy.users_per_round=1 env.user_steps=128",
}
TEXTS = {
    "dppg": ("dppg",),
    "dppg, LoRA": ("dppg", "algo.adapter=lora", "algo.rank=2", "algo.lora_trains=both"),
    "ppo": ("ppo",),
}


def of(words, device):
    """A composed run on a device, without noise."""
    given = [*words.split(), NO_NOISE]
    keys = {word.partition("=")[0] for word in given}
    kept = (word for word in SMALL if word.partition("=")[0] not in keys)
    config = compose([*kept, *given])
    return replace(config, hardware=replace(config.hardware, device=device))


def ended(configs, rounds=3):
    """Tensors after some rounds."""
    one = Trainer(make_plan(configs))
    for _ in range(rounds):
        one.step()
    one.close()
    return one.state.tensors


def assert_close(a, b):
    """Equal up to rounding. Adam's first steps have the size of lr, so a few numbers may differ by more."""
    assert a.keys() == b.keys()
    gaps = {}
    for name, x in a.items():
        y = b[name]
        assert y.device == x.device
        if x.is_floating_point():
            assert torch.equal(x.isnan(), y.isnan()), name
            x, y = x.nan_to_num(), y.nan_to_num()
            gaps[name] = float((y - x).norm() / x.norm().clamp_min(1e-12))
    assert max(gaps.values()) < 0.01, gaps


@pytest.mark.parametrize("name", local.OBJECTIVES)
@pytest.mark.parametrize("radius", [0.03, 100.0])
@pytest.mark.parametrize("plain", [False, True])
def test_user_training(name, radius, plain):
    objective = local.OBJECTIVES[name]
    start, data, order = local.problem(objective)
    optimizer = UserOptimizerConfig(order, 1e-2, radius, adam_start(start), plain)
    found, expected = (UserTrainer(objective, d)(start, data, optimizer) for d in (GPU, "cpu"))
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-5)
    assert (found.norm(dim=-1) <= radius * (1 + 1e-5)).all()


@pytest.mark.parametrize("adam", [False, True])
def test_user_training_of_an_ensemble(adam):
    ensemble = ensembles.small()
    start, replica, data, order = ensembles.problem(ensemble)
    config = ensembles.settings_of(1e-2, 1e-3, adam)
    clip = user_ensemble.clipping(ensemble, "layer", 0.3)
    found, expected = (
        user_ensemble.train(ensemble, start, replica, data, order, config, clip, device)
        for device in (GPU, "cpu")
    )
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name", RUNS)
def test_rounds_of_simulated_users(name):
    words = RUNS[name]
    found = ended([of(words, GPU)])
    assert_same(found, ended([of(words, GPU)]))
    assert_close(ended([of(words, "cpu")]), found)


def test_rounds_in_worlds_of_warp_are_the_same_from_run_to_run():
    pytest.importorskip("mujoco_warp")
    words = "algo=dppg env=hopper env.user_steps=32 env.backend=warp"
    assert_same(ended([of(words, GPU)]), ended([of(words, GPU)]))


@pytest.mark.parametrize("name", ["worlds", "worlds, boxes"])
def test_shards_of_worlds_do_not_change_a_bit(name):
    whole = of(f"{RUNS[name]} privacy.users_per_round=70000 total_steps=7000000", GPU)
    parts = replace(whole, hardware=replace(whole.hardware, shard_users=9000))
    assert_same(ended([whole], 1), ended([parts], 1))


def test_replicas_that_are_trained_together():
    words = RUNS["boxes, shared critic"]
    seeds = [replace(of(words, GPU), seed=s) for s in (3, 4)]
    together = ended(seeds)
    for r, config in enumerate(seeds):
        alone = ended([config])
        assert_close({k: x[0] for k, x in alone.items()}, {k: x[r] for k, x in together.items()})


def test_rounds_on_a_dataset(sets, monkeypatch):
    """With the same participants: they are drawn by the run's identity, which has the device."""
    on_cpu = offline_config("primorl", sets, NO_NOISE)
    monkeypatch.setattr("privrl_bench.training.plan.noise_key", lambda config: noise_key(on_cpu))

    def played(device):
        return ended([replace(on_cpu, hardware=replace(on_cpu.hardware, device=device))])

    found = played(GPU)
    assert_same(found, played(GPU))
    assert_close(played("cpu"), found)


@pytest.mark.parametrize("name", TEXTS)
def test_rounds_of_texts(texts, name):
    algo, *words = TEXTS[name]

    def played(device):
        config = text_runs.config_of(texts, algo, *words, NO_NOISE)
        return ended([replace(config, hardware=replace(config.hardware, device=device))])

    found = played(GPU)
    assert_same(found, played(GPU))
    assert_close(played("cpu"), found)


@pytest.mark.parametrize("name", ["boxes, shared critic", "private critic", "worlds"])
def test_no_other_paths(name):
    """The leak test finds on the GPU what it finds on the CPU."""
    on_gpu, on_cpu = (find_leaks(shrink(of(RUNS[name], d))[0], late=False) for d in (GPU, "cpu"))
    assert set(on_gpu.found) == set(on_cpu.found) == set(on_gpu.declared)
    assert on_gpu.ok
    assert not on_gpu.no_test_power


def test_no_other_paths_of_texts(texts):
    config = text_runs.config_of(texts, "dppg")
    config = replace(config, hardware=replace(config.hardware, device=GPU))
    report = find_leaks(shrink(config)[0], late=False)
    assert report.ok
    assert not report.no_test_power


def test_a_run_and_its_folder(tmp_path):
    """A whole run as a user starts it: where it was computed and its epsilon."""
    words = "algo=dppg env=cartpole total_steps=60_000 log=none eval.episodes=2 privacy.z=1"
    found = {
        device: pb.run(f"{words} hardware={device} hydra.run.dir={tmp_path}/{device}", quiet=True)
        for device in ("gpu", "cpu")
    }
    assert found["gpu"].epsilon == found["cpu"].epsilon
    assert found["gpu"].guarantee_status == found["cpu"].guarantee_status == "formal"
    made_by = json.dumps([json.loads(p.read_text()) for p in (tmp_path / "gpu").glob("*.json")])
    assert torch.cuda.get_device_name() in made_by
