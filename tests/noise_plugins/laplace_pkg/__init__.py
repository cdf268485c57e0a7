"""A mechanism as a stranger would add it: Laplace noise."""

from pathlib import Path

from privrl_bench import Plugin

PLUGIN = Plugin(mechanisms={"laplace": "laplace_pkg.laplace"}, conf=Path(__file__).parent / "conf")
