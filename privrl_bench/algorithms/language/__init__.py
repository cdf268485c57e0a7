"""Fine-tuning of language models: DPPG and PPO. Needs the extra `rlhf`."""
