"""privrl_bench: reinforcement learning under differential privacy, one config-driven runner."""
