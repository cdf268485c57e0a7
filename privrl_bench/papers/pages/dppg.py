"""Blocks of the DPPG paper, from runs.csv."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from privrl_bench.papers.items import finished_runs
from privrl_bench.papers.pages.store import (
    BLOCKS,
    LARGE,
    STORE,
    TASKS,
    block,
    chosen,
    each,
    finals,
    last_fifth,
    made_earlier,
    paper_table,
    ranged,
    spent,
    spread,
    steps,
    stored,
    without_repeats,
    z_of,
)
from privrl_bench.papers.paper_table import judged
from privrl_bench.reporting.results_store import read_trivial
from privrl_bench.reporting.runs import Run
from privrl_bench.reporting.table_writer import compact


def printed(env: str, label: str, digits: int = 1) -> str:
    """A number of DPPG's table 1, `-` if it has none."""
    for cell in paper_table("dppg").cells:
        if (cell.env, cell.label) == (env, label):
            return "{:.{d}f} ± {:.{d}f}".format(*cell.paper, d=digits)
    return "-"


FORMAL = {  # start of the runs' keys -> the return that was asked of this project
    "dppg/cartpole/z=1,": "475",
    "dppg/cartpole/z=3,": "350",
    "dppg/acrobot/": "-90",
    "dppg/pendulum/": "a curve",
    "dppg/hopper/": "650",
    "dppg/halfcheetah/": "1,000",
}
MAIN_JOB = (
    *("dppg/cartpole/z=0,", "dppg/cartpole/z=1,", "dppg/cartpole/z=3,"),
    *("dppg/acrobot/z=1,", "dppg/hopper/z=0.1,", "dppg/hopper/z=0,"),
    *("dppg/halfcheetah/z=0.1,", "ppo/cartpole/", "ppo/acrobot/", "ppo/hopper/"),
)


def guarantee(runs: Sequence[Run]) -> list[str]:
    """Epsilon and status."""
    return [spent(runs), runs[0].guarantee_status]


@block("dppg/formal")
def _formal() -> str:
    lines, every = [], list[Run]()
    for start in FORMAL:
        runs = chosen("dppg/formal", start)
        every += runs
        paper = printed(runs[0].env, f"DPPG z = {z_of(runs)}")
        line = [TASKS[runs[0].env], z_of(runs), steps(runs), str(len(runs)), ranged(runs)]
        lines.append([*line, last_fifth(runs), paper, spent(runs), runs[0].guarantee_status])
    head = ["DPPG on", "z", "steps", "seeds", "return (min to max)", "last fifth"]
    head += ["the paper's, not formal", "epsilon", "status"]
    return noted(compact(head, without_repeats(lines)), every)


@block("dppg/formal-intervals")
def _formal_intervals() -> str:
    lines, every = [], list[Run]()
    for start, asked in FORMAL.items():
        runs = chosen("dppg/formal", start)
        every += runs
        values, paper = finals(runs), printed(runs[0].env, f"DPPG z = {z_of(runs)}")
        line = [TASKS[runs[0].env], z_of(runs), str(len(runs)), spread(values)]
        line += [f"{min(values):.1f}", f"{max(values):.1f}", spent(runs), asked]
        lines.append([*line, paper.partition(" ")[0]])
    head = ["task", "z", "seeds", "return ± 95 % interval over seeds", "min", "max", "epsilon"]
    head += ["asked of this project", "the paper's, not formal"]
    return noted(compact(head, lines), every)


