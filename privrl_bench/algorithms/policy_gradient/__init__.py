"""Policy gradients: DPPG, REINFORCE, and the non-private PPO and A2C."""
