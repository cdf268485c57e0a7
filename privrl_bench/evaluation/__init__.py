"""Evaluators: how released parameters are judged, on simulated or public data only."""
