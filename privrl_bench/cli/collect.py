"""The command `privrl-collect`: play training runs, or a known policy, and keep every episode as a dataset.

    privrl-collect env=pendulum algo=ddpg runs=6 steps=20_000 name=pendulum/small-v0
    privrl-collect +collect=primorl env=pendulum
    privrl-collect env=mountain_car env.max_episode_steps=1000 policy=mountain_car:epsilon:0.05 episodes=1_000

With `policy` (uniform, or a file of action values; see nets/known.py) every step has the chance of its action
beside it: data that policies are evaluated on. `together` is how many runs or episodes are played side by side.

The dataset is a local Minari one; its card (a picture of returns, provenance, the words) lies beside the work
folder outputs/collect/<name>. The same command goes on where it stopped; later words win, others are those of
`privrl-bench`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from privrl_bench.collectors.fixed_policy_episodes import Playing
from privrl_bench.config import compose as words_to_config
from privrl_bench.config.overrides import check_repeated, explicit_keys, later_wins, plain_groups
from privrl_bench.config.schema import RunConfig
from privrl_bench.datasets.episode_files import read_shard, write_shard
from privrl_bench.datasets.minari_io import check_id, local_ids, open_dataset, write_minari
from privrl_bench.datasets.trajectories import Episode
from privrl_bench.envs.registry import env_spec, make_env
from privrl_bench.envs.tape import TapeSlots
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.experiment.builder import build
from privrl_bench.experiment.crash import guarded
from privrl_bench.experiment.run_dir import provenance, write_json
from privrl_bench.experiment.signals import catching_signals
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.kernels.machine import use_threads
from privrl_bench.loggers.progress import Progress
from privrl_bench.models.fixed_policies import fixed_policy
from privrl_bench.reporting.plots import figure

_OWN = ("runs", "steps", "name", "together")
_OWN_PLAY = ("policy", "episodes", "name", "together")
_QUIET = ("log=none", "eval.every=0")
_SAVE_EVERY = 50_000  # steps between checkpoints


class Order(NamedTuple):
    """What is to be collected: `runs` of so many `steps`, `together` of them at a time, as dataset `name`."""

    runs: int
    steps: int
    name: str
    together: int
    words: tuple[str, ...]


class PlayOrder(NamedTuple):
    """So many `episodes` of the known policy `policy`, `together` of them at a time, as dataset `name`."""

    policy: str
    episodes: int
    name: str
    together: int
    words: tuple[str, ...]


def _split(arguments: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Our own words by key, and those of a run. Raises ConfigError."""
    own: dict[str, str] = {}
    rest: list[str] = []
    for word in arguments:
        key, _, value = word.partition("=")
        if key in keys:
            if own.get(key, value) != value:
                raise ConfigError(key, f"given twice, as {own[key]} and {value}; give it once")
            own[key] = value
        else:
            near = suggest(key, keys) if "." not in key and "=" not in word else ""
            if near:
                raise ConfigError("", f"{word!r} is not a word of the form key=value{near}")
            rest.append(word)
    check_repeated(plain_groups(rest))
    for key in ("rounds", "total_steps", "eval.every", "log"):
        if key in explicit_keys(rest):
            raise ConfigError(key, f"is set by privrl-collect, which takes {', '.join(keys)}")
    return own, rest


def _number(key: str, text: str) -> int:
    """Raises ConfigError."""
    try:
        found = int(text.replace("_", ""))
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(key, f"must be a whole number >= 1, got {text}")
    return found


def parse_play(arguments: Sequence[str]) -> PlayOrder:
    """An order with `policy=`. Raises ConfigError."""
    own, rest = _split(arguments, _OWN_PLAY)
    for word in rest:
        key = word.partition("=")[0].lstrip("+")
        if key in ("runs", "steps", "collect", "algo", "privacy", "data"):
            raise ConfigError(key, f"goes with training runs; policy= takes {', '.join(_OWN_PLAY)}")
    env = next((w.partition("=")[2] for w in rest if w.startswith("env=")), "")
    if not env:
        raise ConfigError(
            "env", "say which: privrl-collect env=chain policy=uniform episodes=1_000"
        )
    policy = own.get("policy", "")
    # Of a path, the file's name.
    short = re.sub(r"[^a-zA-Z0-9]+", "-", re.sub(r"^.*/|\.json", "", policy)).strip("-").lower()
    return PlayOrder(
        policy,
        _number("episodes", own.get("episodes", "1_000")),
        own.get("name", f"{env}/{short}-v0".replace("_", "-")),
        _number("together", own.get("together", "256")),
        tuple(rest),
    )


