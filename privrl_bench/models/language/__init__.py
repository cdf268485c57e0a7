"""Prompts, answers and their scores; small models made here, or real ones from disk. Needs `[rlhf]`."""
