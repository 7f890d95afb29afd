"""Which distribution provides what is not installed, for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TYPES: Mapping[tuple[str, str], str] = {
    ("transports", "in_memory"): "dingsdk-in-memory",
    ("comm_collectors", "in_memory"): "dingsdk-in-memory",
    ("comm_learners", "in_memory"): "dingsdk-in-memory",
    ("transports", "flask_fs"): "dingsdk-flask-fs",
    ("comm_collectors", "flask_fs"): "dingsdk-flask-fs",
    ("comm_learners", "flask_fs"): "dingsdk-flask-fs",
}
"""(kind, type key) -> distribution. Only distributions of this repository."""

NAMES: Mapping[str, str] = {
    "InMemoryCollector": "dingsdk-in-memory",
    "InMemoryLearner": "dingsdk-in-memory",
    "InMemoryTransport": "dingsdk-in-memory",
    "CollectorSlave": "dingsdk-flask-fs",
    "FlaskFSTransport": "dingsdk-flask-fs",
    "FlaskFileSystemCollector": "dingsdk-flask-fs",
    "FlaskFileSystemLearner": "dingsdk-flask-fs",
    "LearnerSlave": "dingsdk-flask-fs",
}
"""Class reachable as ``dingsdk.worker.<Name>`` -> the distribution that owns it."""

_CHECKOUT = Path(__file__).parents[2] / "plugins"


def install_command(distribution: str) -> str:
    """Return what to type: from the folder of this checkout where there is one."""
    folder = _CHECKOUT / distribution
    return f"pip install {folder if (folder / 'pyproject.toml').is_file() else distribution}"
