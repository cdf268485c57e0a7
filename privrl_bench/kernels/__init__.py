"""Compiled code (Numba) for local training, simulators and regressions, and the threads it uses."""
