"""Fine-tuning of language models by DPPG and PPO. Needs the extra `rlhf`."""
