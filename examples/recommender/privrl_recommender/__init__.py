"""A plugin of privrl_bench: a recommender for 100,000 declared users. This module must not import torch."""

from pathlib import Path

from privrl_bench import Plugin

__version__ = "0.1.0"

PLUGIN = Plugin(conf=Path(__file__).parent / "conf")
