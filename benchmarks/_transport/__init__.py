"""The implementation of ``benchmarks/transport.py``."""
