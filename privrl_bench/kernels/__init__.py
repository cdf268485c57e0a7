"""Compiled code (Numba) for training of users, simulators and regressions; cores, signals, worker processes."""
