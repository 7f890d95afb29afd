"""Folders in shared memory: views of files, and files that are written again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dingsdk.data import PrivateDir, SampleBatch, SharedDir, decode_batch, encode_batch
from dingsdk.errors import DataCorruptError, DataMissingError

SIZE = 300_000
MAX = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SharedDir]:
    with SharedDir(tmp_path / "shared") as made:
        yield made


def test_view_is_read_only_and_keeps_its_file_from_being_written_again(folder: SharedDir) -> None:
    folder.write_atomic("a", [b"a" * SIZE])
    view = folder.view("a", MAX)
    assert view.readonly
    folder.move("a", folder, "spare")

    assert not folder.rewrite("b", [b"b" * SIZE], folder, "spare")

    assert bytes(view) == b"a" * SIZE
    assert folder.names() == []


@pytest.mark.parametrize("size", [SIZE - 100_000, SIZE, SIZE + 100_000, 10])
def test_file_is_written_again_with_any_size_once_nobody_views_it(
    folder: SharedDir, size: int
) -> None:
    folder.write_atomic("a", [b"a" * SIZE])
    number = folder.path.joinpath("a").stat().st_ino
    view = folder.view("a", MAX)
    del view
    folder.move("a", folder, "spare")

    assert folder.rewrite("b", [b"b" * (size - 3), b"", b"end"], folder, "spare")

    assert bytes(folder.view("b", MAX)) == b"b" * (size - 3) + b"end"
    assert folder.path.joinpath("b").stat().st_ino == number


def test_file_of_another_name_is_not_read(folder: SharedDir) -> None:
    folder.write_atomic("a", [b"a" * SIZE])
    folder.move("a", folder, "b")
    with pytest.raises(DataMissingError):
        folder.view("a", MAX)


def test_maps_are_given_back_with_the_last_folder(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    root = SharedDir(tmp_path / "shared")
    with root.sub("inner") as inner:
        root.close()
        inner.write_atomic("a", [b"a" * SIZE])
        view = inner.view("a", MAX)
        assert len(list(Path("/proc/self/fd").iterdir())) > before
    assert bytes(view[:3]) == b"aaa"
    del view
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_digest_of_the_head_finds_other_heads_and_no_other_content() -> None:
    import numpy as np

    batch = SampleBatch({"obs": np.arange(12, dtype=np.float32)})
    (frame,), info = encode_batch(batch, algorithm="head")
    assert info.digest.startswith("head:")
    assert decode_batch(frame, expected_digest=info.digest) == batch
    changed = bytearray(frame)
    changed[-1] ^= 1
    assert decode_batch(bytes(changed)) != batch
    with pytest.raises(DataCorruptError):
        decode_batch(bytes(frame).replace(b"[12]", b"[11]"))
    with pytest.raises(DataCorruptError):
        decode_batch(bytes(frame).replace(b"obs", b"abs"))


def test_folder_of_files_on_a_disk_maps_nothing_for_good(tmp_path: Path) -> None:
    with PrivateDir(tmp_path / "disk") as folder:
        folder.write_atomic("a", [b"a" * SIZE])
        view = folder.view("a", MAX)
        folder.move("a", folder, "spare")
        assert folder.rewrite("b", [b"b" * SIZE], folder, "spare")
        assert bytes(view[:1]) == b"b"  # why only a SharedDir lends out views of its pool
