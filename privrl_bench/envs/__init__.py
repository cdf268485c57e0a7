"""Simulators: registry, slots, scaling."""
