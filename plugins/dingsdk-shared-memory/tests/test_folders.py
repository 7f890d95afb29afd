"""The folder of a run in shared memory: foreign folders are rejected, a full one stores nothing."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from dingsdk_shared_memory.data_store import SharedDataStore, encode
from dingsdk_shared_memory.run_memory import (
    LOCK,
    OWNER,
    ROOT,
    RunMemory,
    folder_of,
    remove,
    remove_stale,
)
from dingsdk_shared_memory.segments import Segments
from dingsdk_shared_memory.transport import SharedMemoryTransport

from dingsdk import SampleBatch
from dingsdk.data import encode_json
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    DataCorruptError,
    DataMissingError,
    DataVersionError,
    ProtocolError,
    RunDirLockedError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime import PrivateDir
from dingsdk.testing import open_files
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


def test_payload_of_another_kind_in_the_folder_is_refused(
    transport: SharedMemoryTransport,
) -> None:
    store = transport.data_store()
    store.put("a", a_batch(20_000))
    with next(transport.data_dir.glob("data/*.slot")).open("r+b") as file:
        file.write(b"\x80\x04" + bytes(4096))
    with pytest.raises(DataCorruptError):
        store.get("a")


def test_payload_whose_table_entry_is_damaged_is_counted_as_corrupt(run_dir: Path) -> None:
    writer, reader = (SharedMemoryTransport({}, run_dir) for _ in range(2))
    store, theirs = reader.data_store(), writer.data_store()
    for name in "ab":
        theirs.put(name, a_batch())
    (path,) = writer.data_dir.glob("data/*.seg")
    with path.open("r+b") as file:
        file.seek(64 + 64)  # the size of the first payload
        file.write(b"\xff")

    with pytest.raises(DataCorruptError, match="'a'"):
        store.get("a")
    with pytest.raises(DataMissingError):
        store.get("a", 0.0)
    assert store.get("b") == a_batch()
    assert store.corrupt_count == 1
    writer.remove_data()
    writer.close()
    reader.close()


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


@pytest.mark.parametrize("length", [107, 108])
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
    assert not transport.data_dir.exists()


def test_folder_that_was_removed_while_it_was_opened_is_made_again(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shm"
    found = iter([False, False, True])
    opened: list[PrivateDir] = []  # keeps the objects, so that garbage collection closes none
    monkeypatch.setattr("dingsdk_shared_memory.run_memory._is_same", lambda *given: next(found))
    monkeypatch.setattr(
        "dingsdk_shared_memory.run_memory.PrivateDir",
        lambda path: opened.append(PrivateDir(path)) or opened[-1],
    )
    before = open_files()
    memory = RunMemory(path, run_dir)
    assert open_files() == before + 2  # the folder and its lock
    memory.close()
    memory.close()
    assert open_files() == before


def test_folder_without_an_owner_is_stale_after_a_minute(tmp_path: Path) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    path.mkdir(mode=0o700)
    for age_s, is_stale in ((0, False), (30, False), (61, True)):
        made_at = time.time() - age_s
        os.utime(path, (made_at, made_at))
        assert remove_stale(tmp_path) == int(is_stale)
        assert path.is_dir() != is_stale


def test_folder_whose_creator_died_before_it_had_an_owner_is_stale(tmp_path: Path) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    path.mkdir(mode=0o700)
    (path / "lock").touch(0o600)
    assert remove_stale(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_lock_is_the_last_file_of_a_folder_that_is_removed(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "shm"
    for at in itertools.count(1):
        RunMemory(path, run_dir).close()
        (path / "payload").touch(0o600)
        with failing_calls(("unlink",), at, errno.EIO) as calls:
            with suppress(RunFolderError, StorageFullError):
                remove(path)
            if calls() < at:
                break
        assert (path / LOCK).exists()  # without it no process could detect that the folder is stale
    assert at == 4
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


def test_memory_of_a_run_whose_folder_was_deleted_is_stale(tmp_path: Path) -> None:
    path = tmp_path / f"dingsdk-{os.geteuid()}-{os.urandom(8).hex()}"
    RunMemory(path, tmp_path / "deleted").close()
    assert remove_stale(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_folder_that_another_process_locks_for_too_long_is_refused(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dingsdk_shared_memory.run_memory.SWEPT_S", 0.03)
    path = tmp_path / "shm"
    RunMemory(path, run_dir).close()
    before = open_files()
    with (path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunDirLockedError, match=r"has held .*/lock for") as caught:
            RunMemory(path, run_dir)
    assert caught.value.facts["path"] == str(path)
    del caught
    assert open_files() == before
    RunMemory(path, run_dir).close()


def test_refused_folder_of_another_run_is_closed(run_dir: Path, tmp_path: Path) -> None:
    RunMemory(tmp_path / "shm", run_dir).close()
    before = open_files()
    with pytest.raises(RunDirLockedError) as caught:
        RunMemory(tmp_path / "shm", tmp_path / "other")
    assert caught.value.facts["path"] == str(tmp_path / "shm")
    assert open_files() == before


def test_unreadable_owner_is_reported_as_damage(run_dir: Path, tmp_path: Path) -> None:
    RunMemory(tmp_path / "shm", run_dir).close()
    owner = tmp_path / "shm" / OWNER
    owner.write_bytes(encode_json("shared-memory-run", {"format": "5"}))
    with pytest.raises(DataCorruptError) as caught:
        RunMemory(tmp_path / "shm", run_dir)
    assert caught.value.where == OWNER
    owner.write_bytes(encode_json("shared-memory-run", {"format": 4, "run_dir": "x"}))
    with pytest.raises(DataVersionError) as other:
        RunMemory(tmp_path / "shm", run_dir)
    found = other.value.facts
    assert (found["found"], found["expected"], found["where"]) == (4, 5, OWNER)


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


@pytest.mark.parametrize("ask", ["has", "get", "get_verified"])
def test_payload_is_waited_for_two_seconds_by_default(
    transport: SharedMemoryTransport, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    store = transport.data_store()
    now, pauses_s = [100.0], list[float]()

    def wait(pause_s: float) -> bool:
        pauses_s.append(pause_s)
        now[0] += 0.75
        return False

    monkeypatch.setattr(store._closed, "wait", wait)
    monkeypatch.setattr(store, "_clock", lambda: now[0])
    if ask == "has":
        assert not store.has("a")
    else:
        digest = ["xxh3-128:0"] if ask == "get_verified" else []
        with pytest.raises(DataMissingError, match=r"within 2\.0 s") as caught:
            getattr(store, ask)("a", *digest)
        assert caught.value.facts["data_id"] == "a"
    assert len(pauses_s) == 3
    assert max(pauses_s) < 0.1
    monkeypatch.setattr(store._closed, "wait", lambda pause_s: store.put("a", a_batch()) and False)
    assert store.has("a")


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


def test_folders_with_foreign_names_are_kept(tmp_path: Path) -> None:
    names = ["dingsdk-1-0123456789abcdef0", "dingsdk-x", f"dingsdk-{os.geteuid() + 1}-{'0' * 16}"]
    for name in names:
        (tmp_path / name).mkdir(mode=0o700)
        os.utime(tmp_path / name, (0, 0))
    assert remove_stale(tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_run_folders_have_memory_of_their_own(tmp_path: Path) -> None:
    assert folder_of(tmp_path / "a") != folder_of(tmp_path / "b")
    assert folder_of(tmp_path / "a").parent == ROOT


def test_same_payload_again_changes_nothing_and_another_is_refused(
    transport: SharedMemoryTransport,
) -> None:
    store = transport.data_store()
    store.put("a", a_batch())
    store.put("a", a_batch())
    with pytest.raises(ConflictError):
        store.put("a", a_batch(width=5))
    assert store.get("a") == a_batch()


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
        assert transport.data_store().get_verified(kind, info.digest) == a_batch(rows)
        with pytest.raises(DataCorruptError, match=f"payload '{kind}'"):
            transport.data_store().get_verified(kind, info.digest[:-1] + "x")
        transport.close()
    transport.remove_data()

    # Payloads that are copied out always have a digest of all bytes.
    head = "xxh3-128" if rows == 8 else "head"
    assert found == {"head": head, "xxh3-128": "xxh3-128", "sha256": "sha256"}


@pytest.mark.parametrize(("size", "kind"), [(16383, "xxh3-128"), (16384, "head")])
def test_payload_that_fits_into_a_segment_has_a_digest_of_all_bytes(
    transport: SharedMemoryTransport, size: int, kind: str
) -> None:
    info = transport.data_store().put("a", SampleBatch({"x": np.zeros(size, np.uint8)}))
    assert info is not None
    assert info.digest.startswith(f"{kind}:")


def test_payload_of_exactly_the_limit_is_stored_and_a_larger_one_is_not(
    tmp_path: Path,
) -> None:
    batch = a_batch()
    size = encode(batch, "sha256", 1 << 20)[1].size_bytes
    for most in (size, size - 1):
        store = SharedDataStore(
            Segments(PrivateDir(tmp_path / str(most))),
            max_payload_bytes=most,
            algorithm="sha256",
        )
        if most == size:
            store.put("a", batch)
            assert store.get("a", 0.0) == batch
        else:
            with pytest.raises(ConfigError, match=f"{size} bytes; at most {most}") as caught:
                store.put("a", batch)
            assert caught.value.path == "policy.collect.n_sample"
            assert len(store) == 0
        store.close()
    tight = SharedDataStore(Segments(PrivateDir(tmp_path / str(size))), max_payload_bytes=size - 1)
    with pytest.raises(DataCorruptError):
        tight.get("a", 0.0)
    tight.close()


def test_invalid_id_is_refused(transport: SharedMemoryTransport) -> None:
    with pytest.raises(ProtocolError):
        transport.data_store().put("../a", a_batch())


def test_close_wakes_a_reader_that_waits_for_a_payload(
    transport: SharedMemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = transport.data_store()
    real = store._closed.wait

    def wait(pause_s: float) -> bool:
        store.close()  # simulates another thread
        return real(pause_s)

    monkeypatch.setattr(store._closed, "wait", wait)
    with pytest.raises(ClosedError, match="data store was closed") as caught:
        store.get("a", 20.0)
    assert caught.value.facts["what"] == "data store"


def test_waiting_reader_gets_the_error_of_a_damaged_payload_at_once(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = {"data_dir": str(tmp_path / "shm")}
    writer, reader = (SharedMemoryTransport(cfg, run_dir) for _ in range(2))
    store, waited = reader.data_store(), list[float]()

    def wait(pause_s: float) -> bool:
        waited.append(pause_s)
        if len(waited) == 1:
            writer.data_store().put("a", a_batch())
            own = writer.data_store().segments._own
            assert own is not None
            own.map[64 + 64] ^= 1  # the size of the payload, in the table
        return len(waited) > 5

    monkeypatch.setattr(store._closed, "wait", wait)
    with pytest.raises(DataCorruptError, match="'a'") as caught:
        store.get("a", 20.0)
    assert (caught.value.where, len(waited)) == ("table", 1)
    writer.close()
    reader.close()


def test_folder_that_another_process_unlocks_in_time_is_used(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "shm"
    RunMemory(path, run_dir).close()
    with (path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        release = threading.Timer(0.03, fcntl.flock, (file, fcntl.LOCK_UN))
        release.start()
        RunMemory(path, run_dir).close()
        release.join()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


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
