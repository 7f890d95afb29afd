"""The shared_memory transport; see the README."""
