"""Recordings: episodes of training runs, or of a policy that does not change, as a local Minari dataset.

A recording has a work folder with the parts that are done. The same order continues in it, and gives the same
dataset after any interruption.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig, RunConfig
from privrl_bench.envs.registry import env_spec, make_env, make_slots
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.machine import one_thread
from privrl_bench.kernels.signals import Stop, catching_signals
from privrl_bench.packs.offline.datasets.minari_files import (
    check_id,
    datasets_root,
    flat_action_space,
    flat_space,
    local_ids,
    open_dataset,
    write_minari,
)
from privrl_bench.packs.offline.datasets.trajectories import Episode, Trajectories
from privrl_bench.packs.offline.datasets.user_keys import SIMULATED
from privrl_bench.packs.offline.fixed_policies import fixed_policy
from privrl_bench.packs.offline.playing import Player, play, play_runs
from privrl_bench.reporting.style import PALETTE, figure
from privrl_bench.training.folder import write_json
from privrl_bench.training.plan import make_plan
from privrl_bench.training.progress import Progress
from privrl_bench.training.provenance import provenance
from privrl_bench.training.trained_policy import PolicyFile, check_fits, read_policy
from privrl_bench.training.writable import check_folder
from privrl_bench.types import EnvSpec

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
Part = Callable[[Progress, Stop], list[Episode] | None]  # plays; None: a signal came


class Order(NamedTuple):
    """An order to record training runs, or a policy that does not change.

    Attributes:
        name: of the dataset.
        together: runs that are trained, or episodes that are played, at the same time; one part of a recording.
        words: overrides of the configuration, for the record.
        runs: how many training runs; 0: a policy is recorded.
        steps: environment steps of each run.
        policy: name of the policy, see `played`.
        episodes: how many of the policy.
    """

    name: str
    together: int
    words: tuple[str, ...]
    runs: int = 0
    steps: int = 0
    policy: str = ""
    episodes: int = 0


def record_runs(order: Order, configs: list[RunConfig], root: Path) -> int:
    """Record what is missing of training runs, then write the dataset.

    Args:
        order: what is recorded.
        configs: of each run; they differ in the seed.
        root: the work folder is below it.

    Returns:
        The exit code: 0 when the dataset is there, 130 or 143 when interrupted.

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

    def part(first: int) -> Part:
        before, group = first * order.steps, configs[first : first + order.together]
        return lambda progress, stop: play_runs(
            group, lambda steps, mean: progress.update(before + steps, return_mean=mean), stop
        )

    parts = [part(first) for first in range(0, order.runs, order.together)]
    return _record(order, root, config, card, parts, label)


def record_policy(order: Order, config: RunConfig, root: Path) -> int:
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
    slots = make_slots(config.env, min(order.together, order.episodes))

    def part(numbers: range) -> Part:
        def episodes(progress: Progress, stop: Stop) -> list[Episode] | None:
            if stop.signal is not None:
                return None
            found = play(slots, spec, player, Streams(config.seed), numbers)
            mean = float(np.mean([e.rewards.sum(dtype=np.float64) for e in found]))
            progress.update(numbers.stop, return_mean=mean)
            return found

        return episodes

    firsts = range(0, order.episodes, order.together)
    parts = [part(range(k, min(k + order.together, order.episodes))) for k in firsts]
    label = f"{order.policy} {config.env.label}"
    try:
        return _record(order, root, config, card, parts, label)
    finally:
        slots.close()


def _record(
    order: Order,
    root: Path,
    config: RunConfig,
    card: dict[str, Any],
    parts: list[Part],
    label: str,
) -> int:
    """Play the parts that are not there, and write the dataset; see `record_runs`."""
    if _exists(order.name, card):
        return 0
    folder, played_by = _begin(order, root, config, card)
    paths = [folder / "parts" / f"{k:06d}" for k in range(len(parts))]
    total, unit = (
        (order.runs * order.steps, "steps") if order.runs else (order.episodes, "episodes")
    )
    progress = Progress(total, True, label, unit=unit)
    try:
        with catching_signals() as stop:
            for path, part in zip(paths, parts, strict=True):
                if path.exists():
                    continue
                episodes = part(progress, stop)
                if episodes is None:
                    progress.close()
                    print("interrupted; rerun the same command to resume", file=sys.stderr)
                    return 128 + (stop.signal or 2)
                Trajectories.of(episodes).save(path)
    finally:
        progress.close()
    card |= {"provenance": played_by}
    return _publish(order.name, [Trajectories.load(path) for path in paths], config, card, folder)


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
    if _ordered(found.card) != _ordered(card):
        what = found.card.get("description") or "not by privrl collect"
        raise ConfigError(
            "name", f"{name} exists, made with another request ({what}); give another name="
        )
    print(f"skipped  {name} exists: {found.episodes} episodes; give another name=, or delete it")
    return True


def _ordered(card: dict[str, Any]) -> list[Any]:
    """What was ordered, of a card; a policy that was trained again at its path has another description."""
    return [card.get("description"), sorted(card.get("words", ()))]


