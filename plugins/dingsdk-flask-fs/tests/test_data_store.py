"""Payloads as files: atomic, immutable and verified; some appear late or never."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dingsdk.data import encode_batch
from dingsdk.errors import (
    ConfigError,
    ConflictError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    RunFolderError,
)
from dingsdk.runtime import PrivateDir
from dingsdk.worker.comm.files.data_store import FileDataStore
from tools.os_calls import recorded_writes

from .payloads import file_of, piece, tree


def test_another_payload_under_a_used_id_is_a_conflict(store: FileDataStore) -> None:
    store.put("p", piece(1))
    with pytest.raises(ConflictError) as caught:
        store.put("p", piece(2))
    assert caught.value.data_id == "p"
    assert store.get("p") == piece(1)


def test_invalid_id_is_refused_and_nothing_changes(store: FileDataStore, tmp_path: Path) -> None:
    store.put("p", piece())
    before = tree(tmp_path)
    for use in (
        lambda: store.put("../x", piece()),
        lambda: store.get("../x", timeout_s=0.0),
        lambda: store.delete(["p", "../x"]),
    ):
        with pytest.raises(ProtocolError):
            use()
    assert tree(tmp_path) == before


def test_damaged_payload_can_be_put_again(store: FileDataStore, tmp_path: Path) -> None:
    store.put("p", piece(1))
    file_of(store, tmp_path, "p").write_bytes(b"DING1\r\n\0 not any more")
    store.put("p", piece(1))
    assert store.get("p") == piece(1)
    assert store.corrupt_count == 1


def test_payload_deleted_during_a_read_is_missing_and_not_damaged(
    store: FileDataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("p", piece())
    file = file_of(store, tmp_path, "p")

    def view(*given: Any, **options: Any) -> bytes:
        file.unlink(missing_ok=True)
        return b"half of it"

    monkeypatch.setattr(PrivateDir, "view", view)
    with pytest.raises(DataMissingError) as caught:
        store.get("p", 0.0)
    assert caught.value.data_id == "p"
    assert store.corrupt_count == 0


def test_file_that_appears_late_is_found(store: FileDataStore, tmp_path: Path) -> None:
    """A file system may show new folders and files of another host with a delay."""
    writer = FileDataStore(tmp_path / "run")
    timer = threading.Timer(0.3, writer.put, args=("p", piece()))
    timer.start()
    try:
        assert store.get("p", timeout_s=5.0) == piece()
    finally:
        timer.join()
        writer.close()


def test_every_kind_of_damage_is_detected_and_quarantined(
    store: FileDataStore, tmp_path: Path
) -> None:
    frame = b"".join(encode_batch(piece(rows=1))[0])
    damages = [frame[:size] for size in range(0, len(frame), 7)]
    damages += [frame[:i] + bytes([frame[i] ^ 1]) + frame[i + 1 :] for i in range(0, len(frame), 7)]
    for number, damage in enumerate(damages):
        store.put(f"p{number}", piece(rows=1))
        file_of(store, tmp_path, f"p{number}").write_bytes(damage)
        with pytest.raises(DataCorruptError) as caught:
            store.get(f"p{number}")
        assert caught.value.data_id == f"p{number}"
        with pytest.raises(DataMissingError):
            store.get(f"p{number}", timeout_s=0.0)
    assert store.corrupt_count == len(damages)
    assert len(list((tmp_path / "run" / "quarantine").iterdir())) == 16
    assert list(store.ids()) == []


def test_file_of_another_payload_is_detected(store: FileDataStore, tmp_path: Path) -> None:
    info = store.put("p", piece(1))
    store.put("q", piece(2))
    file_of(store, tmp_path, "q").rename(file_of(store, tmp_path, "p"))
    with pytest.raises(DataCorruptError):
        store.get("p", digest=info.digest)


def test_readers_verify_the_announced_kind_of_digest(tmp_path: Path) -> None:
    strong = FileDataStore(tmp_path / "run", algorithm="sha256")
    weak = FileDataStore(tmp_path / "run")
    info = strong.put("p", piece(1))
    assert info.digest.startswith("sha256:")
    assert weak.get("p", digest=info.digest) == piece(1)
    weak.delete(["p"])
    weak.put("p", piece(1))  # the same rows with a weaker digest
    with pytest.raises(DataCorruptError):
        strong.get("p", digest=info.digest)
    strong.close()
    weak.close()


def test_a_linked_shard_is_refused(store: FileDataStore, tmp_path: Path) -> None:
    store.put("p", piece())
    shard = file_of(store, tmp_path, "p").parent
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    with pytest.raises(RunFolderError):
        FileDataStore(tmp_path / "run")
    assert store.get("p") == piece()  # the open store still uses the original folder


def test_payload_above_the_limit_is_neither_written_nor_read(tmp_path: Path) -> None:
    size = encode_batch(piece())[1].size_bytes
    tight = FileDataStore(tmp_path / "run", max_payload_bytes=size - 1)
    with pytest.raises(ConfigError, match=f"{size} bytes; at most {size - 1} are read.*n_sample"):
        tight.put("p", piece())
    just = FileDataStore(tmp_path / "run", max_payload_bytes=size)
    just.put("p", piece())
    assert just.get("p") == piece()
    with pytest.raises(DataCorruptError, match=f"at most {size - 1}"):
        tight.get("p")
    tight.close()
    just.close()


def test_sweep_removes_only_old_orphans_and_half_written_files(tmp_path: Path) -> None:
    now = [0.0]
    store = FileDataStore(tmp_path / "run", clock=lambda: now[0])
    for name in ("live", "orphan", "announced-late"):
        store.put(name, piece())
    half = file_of(store, tmp_path, "orphan").with_name(".tmp-0123456789abcdef")
    half.write_bytes(b"half")
    os.utime(file_of(store, tmp_path, "announced-late"), (0, 0))
    assert store.sweep_orphans({"live"}.__contains__, grace_s=60.0) == 0
    now[0] = 59.0
    store.put("new", piece())
    assert store.sweep_orphans({"live", "announced-late"}.__contains__, grace_s=60.0) == 0
    now[0] = 60.0
    # The grace period of a payload that had an owner starts again.
    assert store.sweep_orphans({"live"}.__contains__, grace_s=60.0) == 2
    assert sorted(store.ids()) == ["announced-late", "live", "new"]
    assert not half.exists()
    assert store.sweep_orphans({"live"}.__contains__, grace_s=0.0) == 2
    assert list(store.ids()) == ["live"]
    store.close()


@pytest.mark.parametrize("is_durable", [False, True])
def test_durable_payloads_survive_a_power_cut(tmp_path: Path, is_durable: bool) -> None:
    store = FileDataStore(tmp_path / "run", is_durable=is_durable)
    with recorded_writes() as log:
        store.put("a", piece())
        store.delete(["a"])
        store.put("b", piece())
    for data_id in "ab":
        path = next(
            Path(call[2]) for call in log.calls if call[0] == "rename" and f"{data_id}.d" in call[2]
        )
        assert log.is_durable(path) is is_durable
    store.close()
