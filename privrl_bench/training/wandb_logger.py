"""Weights & Biases as a mirror of one run's files.

The run folder is the primary record; an error of W&B never stops training. wandb is imported only when a run
asks for it. It receives the content of the files without private metrics, the released policy and the picture:
no console output, no source code, no machine details. Several loggers may be open in one process.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privrl_bench.config.schema import LogConfig
from privrl_bench.errors import first_line
from privrl_bench.evaluation.objective import objective_of
from privrl_bench.metrics import SUMMARY, check_summary, visible
from privrl_bench.training.folder import json_safe

INIT_TIMEOUT_S = 20.0  # a server that has not answered by then is treated as absent
FINISH_TIMEOUT_S = 60.0  # what is not uploaded by then stays in the folder for `wandb sync`
# The only files of a run folder that are sent, and as what. The leak test compares the content of policy.pt and
# every number that the picture shows.
RELEASED = {"policy.pt": "policy", "curve.png": "picture"}
CHART = "return_against_epsilon"
_SEED = re.compile(r",?seed=\d+")


class WandbLogger:
    """Sends the visible metrics of one run to W&B, or writes them to `folder/wandb`, or does nothing.

    Never raises because of W&B: after an error `mode` is reduced (online | offline | none), and one line on
    stderr gives the reason.

    Args:
        config: mode, project, entity, group and tags.
        folder: the run folder, which gives the W&B run its name and, unless `config.group` does, its group: the
            run without its seed, so that the seeds of a sweep are one group.
        resolved_config: the whole configuration as plain data.
        guarantee: the privacy guarantee as plain data.
    """

    def __init__(
        self,
        config: LogConfig,
        folder: Path,
        resolved_config: Mapping[str, Any],
        guarantee: Mapping[str, Any],
    ) -> None:
        self.mode = config.wandb
        self._folder = Path(folder)
        self._guarantee = json_safe(guarantee)
        self._fell_back = False  # wandb keeps the id of a failed start busy in this process
        self._run: Any = None
        if config.wandb == "none":
            return
        alike = _SEED.sub("", self._folder.name).strip("_,-") or "default"
        arguments = {
            "project": config.project,
            "entity": config.entity,
            "name": self._folder.name,
            "group": config.group or "/".join((*self._folder.parts[-3:-1], alike)),
            "job_type": (resolved_config.get("algo") or {}).get("name", "train"),
            "tags": list(dict.fromkeys(config.tags)),
            "config": {**json_safe(resolved_config), "guarantee": self._guarantee},
        }
        self._run = self._start(arguments)

    def log(self, row: Mapping[str, float]) -> None:
        """Log one row of metrics without the private ones.

        W&B's own step counter is not used: a row is identified by its `round` and `steps`, so that rows
        which a resumed run repeats can be recognised.

        Raises:
            KeyError: a metric is not declared.
        """
        seen = visible(dict(row))
        if self._run is None or not seen:
            return
        try:
            self._run.log({name: float(value) for name, value in seen.items()})
        except Exception as error:
            self._give_up("stopped taking metrics", error)

    def finish(
        self, summary: Mapping[str, Any], exit_code: int = 0, released: Sequence[Path] = ()
    ) -> None:
        """Record the final summary and close the run. A second call does nothing.

        Args:
            summary: content of summary.json.
            exit_code: of the run.
            released: files to send, see `RELEASED`; those that do not exist are left out.

        Raises:
            KeyError: a field of the summary is not declared.
        """
        check_summary(summary)
        run, self._run = self._run, None
        if run is None:
            return
        kept = {name: value for name, value in summary.items() if SUMMARY[name] != "private"}
        with self._tried("the summary was not recorded"):
            run.summary.update({"guarantee": self._guarantee, **_summary_values(kept)})
        with self._tried("the policy or the picture was not recorded"):
            _send_files(run, released, self._guarantee)
            if released:
                _send_point(run, kept)
        with self._tried("the run folder is complete, but it did not finish cleanly"):
            run.finish(exit_code=exit_code)

    @contextmanager
    def _tried(self, problem: str) -> Iterator[None]:
        """Print an error of W&B in place of raising it."""
        try:
            with self._environment():
                yield
        except Exception as error:
            self._say(f"{problem} ({first_line(error)})")

    def _start(self, arguments: dict[str, Any]) -> Any:
        """Open the run in the wanted mode, or in the next lower one that works."""
        while self.mode != "none":
            try:
                with self._environment():
                    return self._open(arguments)
            except Exception as error:
                lower = "offline" if self.mode == "online" else "none"
                self._say(
                    f"{self.mode} is not available ({first_line(error)}); training continues with "
                    f"log.wandb={lower}"
                )
                self.mode, self._fell_back = lower, True
        return None

    def _open(self, arguments: dict[str, Any]) -> Any:
        run = self._init(arguments)
        run.define_metric("*", step_metric="steps")
        run.summary.update({"guarantee": self._guarantee})
        if self.mode == "online":
            self._say(f"{run.url}")
        return run

    def _init(self, arguments: dict[str, Any]) -> Any:
        """Return a W&B run with these arguments of `wandb.init`."""
        import wandb

        online = self.mode == "online"
        # `init` would ask on the terminal.
        if online and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("not logged in, `wandb login` does that once")
        return wandb.init(
            **arguments,
            mode="online" if online else "offline",
            id=self._identity() + ("-offline" if self._fell_back else ""),
            resume="allow" if online else None,
            dir=str(self._folder),
            settings=_settings(wandb),
        )

    def _identity(self) -> str:
        """Return the W&B id of this folder, drawn once, so that a resumed run continues the same W&B run."""
        file = self._folder / "wandb_id.txt"
        known = file.read_text().strip() if file.exists() else ""
        if not known:
            known = secrets.token_hex(6)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(known + "\n")
        return known

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Set wandb's variables for one call: silent, no telemetry, all files below the run folder."""
        base = self._folder / "wandb"
        base.mkdir(parents=True, exist_ok=True)
        wanted = {
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CACHE_DIR": str(base / "cache"),
            "WANDB_DATA_DIR": str(base / "data"),
            "WANDB_ARTIFACT_DIR": str(base / "artifacts"),
        }
        if self.mode == "offline":  # online reads the user's own server and login settings
            wanted["WANDB_CONFIG_DIR"] = str(base / "config")
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _give_up(self, what: str, error: Exception) -> None:
        run, self._run, self.mode = self._run, None, "none"
        self._say(
            f"{what} ({first_line(error)}); training continues without W&B, the files are kept"
        )
        try:
            run.finish(exit_code=1)
        except Exception:
            return  # its error was printed already

    def _say(self, line: str) -> None:
        print(f"W&B: {line}", file=sys.stderr, flush=True)


