"""One run: building its components, the round, files, checkpoints and resuming."""
