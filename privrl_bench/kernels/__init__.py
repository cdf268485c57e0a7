"""Compiled code (Numba) for training of users and regressions; cores, signals, worker processes."""
