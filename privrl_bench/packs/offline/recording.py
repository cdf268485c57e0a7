"""Recordings: episodes of training runs, or of a policy that does not change, as a local Minari dataset.

A recording has a work folder with the episodes so far. The same order continues in it, and gives the same
dataset after any interruption.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.registry import env_spec, make_env
from privrl_bench.errors import ConfigError
from privrl_bench.kernels.machine import one_thread
from privrl_bench.kernels.signals import Stop, catching_signals
from privrl_bench.packs.offline.datasets.episode_files import read_shard, write_shard
from privrl_bench.packs.offline.datasets.minari_read import local_ids, open_dataset
from privrl_bench.packs.offline.datasets.minari_spaces import flat_action_space, flat_space
from privrl_bench.packs.offline.datasets.minari_write import check_id, datasets_root, write_minari
from privrl_bench.packs.offline.datasets.trajectories import Episode
from privrl_bench.packs.offline.datasets.user_keys import SIMULATED
from privrl_bench.packs.offline.episode_recorder import RecordingSlots
from privrl_bench.packs.offline.fixed_policy_episodes import Playing
from privrl_bench.packs.offline.recorded_policy import played
from privrl_bench.run.folder import note_provenance, noted_provenance, write_json
from privrl_bench.run.plan import make_plan
from privrl_bench.run.progress import Progress
from privrl_bench.run.trainer import Trainer
from privrl_bench.run.writable import check_folder
from privrl_bench.types import EnvSpec

_SAVE_EVERY = 50_000  # steps between checkpoints
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class RunsOrder(NamedTuple):
    """An order to record training runs.

    Attributes:
        runs: how many.
        steps: environment steps of each run.
        name: of the dataset.
        together: runs that are trained at the same time.
        words: overrides of the configuration, for the record.
    """

    runs: int
    steps: int
    name: str
    together: int
    words: tuple[str, ...]


class PolicyOrder(NamedTuple):
    """An order to record a policy that does not change.

    Attributes:
        policy: name of the policy, see `recorded_policy.played`.
        episodes: how many.
        name: of the dataset.
        together: episodes that are played at the same time.
        words: overrides of the configuration, for the record.
    """

    policy: str
    episodes: int
    name: str
    together: int
    words: tuple[str, ...]


class Recorded(NamedTuple):
    """A finished recording.

    Attributes:
        name: of the dataset.
        path: of the dataset.
        folder: the work folder, with card.json.
        returns: [episodes], undiscounted.
    """

    name: str
    path: Path
    folder: Path
    returns: np.ndarray


class RunRecording:
    """Runs that are trained together: their checkpoint and the episodes so far, in one folder.

    Episode files are named after the round after which they were written; the rounds after the checkpoint are
    played again.
    """

    def __init__(self, folder: Path, configs: list[RunConfig]):
        self.folder, self.configs = folder, configs

    @property
    def done(self) -> bool:
        """Whether all rounds are recorded."""
        return (self.folder / "done").exists()

    def record(self, progress: Progress, before: int, stop: Stop) -> bool:
        """Train to the end or to a signal.

        Args:
            progress: shows the steps.
            before: steps of earlier recordings, for the progress.
            stop: set by a signal.

        Returns:
            Whether the end was reached.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = make_plan(self.configs)
        trainer = Trainer(parts)
        try:
            tape = self._resume(trainer)
            each = len(self.configs) * parts.round_steps
            every = max(_SAVE_EVERY // each, 1)
            while not trainer.over and stop.signal is None:
                trainer.step()
                returns = [d.get("train/return_mean", np.nan) for d in trainer.diagnostics]
                if trainer.round % every == 0:
                    self._save(trainer, tape)
                with np.errstate(all="ignore"):
                    mean = float(np.nanmean(returns)) if not np.isnan(returns).all() else None
                progress.update(before + trainer.round * each, return_mean=mean)
            self._save(trainer, tape)
            if trainer.over:
                (self.folder / "done").touch()
                (self.folder / "checkpoint.pt").unlink()
            return trainer.over
        finally:
            trainer.close()

    def _resume(self, trainer: Trainer) -> RecordingSlots:
        path, begun = self.folder / "checkpoint.pt", None
        if path.exists():
            saved = torch.load(path, weights_only=True)
            begun = saved.pop("tape")
            trainer.restore([saved])
        for shard in self.folder.glob("*.npz"):
            if int(shard.stem) > trainer.round:
                shard.unlink()
        tape = RecordingSlots(trainer.collector.slots, trainer.parts.spec)  # type: ignore[attr-defined]
        if begun is not None:
            tape.set_state({name: x.numpy() for name, x in begun.items()})
        trainer.collector.slots = tape  # type: ignore[attr-defined]
        return tape

    def _save(self, trainer: Trainer, tape: RecordingSlots) -> None:
        """Write episodes, then the checkpoint, which must not exist without the episodes before it."""
        episodes = tape.taken()
        if episodes:
            write_shard(self.folder / f"{trainer.round:08d}.npz", episodes)
        half = self.folder / "checkpoint.part"
        begun = {name: torch.from_numpy(x) for name, x in tape.get_state().items()}
        torch.save(trainer.snapshot() | {"tape": begun}, half)
        half.replace(self.folder / "checkpoint.pt")

    def episodes(self) -> Iterator[Episode]:
        """Yield all episodes, in order."""
        for shard in sorted(self.folder.glob("*.npz")):
            yield from read_shard(shard)


def record_runs(order: RunsOrder, configs: list[RunConfig], root: Path) -> Recorded | int:
    """Record what is missing of training runs, then write the dataset.

    Args:
        order: what is recorded.
        configs: of each run; they differ in the seed.
        root: the work folder is below it.

    Returns:
        The recording; or an exit code: 0 when the dataset exists, 130 or 143 when interrupted.

    Raises:
        ConfigError: the name is taken or invalid, or the environment declares real users.
    """
    config = configs[0]
    spec = make_plan(configs[:1]).spec  # every ConfigError before a folder is made
    _check(order.name, spec)
    if spec.users is not None:
        raise ConfigError(
            "env",
            f"{config.env.label} declares {spec.users} users, who would be played and recorded by "
            "training runs; policy=<name> plays its simulation",
        )
    label = f"{config.algo.name} {config.env.label}"
    card: dict[str, Any] = {
        "description": f"every episode of {order.runs} training runs of {label}, {order.steps} steps each, "
        "from the first to the last",
        "algorithm_name": config.algo.name,
        "words": list(order.words),
        "runs": order.runs,
        "steps": order.steps,
    }
    if _exists(order.name, card):
        return 0
    folder = _begin(order, root, config, f"{order.runs} runs of {order.steps} steps, {label}")
    groups = [configs[i : i + order.together] for i in range(0, order.runs, order.together)]
    parts = [RunRecording(folder / f"part{k:03d}", group) for k, group in enumerate(groups)]
    progress = Progress(order.runs * order.steps, True, f"{label}, {len(groups[0])} runs together")
    try:
        with catching_signals() as stop:
            before = 0
            for part in parts:
                if not part.done and not part.record(progress, before, stop):
                    return _interrupted(progress, stop)
                before += len(part.configs) * order.steps
    finally:
        progress.close()
    return _publish(
        order.name, lambda: (e for part in parts for e in part.episodes()), config, card, folder
    )


def record_policy(order: PolicyOrder, config: RunConfig, root: Path) -> Recorded | int:
    """Record the missing episodes of a policy that does not change, then write the dataset.

    See `record_runs` for the arguments, the returned value and the errors. Every step of a known policy has the
    probability of its action.
    """
    spec = env_spec(config.env)
    player, about, facts = played(order.policy, config.env, spec)
    _check(order.name, spec)
    simulated = "" if spec.users is None else "; its declared users were not played but simulated"
    card: dict[str, Any] = {
        "description": f"{order.episodes} whole episodes of {about}{simulated}",
        "words": list(order.words),
        **facts,
    }
    if _exists(order.name, card):
        return 0
    label = f"{order.episodes} episodes of {order.policy}, {config.env.label}"
    # A policy that was trained again at the same path has another `about`.
    folder = _begin(order._replace(policy=about), root, config, label)
    playing = Playing(
        folder / "episodes", config.env, spec, player, config.seed, order.episodes, order.together
    )
    progress = Progress(order.episodes, True, f"{order.policy} {config.env.label}", unit="episodes")
    try:
        with catching_signals() as stop:
            if not playing.run(progress, stop):
                return _interrupted(progress, stop)
    finally:
        progress.close()
    chances = [
        float(e.behavior_probs.min()) for e in playing.episodes() if e.behavior_probs is not None
    ]
    if chances:
        card["smallest_chance"] = min(chances)
    return _publish(order.name, playing.episodes, config, card, folder)


def _check(name: str, spec: EnvSpec) -> None:
    """Raise `ConfigError` if no dataset can have this name, or hold episodes of this environment."""
    try:
        check_id(name)
    except ConfigError as error:
        raise ConfigError("name", error.problem) from None
    try:
        flat_space(spec.observation_space)
        flat_action_space(spec.action_space)
    except ConfigError as error:
        raise ConfigError("env", f"cannot be recorded: {error.problem}") from None


def _exists(name: str, card: dict[str, Any]) -> bool:
    """Return whether the same order has made the dataset already, and print it.

    Args:
        name: of the dataset.
        card: what its card would say of the order.

    Raises:
        ConfigError: the name is that of another dataset.
    """
    if name not in local_ids():
        return False
    found = open_dataset(name)
    there = found.card
    same = there.get("description") == card["description"]
    if not same or sorted(there.get("words", ())) != sorted(card["words"]):
        what = there.get("description") or "not by privrl collect"
        raise ConfigError(
            "name", f"{name} exists, made with another request ({what}); give another name="
        )
    print(f"skipped  {name} exists: {found.episodes} episodes; give another name=, or delete it")
    return True


def _begin(order: RunsOrder | PolicyOrder, root: Path, config: RunConfig, label: str) -> Path:
    """Return the work folder, of one order, with what it is made by. Raises `ConfigError`."""
    one_thread()
    folder = root / order.name.replace("/", "-")
    check_folder("", folder)
    check_folder("MINARI_DATASETS_PATH", datasets_root())
    path, mine = folder / "order.json", order._asdict() | {"words": sorted(order.words)}
    if path.exists() and json.loads(path.read_text()) != mine:
        raise ConfigError("name", f"{folder} was begun with other words; give another name=")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, mine)
    note_provenance(folder, config)
    print(f"collect {order.name}: {label}")
    print(f"  folder  {folder}", flush=True)
    return folder


def _interrupted(progress: Progress, stop: Stop) -> int:
    progress.close()
    print("interrupted; rerun the same command to resume", file=sys.stderr)
    return 128 + (stop.signal or 2)


def _publish(
    name: str,
    episodes: Callable[[], Iterable[Episode]],
    config: RunConfig,
    card: dict[str, Any],
    folder: Path,
) -> Recorded:
    """Write the Minari dataset and its card."""
    returns = np.array([e.rewards.sum(dtype=np.float64) for e in episodes()])
    first, *later = noted_provenance(folder)
    card = card | {
        "users": SIMULATED,  # declared users are refused or simulated
        "returns": {
            "episodes": len(returns),
            "mean": float(returns.mean()),
            "quantiles": np.quantile(returns, _QUANTILES).round(2).tolist(),
        },
        "provenance": first,
        "resumed_by": later,
    }
    env = make_env(config.env)
    spaces = env.observation_space, env.action_space
    env.close()
    print(f"  writing {len(returns)} episodes", flush=True)
    registered = None if config.env.wrappers else config.env.id  # Minari would make it without them
    path = write_minari(name, episodes(), registered, *spaces, card)
    write_json(folder / "card.json", card)
    return Recorded(name, path, folder, returns)
