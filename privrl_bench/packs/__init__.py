"""Packs: capabilities that the core does not need, added as plugins of other packages are.

Each folder is a plugin, which every command loads: its `__init__.py` has `PLUGIN`, which names modules and
imports none of them. The core imports nothing of a pack.
"""
