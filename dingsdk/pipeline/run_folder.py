"""The folder that a run leaves: where it is, what is in it, how it is written."""

from __future__ import annotations
from pathlib import Path


def find_checkpoints(run_dir: Path) -> dict[str, Path]:
    """Return the checkpoints of a run by name (``latest``, ``best``), those that exist."""
    return {}
