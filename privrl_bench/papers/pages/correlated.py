"""Blocks of correlated noise beside independent noise, from the tables of their items.

Each function of `BLOCKS` returns the text of one block.
"""

from __future__ import annotations

from privrl_bench.papers.pages.kept_tables import committed
from privrl_bench.papers.pages.store import BLOCKS
from privrl_bench.reporting.table_writer import compact

NOISES = ("independent noise", "correlated noise")


def beside(item: str, prefix: str = "") -> str:
    """Final return with either noise, by environment and z, where one of them is correlated."""
    found = {
        (line["panel"], line["z"], line["line"].removeprefix(prefix)): line
        for line in committed(item)
    }
    rows, last = [], ""
    for panel, z, name in found:
        if name == NOISES[1]:
            both = [found.get((panel, z, noise), {}).get("return", "") for noise in NOISES]
            line = found[panel, z, name]
            rows.append(["" if panel == last else panel, z, line["epsilon"], line["seeds"], *both])
            last = panel
    return compact(["task", "z", "epsilon", "seeds", *NOISES], rows)


def correlations() -> str:
    """Final return by environment and correlation."""
    lines = committed("dppg/correlation")
    values = list(dict.fromkeys(line["privacy.correlation"] for line in lines))
    panels: dict[str, dict[str, str]] = {}
    for line in lines:
        panels.setdefault(line["panel"], {})[line["privacy.correlation"]] = line["return"]
    rows = [[panel, *(found.get(value, "") for value in values)] for panel, found in panels.items()]
    return compact(["task", *values], rows)


BLOCKS |= {
    "dppg/correlated-fig2": lambda: beside("dppg/fig2", "formal, "),
    "dppg/correlated-low-epsilon": lambda: beside("dppg/correlated-low-epsilon"),
    "dppg/correlated-mujoco": lambda: beside("dppg/correlated-mujoco"),
    "dppg/correlation": correlations,
}
