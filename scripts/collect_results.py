"""Copy finished run folders, without what is large or must stay with the data, for committing.

    python scripts/collect_results.py outputs outputs/paper/main_job

Keeps the folder structure. Left out: checkpoints, policies, ledgers, timings, W&B files. Then
`privrl-report outputs/paper/main_job` makes the table and the pictures.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

KEPT = (
    "config.yaml",
    "overrides.txt",
    "provenance.json",
    "plan.json",
    "status.json",
    "summary.json",
    "metrics.jsonl",
)


def main() -> None:
    """Copy, and say what was copied."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--summaries",
        action="store_true",
        help="no metrics: for many short runs with a figure of their own",
    )
    arguments = parser.parse_args()
    kept = [name for name in KEPT if name not in ("metrics.jsonl", "plan.json")]
    kept = kept if arguments.summaries else list(KEPT)
    for status in sorted(arguments.source.rglob("status.json")):
        folder = status.parent
        committed = arguments.source / "paper"  # what was collected before
        if arguments.target in folder.parents or committed in folder.parents:
            continue
        if json.loads(status.read_text())["status"] != "done":
            print(f"left out, not done: {folder}")
            continue
        there = arguments.target / folder.relative_to(arguments.source)
        there.mkdir(parents=True, exist_ok=True)
        for name in kept:
            shutil.copyfile(folder / name, there / name)
        print(there)


if __name__ == "__main__":
    main()
