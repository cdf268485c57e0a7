"""The papers: their tables and figures, the runs that these need, and the pages of results."""

from pathlib import Path

from privrl_bench.composition.plugins import Command, Plugin

PLUGIN = Plugin(
    commands={
        "reproduce": Command(
            "privrl_bench.papers.reproduce:main",
            "run what a paper's tables and figures need, and compare",
        )
    },
    conf=Path(__file__).parent / "conf",
)
