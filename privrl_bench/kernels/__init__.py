"""Compiled code (Numba) for training of users, simulators and regressions, and the threads it uses."""
