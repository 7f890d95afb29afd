"""Policies as files: complete versions, never older ones, with a fallback if one is damaged."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import decode_frame, encode_frame, encode_json
from dingsdk.errors import (
    ConfigError,
    DataCorruptError,
    ProtocolError,
    RunFolderError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.runtime import Buffer, Folder, PrivateDir
from dingsdk.worker.comm.files.policy_store import FilePolicyStore
from dingsdk.worker.comm.files.policy_versions import Version
from tools.os_calls import recorded_writes

from .policies import damage, file_of, folder_of, is_whole, publish_damaged, weights


def test_a_reader_does_not_follow_a_pointer_that_went_back(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    publisher.publish("p", weights(5), 5)
    old = (folder_of(tmp_path) / "LATEST.json").read_bytes()
    publisher.publish("p", weights(6), 6)
    assert is_whole(reader.newest("p"), 6)
    (folder_of(tmp_path) / "LATEST.json").write_bytes(old)
    assert reader.newest("p") is None
    publisher.publish("p", weights(7), 7)
    assert is_whole(reader.newest("p"), 7)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_durable_version_and_its_pointer_survive_a_power_cut(
    tmp_path: Path, is_durable: bool
) -> None:
    store = FilePolicyStore(tmp_path / "run", is_durable=is_durable)
    with recorded_writes() as log:
        store.publish("p", weights(1), 1)
    store.close()
    for path in (file_of(tmp_path, 1), folder_of(tmp_path) / "LATEST.json"):
        assert log.is_durable(path) is is_durable


def test_publish_succeeds_if_older_versions_cannot_be_removed(
    publisher: FilePolicyStore,
    reader: FilePolicyStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(folder: Folder, name: str) -> bool:
        raise RunFolderError(f"cannot delete {name}", path=name)

    for version in range(3):
        publisher.publish("p", weights(version), version)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "unlink", refuse)
        for version in (3, 4):
            publisher.publish("p", weights(version), version)
            assert is_whole(reader.newest("p"), version)
    text = "cannot remove old versions of policy p: cannot delete "
    assert [each.partition("-")[0] for each in caplog.messages] == [f"{text}000000000000"]
    publisher.publish("p", weights(5), 5)
    with publisher.opened("p", create=False) as place:
        assert len(place.names()) == 4  # three versions and the pointer


def test_policy_that_restarts_in_the_same_folder_is_read(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    """The folder keeps its inode, as when a file system reuses the inode of a deleted folder."""
    publish_damaged(publisher, tmp_path, 8, 9)
    assert is_whole(reader.newest("p"), 8)
    inode = folder_of(tmp_path).stat().st_ino
    for path in folder_of(tmp_path).iterdir():
        path.unlink()
    publisher.publish("p", weights(2), 2)
    assert folder_of(tmp_path).stat().st_ino == inode
    assert is_whole(reader.newest("p"), 2)
    publisher.publish("p", weights(9), 9)  # the same number as the damaged version
    assert is_whole(reader.newest("p", newer_than=2), 9)


def test_a_damaged_newest_version_falls_back_and_is_counted_once(
    publisher: FilePolicyStore,
    reader: FilePolicyStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish_damaged(publisher, tmp_path, 1, 2, 3)
    assert is_whole(reader.newest("p"), 2)
    for _ in range(3):
        assert reader.newest("p", newer_than=2) is None
    assert reader.corrupt_count == 1
    (message,) = caplog.messages
    assert message.startswith("policy p: version 3 is damaged: ")
    publisher.publish("p", weights(4), 4)
    assert is_whole(reader.newest("p", newer_than=2), 4)


@pytest.mark.parametrize(("policy_id", "version"), [("p", 1), ("q", 2)])
def test_file_of_another_policy_or_version_counts_as_damaged(
    publisher: FilePolicyStore,
    reader: FilePolicyStore,
    tmp_path: Path,
    policy_id: str,
    version: int,
) -> None:
    publisher.publish("q", weights(2), 2)
    publish_damaged(publisher, tmp_path, 1, 2, 3)
    content = file_of(tmp_path, version, policy_id).read_bytes()
    file_of(tmp_path, 2).write_bytes(content)
    assert is_whole(reader.newest("p"), 1)
    assert reader.corrupt_count == 2


@pytest.mark.parametrize("was_read", [False, True])
def test_read_without_an_undamaged_version_is_an_error(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path, was_read: bool
) -> None:
    for version in (1, 2):
        publisher.publish("p", weights(version), version)
        assert not was_read or is_whole(reader.newest("p"), version)
        damage(file_of(tmp_path, version))
    with pytest.raises(DataCorruptError, match="whole"):
        reader.newest("p")
    assert reader.newest("p", newer_than=0) is None


def test_threads_that_share_a_store_read_one_after_the_other(
    publisher: FilePolicyStore, reader: FilePolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So none returns an older version than another thread did before."""
    publisher.publish("p", weights(1), 1)
    real, later = reader.read, list[Any]()
    other = threading.Thread(target=lambda: later.append(reader.newest("p")))

    def read(place: PrivateDir, version: Version) -> Buffer | None:
        if version.number == 1:
            publisher.publish("p", weights(2), 2)
            other.start()
            other.join(0.2)
            assert other.is_alive()
        return real(place, version)

    monkeypatch.setattr(reader, "read", read)
    first = reader.newest("p")
    other.join(20.0)
    assert [found and found[0] for found in (first, *later)] == [1, 2]


