"""Environments: construction, stepping in slots, scaling."""
