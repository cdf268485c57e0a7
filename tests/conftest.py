"""Tests use one torch thread; `helpers` and `my_pkg` in this folder can be imported from subfolders."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from privrl_bench.composition.plugins import load_installed

load_installed()  # the packs, as every command does
torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # the time of an example decides no test
settings.load_profile("untimed")
_BEGAN = time.monotonic()
_LATE = "not reached within the limit"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--limit", type=float, metavar="MINUTES", help="start no test after this time")


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("fast_every")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--limit")
    if limit is not None and time.monotonic() - _BEGAN > 60 * limit:
        pytest.skip(_LATE)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that the limit kept from starting."""
    skipped = terminalreporter.stats.get("skipped", ())
    late = [one.nodeid for one in skipped if _LATE in str(one.longrepr)]
    if late:
        terminalreporter.section(f"{len(late)} tests {_LATE}")
        terminalreporter.write_line("\n".join(late))


@pytest.fixture(autouse=True)
def runs_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test replaces a part; tests of several processes ask for them."""
    from privrl_bench.kernels import machine

    monkeypatch.setattr(machine, "cores", lambda: 1)


@pytest.fixture
def plugins_restored() -> Iterator[None]:
    """No plugin that a test loads stays registered."""
    from privrl_bench.algorithms import registry as algorithm_registry
    from privrl_bench.composition import plugins
    from privrl_bench.config import overrides
    from privrl_bench.privacy import mechanisms, sampling

    stores: tuple[dict[str, Any], ...] = (
        *(
            plugins._loaded,
            plugins._versions,
            mechanisms.REGISTRY.outside,
            sampling.REGISTRY.outside,
        ),
        algorithm_registry.ALGORITHMS,
    )
    before = [dict(store) for store in stores]
    folders = list(overrides._folders)
    yield
    for store, old in zip(stores, before, strict=True):
        store.clear()
        store.update(old)
    overrides._folders[:] = folders
    plugins.load_installed.cache_clear()


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for the local datasets of one test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


@pytest.fixture
def here(datasets: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in its own folder, which has its datasets."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Local datasets of this test session; the value is the id of one of random play on Pendulum.

    60 users with one episode of 20 to 40 steps each.
    """
    import gymnasium as gym

    from privrl_bench.packs.offline.datasets.minari_files import write_minari
    from privrl_bench.packs.offline.datasets.trajectories import Episode

    def played(steps: int, seed: int) -> Episode:
        rng = np.random.default_rng(seed)
        obs, rewards = [env.reset(seed=seed)[0]], []
        actions = rng.uniform(-2, 2, (steps, 1)).astype(np.float32)
        for action in actions:
            after, reward, *_ = env.step(action)
            obs.append(after)
            rewards.append(reward)
        cut = np.arange(steps) == steps - 1
        return Episode(np.stack(obs), actions, np.array(rewards), np.zeros(steps, bool), cut)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("sets")))
        env = gym.make("Pendulum-v1")
        episodes = (played(20 + k % 21, k) for k in range(60))
        spaces = env.observation_space, env.action_space
        write_minari(
            "pendulum/random-v0",
            episodes,
            "Pendulum-v1",
            *spaces,
            {"description": "d", "users": "simulated"},
        )
        env.close()
        yield "pendulum/random-v0"


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Words that choose a tiny language model, a classifier and reviews, all random, on disk."""

    from text_runs import make

    return make(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Run folders by the name of the policy (`helpers.LEARNERS`), made when asked for."""
    from helpers import LEARNERS, SMALL

    import privrl_bench as pb

    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            at = tmp_path_factory.mktemp(name)
            words = [*SMALL.split(), *LEARNERS[name].split(), f"hydra.run.dir={at}/run"]
            last = {word.partition("=")[0]: word for word in words}
            made[name] = pb.run(last.values(), quiet=True).folder
        return made[name]

    return folder
