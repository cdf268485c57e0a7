"""What leaves a run of the leak test, as tensors: the real writers write it, and nothing is left out by hand.

A run of the test has a temporary run folder and an `Experiment`, which writes files, prints lines and sends
records to W&B as in training. Everything is compared but the files that `run_dir.FILES` calls private or of
the machine, the columns and fields that `metrics.py` calls private, and the clock, which stands still.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
import yaml
from torch import Tensor

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, PublicSources
from privrl_bench.metrics import METRICS, SUMMARY
from privrl_bench.training.crash import Outcome
from privrl_bench.training.folder import FILES, RunDir, read_lines
from privrl_bench.training.loop import Clock, Experiment
from privrl_bench.training.plan import Plan
from privrl_bench.training.progress import LINE_EVERY_S, Progress
from privrl_bench.training.results import CURVE, SolvedCheck, draw, save_results
from privrl_bench.training.trained_policy import FILE
from privrl_bench.training.trainer import Trainer
from privrl_bench.training.wandb_logger import WandbLogger

NOT_COMPARED = ("private", "machine")  # who may see a file, a column or a field that is left out
_JSON = ("summary.json", "status.json", "plan.json")
_ROWS = ("metrics.jsonl", "samples.jsonl")


class Output(NamedTuple):
    """Content that leaves a run in one round.

    Attributes:
        replica: whose it is.
        stage: file or place.
        content: tensors by name.
        part: of a stage that a round has several times.
    """

    replica: int
    stage: str
    content: dict[str, Tensor]
    part: int = 0


class Place(NamedTuple):
    """Where a run is.

    Attributes:
        folder: of the run.
        root: a folder above it, whose name differs between runs that are compared.
    """

    folder: Path
    root: Path


def as_bytes(value: Any, root: Path | None = None) -> Tensor:
    """A file's bytes, or those of the JSON of anything else, without the name of the folder `root`."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=repr)
    raw = data if isinstance(data, bytes) else data.encode()
    raw = raw if root is None else raw.replace(str(root).encode(), b"")
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())


class StoppedClock(Clock):
    """Every span of time is one second."""

    def timing(self, r: int, steps: int) -> dict[str, float]:
        """See `Clock.timing`."""
        return {"wall_seconds": 1.0, "steps_per_second": 1.0}


