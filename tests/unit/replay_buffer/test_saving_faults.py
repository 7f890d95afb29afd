"""Saving rows in pieces: kills, full disks and altered files."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dingsdk.data import SampleBatch
from dingsdk.errors import CheckpointCorruptError, RunFolderError, StorageFullError
from dingsdk.worker.replay_buffer.persistence import save
from tools.os_calls import failing_calls

from .saved_rows import SEGMENT, edit, loaded, make_buffer, push, replace_frame

CRASH = Path(__file__).with_name("save_crash.py")


def test_rows_survive_kills_at_any_moment_of_a_save(tmp_path: Path) -> None:
    command = [sys.executable, str(CRASH), str(tmp_path / "rows"), "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kills, outcomes, files = map(int, done.stdout.split())
    assert kills == 8
    assert outcomes > 1  # some saves were done before the kill, so the kills hit saves
    assert files == 8 + 2  # segments, the state, the manifest: no files of killed saves


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Make writes beyond a file size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("segment_rows", "size_bytes", "fails"),
    [(64, 0, "rows"), (64, 1000, "rows"), (1, 450, "state"), (1, 600, "manifest")],
)
def test_a_save_on_a_full_disk_fails_and_the_old_rows_stay(
    tmp_path: Path, segment_rows: int, size_bytes: int, fails: str
) -> None:
    buffer = make_buffer()
    push(buffer, 20)
    save(tmp_path, buffer, segment_rows)
    before = sorted(path.name for path in tmp_path.iterdir())
    push(buffer, 20)
    with largest_file(size_bytes), pytest.raises(RunFolderError) as caught:
        save(tmp_path, buffer, segment_rows)
    assert Path(caught.value.path).parent == tmp_path
    assert Path(caught.value.path).name.startswith(fails)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert loaded(tmp_path) == list(range(20))
    save(tmp_path, buffer, segment_rows)
    assert loaded(tmp_path) == list(range(40))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_save_with_a_failing_fsync_fails_and_the_old_rows_stay(tmp_path: Path, at: int) -> None:
    buffer = make_buffer()
    push(buffer, 20)
    save(tmp_path, buffer, 64)
    before = sorted(path.name for path in tmp_path.iterdir())
    push(buffer, 20)
    with failing_calls(("fsync",), at, errno.EIO), pytest.raises(StorageFullError):
        save(tmp_path, buffer, 64)  # syncs the rows, their state, and the folder
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert loaded(tmp_path) == list(range(20))


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("replay-rows", SampleBatch({"number": np.arange(9)})),
        ("replay-rows", [1] * 11),
        ("replay-rows", {"number": np.arange(10)}),
        ("replay-rows", np.arange(10)),
        ("replay-rows", 10),
        ("payload", SampleBatch({"number": np.arange(10)})),
    ],
    ids=range(6),
)
def test_an_intact_file_with_other_content_is_refused(tmp_path: Path, kind: str, rows: Any) -> None:
    buffer = make_buffer()
    push(buffer, 10)
    save(tmp_path, buffer)
    edit(tmp_path, lambda found: replace_frame(tmp_path, found["segments"][0], kind, rows))
    with pytest.raises(CheckpointCorruptError):
        loaded(tmp_path)


def test_no_rows_are_loaded_if_one_segment_is_altered(tmp_path: Path) -> None:
    buffer = make_buffer()
    push(buffer, 40)
    save(tmp_path, buffer, SEGMENT)
    last = max(tmp_path.glob("rows-32-*"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    with make_buffer(10) as other:
        with pytest.raises(CheckpointCorruptError) as caught:
            other.load_data(str(tmp_path))
        assert caught.value.path == str(last)
        assert other.push_count == 0
