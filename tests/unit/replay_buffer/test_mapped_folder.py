"""MappedFolder: its files are created, opened and deleted, and it holds spare disk space."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dingsdk.errors import RunFolderError, StorageFullError
from dingsdk.worker.replay_buffer.storage import mapped_folder
from dingsdk.worker.replay_buffer.storage.mapped_folder import MappedFolder
from tools.os_calls import failing_calls

BYTES = np.dtype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[MappedFolder]:
    made = MappedFolder(tmp_path / "rows")
    yield made
    made.close()


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def test_created_file_has_no_content_of_an_old_file(folder: MappedFolder) -> None:
    """The old file is from an unfinished creation, or is a link, whose target does not change."""
    elsewhere = folder.path.parent / "elsewhere"
    elsewhere.write_bytes(b"x" * 100)
    (folder.path / "left.bin").write_bytes(b"x" * 100)
    (folder.path / "link.bin").symlink_to(elsewhere)
    os.link(elsewhere, folder.path / "hard.bin")

    for name in ("left.bin", "link.bin", "hard.bin", "new.bin"):
        mapped = folder.map(name, (5, 8), BYTES)
        assert not mapped.any()
        assert (folder.path / name).stat().st_size == 40
        mapped[:] = 7

    assert elsewhere.read_bytes() == b"x" * 100
    for name in ("left.bin", "link.bin", "hard.bin", "new.bin"):
        assert (folder.map(name, (5, 8), BYTES) == 7).all()


def test_created_slots_have_no_content_of_an_old_file(folder: MappedFolder) -> None:
    (folder.path / "slots.bin").write_bytes(b"x" * 100)
    slots = folder.slots("slots.bin", 40)
    assert slots.read(100, 0) == bytes(40)


def test_spare_space_of_a_killed_process_is_released(folder: MappedFolder) -> None:
    spare = folder.path / "spare.bin"
    spare.write_bytes(b"x" * (1 << 20))

    folder.hold_spare(1 << 16)

    assert 1 << 16 <= disk_bytes(spare) < 1 << 20
    assert spare.stat().st_size == 1 << 16


def test_spare_space_is_held_until_released_and_can_be_held_again(
    folder: MappedFolder,
) -> None:
    spare = folder.path / "spare.bin"
    for _ in range(2):
        folder.hold_spare(1 << 16)
        folder.hold_spare(1 << 17)
        folder.hold_spare(1 << 16)  # there is more already
        assert disk_bytes(spare) >= 1 << 17
        folder.release_spare()
        assert not spare.exists()
    folder.release_spare()


def test_write_uses_the_spare_space_and_fails_if_it_is_too_small(
    folder: MappedFolder,
) -> None:
    slots = folder.slots("slots.bin", 40)
    folder.hold_spare(1 << 16)
    with failing_calls(("pwrite",), 1, errno.ENOSPC) as calls:
        slots.write(b"first", 0)
    assert calls() == 2
    assert slots.read(5, 0) == b"first"
    assert not (folder.path / "spare.bin").exists()
    with (
        failing_calls(("pwrite",), 1, errno.ENOSPC, persistent=True) as calls,
        pytest.raises(StorageFullError) as caught,
    ):
        slots.write(b"other", 0)
    assert calls() == 2
    assert caught.value.path == str(folder.path / "slots.bin")
    assert slots.read(5, 0) == b"first"


def test_write_that_fails_for_another_reason_is_not_tried_again(folder: MappedFolder) -> None:
    slots = folder.slots("slots.bin", 40)
    folder.hold_spare(1 << 16)
    with failing_calls(("pwrite",), 1, errno.EPERM) as calls, pytest.raises(RunFolderError):
        slots.write(b"first", 0)
    assert calls() == 1
    assert (folder.path / "spare.bin").exists()


def test_error_of_a_failed_read_names_the_file(folder: MappedFolder) -> None:
    slots = folder.slots("slots.bin", 40)
    slots.write(b"first", 0)
    for code, error in ((errno.EIO, StorageFullError), (errno.EPERM, RunFolderError)):
        with (
            failing_calls(("pread",), 1, code),
            pytest.raises(error, match="read") as caught,
        ):
            slots.read(5, 0)
        assert caught.value.path == str(folder.path / "slots.bin")
    assert slots.read(5, 0) == b"first"


def test_error_for_a_file_that_cannot_be_opened_names_it(folder: MappedFolder) -> None:
    (folder.path / "rows.bin").mkdir()
    with pytest.raises(RunFolderError, match="a folder has that name") as caught:
        folder.map("rows.bin", (8,), BYTES)
    assert caught.value.path == str(folder.path / "rows.bin")
    with failing_calls(("open",), 1, errno.EMFILE), pytest.raises(StorageFullError):
        folder.map("other.bin", (8,), BYTES)


def test_array_of_no_bytes_is_mapped(folder: MappedFolder) -> None:
    assert folder.map("empty.bin", (0, 3), BYTES).shape == (0, 3)
    assert folder.map("empty.bin", (4, 0), BYTES).shape == (4, 0)


def test_close_releases_the_space_and_lets_others_use_the_folder(folder: MappedFolder) -> None:
    folder.hold_spare(1 << 16)
    folder.close()
    folder.close()
    assert list(folder.path.glob("*.bin")) == []
    MappedFolder(folder.path).close()


def test_erase_deletes_the_rows_and_keeps_other_files(folder: MappedFolder) -> None:
    folder.map("obs.bin", (8,), BYTES)
    folder.hold_spare(1 << 16)
    folder.write_header({"rows": 8})
    (folder.path / "notes.txt").write_text("mine")
    assert MappedFolder.is_taken(folder.path)

    folder.erase()

    assert not MappedFolder.is_taken(folder.path)
    assert folder.read_header() is None
    names = {each.name for each in folder.path.iterdir()}
    assert "notes.txt" in names
    assert not {name for name in names if name.endswith((".bin", ".json"))}
    folder.hold_spare(1 << 16)  # reserves space again after the erasure
    assert disk_bytes(folder.path / "spare.bin") >= 1 << 16
    folder.write_header({"rows": 9})
    assert folder.read_header() == {"rows": 9}
    assert folder.read_record() == {"tail": 0, "valid_count": 0, "shift": 0}


@pytest.mark.parametrize("damage", ["none", "cut", "spoiled"])
def test_folder_without_header_holds_rows_if_its_cursor_counts_pushes(
    folder: MappedFolder, damage: str
) -> None:
    folder.write_header({"rows": 8})
    header, cursor = folder.path / "header.json", folder.path / "cursor.bin"
    header.unlink()
    assert not MappedFolder.is_taken(folder.path)  # its creation was interrupted
    folder.write_record({"push_count": 8})
    assert MappedFolder.is_taken(folder.path)
    if damage == "cut":
        os.truncate(cursor, 10)
    elif damage == "spoiled":
        cursor.write_bytes(b"x" * 100)
    assert MappedFolder.is_taken(folder.path) is (damage == "none")
    cursor.unlink()
    cursor.symlink_to(header)
    assert not MappedFolder.is_taken(folder.path)


def test_interrupted_erase_leaves_no_rows(
    folder: MappedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header, which says that there are rows, is deleted first."""
    for name in ("a.bin", "z.bin"):
        folder.map(name, (8,), BYTES)
    folder.write_header({"rows": 8})
    folder.write_record({"push_count": 8})
    unlink, deleted = folder._folder.unlink, list[str]()

    def unlink_one(name: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(name)
        unlink(name)

    monkeypatch.setattr(folder._folder, "unlink", unlink_one)
    with pytest.raises(KeyboardInterrupt):
        folder.erase()
    assert deleted == [mapped_folder._HEADER]
    assert not MappedFolder.is_taken(folder.path)
    monkeypatch.undo()
