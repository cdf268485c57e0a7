"""A sampler as a stranger would add it."""

from pathlib import Path

from privrl_bench import Plugin

PLUGIN = Plugin(
    samplers={"without_replacement": "draw_pkg.without_replacement"},
    conf=Path(__file__).parent / "conf",
)
