"""The command `privrl import` and `pb.import_logs`: logs in a table become a dataset of users."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.cli.parsing import Parser, add_working_directory, given
from privrl_bench.errors import ConfigError, suggest
from privrl_bench.packs.offline.datasets.minari_files import (
    LOGS,
    check_id,
    datasets_root,
    write_minari,
)
from privrl_bench.packs.offline.datasets.trajectories import Trajectories
from privrl_bench.packs.offline.datasets.user_keys import OURS, REAL
from privrl_bench.packs.offline.learning.learning_settings import FEW
from privrl_bench.packs.offline.logs.ranges import read_ranges
from privrl_bench.packs.offline.logs.steps import (
    Columns,
    Conventions,
    cut,
    dataset,
    outside,
    read_rows,
)
from privrl_bench.training.crash import guarded

ABOUT = """Make a dataset of logs: a table with a row for each step, as CSV, Parquet or JSON lines.

  {0} logs.parquet --user id --order t --obs age,dose --act choice --reward r --done end
      --users real --steps 10 --last-observation repeat --name clinic/logs-v1

Rows may be in any order. An action of one column of words or whole numbers has choices; others are
numbers. Words in observations become one-hot vectors. Ranges and choices are public: give them with --ranges,
a YAML file with `age: {{low: 0, high: 120}}` and `choice: [none, low, high]`, or those of the public users
(--public) are taken and printed. What this command prints is for the owner of the data: its errors name rows.
Needs pip install 'privrl-bench[logs]'."""


def main(arguments: Sequence[str] | None = None, prog: str = "privrl import") -> int:
    """Run the command and return its exit code."""
    add_working_directory()
    return guarded(lambda: _import(given(arguments), prog))


def _import(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT.format(prog))
    parser.add_argument("files", nargs="+", metavar="FILE", help="with the same columns")
    for name, text in (
        ("user", "whose step a row is"),
        ("order", "by which the steps of a user are in order: a number or a time"),
        ("obs", "observations, separated by commas"),
        ("act", "the action; several numbers separated by commas"),
        ("reward", "the reward"),
    ):
        parser.add_argument(f"--{name}", required=True, metavar="COLUMN", help=text)
    for name, text in (
        ("done", "whether the task ended with this step"),
        ("truncated", "whether something else ended the episode, as a time limit"),
        ("episode", "names an episode of the user"),
        ("behavior-prob", "probability of the action under the policy that acted"),
    ):
        parser.add_argument(f"--{name}", metavar="COLUMN", help=text)
    parser.add_argument("--users", required=True, help="real or simulated")
    steps = "the largest number of steps of an episode; public"
    parser.add_argument("--steps", required=True, type=int, help=steps)
    parser.add_argument(
        "--last-observation",
        required=True,
        help="after the last step of an episode: repeat its own, or drop the last step of a truncated one",
    )
    parser.add_argument("--open-end", help="of episodes without an end: terminated or truncated")
    parser.add_argument("--gaps", default="refuse", help="missing steps: refuse or allow")
    parser.add_argument("--ranges", metavar="FILE", help="YAML with public ranges and choices")
    parser.add_argument("--public", type=float, help="share of public users (0.01 if simulated)")
    parser.add_argument("--minari", action="store_true", help="write Minari's HDF5 files, slower")
    parser.add_argument("--name", required=True, help="of the dataset, as clinic/logs-v1")
    options = {name: x for name, x in vars(parser.read(words)).items() if x is not None}
    made = import_logs(options.pop("files"), **options)
    print("\n".join(made.lines()))
    return 0


class Imported:
    """A dataset that was made.

    Attributes:
        name: for `data.id`.
        folder: its folder.
        users, episodes, steps: their numbers.
        ranges: column -> range or choices.
        proposed: the ranges are those of the public users.
        outside: column -> how many rows are outside its range; private, as all counts here.
        observations: names of the numbers of an observation, in order.
        choices: names of the actions, by their numbers; empty for numbers.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        counts: tuple[int, int, int],
        about: dict[str, Any],
        real: bool,
        share: float,
    ):
        self.name, self.folder = name, folder
        self.users, self.episodes, self.steps = counts
        self.ranges, self.proposed = about["ranges"], about["givers"] > 0
        self.outside: dict[str, int] = {}
        share = max(share, min(math.ceil(100 * FEW / self.users) / 100, 0.5))
        self._public = f" data.public={share:g}" if share > 0.01 else ""
        self.observations, self.choices = about["observations"], about["choices"]
        self._secure = " privacy.noise=secure log=none" if real else ""

    def lines(self) -> list[str]:
        """What the command prints."""
        counts = f"{self.steps:,} steps in {self.episodes:,} episodes of {self.users:,} users"
        whose = "of the public users; change them with --ranges" if self.proposed else "as given"
        acts = [f"{k} is {one}" for k, one in enumerate(self.choices)]
        text = yaml.safe_dump(self.ranges, sort_keys=False, default_flow_style=None)
        return [
            f"imported {counts}",
            f"ranges   {whose}",
            *(f"         {line}" for line in text.splitlines()),
            *(
                f"outside  {name}: {count:,} rows outside its range"
                for name, count in self.outside.items()
            ),
            f"observes {', '.join(self.observations)}",
            *([f"actions  {', '.join(acts)}"] if acts else []),
            f"dataset  {self.folder}",
            f"next     privrl plan algo=dp_lspi env=logs data.id={self.name}"
            f"{self._public}{self._secure}",
        ]