def _summary_values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Like `json_safe`, but numbers on the top level stay numbers, so that W&B can sort by them."""
    safe = json_safe(summary)
    return {
        name: summary[name] if isinstance(summary[name], float) else safe[name] for name in safe
    }


def _settings(wandb: Any) -> Any:
    """Return settings: quiet, with deadlines, nothing sent beside the files."""
    return wandb.Settings(
        silent=True,
        console="off",  # printed lines may hold private metrics
        reinit="create_new",  # other open runs of this process stay open
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
    )


def _send_files(run: Any, files: Sequence[Path], guarantee: Mapping[str, Any]) -> None:
    """Send those of the released files that exist.

    Raises:
        ValueError: a file is not one of `RELEASED`.
    """
    import wandb

    for path in files:
        if path.name not in RELEASED:
            raise ValueError(f"{path.name} is not released: only {', '.join(RELEASED)} may be sent")
        if not path.exists():
            continue
        if RELEASED[path.name] == "picture":
            run.log({"curve": wandb.Image(str(path))})
            continue
        about = {key: guarantee[key] for key in ("status", "epsilon", "delta") if key in guarantee}
        artifact = wandb.Artifact(f"policy-{run.id}", type="policy", metadata=about)
        artifact.add_file(str(path), name=path.name)
        run.log_artifact(artifact)


def _send_point(run: Any, summary: Mapping[str, Any]) -> None:
    """Send a scatter chart with the run's final value and epsilon, where both are finite.

    W&B draws charts of one name together: for the runs of a group they are one panel of return against epsilon.
    """
    import wandb

    measure = objective_of(dict(summary))
    value, epsilon = (summary.get(measure.name) or {}).get("mean"), summary.get("epsilon")
    numbers = [x for x in (value, epsilon) if isinstance(x, float | int) and math.isfinite(x)]
    if len(numbers) < 2:
        return
    table = wandb.Table(columns=["epsilon", measure.name], data=[[epsilon, value]])
    title = f"final {measure.label} against epsilon"
    run.log({CHART: wandb.plot.scatter(table, "epsilon", measure.name, title=title)})
