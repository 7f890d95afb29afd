"""Commanders decide what workers do next: which tasks, with which settings."""
