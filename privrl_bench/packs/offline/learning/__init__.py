"""Private policies from recorded trajectories, without a simulator."""
