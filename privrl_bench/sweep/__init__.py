"""Sweeps: which runs are trained together, and in which process."""
