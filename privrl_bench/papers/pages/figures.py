"""Every committed figure: how it is drawn from committed files, and whether it is what they give.

outputs/paper/figures.csv has, for each figure, the digest of its file and that of the tables it was drawn from.
A figure is stale if one of them has changed. Whoever changes the code that draws them draws anew (`--redraw`).
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from privrl_bench.papers.items import paper
from privrl_bench.papers.pages import collect_results
from privrl_bench.papers.pages.control import CONTROL, draw_pair
from privrl_bench.papers.pages.store import ROOT, STORE, chosen

RECORD = STORE / "figures.csv"
_COLUMNS = ("figure", "file", "made_from")
_KINDS = (".svg", ".png")


@dataclass(frozen=True)
class Figure:
    """A committed figure.

    Attributes:
        place: The file, relative to the repository; without a suffix if the smaller of SVG and PNG is kept.
        tables: Committed files that it is drawn from.
        draw: Draws it into a folder, and returns the file.
        described: What a paper's file says of its item.
    """

    place: str
    tables: tuple[Path, ...]
    draw: Callable[[Path], Path]
    described: str = ""

    @property
    def files(self) -> list[Path]:
        """The committed file."""
        path = ROOT / self.place
        return [path] if path.suffix else sorted(path.parent.glob(f"{path.name}.*"))

    def made_from(self) -> str:
        """Digest of the tables, and of what describes the item."""
        every = [digest(path.read_bytes()) for path in self.tables]
        return digest("\n".join([*every, self.described] if self.described else every).encode())


# --- the figures


def figures() -> Iterator[Figure]:
    """Every figure, in the order of the record."""
    folders = sorted({path.parent for path in STORE.glob("*/*/figure.*")})
    for folder in folders:
        name = folder.relative_to(STORE).as_posix()
        tables = _data(folder, *_kept(folder))
        yield Figure(f"outputs/paper/{name}/figure", tables, _item(folder), _words(folder))
    pair, words = f"outputs/paper/{CONTROL}/pair.svg", _words(STORE / CONTROL)
    yield Figure(pair, _data(STORE / CONTROL), lambda out: draw_pair(out / "pair.png"), words)
    tables = _data(STORE / "dppg/learner_check")
    yield Figure("docs/pictures/hopper_curve.svg", tables, _learning_curve)
    estimators = ROOT / "docs/results/estimators.csv"
    yield Figure("docs/pictures/estimators.svg", (estimators,), _estimators)
    insulin = ROOT / "examples" / "insulin"
    tables = (insulin / "results" / "policies.csv",)
    yield Figure("examples/insulin/results/insulin.svg", tables, _insulin)


def _data(*folders: Path) -> tuple[Path, ...]:
    """The files of items that are no figures."""
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    return tuple(path for path in files if path.suffix not in _KINDS)


def _words(folder: Path) -> str:
    """What a paper's file says of an item: its words, those of the item that it is like, and the scales."""
    content = paper(folder.parent.name).content
    item = content["items"][folder.name]
    return json.dumps([item, content["items"].get(item.get("like")), content["scales"]])


def _kept(folder: Path) -> list[Path]:
    """The folder with the runs of an item, if it is another one."""
    item = paper(folder.parent.name).content["items"][folder.name]
    name = item.get("like", item.get("facts", {}).get("kept"))
    return [folder.parent / name] if name else []


def _item(folder: Path) -> Callable[[Path], Path]:
    def draw(out: Path) -> Path:
        found = collect_results.paper_item(folder)
        if (
            found is None
            or found[1].settings()
            or not collect_results.drawn_from_table(found[1], folder, out)
        ):
            collect_results.report(folder, out)
        return next(path for path in out.glob("figure.*") if path.suffix in _KINDS)

    return draw


def _learning_curve(out: Path) -> Path:
    run = chosen("dppg/learner_check", "P_hop_300")[0]
    run.plot(out / "hopper_curve.svg")
    return out / "hopper_curve.svg"


def _estimators(out: Path) -> Path:
    sys.path.insert(0, str(ROOT / "scripts"))
    import compare_estimators

    compare_estimators.draw(ROOT / "docs/results/estimators.csv", out / "estimators.svg")
    return out / "estimators.svg"


def _insulin(out: Path) -> Path:
    sys.path.insert(0, str(ROOT / "examples" / "insulin"))
    import compare

    compare.draw_table(ROOT / "examples" / "insulin" / "results" / "policies.csv", out / "a.png")
    return out / "a.svg"


# --- digests


def digest(content: bytes) -> str:
    """16 digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]


# --- drawing and checking


def recorded() -> dict[str, tuple[str, str]]:
    """Figure -> digests of its file and of what it was drawn from."""
    if not RECORD.exists():
        return {}
    with RECORD.open(encoding="utf-8", newline="") as file:
        return {row["figure"]: (row["file"], row["made_from"]) for row in csv.DictReader(file)}


def stale(known: dict[str, tuple[str, str]]) -> list[Figure]:
    """Figures that are not what their command draws from the committed files."""
    return [one for one in figures() if _state(one) != known.get(one.place)]


def _state(one: Figure) -> tuple[str, str]:
    files = [path for path in one.files if path.exists()]
    drawn = digest(files[0].read_bytes()) if len(files) == 1 else ""
    return drawn, one.made_from()


def without_command() -> list[str]:
    """Committed figures that nothing here draws."""
    listed = ["git", "-C", str(ROOT), "ls-files", *(f"*{kind}" for kind in _KINDS)]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    drawn = {_name(path) for one in figures() for path in one.files}
    return [name for name in names if name not in drawn and (ROOT / name).exists()]


def problems() -> list[str]:
    """A line for each figure that is stale or has no command."""
    return [
        *(f"{one.place}: not drawn from today's tables" for one in stale(recorded())),
        *(
            f"{name}: no command draws it (privrl_bench/papers/pages/figures.py)"
            for name in without_command()
        ),
    ]


def draw(everything: bool = False) -> None:
    """Draw the stale figures, or all, and record what they were drawn from."""
    known = {} if everything else recorded()
    for one in stale(known):
        with tempfile.TemporaryDirectory() as folder:
            made = one.draw(Path(folder))
            target = (ROOT / one.place).with_suffix(made.suffix)
            for old in one.files:
                old.unlink(missing_ok=True)
            shutil.copyfile(made, target)
            if (table := made.with_name("table.md")).exists():  # made from the same rows
                shutil.copyfile(table, target.with_name(table.name))
        print(f"drew {_name(target)}", flush=True)
        known[one.place] = _state(one)
    _write({each.place: known[each.place] for each in figures() if each.place in known})


def _write(known: dict[str, tuple[str, str]]) -> None:
    with RECORD.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([name, *digests] for name, digests in known.items())


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
