"""After a failure of any system call, both stores hold the old or the new state."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import DataCorruptError, DingError, RunFolderError, StorageFullError
from dingsdk.testing import open_files
from dingsdk.worker.comm.files.data_store import FileDataStore
from dingsdk.worker.comm.files.policy_store import FilePolicyStore
from tools.os_calls import failing_calls

CALLS = ("open", "writev", "write", "read", "close", "rename", "fstat", "stat", "mkdir")
CALLS += ("unlink", "fstatvfs", "listdir", "fsync", "ftruncate")
NUMBERS = [
    errno.ENOSPC,
    errno.EIO,
    pytest.param(errno.EDQUOT, marks=pytest.mark.slow),
    pytest.param(errno.EMFILE, marks=pytest.mark.slow),
]


def attempt(at: int, number: int, persistent: bool, act: Callable[[], Any]) -> tuple[Any, bool]:
    """Return the typed error or None, and whether fewer calls were made than the fault's number."""
    error: DingError | None = None
    with failing_calls(CALLS, at, number, persistent) as calls:
        try:
            act()
        except (StorageFullError, RunFolderError) as caught:
            error = caught
    return error, at > calls()


def temporaries(root: Path) -> list[Path]:
    return list(root.rglob(".tmp-*"))


def piece(rows: int) -> SampleBatch:
    return SampleBatch({"obs": np.ones((rows, 4), np.float32), "action": np.arange(rows)})


def weights(version: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((100,), float(version))}


@pytest.mark.parametrize(("rows", "is_pooled"), [(8, False), (40_000, False), (9, True)])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
def test_put_stores_all_or_nothing_and_works_when_repeated(
    tmp_path: Path, number: int, persistent: bool, rows: int, is_pooled: bool
) -> None:
    ticks = itertools.count()
    store = FileDataStore(tmp_path, is_durable=not is_pooled, clock=lambda: float(next(ticks)))
    store.put("warm", piece(rows))
    before = open_files(collect=True)
    at, is_last = 0, False
    while not is_last:
        at += 1
        if is_pooled:  # the payload is written into the file of a deleted one
            store.put("old", piece(30))
            store.delete(["old"])
            assert list((tmp_path / "pool-small").iterdir())
        name = f"p{at}"
        error, is_last = attempt(
            at, number, persistent, lambda name=name: store.put(name, piece(rows))
        )
        assert (error is None) or not is_last
        assert open_files() == before
        assert temporaries(tmp_path) == []
        if name in list(store.ids()):
            assert store.get(name) == piece(rows)
        else:
            assert error is not None
        store.put(name, piece(rows))  # the fault is over
        assert store.get(name) == piece(rows)
    assert at > 8
    store.close()


@pytest.mark.parametrize("rows", [8, 40_000, None], ids=["small", "large", "policy"])
@pytest.mark.parametrize("number", NUMBERS)
def test_reader_gets_what_was_stored_or_a_typed_error(
    tmp_path: Path, number: int, rows: int | None
) -> None:
    store: Any = FileDataStore(tmp_path) if rows else FilePolicyStore(tmp_path)
    if rows:
        store.put("p", piece(rows))
    else:
        store.publish("p", weights(1), 1)

    def read() -> bool:
        """Whether the reader finds what was stored."""
        return bool(store.get("p") == piece(rows) if rows else store.newest("p")[0] == 1)

    before = open_files(collect=True)
    at, is_last = 0, False
    while not is_last:
        at += 1
        found: list[bool] = []
        error, is_last = attempt(at, number, False, lambda found=found: found.append(read()))
        assert found == ([] if error else [True])
        assert open_files() == before
    assert at > 3
    assert read()
    assert store.corrupt_count == 0
    store.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("number", NUMBERS)
def test_readers_see_the_old_version_or_the_new_one(
    tmp_path: Path, number: int, persistent: bool
) -> None:
    store = FilePolicyStore(tmp_path, is_durable=True, keep_versions=2)
    for version in (1, 2, 3):
        store.publish("p", weights(version), version)
    before = open_files(collect=True)
    at, is_last, version = 0, False, 3
    while not is_last:
        at += 1
        error, is_last = attempt(
            at, number, persistent, lambda v=version + 1: store.publish("p", weights(v), v)
        )
        assert (error is None) or not is_last
        assert open_files() == before
        assert temporaries(tmp_path) == []
        reader = FilePolicyStore(tmp_path)
        found = reader.newest("p")
        assert found is not None
        assert found[0] in ({version, version + 1} if error else {version + 1})
        assert torch.equal(found[1]["w"], weights(found[0])["w"])
        assert reader.corrupt_count == 0
        reader.close()
        version += 1
        store.publish("p", weights(version), version)
    assert at > 12
    store.publish("p", weights(version + 1), version + 1)
    assert len(list((tmp_path / "policy" / "p").iterdir())) == 3
    store.close()


@pytest.mark.parametrize("number", NUMBERS)
def test_clean_up_continues_if_a_file_cannot_be_deleted(tmp_path: Path, number: int) -> None:
    store = FileDataStore(tmp_path)
    at, is_last = 0, False
    while not is_last:
        at += 1
        for name in ("a", "b"):
            store.put(name, piece(8))
        _, is_last = attempt(at, number, False, lambda: store.delete(["a"]))
        attempt(at, number, False, lambda: store.sweep_orphans({"b"}.__contains__, 0.0))
        store.sweep_orphans({"b"}.__contains__, 0.0)
        assert list(store.ids()) == ["b"]
    store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_damaged_payload_that_cannot_be_set_aside_is_still_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    store = FileDataStore(tmp_path)
    store.put("p", piece(8))
    (path,) = (tmp_path / "data").glob("*/p.ding")
    path.write_bytes(b"damage")
    real = os.rename

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    os.rename = refuse  # type: ignore[assignment]
    try:
        with pytest.raises(DataCorruptError):
            store.get("p")
    finally:
        os.rename = real
    assert path.exists()
    (said,) = caplog.messages
    assert said.startswith("cannot set the damaged payload p aside: ")
    assert os.strerror(number) in said
    store.close()