class SentToWandb:
    """Stands for a run of W&B and keeps what is sent.

    Attributes:
        sent: name -> values, in order.
    """

    id, url = "run", ""

    def __init__(self, arguments: Mapping[str, Any]):
        self.sent: dict[str, list[Any]] = defaultdict(list)
        self.summary = self
        self._keep("", arguments)

    def _keep(self, kind: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.sent[f"{kind}{name}"].append(_plain(value))

    def define_metric(self, name: str, **how: Any) -> None:
        """See `wandb.Run.define_metric`."""

    def log(self, row: Mapping[str, Any]) -> None:
        """See `wandb.Run.log`."""
        self._keep("", row)

    def update(self, values: Mapping[str, Any]) -> None:
        """See `wandb.Summary.update`."""
        self._keep("summary ", values)

    def log_artifact(self, artifact: Any) -> None:
        """See `wandb.Run.log_artifact`."""
        files = {name: entry.digest for name, entry in artifact.manifest.entries.items()}
        self._keep("artifact ", {"metadata": artifact.metadata, **files})

    def finish(self, exit_code: int = 0) -> None:
        """See `wandb.Run.finish`."""
        self._keep("", {"exit code": exit_code})


def _plain(value: Any) -> Any:
    """Content of a table, a chart or a picture of W&B; other values as they are."""
    table = getattr(value, "table", value)
    if hasattr(table, "columns") and hasattr(table, "data"):
        return [list(table.columns), [list(row) for row in table.data]]
    return "a picture" if type(value).__name__ == "Image" else value


class KeepingLogger(WandbLogger):
    """The real logger in front of a `SentToWandb`."""

    _run: Any
    record: SentToWandb

    def _init(self, arguments: dict[str, Any]) -> Any:
        self.record = SentToWandb(arguments)
        return self.record


def recorded(parts: Plan) -> Plan:
    """The components of a run that shows and sends everything, and evaluates after every round.

    `Recorder.picture` draws its curve.
    """
    log = replace(parts.config.log, wandb="offline", progress=True, lines=10**7, plot=False)
    evaluation = replace(parts.config.eval, every=1)
    configs = [replace(config, log=log, eval=evaluation) for config in parts.configs]
    return replace(parts, users=parts.users.of(configs))


class Recorder:
    """An `Experiment` whose outputs are kept.

    Args:
        parts: of the run; `recorded`.
        place: of a lone run, which is kept; None: temporary folders.

    Attributes:
        experiment: the real one.
        dirs: run folder of each replica.
    """

    def __init__(self, parts: Plan, place: Place | None = None):
        self._temporary = tempfile.TemporaryDirectory(prefix="privrl_bench_")
        own, config = Path(self._temporary.name), parts.config
        below = own / "outputs" / config.algo.name / config.env.label
        paths = [below / f"run{r}" for r in range(len(parts.configs))]
        self._root = own if place is None else place.root
        self.dirs = [RunDir(path) for path in (paths if place is None else [place.folder])]
        self._printed = io.StringIO()
        for rundir in self.dirs:
            rundir.path.mkdir(parents=True, exist_ok=True)
        with self._captured():
            self.experiment = Experiment(parts, self.dirs, KeepingLogger)
        self.experiment.clock = StoppedClock([0.0] * len(self.dirs))
        # Every look at this clock is long after the last one, so that every state is shown.
        ticks = iter(range(10**9))
        self._shown = io.StringIO()
        self._progress = Progress(
            parts.iterations * parts.round_steps * len(self.dirs),
            enabled=True,
            label="run",
            result=self.experiment.measure.name,
            stream=self._shown,
            clock=lambda: next(ticks) * 2 * LINE_EVERY_S,
        )

    @property
    def trainer(self) -> Trainer:
        """Of the experiment."""
        return self.experiment.trainer

    @property
    def over(self) -> bool:
        """Whether training has ended, also because all runs are solved."""
        return self.trainer.over or not self.experiment.alive

    def step(self) -> None:
        """Train one round."""
        with self._captured():
            self.trainer.step()

    @contextmanager
    def _captured(self) -> Iterator[None]:
        """Keep what is printed; Python prints a warning once in a process, so that it is left out."""
        with redirect_stdout(self._printed), redirect_stderr(self._printed), catch_warnings():
            simplefilter("ignore")
            yield

    def _taken(self) -> str:
        """What was printed since the last call."""
        text = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return text

    def after_round(self, evaluated: bool, first: bool) -> Iterator[Output]:
        """Let the experiment record a round, then write the ends that the runs could have now.

        Args:
            evaluated: whether runs are evaluated, and could be done; else they are interrupted.
            first: also write a second kind of end, and those of other replicas than the first.
        """
        experiment = self.experiment
        with self._captured():
            if evaluated:
                experiment.after_round(self._progress)
            else:
                steps = self.trainer.round * experiment.parts.round_steps
                rows = {r: experiment.row(r, steps, evaluated=False) for r in experiment.alive}
                experiment.rows.add(rows)
                experiment.rows.write()
        lines = {"progress": self._shown.getvalue(), "others": self._taken()}
        yield Output(0, "printed", {k: as_bytes(x, self._root) for k, x in lines.items()})
        yield Output(0, "memory", training_memory(experiment), part=1)
        yield Output(0, "schedule", {"runs in training": as_bytes(experiment.alive)}, part=1)
        for r in range(len(self.dirs)):
            yield Output(r, "W&B", self._sent(experiment.mirrors[r]))
        for r in range(len(self.dirs) if first else 1):
            done = evaluated and not experiment.rows.evaluations[r].problem
            if done:
                yield from self._end(r, "done", experiment.end_done)
            else:
                with self._captured():
                    save_results(self.trainer, r, self.dirs[r])
            if first or not done:
                yield from self._end(r, "interrupted", self._interrupted, part=int(done))

    def picture(self) -> dict[str, Tensor]:
        """The colours of the picture of replica 0."""
        from matplotlib.image import imread

        config = asdict(self.trainer.parts.config)
        (self.dirs[0] / "config.yaml").write_text(yaml.safe_dump(config))
        return {CURVE: torch.from_numpy(imread(draw(self.dirs[0])).copy())}

    def finish(self) -> Outcome:
        """Write the files of replica 0, whose training is over."""
        with self._captured():
            return self.experiment.end_done(0, self.experiment.mirror(0))

    def _interrupted(self, r: int, mirror: WandbLogger) -> None:
        reason = "SIGTERM; rerun the same command to resume"
        self.experiment.end_early(r, mirror, "interrupted", reason, 143)

    def _end(
        self, r: int, name: str, write: Callable[[int, WandbLogger], Any], part: int = 0
    ) -> Iterator[Output]:
        """One end of replica r, which writes files, prints and sends."""
        with self._captured():
            mirror = self.experiment.mirror(r)
            write(r, mirror)
        yield Output(r, f"printed when {name}", {"lines": as_bytes(self._taken(), self._root)})
        yield Output(r, f"W&B when {name}", self._sent(mirror))
        for stage, content in folder_content(self.dirs[r].path, self._root).items():
            yield Output(r, stage, content, part)

    def _sent(self, mirror: WandbLogger) -> dict[str, Tensor]:
        assert isinstance(mirror, KeepingLogger)
        clock = {name for name, who in SUMMARY.items() if who == "private"}
        sent = mirror.record.sent
        return {k: as_bytes(x, self._root) for k, x in sent.items() if k not in clock}

    def close(self) -> None:
        """Free the environments and the folder."""
        self.experiment.trainer.close()
        self._temporary.cleanup()


def folder_content(
    folder: Path, root: Path, more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, Tensor]]:
    """Content of the files of a run folder that may leave the run: stage -> name -> tensor.

    JSON by field, rows by column, `policy.pt` by key; other files as bytes, in the stage `file`. The name of
    the folder `root` is left out. `more`: who may see further files, as `FILES`.
    """
    found: dict[str, dict[str, Tensor]] = {"file": {}}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or {**FILES, **more}.get(name.partition("/")[0]) in NOT_COMPARED:
            continue
        if name in _JSON:
            found[name] = {
                key: as_bytes(value, root)
                for key, value in json.loads(path.read_text()).items()
                if SUMMARY.get(key) not in NOT_COMPARED
            }
        elif name in _ROWS:
            rows = read_lines(path)
            columns = dict.fromkeys(key for row in rows for key in row)
            found[name] = {
                key: as_bytes([row.get(key) for row in rows], root)
                for key in columns
                if key not in METRICS or METRICS[key].visibility not in NOT_COMPARED
            }
        elif name == FILE:
            content = torch.load(path, weights_only=True)
            found[name] = {
                key: x if isinstance(x, Tensor) else as_bytes(x, root) for key, x in content.items()
            }
        else:
            found["file"][name] = as_bytes(path.read_bytes(), root)
    return found


