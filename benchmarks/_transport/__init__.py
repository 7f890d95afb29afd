"""What the sections of ``benchmarks/transport.py`` are made of."""