def test_version_that_is_removed_while_it_is_read_is_not_missed(
    publisher: FilePolicyStore, reader: FilePolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish("p", weights(1), 1)
    real = reader.read

    def late(*args: Any) -> Any:
        monkeypatch.undo()
        for version in range(2, 6):
            publisher.publish("p", weights(version), version)
        return real(*args)

    monkeypatch.setattr(reader, "read", late)
    assert is_whole(reader.newest("p"), 5)


def test_an_announced_version_that_is_not_there_falls_back(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    for version in (1, 2):
        publisher.publish("p", weights(version), version)
    file, content = file_of(tmp_path, 2), file_of(tmp_path, 2).read_bytes()
    file.unlink()
    assert is_whole(reader.newest("p"), 1)
    file.write_bytes(content)
    assert is_whole(reader.newest("p", newer_than=1), 2)


def test_a_version_that_was_never_announced_is_not_read(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    publisher.publish("p", weights(1), 1)
    old = (folder_of(tmp_path) / "LATEST.json").read_bytes()
    publisher.publish("p", weights(2), 2)
    (folder_of(tmp_path) / "LATEST.json").write_bytes(old)
    assert is_whole(reader.newest("p"), 1)


@pytest.mark.parametrize(
    "change",
    [{"version": -1}, {"version": "2"}, {"extra": 1}, {"life": ""}],
)
def test_damaged_pointer_is_ignored(
    publisher: FilePolicyStore,
    reader: FilePolicyStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
) -> None:
    for version in (1, 2):
        publisher.publish("p", weights(version), version)
    pointer = folder_of(tmp_path) / "LATEST.json"
    fields: dict[str, Any] = {"version": 2, "life": "0" * 16}
    pointer.write_bytes(encode_json("newest-policy", fields | change))
    assert is_whole(reader.newest("p"), 2)
    (message,) = caplog.messages
    assert message.startswith(f"{pointer} is damaged, the folder is listed: ")
    publisher.publish("p", weights(2), 2)
    publisher.publish("p", weights(3), 3)
    assert is_whole(reader.newest("p", newer_than=2), 3)


def test_planted_links_and_pipes_are_refused(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    publisher.publish("p", weights(1), 1)
    version = file_of(tmp_path, 1)
    (tmp_path / "theirs").write_bytes(version.read_bytes())
    for plant in (lambda: version.symlink_to(tmp_path / "theirs"), lambda: os.mkfifo(version)):
        version.unlink()
        plant()
        with pytest.raises(DataCorruptError):
            FilePolicyStore(tmp_path / "run").newest("p")
    theirs = decode_frame("policy", (tmp_path / "theirs").read_bytes())
    assert is_whole((1, theirs["state"]), 1)


def test_states_and_versions_that_cannot_be_stored_are_refused(
    publisher: FilePolicyStore, tmp_path: Path
) -> None:
    for state in ({}, {"w": "text"}, {"w": {"nested": torch.ones(1)}}, {"w": np.array(["a"])},
                  {"w": torch.ones(1, dtype=torch.float8_e4m3fn)}, {"\ud800": torch.ones(1)},
                  {"w": torch.ones(2, 2).to_sparse()}):  # fmt: skip
        with pytest.raises(SchemaMismatchError):
            publisher.publish("p", state, 1)
    for version in (-1, 10**12, 1.0, True):
        with pytest.raises(ProtocolError) as refused:
            publisher.publish("p", weights(1), version)  # type: ignore[arg-type]
        assert refused.value.where == "version"
    assert publisher.newest("p") is None
    published = {"policy_id": "p", "version": 1, "state": weights(1)}
    size = encode_frame("policy", published)[1].size_bytes
    tight = FilePolicyStore(tmp_path / "run", max_policy_bytes=size - 1)
    with pytest.raises(ConfigError, match=f"{size} bytes; at most {size - 1} are read"):
        tight.publish("p", weights(1), 1)
    tight.close()
    assert publisher.newest("p") is None
    just = FilePolicyStore(tmp_path / "run", max_policy_bytes=size)
    just.publish("p", weights(1), 1)
    just.discard("p")
    just.close()
    publisher.publish("last", weights(1), 10**12 - 1)
    last = publisher.newest("last")
    assert last is not None
    assert last[0] == 10**12 - 1
    full = FilePolicyStore(tmp_path / "run", min_free_bytes=1 << 60)
    with pytest.raises(StorageFullError):
        full.publish("p", weights(1), 1)
    full.close()
    with pytest.raises(ConfigError, match=">= 2") as caught:
        FilePolicyStore(tmp_path / "run", keep_versions=1)
    assert caught.value.path == "system.transport.keep_policy_versions"


def test_older_version_after_a_discard_is_read_even_without_its_pointer(
    publisher: FilePolicyStore, reader: FilePolicyStore, tmp_path: Path
) -> None:
    publisher.publish("p", weights(5), 5)
    assert is_whole(reader.newest("p"), 5)
    reader.discard("p")
    publisher.publish("p", weights(1), 1)
    damage(folder_of(tmp_path) / "LATEST.json")

    assert is_whole(reader.newest("p"), 1)
