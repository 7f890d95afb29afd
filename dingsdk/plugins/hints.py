"""Which distribution provides what is not installed, for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_IN_MEMORY = "dingsdk-rl-in-memory"
_FLASK_FS = "dingsdk-rl-flask-fs"

FOLDERS: Mapping[str, str] = {_IN_MEMORY: "dingsdk-in-memory", _FLASK_FS: "dingsdk-flask-fs"}
"""Distribution -> its folder below ``plugins`` in this repository."""

TYPES: Mapping[tuple[str, str], str] = {
    ("transports", "in_memory"): _IN_MEMORY,
    ("transports", "flask_fs"): _FLASK_FS,
    ("comm_collectors", "flask_fs"): _FLASK_FS,
    ("comm_learners", "flask_fs"): _FLASK_FS,
}
"""(kind, type key) -> distribution. Only distributions of this repository."""

NAMES: Mapping[str, str] = {
    "InMemoryTransport": _IN_MEMORY,
    "CollectorSlave": _FLASK_FS,
    "FlaskFSTransport": _FLASK_FS,
    "FlaskFileSystemCollector": _FLASK_FS,
    "FlaskFileSystemLearner": _FLASK_FS,
    "LearnerSlave": _FLASK_FS,
}
"""Class reachable as ``dingsdk.worker.<Name>`` -> the distribution that owns it."""

_CHECKOUT = Path(__file__).parents[2]


def install_command(distribution: str, checkout: Path = _CHECKOUT) -> str:
    """Return what to type to install a distribution of this repository.

    Our distributions are on no package index, where anybody may take an unused name: the
    command names a folder, of this checkout where there is one.
    """
    folder = Path("plugins", FOLDERS[distribution])
    here = checkout / folder
    if (here / "pyproject.toml").is_file():
        return f"pip install {here}"
    return f"pip install ./{folder}, in a clone of the dingsdk repository"
