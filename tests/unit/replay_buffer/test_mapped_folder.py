"""MappedFolder: its files are created, opened and deleted."""

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


def test_close_lets_others_use_the_folder(folder: MappedFolder) -> None:
    folder.close()
    folder.close()
    MappedFolder(folder.path).close()


def test_erase_deletes_the_rows_and_keeps_other_files(folder: MappedFolder) -> None:
    folder.map("obs.bin", (8,), BYTES)
    folder.write_header({"rows": 8})
    (folder.path / "notes.txt").write_text("mine")
    assert MappedFolder.is_taken(folder.path)

    folder.erase()

    assert not MappedFolder.is_taken(folder.path)
    assert folder.read_header() is None
    names = {each.name for each in folder.path.iterdir()}
    assert "notes.txt" in names
    assert not {name for name in names if name.endswith((".bin", ".json"))}
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