def parse(arguments: Sequence[str]) -> Order:
    """An order of training runs. Raises ConfigError."""
    own, rest = _split(arguments, _OWN)
    if any(word.startswith("episodes=") for word in rest):
        raise ConfigError(
            "episodes", "goes with policy=<name>; training runs take runs= and steps="
        )
    preset = {}
    for word in list(rest):
        if word.startswith("+collect="):
            rest.remove(word)
            preset = _preset(word.partition("=")[2], rest)
    rest = later_wins(preset.pop("words", ()), rest)
    own = {**{k: str(v) for k, v in preset.items()}, **own}
    numbers = {"runs": "8", "steps": "20_000", "together": "64"} | own
    found = {key: _number(key, numbers[key]) for key in ("runs", "steps", "together")}
    env = next((w.partition("=")[2] for w in rest if w.startswith("env=")), "")
    if not env:
        raise ConfigError("env", "say which: privrl-collect env=pendulum runs=6 steps=20_000")
    if not any(w.startswith("algo=") for w in rest):
        rest.insert(0, "algo=ddpg")
    algo = next(w.partition("=")[2] for w in rest if w.startswith("algo="))
    name = own.get("name", f"{env}/{algo}-v0".replace("_", "-"))
    return Order(found["runs"], found["steps"], name, found["together"], tuple(rest))


def _preset(name: str, rest: Sequence[str]) -> dict[str, Any]:
    """A file of conf/collect/, whose entries are by environment. Raises ConfigError."""
    import yaml

    allowed = words_to_config.choices("collect")
    if name not in allowed:
        raise ConfigError("collect", f"no such preset {name}; allowed: {', '.join(allowed)}")
    content = yaml.safe_load((words_to_config.conf_dir() / "collect" / f"{name}.yaml").read_text())
    env = next((w.partition("=")[2] for w in rest if w.startswith("env=")), "")
    if env not in content:
        raise ConfigError("env", f"collect={name} is for {', '.join(content)}, got {env!r}")
    found: dict[str, Any] = content[env]
    return dict(found)


def configs_of(order: Order) -> list[RunConfig]:
    """One configuration for each run; they differ in the seed. Raises ConfigError."""
    raw = words_to_config.compose_raw(
        later_wins(order.words, [f"total_steps={order.steps}", "rounds=null"], _QUIET)
    )
    first = words_to_config.to_run_config(raw, explicit_keys(order.words))
    if first.privacy.rules.mechanism.private or first.algo.offline:
        raise ConfigError("algo", f"algo={first.algo.name} does not collect; use ddpg, sac or ppo")
    return [words_to_config.replace(raw, f"seed={first.seed + i}") for i in range(order.runs)]


