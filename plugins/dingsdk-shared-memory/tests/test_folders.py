"""The folder of a run in shared memory: foreign folders are rejected, a full one stores nothing."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dingsdk_shared_memory.run_memory import (
    FORMAT,
    OWNER,
    RunMemory,
    remove,
    remove_stale,
)
from dingsdk_shared_memory.transport import SharedMemoryTransport

from dingsdk.data import encode_json
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    DataMissingError,
    DataVersionError,
    RunDirLockedError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime import locked_folder
from dingsdk.testing import open_files
from tests.small_disk import small_disk
from tools.os_calls import failing_calls

from .conftest import a_batch


def test_folder_of_another_run_is_refused_in_one_line(
    transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    transport.data_store()
    other = SharedMemoryTransport({"data_dir": str(transport.data_dir)}, tmp_path / "other")
    with pytest.raises(RunDirLockedError) as refused:
        other.data_store()

    text = str(refused.value)
    assert "belongs to the run in" in text
    assert str(tmp_path / "run") in text
    assert "\n" not in text


def test_folder_of_another_version_is_refused_in_one_line(
    transport: SharedMemoryTransport,
) -> None:
    transport.data_dir.mkdir(mode=0o700)
    fields = {"format": 99, "run_dir": str(transport.run_dir)}
    (transport.data_dir / OWNER).write_bytes(encode_json("shared-memory-run", fields))
    with pytest.raises(DataVersionError) as refused:
        transport.data_store()

    assert "format 99" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rows", [64, 20_000], ids=["in a segment", "in a slot"])
def test_damaged_payload_is_counted_and_named_once_and_deleted(
    run_dir: Path, caplog: pytest.LogCaptureFixture, rows: int
) -> None:
    transport = SharedMemoryTransport({"digest": "xxh3-128"}, run_dir)
    store = transport.data_store()
    for name in "ab":
        store.put(name, a_batch(rows))
    path = min(transport.data_dir.glob("data/*.seg" if rows == 64 else "data/*.slot"))
    content = path.read_bytes()
    at = content.index(a_batch(rows).columns["obs"].tobytes()) + 8
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))

    with pytest.raises(DataCorruptError, match="'a'"):
        store.get("a")
    with pytest.raises(DataMissingError):
        store.get("a", 0.0)
    assert not store.has("a", 0.0)
    assert store.corrupt_count == 1
    assert [record.levelname for record in caplog.records if "'a'" in record.message] == ["WARNING"]
    assert store.get("b") == a_batch(rows)
    transport.close()
    transport.remove_data()


def test_folder_that_others_can_write_to_is_refused(transport: SharedMemoryTransport) -> None:
    transport.data_dir.mkdir()
    transport.data_dir.chmod(0o777)
    with pytest.raises(RunFolderError, match="others can write"):
        transport.data_store()
    transport.data_dir.chmod(0o700)


def test_link_in_place_of_the_folder_is_refused(
    transport: SharedMemoryTransport, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    transport.data_dir.symlink_to(target)
    try:
        with pytest.raises(RunFolderError):
            transport.data_store()
    finally:
        transport.data_dir.unlink()
    assert list(target.iterdir()) == []


def test_host_without_shared_memory_is_named(run_dir: Path, tmp_path: Path) -> None:
    transport = SharedMemoryTransport({"data_dir": str(tmp_path / "none" / "here")}, run_dir)
    with pytest.raises(ConfigError, match="choose another transport"):
        transport.data_store()


@pytest.mark.parametrize("length", [107, 108, 400])
def test_path_that_is_too_long_for_a_socket_is_refused(run_dir: Path, length: int) -> None:
    path = f"/dev/shm/dingsdk-test-{os.urandom(8).hex()}-"
    transport = SharedMemoryTransport({"data_dir": path.ljust(length - 7, "x")}, run_dir)
    try:
        if length > 107:
            with pytest.raises(ConfigError, match="at most 107 bytes"):
                transport.master_end()
        else:
            transport.data_store()
            with socket.socket(socket.AF_UNIX) as probe:  # the kernel accepts the path
                probe.bind(str(transport.data_dir / "socket"))
    finally:
        transport.close()
        transport.remove_data()
    assert not os.path.exists(transport.data_dir)


def test_folder_whose_creator_died_before_it_had_an_owner_is_stale(tmp_path: Path) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    path.mkdir(mode=0o700)
    assert remove_stale(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_removed_while_a_process_begins_to_use_it_is_made_again(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, removed = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}", list[int]()
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if not removed:
            monkeypatch.undo()
            removed.append(remove_stale(tmp_path))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    memory = RunMemory(path, run_dir)
    assert removed == [1]
    assert remove_stale(tmp_path) == 0
    assert (path / OWNER).is_file()
    memory.close()


def test_folder_that_is_removed_in_part_is_stale(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    for at in itertools.count(1):
        RunMemory(path, run_dir).close()
        (path / "payload").touch(0o600)
        with failing_calls(("unlink",), at, errno.EIO) as calls:
            with suppress(RunFolderError, StorageFullError):
                remove(path)
            if calls() < at:
                break
        assert remove_stale(tmp_path) == 1
    assert at == 3
    assert not path.exists()


def test_all_stale_folders_are_removed_and_used_ones_kept(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs"
    names = [f"dingsdk-{os.geteuid()}-{digit * 16}" for digit in "abcd"]
    for name in names:
        RunMemory(tmp_path / name, run_dir).close()
    used = RunMemory(tmp_path / names[1], run_dir)
    run_dir.mkdir()
    assert remove_stale(tmp_path) == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == [names[1], "runs"]
    used.close()
    held = os.open(run_dir, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # a run whose processes will be started again
    assert remove_stale(tmp_path) == 0
    os.close(held)
    assert remove_stale(tmp_path) == 1


def test_folder_that_another_process_locks_for_too_long_is_refused(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_shared_memory.run_memory.SWEPT_S", 0.03)
    path = tmp_path / "shm"
    RunMemory(path, run_dir).close()
    before = open_files()
    with (
        locked_folder(path, ""),
        pytest.raises(RunDirLockedError, match=r"has locked .*/shm for") as caught,
    ):
        RunMemory(path, run_dir)
    assert caught.value.facts["path"] == str(path)
    del caught
    assert open_files() == before
    RunMemory(path, run_dir).close()


def test_unreadable_owner_is_reported_as_damage(run_dir: Path, tmp_path: Path) -> None:
    RunMemory(tmp_path / "shm", run_dir).close()
    owner = tmp_path / "shm" / OWNER
    owner.write_bytes(encode_json("shared-memory-run", {"format": str(FORMAT)}))
    with pytest.raises(DataCorruptError) as caught:
        RunMemory(tmp_path / "shm", run_dir)
    assert caught.value.where == OWNER


def test_removing_a_folder_keeps_foreign_files(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "shm"
    memory = RunMemory(path, run_dir)
    (path / "data").mkdir(mode=0o700)
    (path / "data" / "a.seg").touch()
    (path / ".hidden").touch()
    memory.close()
    remove(path)
    remove(tmp_path / "absent")
    assert [each.name for each in path.iterdir()] == [".hidden"]
    (path / ".hidden").unlink()
    remove(path)
    assert not path.exists()


def test_kept_payloads_are_restored_once_and_damaged_ones_not(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shm"
    first = SharedMemoryTransport({"data_dir": str(path)}, run_dir)
    for name, rows in (("a", 64), ("b", 20_000), ("c", 8)):
        first.data_store().put(name, a_batch(rows))
    (damaged,) = path.glob("data/*.slot")
    with damaged.open("r+b") as file:
        file.truncate(4096)
    first.close()
    first.keep_data()
    first.keep_data()
    assert not path.exists()
    kept = run_dir / "transport"
    assert sorted(each.name for each in kept.iterdir()) == ["a.ding", "c.ding"]
    (kept / "note.txt").touch()

    (kept / "d.ding").write_bytes((kept / "a.ding").read_bytes()[:-1] + b"x")
    second = SharedMemoryTransport({"data_dir": str(path)}, run_dir)
    second.data_store().put("c", a_batch(9))  # this payload stays
    second.master_end()
    assert f"{kept / 'd.ding'} is damaged, its samples are lost" in caplog.text
    assert not kept.exists()
    assert sorted(second.data_store().segments.ids()) == ["a", "c"]
    assert second.data_store().get("a") == a_batch(64)
    assert second.data_store().get("c") == a_batch(9)
    second.close()
    second.keep_data()
    assert kept.is_dir()
    second.remove_data()
    assert not kept.exists()


def test_folder_that_others_can_write_to_is_kept_and_logged_as_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    path.mkdir()
    path.chmod(0o777)
    os.utime(path, (0, 0))
    assert remove_stale(tmp_path) == 0
    assert path.is_dir()
    (record,) = caplog.records
    assert "others can write to it" in record.getMessage()
    # A logged exception would keep its frames alive, and with them open files.
    assert [type(each) for each in record.args or ()] == [type(path), str]


def test_payloads_on_a_disk_always_have_a_digest(tmp_path: Path) -> None:
    disk = tempfile.mkdtemp(dir=Path(__file__).parent, prefix=".disk-")  # /tmp may be memory
    try:
        transport = SharedMemoryTransport({"data_dir": f"{disk}/data"}, tmp_path / "run")
        info = transport.data_store().put("a", a_batch(20_000))
        assert info.digest.startswith("xxh3-128:")
        transport.close()
        transport.remove_data()
    finally:
        shutil.rmtree(disk)


@pytest.mark.parametrize("rows", [8, 20_000], ids=["small", "large"])
def test_digest_is_of_the_kind_that_is_configured(run_dir: Path, rows: int) -> None:
    found = {}
    for kind in ("head", "xxh3-128", "sha256"):
        transport = SharedMemoryTransport({"digest": kind}, run_dir)
        info = transport.data_store().put(kind, a_batch(rows))
        found[kind] = info.digest.partition(":")[0]
        assert transport.data_store().get(kind, digest=info.digest) == a_batch(rows)
        with pytest.raises(DataCorruptError, match=f"payload '{kind}'"):
            transport.data_store().get(kind, digest=info.digest[:-1] + "x")
        transport.close()
    transport.remove_data()

    # Payloads that are copied out always have a digest of all bytes.
    head = "xxh3-128" if rows == 8 else "head"
    assert found == {"head": head, "xxh3-128": "xxh3-128", "sha256": "sha256"}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "4m") as path:
        yield path


def test_full_memory_stores_nothing_until_there_is_room(small: Path, run_dir: Path) -> None:
    cfg = {"data_dir": str(small / "memory"), "min_free_bytes": 0}
    transport = SharedMemoryTransport(cfg, run_dir)
    store = transport.data_store()
    stored: list[str] = []

    def fill() -> None:
        for index in range(10_000):
            store.put(f"p{index}", a_batch())
            stored.append(f"p{index}")

    store.put("large", a_batch(20_000))
    with pytest.raises(StorageFullError) as full:
        fill()
    rejected = f"p{len(stored)}"
    has_rejected = store.has(rejected, 0.0)
    for name in stored:
        assert store.get(name) == a_batch()
    store.delete(stored[: 3 * len(stored) // 4])
    store.put(rejected, a_batch())
    found, is_large_there = store.get(rejected), store.get("large") == a_batch(20_000)
    transport.close()
    transport.remove_data()

    assert len(stored) > 500
    assert is_large_there
    assert not has_rejected
    assert "\n" not in str(full.value)
    assert found == a_batch()
    assert list(small.iterdir()) == []


def test_configured_space_stays_free(transport: SharedMemoryTransport, run_dir: Path) -> None:
    cfg = {"min_free_bytes": 10**15}
    crowded = SharedMemoryTransport(cfg, run_dir)
    with pytest.raises(StorageFullError, match="to leave free"):
        crowded.data_store().put("a", a_batch())
    crowded.close()
    assert not transport.data_store().has("a", 0.0)
