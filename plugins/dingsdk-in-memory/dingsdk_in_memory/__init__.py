"""The in_memory transport: all workers of a run in one process."""
