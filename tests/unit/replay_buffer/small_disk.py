"""Running code on a disk that is soon full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o size=8m none "$1"'
_OWN_MOUNTS = ["unshare", "-Urm", "sh", "-c"]


def on_a_disk_of_8_mib(tmp_path: Path, code: str) -> str:
    """Run Python code, whose argument is a folder to be made on the disk; return what it prints."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*_OWN_MOUNTS, _MOUNT, "sh", disk], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small disk of their own")
    script = f'{_MOUNT} && exec "$2" -c "$3" "$1/rows"'
    done = subprocess.run(
        [*_OWN_MOUNTS, script, "sh", disk, sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
