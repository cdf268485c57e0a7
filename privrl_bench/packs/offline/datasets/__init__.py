"""Recorded trajectories: Minari datasets, flat memory-mapped files, the public/private split."""
