"""A sampler as a stranger would add it, and an algorithm that takes it."""

from pathlib import Path

from privrl_bench import Plugin

PLUGIN = Plugin(
    algorithms={"drawn_dppg": "draw_pkg.drawn_dppg"},
    samplers={"without_replacement": "draw_pkg.without_replacement"},
    conf=Path(__file__).parent / "conf",
)