@block("dppg/table1")
def _table1() -> str:
    table, folder = paper_table("dppg"), STORE / "dppg/table1"
    runs, trivial = finished_runs(folder, table), read_trivial(folder)
    lines = []
    for cell in table.cells:
        digits = 0 if cell.env in LARGE else 1
        ours, formal = runs[cell.paper_like], runs.get(cell.formal, [])
        cost = f" ({spent(ours, digits=3)})" if cell.formal else ""
        lines.append(
            [
                TASKS[cell.env],
                cell.label,
                printed(cell.env, cell.label, digits),
                spread(finals(ours), digits) + cost,
                f"{spread(finals(formal), digits)} ({spent(formal, digits=3)})" if formal else "",
                trivial[cell.env].partition(" ")[0] if cell.label == "PPO" else "",
            ]
        )
    head = ["task", "method", "paper", "as the paper does it (epsilon)", "formal (epsilon)"]
    return compact([*head, "trivial"], without_repeats(lines))


@block("dppg/table1-verdict")
def _verdict() -> str:
    table = paper_table("dppg")
    runs = finished_runs(STORE / "dppg/table1", table)
    found = [judged(cell, runs[cell.judged_by]) for cell in table.cells]
    inside, above, below = (found.count(one) for one in ("inside", "above", "below"))
    return (
        f"Of the {len(found)} cells {inside} are inside the paper's interval, {above} above it and "
        f"{below} below it"
    )


@block("dppg/main_job")
def _main_job() -> str:
    lines, every = [], list[Run]()
    for start in MAIN_JOB:
        runs = chosen("dppg/main_job", start)
        every += runs
        first = runs[0]
        label = "PPO" if first.algo == "ppo" else f"DPPG z = {z_of(runs)}"
        line = [f"{first.algo.upper()} {TASKS[first.env]}", z_of(runs), steps(runs), str(len(runs))]
        line += [ranged(runs), last_fifth(runs), printed(first.env, label), spent(runs)]
        formula = "-" if first.z is None else spent(runs, "epsilon_paper")
        lines.append([*line, formula, first.guarantee_status])
    head = ["algorithm, task", "z", "steps", "seeds", "return (min to max)", "last fifth", "paper"]
    head += ["epsilon", "the paper's formula", "status"]
    return noted(compact(head, without_repeats(lines)), every)


@block("dppg/formal_ablation")
def _ablation() -> str:
    every, private = "eval.every=100000", "algo.critic=private,algo.critic_clip=0.1,"
    rows = {
        "formal default": f"z=12,{every}",
        "even split of the noise (`critic_noise_ratio=1`)": f"z=12,algo.critic_noise_ratio=1,{every}",
        "step of the release not annealed": f"z=12,algo.anneal_server=False,{every}",
        "segments instead of fresh users": f"z=12,env.user=segment,{every}",
        "shared critic (clip 0.5)": f"z=12,algo.critic=shared,algo.critic_clip=0.5,{every}",
        "even split, z = 6": f"z=6,algo.critic_noise_ratio=1,{every}",
        "`+paper=dppg`, fresh users": f"z=3,env.user=fresh,{every},paper=dppg",
        "`+paper=dppg`, fresh users, private critic (clip 0.1)": (
            f"z=3,{private}env.user=fresh,{every},paper=dppg"
        ),
    }
    found = {
        label: chosen("dppg/formal_ablation", f"dppg/cartpole/{words},seed=")
        for label, words in rows.items()
    }
    found["`+paper=dppg` as it is (main job)"] = chosen("dppg/main_job", "dppg/cartpole/z=3,")
    lines = [
        [label, z_of(runs), each(runs), f"{np.mean(finals(runs)):.0f}", *guarantee(runs)]
        for label, runs in found.items()
    ]
    table = compact(["setting", "z", "returns", "mean", "epsilon", "status"], lines)
    return noted(table, [run for runs in found.values() for run in runs])


def noted(table: str, runs: Sequence[Run]) -> str:
    """A table, and the note on its runs whose settings are not today's."""
    return f"{table}\n\n{made_earlier(runs)}".rstrip()


BLOCKS |= {
    f"made_at/{item}": partial(lambda item: made_earlier(stored(f"dppg/{item}")), item)
    for item in ("gradient_tuning", "halfcheetah_tuning")
}
