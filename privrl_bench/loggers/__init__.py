"""Progress on the screen and the W&B mirror of a run's files."""
