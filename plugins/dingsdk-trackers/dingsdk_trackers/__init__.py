"""Learner hooks for Weights & Biases and MLflow."""
