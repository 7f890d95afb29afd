"""Evaluators, which measure a policy over a fixed number of episodes."""
