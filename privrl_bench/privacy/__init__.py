"""The gate: clip, count, noise. All that an auditor of epsilon has to read."""
