"""The parts of ``replay_server.py``."""