def _begin(
    order: Order, root: Path, config: RunConfig, card: dict[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Return the work folder, of one order, and what its first process was. Raises `ConfigError`."""
    one_thread()
    folder = root / order.name.replace("/", "-")
    check_folder("", folder)
    check_folder("MINARI_DATASETS_PATH", datasets_root())
    path, mine = folder / "order.json", [*_ordered(card), order.together]
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"order": mine}
    if known["order"] != mine:
        raise ConfigError("name", f"{folder} was begun with other words; give another name=")
    folder.mkdir(parents=True, exist_ok=True)
    played_by = known.get("provenance") or provenance(config)
    write_json(path, {"order": mine, "provenance": played_by})
    print(f"collect {order.name}: {card['description']}\n  folder  {folder}", flush=True)
    return folder, played_by


def _publish(
    name: str, parts: list[Trajectories], config: RunConfig, card: dict[str, Any], folder: Path
) -> int:
    """Write the Minari dataset, its card and a plot of its returns; returns the exit code."""
    returns = np.concatenate([part.returns() for part in parts])
    chances = [part.behavior_probs.min() for part in parts if part.behavior_probs is not None]
    card = card | {
        **({"smallest_chance": float(min(chances))} if chances else {}),
        "users": SIMULATED,  # declared users are refused or simulated
        "returns": {
            "episodes": len(returns),
            "mean": float(returns.mean()),
            "quantiles": np.quantile(returns, _QUANTILES).round(2).tolist(),
        },
    }
    env = make_env(config.env)
    spaces = env.observation_space, env.action_space
    env.close()
    print(f"  writing {len(returns)} episodes", flush=True)
    registered = None if config.env.wrappers else config.env.id  # Minari would make it without them

    def episodes() -> Iterator[Episode]:
        for part in parts:
            for k in range(part.episodes):
                yield part.episode(k)

    path = write_minari(name, episodes(), registered, *spaces, card)
    write_json(folder / "card.json", card)
    with figure(folder / "returns.png", 1) as (axes,):
        axes.hist(returns, bins=60, color=PALETTE[0])
        axes.set_title(f"{name}: {len(returns)} episodes")
        axes.set_xlabel("return of an episode")
        axes.set_ylabel("episodes")
    low, middle, high = np.quantile(returns, [0.0, 0.5, 1.0]).round(2).tolist()
    print(
        f"done  {name}: {len(returns)} episodes, returns from {low:g} to {high:g}, median {middle:g}\n"
        f"      dataset: {path}\n      results: {folder} (card.json, returns.png)",
        flush=True,
    )
    return 0


# --- the policy


def trained(name: str) -> PolicyFile | None:
    """The trained policy of this name, a run folder or a `policy.pt`; None: the name is of another kind.

    Raises:
        ConfigError: On policy: the file cannot be read, or there is no such path.
    """
    path = Path(name)
    if path.suffix == ".pt" or (path / "status.json").is_file():
        return read_policy(path, "policy")
    if "/" in name and ".json" not in name:
        raise ConfigError("policy", f"{name} is no run folder, policy.pt or .json file of values")
    return None


def played(name: str, config: EnvConfig, spec: EnvSpec) -> tuple[Player, str, dict[str, Any]]:
    """The policy of this name for an environment.

    Args:
        name: as in `packs/offline/fixed_policies.py`, or a run folder or its `policy.pt`.
        config: the environment.
        spec: its public facts.

    Returns:
        The policy; what it is, for the card, of a trained policy with a digest of its parameters; further
        entries of the card.

    Raises:
        ConfigError: there is no such policy, or it does not fit the environment.
    """
    file = trained(name)
    if file is None:
        known = fixed_policy(name, config, spec)
        about = f"the known policy {name} on {config.label}, with the chance of every action"
        return known, about, {"algorithm_name": name, "policy": name}
    check_fits(file, spec, config.label)
    if not file.params.isfinite().all():
        raise ConfigError("policy", f"{file.path}: its parameters are not finite")
    algo, guarantee = str(file.algo["name"]), file.guarantee
    digest = hashlib.sha256(file.params.numpy().tobytes()).hexdigest()[:8]
    about = f"the policy {name} (algo={algo}, parameters {digest}) on {config.label}"
    claimed = {key: guarantee[key] for key in ("status", "epsilon", "delta")}
    facts = {"algorithm_name": algo, "policy": name, "policy_guarantee": claimed}
    return TrainedPlayer(file), about, facts


class TrainedPlayer:
    """A released policy that plays whole episodes: stochastic actions, of unknown probabilities.

    Args:
        file: of `read_policy`.
    """

    def __init__(self, file: PolicyFile):
        self._file = file

    def draws(self, generator: torch.Generator, steps: int) -> Tensor:
        """Return the random numbers [T, ...] of one episode."""
        return self._file.policy.draw(generator, steps)

    def begin(self) -> Callable[[np.ndarray, Tensor], tuple[np.ndarray, None]]:
        """Return the function from observations [n, D] and draws [n, ...] to actions."""
        file, sample = self._file, self._file.policy.sampler(self._file.params.unsqueeze(0))

        def act(obs: np.ndarray, draws: Tensor) -> tuple[np.ndarray, None]:
            scaled = torch.from_numpy(file.scaling.obs(obs[None])).float()
            with torch.inference_mode():
                found = sample(scaled, draws.unsqueeze(0))[0].numpy()
            if not np.isfinite(found).all():
                raise ConfigError("policy", f"{file.path}: its actions are not finite")
            return file.policy.to_env(found), None

        return act