def import_logs(
    source: Any,
    *,
    name: str,
    obs: str | Sequence[str],
    act: str | Sequence[str],
    ranges: str | Path | Mapping[str, Any] | None = None,
    public: float | None = None,
    minari: bool = False,
    **options: Any,
) -> Imported:
    """Make a dataset of logs, a table with a row for each step.

        made = pb.import_logs(frame, name="clinic/logs-v1", user="id", order="t", obs=["age", "dose"],
                              act="choice", reward="r", done="end", users="real", steps=50,
                              last_observation="repeat")
        pb.run("algo=dp_lspi env=logs", data={"id": made.name}, privacy={"noise": "secure"})

    Args:
        source: files (CSV, Parquet, JSON lines), or a data frame.
        name: of the dataset.
        obs: columns of observations.
        act: column of the action, or several of numbers.
        ranges: public ranges and choices, a YAML file or its content; None: those of the public users.
        public: share of public users, in (0, 1), whom epsilon does not cover; None: 0.01 of simulated ones.
        minari: write Minari's files, which take about 1 ms an episode.
        **options: other columns (`user`, `order`, `reward`, `done`, `truncated`, `episode`, `behavior_prob`)
            and what no log says (`users`, `steps`, `last_observation`, `open_end`, `gaps`), as of the
            command.

    Raises:
        ConfigError: an argument is wrong, or a row, which it names.
    """
    options["probability"] = options.pop("behavior_prob", "")
    columns: Columns = _made(Columns, options, obs=_names(obs), action=_names(act))
    terms: Conventions = _made(Conventions, options)
    for option in options:
        raise ConfigError(option, f"is no option of import{suggest(option, _OPTIONS)}")
    check_id(name, "--name")
    folder = datasets_root() / name
    if folder.exists():
        problem = f"{name} exists already at {folder}; choose another, or delete it"
        raise ConfigError("--name", problem)
    known = None if ranges is None else read_ranges(ranges, (*columns.obs, *columns.action))
    share = _share(public, known is None and terms.users == REAL)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder.parent) as temporary:
        inside = Path(temporary)
        rows = read_rows(source, columns, known, inside)
        made = dataset(rows, cut(rows, columns, terms), columns, terms, known, share, inside)
        if minari:
            _write_minari(name, made)
        else:
            made.save((inside / "dataset" / LOGS).parent)
            os.rename(inside / "dataset", folder)
        counts, about = (len(rows.names), made.episodes, made.steps), made.card["logs"]
        asked = share if known is None or public is not None else 0.0
        found = Imported(name, folder, counts, about, terms.users == REAL, asked)
        found.outside = outside(rows, about["ranges"], columns.obs)
        return found


def _share(public: float | None, asked: bool) -> float:
    """The share of public users; `asked`: there is no default."""
    if public is None and asked:
        rule = "which share of the real users is public? Epsilon does not cover them, and their data give"
        raise ConfigError("--public", f"{rule} the ranges; or give --ranges")
    share = 0.01 if public is None else public
    if not 0 < share < 1:
        raise ConfigError("--public", f"must be above 0 and below 1, got {share:g}")
    return share


_OPTIONS = (
    *(one.name for one in fields(Columns) if one.name not in ("obs", "action", "probability")),
    *("behavior_prob", *(one.name for one in fields(Conventions))),
)


def _made(kind: Any, options: dict[str, Any], **given: Any) -> Any:
    """An object of `kind` of those options that are its fields, which are removed."""
    for one in fields(kind):
        if one.name in options:
            given[one.name] = options.pop(one.name)
        elif one.name not in given and one.default is MISSING:
            raise ConfigError(f"--{one.name.replace('_', '-')}", "is required")
    return kind(**given)


def _write_minari(name: str, made: Trajectories) -> None:
    """Write Minari's files of a dataset; its card keeps what the ranges are."""
    from minari.serialization import deserialize_space

    said = made.card["minari"]
    seen, acted = (deserialize_space(said[key]) for key in ("observation_space", "action_space"))
    users = made.labels[OURS]
    episodes = (made.episode(k)._replace(user=str(users[k])) for k in range(made.episodes))
    card = {"users": said["users"], "logs": made.card["logs"]}
    write_minari(name, episodes, None, seen, acted, card)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    return tuple(str(name).strip() for name in names)