# --- what an algorithm keeps to itself


def memory(algo: Algorithm) -> dict[str, Tensor]:
    """Tensors, arrays, numbers and texts that an algorithm's object holds, by path.

    Its context (public facts and sources) is left out. Data of its classes and of their modules are included:
    all runs of a process share them.
    """
    found: dict[str, Tensor] = {}
    _collect(algo, "", found, set())
    for kind in type(algo).__mro__[:-1]:  # without `object`
        home = vars(sys.modules.get(kind.__module__, object))
        for where, held in ((kind.__name__, vars(kind)), (kind.__module__, home)):
            data = {k: x for k, x in held.items() if not k.startswith("__") and _is_data(x)}
            _collect(data, where, found, set())
    return found


def training_memory(experiment: Experiment) -> dict[str, Tensor]:
    """Numbers, texts and tensors that the loop itself holds, but for what it holds for private files."""
    kept: dict[str, Any] = {}
    checks = [one for one in vars(experiment).values() if isinstance(one, SolvedCheck)]
    for one in (experiment, experiment.trainer, *checks):
        for name, value in vars(one).items():
            if name not in _FOR_PRIVATE_FILES and _is_data(value):
                kept[f"{type(one).__name__}.{name}"] = value
    found: dict[str, Tensor] = {}
    _collect(kept, "", found, set())
    return found


# Metrics of the last round, and what a checkpoint is made of.
_FOR_PRIVATE_FILES = ("diagnostics", "_snapshot")


def _is_data(value: Any) -> bool:
    """Whether a value is a number, a text, a tensor, or a collection of them."""
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    if isinstance(value, Tensor | np.ndarray) or _is_plain(value):
        return True
    return isinstance(value, Collection) and all(map(_is_data, value))


def _collect(value: Any, name: str, found: dict[str, Tensor], seen: set[int]) -> None:
    """Add what `value` holds; an object, also one of several names, once."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        found[name] = value.detach()
    elif _is_plain(value):
        found[name] = as_bytes(value)
    elif id(value) not in seen and not isinstance(value, _SKIPPED):
        seen.add(id(value))
        parts = _parts(value)
        if all(map(_is_plain, parts.values())) and not isinstance(value, Mapping):
            found[name] = as_bytes(parts)
            return
        for key, part in parts.items():
            _collect(part, f"{name}.{key}" if name else str(key), found, seen)


_PLAIN = (bool, int, float, complex, str, bytes, bytearray, np.generic)
_SKIPPED = (AlgorithmContext, PublicSources, type, ModuleType)


def _parts(value: Any) -> Mapping[Any, Any]:
    """What an object holds: entries, the state of a generator, attributes, what a function encloses."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, torch.Generator):
        return {"state": value.get_state()}
    if isinstance(value, np.random.Generator):
        return {"state": repr(value.bit_generator.state)}
    if isinstance(value, random.Random):
        return {"state": repr(value.getstate())}
    found: dict[Any, Any] = {}
    if isinstance(value, set | frozenset):
        found |= enumerate(sorted(map(repr, value)))
    elif isinstance(value, Collection):  # lists, tuples, deques, arrays
        found |= enumerate(value)
    if isinstance(value, partial):
        found |= {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        found |= {key: getattr(value, key) for key in names if hasattr(value, key)}
    cells = getattr(value, "__closure__", None) or ()
    for i, cell in enumerate(cells):
        with suppress(ValueError):  # an empty cell
            found[f"cell{i}"] = cell.cell_contents
    return found | getattr(value, "__dict__", {})


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, _PLAIN)
