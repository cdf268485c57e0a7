"""What a search releases: the kept policy, its settings and score, and the guarantee of all."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from privrl_bench.metrics import CLOCK
from privrl_bench.packs.tuning.search_plan import SearchPlan
from privrl_bench.packs.tuning.trials import Trial
from privrl_bench.privacy.guarantee import Guarantee
from privrl_bench.training.folder import write_atomic, write_json
from privrl_bench.training.trained_policy import FILE

# Of one run, or of the machine while several ran: how many did is secret.
LEFT_OUT = ("ledger", "epsilon_paper", *CLOCK)
FOLDERS = ("adapter", "model")  # of language models


def publish(
    folder: Path, source: Path, kept: Trial, guarantee: Guarantee, plan: SearchPlan
) -> dict[str, Any]:
    """Write what is released into the folder of the search: as in a run folder, with the guarantee of all.

    The metrics, curve and ledger of the kept run stay in `source`. Its number is not written: it bounds the
    number of runs, which is secret.

    Args:
        folder: of the search.
        source: the run folder of the kept policy.
        kept: the run with the best score.
        guarantee: of the search.
        plan: of the search.

    Returns:
        The content of summary.json.
    """
    shutil.copyfile(source / "config.yaml", folder / "config.yaml")
    provenance = json.loads((source / "provenance.json").read_text())
    for name in ("workers", "trained_together"):  # depend on how many runs there were
        provenance.pop(name)
    write_json(folder / "provenance.json", provenance)
    for name in FOLDERS:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, dirs_exist_ok=True)
    if (source / FILE).exists():
        content = torch.load(source / FILE, weights_only=True, map_location="cpu")
        content["guarantee"] = guarantee.to_dict()
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomic(folder / FILE, buffer.getvalue())
    summary = json.loads((source / "summary.json").read_text())
    tune = plan.search.tune
    summary |= {
        "epsilon": guarantee.epsilon,
        "epsilon_planned": plan.guarantee.epsilon,
        "guarantee": guarantee.to_dict(),
        "search": {
            "runs": plan.guarantee.notes["search"],
            "space": [one.text for one in plan.search.space],
            "kept": kept.job.overrides,
            "score": kept.score,
            "scored": tune.score,
            "epsilon_without_tuning": plan.alone,
        },
    }
    for name in LEFT_OUT:
        summary.pop(name, None)
    write_json(folder / "summary.json", summary)
    return dict(summary)
