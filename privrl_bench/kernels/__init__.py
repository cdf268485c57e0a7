"""Compiled code (Numba) for local training, simulators and regressions."""
