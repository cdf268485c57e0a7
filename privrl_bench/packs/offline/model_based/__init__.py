"""Model-based offline learning: PriMORL and MOPO."""
