"""Columns on disk: their files, and a disk that fills up."""

from __future__ import annotations

import errno
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

from dingsdk.data import SampleBatch
from dingsdk.errors import BufferClosedError, StorageFullError
from dingsdk.testing import open_files
from dingsdk.worker.replay_buffer import NaiveReplayBuffer, persistence
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage
from tools.os_calls import failing_calls

CAPACITY = 200


@contextmanager
def opened(path: Path, capacity: int = CAPACITY, **cfg: Any) -> Iterator[MemmapStorage]:
    storage = MemmapStorage({"path": str(path), **cfg}, capacity)
    try:
        yield storage
    finally:
        storage.close()


def rows_of(start: int, stop: int) -> SampleBatch:
    """Return rows ``start..stop-1``, of 16 KB each."""
    number = np.arange(start, stop)
    obs, after = (np.repeat(n.astype(np.float32)[:, None], 2100, 1) for n in (number, number + 1))
    return SampleBatch({"obs": {"x": obs}, "next_obs": {"x": after}, "id": number})


def put(storage: MemmapStorage, start: int, n: int) -> None:
    storage.put(slice(start, start + n), storage.accept(rows_of(start, start + n)))


def buffer_in(path: Path) -> NaiveReplayBuffer:
    storage = {"type": "memmap", "path": str(path)}
    return NaiveReplayBuffer({"replay_buffer_size": 4, "seed": 0, "storage": storage})


def test_loading_into_a_closed_buffer_is_refused(tmp_path: Path) -> None:
    with buffer_in(tmp_path / "rows") as buffer:
        buffer.push({"x": 1.0}, 1)
        buffer.save_data(str(tmp_path / "saved"))
        state, saved = buffer.state_dict(), persistence.SavedRows(tmp_path / "saved")
    for load in (
        lambda: buffer.load_state_dict(state),
        # As in resume_data and load_data, if another thread closes the buffer at this point.
        lambda: buffer.restore(saved.state, saved.count, saved.whole),
    ):
        with pytest.raises(BufferClosedError):
            load()


def test_a_state_that_the_disk_cannot_hold_leaves_the_buffer_unchanged(tmp_path: Path) -> None:
    with buffer_in(tmp_path) as old, buffer_in(tmp_path) as new:
        old.push({"x": 1.0}, 1)
        new.push({"y": 2.0}, 1)
        before = open_files(collect=True)
        with failing_calls(("ftruncate",), 1, errno.ENOSPC), pytest.raises(StorageFullError):
            new.load_state_dict(old.state_dict())
        assert new.sample(1, 0).columns["y"].tolist() == [2.0]  # type: ignore[union-attr]
        new.load_state_dict(old.state_dict())
        assert new.sample(1, 0).columns["x"].tolist() == [1.0]  # type: ignore[union-attr]
        assert open_files(collect=True) == before  # the files of the old rows are closed


def test_a_changed_byte_of_a_column_is_not_detected(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        put(storage, 0, 20)
        file = storage._files["column-0"]
        os.pwrite(file, bytes([os.pread(file, 1, 0)[0] ^ 1]), 0)
        assert storage.take(np.array([0])) != rows_of(0, 1)
        assert storage.take(np.arange(1, 20)) == rows_of(1, 20)


@pytest.mark.parametrize("cfg", [{}, {"next_of": "obs"}], ids=str)
def test_files_have_no_names_and_are_private(tmp_path: Path, cfg: dict[str, Any]) -> None:
    before = open_files(collect=True)
    folder = tmp_path / "new" / "rows"
    with opened(folder, **cfg) as storage, opened(folder, **cfg) as other:
        assert list(tmp_path.iterdir()) == []  # made at the first push
        put(storage, 0, 20)
        put(other, 0, 10)
        assert storage.take(slice(0, 20)) == rows_of(0, 20)
        assert list(folder.iterdir()) == []
        stats = list(map(os.fstat, storage._files.values()))
        assert {(stat.st_mode & 0o777, stat.st_nlink) for stat in stats} == {(0o600, 0)}
    assert open_files(collect=True) == before


def test_files_of_a_storage_that_nothing_uses_are_closed(tmp_path: Path) -> None:
    before = open_files(collect=True)
    storage = MemmapStorage({"path": str(tmp_path)}, CAPACITY)
    put(storage, 0, 20)
    del storage
    assert open_files(collect=True) == before


def test_clear_drops_the_schema(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        put(storage, 0, 10)
        storage.clear()
        storage.put(slice(0, 1), storage.accept([{"other": 1.0, "none": np.zeros(0)}]))
        found = storage.take(slice(0, 1)).columns
        assert found["other"].tolist() == [1.0]
        assert found["none"].shape == (1, 0)


def test_rows_that_the_disk_cannot_hold_are_refused_at_the_push(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with opened(tmp_path, 10_000) as storage:
            with pytest.raises(StorageFullError):
                storage.accept(rows_of(0, 5))
            storage.put(slice(0, 1), storage.accept([{"small": 1.0}]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_room_that_a_file_has_is_not_needed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as storage:
        put(storage, 0, 5)
        sizes = {name: os.fstat(file).st_size for name, file in storage._files.items()}
        found = os.statvfs(tmp_path)
        full = os.statvfs_result((*found[:4], 0, *found[5:]))
        monkeypatch.setattr(os, "statvfs", lambda path: full)
        storage._reserve(sizes)
        with pytest.raises(StorageFullError):
            storage._reserve({name: 2 * size for name, size in sizes.items()})


def test_too_many_open_files_are_an_error_of_the_storage(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        with failing_calls(("open",), 2, errno.EMFILE), pytest.raises(StorageFullError):
            storage.accept(rows_of(0, 5))
        put(storage, 0, 5)


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


FILL = """
import sys
import numpy as np
from dingsdk.data import SampleBatch
from dingsdk.errors import StorageFullError
from dingsdk.worker.replay_buffer.storage.memmap import MemmapStorage

rows = SampleBatch({"x": np.ones((500, 1000), np.float32)})
for capacity in (1500, 2500):
    storage = MemmapStorage({"path": sys.argv[1]}, capacity)
    try:
        for first in range(0, capacity, 500):
            storage.put(slice(first, first + 500), storage.accept(rows))
        print(storage.take(slice(0, capacity)).columns["x"].sum())
    except StorageFullError as error:
        print(error.reason, first)
    storage.close()
"""


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_is_too_small_raises_an_error_and_no_signal(tmp_path: Path, disk: str) -> None:
    assert on_a_disk_of_8_mib(tmp_path, FILL, disk).split() == ["1.5e+06", "ENOSPC", "0"]
