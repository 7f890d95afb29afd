"""Atomic files: the old content or the new, and nothing left behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.data.files import (
    atomic_write_bytes,
    atomic_write_chunks,
    atomic_write_json,
    ensure_dir,
)
from dingsdk.errors import RunFolderError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_whole_and_private(tmp_path: Path, durable: bool) -> None:
    target = tmp_path / "a.bin"
    atomic_write_bytes(target, b"old", durable=durable)
    atomic_write_bytes(target, memoryview(b"new content"), durable=durable)
    assert target.read_bytes() == b"new content"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert names(tmp_path) == ["a.bin"]


def test_a_failing_source_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    atomic_write_bytes(target, b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunFolderError, match="disk space") as caught:
        atomic_write_chunks(target, chunks())
    assert caught.value.path == str(target)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("keep")
    (tmp_path / "link").symlink_to("secret")
    atomic_write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "secret").read_text() == "keep"
    assert not (tmp_path / "link").is_symlink()


def test_a_folder_in_the_way_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(RunFolderError, match="choose another path"):
        atomic_write_bytes(tmp_path / "taken", b"x")
    assert names(tmp_path) == ["taken"]


def test_a_missing_folder_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="create the folder"):
        atomic_write_bytes(tmp_path / "absent" / "a", b"x")


def test_json_is_written_readable_and_strict(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "a.json", {"näme": [1, 2.5]})
    assert '"näme"' in (tmp_path / "a.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="Out of range"):
        atomic_write_json(tmp_path / "a.json", float("nan"))
    assert names(tmp_path) == ["a.json"]


def test_ensure_dir_makes_parents_and_refuses_files(tmp_path: Path) -> None:
    assert ensure_dir(tmp_path / "a" / "b").is_dir()
    assert ensure_dir(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError) as caught:
            ensure_dir(path)
        assert caught.value.path == str(path)
