"""What the sections of ``benchmarks/buffers.py`` are made of."""
