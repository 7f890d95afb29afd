"""The implementation of ``benchmarks/buffers.py``."""
