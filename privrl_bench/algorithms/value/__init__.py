"""Value-based learning: DQN, UCB-VI, and the non-private off-policy learners DDPG and SAC."""
