"""Whole runs: config in, trained policy and run folder out."""