class Part:
    """Runs that are played together: their checkpoint and the episodes so far, in one folder.

    Episodes are in files named after the round after which they were written; those beyond the checkpoint are
    played again.
    """

    def __init__(self, folder: Path, configs: list[RunConfig]):
        self.folder, self.configs = folder, configs

    @property
    def done(self) -> bool:
        """Whether all rounds are played."""
        return (self.folder / "done").exists()

    def play(self, progress: Progress, before: int, stop: Any) -> bool:
        """Go on to the end, or to a signal; returns whether it came to the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = build(self.configs, [None] * len(self.configs))
        session = Trainer(parts)
        try:
            tape = self._resume(session)
            each = len(self.configs) * parts.round_steps
            every = max(_SAVE_EVERY // each, 1)
            while not session.over and stop.signal is None:
                session.step()
                returns = [d.get("train/return_mean", np.nan) for d in session.diagnostics]
                if session.round % every == 0:
                    self._save(session, tape)
                with np.errstate(all="ignore"):
                    mean = float(np.nanmean(returns)) if not np.isnan(returns).all() else None
                progress.update(before + session.round * each, return_mean=mean)
            self._save(session, tape)
            if session.over:
                (self.folder / "done").touch()
                (self.folder / "checkpoint.pt").unlink()
            return session.over
        finally:
            session.close()

    def _resume(self, session: Trainer) -> TapeSlots:
        path, begun = self.folder / "checkpoint.pt", None
        if path.exists():
            saved = torch.load(path, weights_only=True)
            begun = saved.pop("tape")
            session.restore([saved])
        for shard in self.folder.glob("*.npz"):
            if int(shard.stem) > session.round:
                shard.unlink()
        tape = TapeSlots(session.rollout.slots, session.parts.spec)  # type: ignore[union-attr]
        if begun is not None:
            tape.set_state({name: x.numpy() for name, x in begun.items()})
        session.rollout.slots = tape  # type: ignore[union-attr]
        return tape

    def _save(self, session: Trainer, tape: TapeSlots) -> None:
        """Episodes first: a checkpoint never stands without what came before it."""
        episodes = tape.taken()
        if episodes:
            write_shard(self.folder / f"{session.round:08d}.npz", episodes)
        half = self.folder / "checkpoint.part"
        begun = {name: torch.from_numpy(x) for name, x in tape.get_state().items()}
        torch.save(session.snapshot() | {"tape": begun}, half)
        half.replace(self.folder / "checkpoint.pt")

    def episodes(self) -> Iterator[Episode]:
        """Everything that was played, in order."""
        for shard in sorted(self.folder.glob("*.npz")):
            yield from read_shard(shard)


def collect_play(order: PlayOrder, root: Path) -> int:
    """Play the episodes that are missing, then write the dataset. Returns the exit code; raises ConfigError."""
    config = words_to_config.compose(later_wins(order.words, _QUIET))
    spec = env_spec(config.env)
    policy = fixed_policy(order.policy, config.env, spec)
    _check_name(order.name)
    folder = root / order.name.replace("/", "-")
    simulated = "" if spec.users is None else "; its declared users were not played but simulated"
    card: dict[str, Any] = {
        "description": f"{order.episodes} whole episodes of the known policy {order.policy} on "
        f"{config.env.label}, with the chance of every action{simulated}",
        "algorithm_name": order.policy,
        "policy": order.policy,
        "words": list(order.words),
    }
    if _is_there(order.name, card):
        return 0
    use_threads(config.hardware.threads)
    _check_same(folder / "order.json", order)
    playing = Playing(
        folder / "episodes", config.env, spec, policy, config.seed, order.episodes, order.together
    )
    print(f"collect {order.name}: {order.episodes} episodes of {order.policy}, {config.env.label}")
    print(f"  folder  {folder}", flush=True)
    progress = Progress(order.episodes, True, f"{order.policy} {config.env.label}", unit="episodes")
    try:
        with catching_signals() as stop:
            if not playing.run(progress, stop):
                return _interrupted(progress, stop)
    finally:
        progress.close()
    behavior_probs = [e.behavior_probs for e in playing.episodes() if e.behavior_probs is not None]
    card |= {"smallest_chance": float(min(x.min() for x in behavior_probs))}
    return _publish(order.name, playing.episodes, config, card, folder)


def _check_name(name: str) -> None:
    try:
        check_id(name)
    except ConfigError as error:
        raise ConfigError("name", error.problem) from None


def _is_there(name: str, card: dict[str, Any]) -> bool:
    """Whether the same request has made the dataset already, and then says so.

    Args:
        name: of the dataset.
        card: what its card would say of the request.

    Raises:
        ConfigError: the name is that of another dataset.
    """
    if name not in local_ids():
        return False
    found = open_dataset(name)
    there = found.card
    same = there.get("description") == card["description"]
    if not same or sorted(there.get("words", ())) != sorted(card["words"]):
        what = there.get("description") or "by something else than privrl-collect"
        raise ConfigError(
            "name", f"{name} is there, made with another request ({what}); give another name="
        )
    print(f"skipped  {name} is there: {found.episodes} episodes; another name=, or delete it")
    return True


def _interrupted(progress: Progress, stop: Any) -> int:
    progress.close()
    print("interrupted; the same command goes on", file=sys.stderr)
    return 128 + (stop.signal or 2)


def collect(order: Order, root: Path) -> int:
    """Play what is missing, then write the dataset. Returns the exit code; raises ConfigError."""
    _check_name(order.name)
    configs = configs_of(order)
    spec = build(configs[:1], [None]).spec  # every ConfigError before a folder is made
    if spec.users is not None:
        raise ConfigError(
            "env",
            f"{configs[0].env.label} declares {spec.users} users, whom training runs would play and "
            "record; policy=<name> plays its simulation",
        )
    folder = root / order.name.replace("/", "-")
    label = f"{configs[0].algo.name} {configs[0].env.label}"
    card: dict[str, Any] = {
        "description": f"every episode of {order.runs} training runs of {label}, {order.steps} steps each, "
        "from the first to the last",
        "algorithm_name": configs[0].algo.name,
        "words": list(order.words),
        "runs": order.runs,
        "steps": order.steps,
    }
    if _is_there(order.name, card):
        return 0
    use_threads(configs[0].hardware.threads)
    _check_same(folder / "order.json", order)
    groups = [configs[i : i + order.together] for i in range(0, order.runs, order.together)]
    parts = [Part(folder / f"part{k:03d}", group) for k, group in enumerate(groups)]
    print(f"collect {order.name}: {order.runs} runs of {order.steps} steps, {label}")
    print(f"  folder  {folder}", flush=True)
    progress = Progress(order.runs * order.steps, True, f"{label}, {len(groups[0])} runs together")
    try:
        with catching_signals() as stop:
            before = 0
            for part in parts:
                if not part.done and not part.play(progress, before, stop):
                    return _interrupted(progress, stop)
                before += len(part.configs) * order.steps
    finally:
        progress.close()
    return _publish(
        order.name, lambda: (e for part in parts for e in part.episodes()), configs[0], card, folder
    )


def _publish(
    name: str,
    episodes: Callable[[], Iterable[Episode]],
    config: RunConfig,
    card: dict[str, Any],
    folder: Path,
) -> int:
    """From the work folder to a Minari dataset, with its card."""
    returns = np.array([e.rewards.sum(dtype=np.float64) for e in episodes()])
    quantiles = np.quantile(returns, [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]).round(2).tolist()
    card = card | {
        "returns": {
            "episodes": len(returns),
            "mean": float(returns.mean()),
            "quantiles": quantiles,
        },
        "provenance": provenance(config),
    }
    env = make_env(config.env)
    spaces = env.observation_space, env.action_space
    env.close()
    print(f"  writing {len(returns)} episodes", flush=True)
    path = write_minari(name, episodes(), config.env.id, *spaces, card)
    write_json(folder / "card.json", card)
    with figure(folder / "returns.png", 1) as (axes,):
        axes.hist(returns, bins=60, color="C0")
        axes.set_title(f"{name}: {len(returns)} episodes")
        axes.set_xlabel("return of an episode")
        axes.set_ylabel("episodes")
    print(
        f"done  {name}: {len(returns)} episodes, returns from {quantiles[0]:g} to {quantiles[-1]:g}, "
        f"median {quantiles[3]:g}\n      {path}\n      look at {folder / 'returns.png'}",
        flush=True,
    )
    return 0


def _check_same(path: Path, order: Order | PlayOrder) -> None:
    """A folder belongs to one order. Raises ConfigError."""
    mine = order._asdict() | {"words": sorted(order.words)}
    if path.exists() and json.loads(path.read_text()) != mine:
        raise ConfigError("name", f"{path.parent} was begun with other words; give another name=")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, mine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 for a failure; 2 for a wrong word; 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or {"-h", "--help"} & set(given):
        print(__doc__)
        return 0
    return guarded(lambda: _order(given))


def _order(given: Sequence[str]) -> int:
    """Returns the exit code; raises ConfigError."""
    if any(word.partition("=")[0] == "policy" for word in given):
        return collect_play(parse_play(given), Path("outputs/collect"))
    return collect(parse(given), Path("outputs/collect"))


if __name__ == "__main__":
    sys.exit(main())
