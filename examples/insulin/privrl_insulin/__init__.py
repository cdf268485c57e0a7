"""A plugin of privrl_bench: insulin dosing for a population of virtual patients with type 1 diabetes."""

from pathlib import Path

from privrl_bench import Plugin

__version__ = "0.1.0"

PLUGIN = Plugin(conf=Path(__file__).parent / "conf")
