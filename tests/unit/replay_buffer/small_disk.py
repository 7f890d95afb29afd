"""Runs code on a small disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DISKS = {
    "tmpfs": (["unshare", "-Urm"], 'mount -t tmpfs -o size=8m none "$1"'),
    # After a failed reservation it keeps the blocks that it got; only root may mount it.
    "ext4": (
        ["unshare", "-m"],
        'truncate -s 9m "$1.img" && mkfs.ext4 -q -m 0 "$1.img" && mount -o loop "$1.img" "$1"',
    ),
}


def on_a_disk_of_8_mib(tmp_path: Path, code: str, kind: str) -> str:
    """Run Python code with the path of a new folder on the disk; return its output."""
    own_mounts, mount = DISKS[kind]
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*own_mounts, "sh", "-c", mount, "sh", disk], capture_output=True).returncode:
        pytest.skip(f"this system lets us mount no small {kind}")
    script = f'{mount} && exec "$2" -c "$3" "$1/rows"'
    done = subprocess.run(
        [*own_mounts, "sh", "-c", script, "sh", disk, sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
