"""Prompts, answers and their scores; the package's small models, or real ones from disk. Needs `[rlhf]`."""
