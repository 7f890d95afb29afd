"""Saving rows piece by piece: kills, full disks and altered files."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data.container import digest_of
from dingsdk.errors import CheckpointCorruptError, RunFolderError
from dingsdk.worker.replay_buffer.persistence import load, save
from dingsdk.worker.replay_buffer.storage import Rows

from .saved_rows import SEGMENT, loaded, make_buffer, push

CRASH = Path(__file__).with_name("save_crash.py")


def test_rows_survive_kills_at_any_moment_of_a_save(tmp_path: Path) -> None:
    command = [sys.executable, str(CRASH), str(tmp_path / "rows"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kills, outcomes, files = map(int, done.stdout.split())
    assert kills == 20
    assert outcomes > 1  # some saves were done before the kill, so the kills hit saves
    assert files <= 2 * 9 + 2  # those of two saves, a manifest, and one that was being written


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let writes beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [0, 100, 300, 500])
def test_a_disk_that_takes_no_more_keeps_the_old_rows(tmp_path: Path, size_bytes: int) -> None:
    """Fails in a column, in its header, or in the manifest; nothing new stays behind."""
    buffer = make_buffer()
    push(buffer, 20)
    save(tmp_path, buffer, 64)
    before = sorted(path.name for path in tmp_path.iterdir())
    push(buffer, 20)
    with largest_file(size_bytes), pytest.raises(RunFolderError) as caught:
        save(tmp_path, buffer, 64)
    assert str(tmp_path) in caught.value.path
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert loaded(tmp_path) == list(range(20))
    save(tmp_path, buffer, 64)
    assert loaded(tmp_path) == list(range(40))


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def _replace_column(folder: Path, content: bytes) -> None:
    """Put other content behind the first column, with the size and digest to match."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["segments"][0]["files"][0]
    (folder / entry["file"]).write_bytes(content)
    entry.update(size_bytes=len(content), digest=digest_of([content]))
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.parametrize("at_once_bytes", [0, 1 << 20])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x02\x00" + bytes(100),
        _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }\n"),
        _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (10,), }\n"),
        _npy("{'descr': '<i8', 'fortran_order': True, 'shape': (10,), }\n") + bytes(80),
        _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-10,), }\n") + bytes(80),
        _npy("{'descr': '|O', 'fortran_order': False, 'shape': (10,), }\n") + bytes(80),
        _npy("[" * 9000),
        _npy(" " * 60000),
        _npy("__import__('os').getcwd()"),
    ],
    ids=range(11),
)
def test_a_wrong_array_is_refused_before_anything_is_allocated(
    tmp_path: Path, content: bytes, at_once_bytes: int
) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    save(tmp_path, buffer)
    _replace_column(tmp_path, content)
    with pytest.raises(CheckpointCorruptError):
        loaded(tmp_path, at_once_bytes=at_once_bytes)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    save(tmp_path / "rows", buffer)
    canary = tmp_path / "canary"
    array = np.array([Canary(canary)] * 10, dtype=object)
    np.save(tmp_path / "evil.npy", array, allow_pickle=True)
    _replace_column(tmp_path / "rows", (tmp_path / "evil.npy").read_bytes())
    with pytest.raises(CheckpointCorruptError):
        loaded(tmp_path / "rows")
    assert not canary.exists()


def test_one_altered_segment_of_many_pushes_nothing(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 40)
    save(tmp_path, buffer, SEGMENT)
    last = max(tmp_path.glob("rows-32-*"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    seen: list[Rows] = []
    for at_once_bytes in (0, 1 << 20):
        with pytest.raises(CheckpointCorruptError) as caught:
            seen.extend(rows for rows, _ in load(tmp_path, at_once_bytes))
        assert caught.value.path == str(last)
    assert seen == []
