"""Disk space for payloads: deleted files are reused, and a full disk is detected in time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.data import encode_batch
from dingsdk.errors import (
    StorageFullError,
)
from dingsdk.runtime import PrivateDir
from dingsdk.worker.comm.files.data_store import FileDataStore
from tests.small_disk import small_disk

from .payloads import file_of, large, mapped, piece


@pytest.mark.parametrize(("missing", "is_stored"), [(0, True), (1, False)])
def test_configured_space_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, is_stored: bool
) -> None:
    size, ticks = encode_batch(piece())[1].size_bytes, itertools.count()
    store = FileDataStore(tmp_path / "run", min_free_bytes=1000, clock=lambda: float(next(ticks)))
    for name in "ab":
        store.put(name, piece())
    store.delete("ab")
    monkeypatch.setattr(PrivateDir, "free_bytes", lambda folder: 1000 + size - missing)
    if is_stored:
        store.put("c", piece())
    else:
        with pytest.raises(StorageFullError):
            store.put("c", piece())
    assert store.has("c", 0.0) is is_stored
    # The pools are emptied if too little space would be free.
    assert len(list((tmp_path / "run" / "pool-small").iterdir())) == is_stored
    store.close()


def test_deleted_files_are_pooled_by_size(tmp_path: Path) -> None:
    store = FileDataStore(tmp_path / "run")
    sizes = {"a": 64 << 10, "b": (64 << 10) + 1, "c": 8 << 20, "d": (8 << 20) + 1}
    for name, size in sizes.items():
        store.put(name, piece())
        os.truncate(file_of(store, tmp_path, name), size)
    store.delete(sizes)
    kept = {
        pool: sorted(path.stat().st_size for path in (tmp_path / "run" / pool).iterdir())
        for pool in ("pool-small", "pool-large")
    }
    assert kept == {"pool-small": [sizes["a"]], "pool-large": [sizes["b"], sizes["c"]]}
    store.close()


def test_deleted_files_are_reused(tmp_path: Path) -> None:
    ticks = itertools.count()
    store = FileDataStore(
        tmp_path / "run", pool_bytes=6 * (64 << 10), clock=lambda: float(next(ticks))
    )
    for name in "abcde":
        store.put(name, piece(rows=100))
    kept = store.get("a")
    inodes = {path.stat().st_ino for path in (tmp_path / "run" / "data").rglob("*.ding")}
    store.delete("abcde")
    assert len(store) == 0
    assert len(list((tmp_path / "run" / "pool-small").iterdir())) == 3
    store.put("f", piece(7, rows=3))
    assert len(list((tmp_path / "run" / "pool-small").iterdir())) == 2
    assert file_of(store, tmp_path, "f").stat().st_ino in inodes
    assert store.get("f") == piece(7, rows=3)
    assert kept == piece(rows=100)
    store.close()


def test_file_that_may_be_mapped_is_not_pooled(store: FileDataStore, tmp_path: Path) -> None:
    store.put("large", large())
    store.put("mapped", mapped())
    store.delete(["large", "mapped"])
    assert len(list((tmp_path / "run").glob("pool*/*"))) == 1


def test_deleted_file_with_another_hard_link_is_not_pooled(
    store: FileDataStore, tmp_path: Path
) -> None:
    store.put("p", piece())
    other = tmp_path / "other"
    other.hardlink_to(file_of(store, tmp_path, "p"))
    content = other.read_bytes()
    store.delete(["p"])
    assert len(store) == 0
    assert list((tmp_path / "run").glob("pool*/*")) == []
    store.put("q", piece(1))
    assert other.read_bytes() == content


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "512k") as path:
        yield path


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
