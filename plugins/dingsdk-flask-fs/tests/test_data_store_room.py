"""Disk space for payloads: a full disk is detected in time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.data import encode_batch
from dingsdk.errors import (
    StorageFullError,
)
from dingsdk.runtime import PrivateDir
from dingsdk.worker.comm.files.data_store import FileDataStore

from .payloads import piece


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileDataStore]:
    made = FileDataStore(tmp_path / "run")
    yield made
    made.close()


@pytest.mark.parametrize(("missing", "is_stored"), [(0, True), (1, False)])
def test_configured_space_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, is_stored: bool
) -> None:
    size = encode_batch(piece())[1].size_bytes
    store = FileDataStore(tmp_path / "run", min_free_bytes=1000)
    monkeypatch.setattr(PrivateDir, "free_bytes", lambda folder: 1000 + size - missing)
    if is_stored:
        store.put("c", piece())
    else:
        with pytest.raises(StorageFullError):
            store.put("c", piece())
    assert store.has("c", 0.0) is is_stored
    store.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize(("min_free_bytes", "reason"), [(0, "low_space"), (-1 << 30, "ENOSPC")])
def test_full_disk_accepts_payloads_again_once_there_is_room(
    tiny_disk: Path, min_free_bytes: int, reason: str
) -> None:
    store = FileDataStore(tiny_disk, min_free_bytes=min_free_bytes)
    found = ""
    for stored in range(100):
        try:
            store.put(f"p{stored}", piece(stored, rows=1000))
        except StorageFullError as error:
            found = error.reason
            break
    assert found == reason
    assert len(store) == stored > 3
    assert not list(tiny_disk.rglob(".tmp-*"))
    store.delete(["p0", "p1"])
    store.put(f"p{stored}", piece(stored, rows=1000))
    assert store.get(f"p{stored}") == piece(stored, rows=1000)
    store.close()
