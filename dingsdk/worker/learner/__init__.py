"""Learners: training, hooks around it, logs and checkpoints."""
