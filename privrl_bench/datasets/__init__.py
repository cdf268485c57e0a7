"""Recorded trajectories: Minari datasets in and out, flat files in between, the public/private split."""
