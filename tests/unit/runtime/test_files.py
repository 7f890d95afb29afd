"""Files and folders: checked names, refused links, atomic writes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.errors import (
    ClosedError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime import Folder, PrivateDir, check_id
from dingsdk.runtime.files import (
    Patience,
    atomic_write_json,
    ensure_dir,
    open_private,
)
from dingsdk.testing import open_files
from tools.os_calls import failing_calls, recorded_writes

BAD_IDS = [
    *("../x", "/etc/passwd", "a/b", "a\0b", "%2e%2e", "..\\", "a" * 300, "x; touch P", ".", ".."),
    *("\u2024\u2024/x", "CON", "com1", "", "a\n", "a b", "\uff0e\uff0e", None, 7, b"x"),
]
CALLS = ("open", "writev", "write", "fsync", "close", "rename", "fstat", "mkdir", "unlink")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrivateDir]:
    with PrivateDir(tmp_path / "ours") as made:
        yield made


@pytest.fixture
def any_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_json_is_written_readable_and_strict(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "a.json", {"näme": [1, 2.5]})
    assert '"näme"' in (tmp_path / "a.json").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="Out of range"):
        atomic_write_json(tmp_path / "a.json", float("nan"))
    assert tree(tmp_path) == ["a.json"]


def test_ensure_dir_makes_parents_and_refuses_files(tmp_path: Path) -> None:
    assert ensure_dir(tmp_path / "a" / "b").is_dir()
    assert ensure_dir(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for path, why in (("file", "a file has that name"), ("file/below", "a part of the path")):
        with pytest.raises(RunFolderError, match=why) as caught:
            ensure_dir(tmp_path / path)
        assert caught.value.path == str(tmp_path / path)


@pytest.mark.usefixtures("any_umask")
def test_new_folders_and_files_are_private_even_with_umask_0(tmp_path: Path) -> None:
    made = ensure_dir(tmp_path / "a" / "b")
    atomic_write_json(made / "file", "x")
    with open(made / "log", "a", opener=open_private):
        pass
    with Folder(tmp_path / "c" / "d") as opened, opened.sub("e"):
        pass
    for path in ("a", "a/b", "c", "c/d", "c/d/e"):
        assert mode(tmp_path / path) == 0o700
    for path in ("a/b/file", "a/b/log"):
        assert mode(tmp_path / path) == 0o600


@pytest.mark.parametrize("map_above", [1 << 20, 0])
def test_error_for_a_file_truncated_during_a_read_names_the_file(
    folder: PrivateDir, monkeypatch: pytest.MonkeyPatch, map_above: int
) -> None:
    def fail(*given: Any, **options: Any) -> int:
        raise ValueError("mmap length is greater than file size")

    folder.write_atomic("x", [b"content"])
    monkeypatch.setattr("dingsdk.runtime.files.os.read", lambda *given: b"")
    monkeypatch.setattr("dingsdk.runtime.files.mmap.mmap", fail)
    with pytest.raises(DataCorruptError, match="/x is refused: it was cut off") as caught:
        folder.view("x", 1 << 20, map_above=map_above)
    assert caught.value.where == "x"


@pytest.mark.parametrize("text", BAD_IDS)
def test_invalid_ids_are_refused_and_change_no_files(
    folder: PrivateDir, tmp_path: Path, text: Any
) -> None:
    (tmp_path / "x").write_text("outside")
    before = tree(tmp_path)
    with pytest.raises(ProtocolError) as caught:
        check_id(text, "data_id")
    assert caught.value.where == "data_id"
    with pytest.raises(ProtocolError):
        folder.sub(text)
    if isinstance(text, str) and text.lower() not in {"con", "com1"}:
        for use in (
            lambda: folder.write_atomic(text, [b"x"]),
            lambda: folder.append(text, [b"x"], 0),
            lambda: folder.read(text, 10),
            lambda: folder.unlink(text),
            lambda: folder.stat(text),
            lambda: folder.move(text, folder, "fine"),
            lambda: folder.move("fine", folder, text),
            lambda: folder.rewrite(text, [b"x"], folder, "fine"),
            lambda: folder.rewrite("fine", [b"x"], folder, text),
        ):
            with pytest.raises(ProtocolError):
                use()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_private(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    before = open_files(collect=True)
    with pytest.raises(RunFolderError, match="others can write") as caught:
        PrivateDir(tmp_path / "open")
    assert caught.value.path == str(tmp_path / "open")
    with Folder(tmp_path / "open") as opened:
        opened.write_atomic("a", [b"1"])
        assert opened.read("a", 1) == b"1"
    assert open_files() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_root_uses_a_private_folder_in_a_folder_of_its_owner(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "transport"
    theirs.mkdir(mode=0o700, parents=True)
    (theirs / "a").write_text("1")
    (theirs / "b").write_text("1")
    for path in (theirs.parent, theirs, theirs / "a"):
        os.chown(path, 12345, -1)
    os.chown(theirs / "b", 54321, -1)
    with PrivateDir(theirs) as folder:
        assert folder.read("a", 1) == b"1"
        folder.write_atomic("c", [b"2"])  # root's own file
        assert folder.read("c", 1) == b"2"
        with pytest.raises(DataCorruptError, match="54321"):
            folder.read("b", 1)
        with folder.sub("inner"):  # root's own folder
            pass
    theirs.chmod(0o770)
    with pytest.raises(RunFolderError, match="others can write"):
        PrivateDir(theirs)
    theirs.chmod(0o700)
    os.chown(theirs.parent, 54321, -1)
    with pytest.raises(RunFolderError, match="12345"):
        PrivateDir(theirs)


def test_links_and_files_are_refused_as_folders(tmp_path: Path, folder: PrivateDir) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("")
    (folder.path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError):
            PrivateDir(path)
    for kind in (PrivateDir, Folder):
        with (
            kind(folder.path) as opened,
            pytest.raises(RunFolderError, match="symbolic link"),
        ):
            opened.sub("link")
        with pytest.raises(RunFolderError):
            kind(tmp_path / "absent", create=False)
    with pytest.raises(DataMissingError):
        folder.sub("absent", create=False)
    with Folder(tmp_path / "link") as linked:
        assert linked.names() == []
    assert tree(tmp_path / "elsewhere") == []


def test_only_own_regular_files_are_read(tmp_path: Path, folder: PrivateDir) -> None:
    (tmp_path / "secret").write_text("keep out")
    (folder.path / "symlink").symlink_to(tmp_path / "secret")
    (folder.path / "hardlink").hardlink_to(tmp_path / "secret")
    (folder.path / "folder").mkdir()
    os.mkfifo(folder.path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        there = Path.cwd()
        os.chdir(folder.path)  # the path of a socket is at most 108 bytes
        try:
            server.bind("socket")
        finally:
            os.chdir(there)
    everywhere = ["symlink", "folder", "fifo", "socket"]
    in_private = [*everywhere, "hardlink"]
    if os.geteuid() == 0:
        (folder.path / "theirs").write_text("x")
        os.chown(folder.path / "theirs", 12345, -1)
        in_private.append("theirs")
    with Folder(folder.path) as opened:
        before = open_files(collect=True)
        for place, names in ((folder, in_private), (opened, everywhere)):
            for name in names:
                for use in (place.read, place.view):
                    with pytest.raises(DataCorruptError) as caught:
                        use(name, 100)
                    assert caught.value.where == name
            with pytest.raises(DataMissingError):
                place.read("absent", 100)
            assert not place.unlink("absent")
        assert opened.read("hardlink", 100) == b"keep out"
        assert open_files() == before


def test_a_file_above_the_limit_is_not_read(folder: PrivateDir) -> None:
    with (folder.path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for use in (folder.read, folder.view):
        with pytest.raises(DataCorruptError, match="at most"):
            use("huge", 1 << 20)


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_whole_or_missing(
    tmp_path: Path, folder: PrivateDir, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """In a private folder it is missing, because another write may reuse the old file."""
    real = os.read

    with Folder(tmp_path / "any") as opened:
        for place in (folder, opened):
            place.write_atomic("a", [b"old"])

            def changing(descriptor: int, size: int, place: Folder = place) -> bytes:
                if change == "replaced":
                    place.write_atomic("a", [b"new"])
                else:
                    place.unlink("a")
                return real(descriptor, size)

            monkeypatch.setattr(os, "read", changing)
            if place is folder:
                with pytest.raises(DataMissingError):
                    place.view("a", 9)
            else:
                assert bytes(place.view("a", 9)) == b"old"


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_whichever_call_fails_opening_leaves_no_descriptor(tmp_path: Path, number: int) -> None:
    open_before = open_files(collect=True)
    at, made = 0, 0
    while True:
        at += 1
        with failing_calls(CALLS, at, number) as calls:
            try:
                folder = PrivateDir(tmp_path / f"run{at}")
            except (StorageFullError, RunFolderError):
                folder = None
        if folder is not None:
            folder.close()
            made += 1
        assert open_files() == open_before
        if at > calls():
            break
    assert made >= 1


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOENT, RunFolderError, "keep it as long as it is in use"),
        (errno.EFBIG, RunFolderError, "raise the limit of the size of files"),
        (errno.ENOSPC, StorageFullError, "disk space"),
        (errno.EMFILE, StorageFullError, "raise the limit of open files"),
        (errno.EIO, StorageFullError, "may work again later"),
    ],
)
def test_error_of_a_call_says_what_to_do(
    tmp_path: Path, number: int, kind: type[Exception], advice: str
) -> None:
    with (
        PrivateDir(tmp_path / "run") as folder,
        failing_calls(CALLS, 1, number),
        pytest.raises(kind, match=advice),
    ):
        folder.write_atomic("a", [b"new"])


def test_short_writes_are_finished(folder: PrivateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [b"".join(parts)[:5]]))
    folder.write_atomic("a", [b"abc", b"", b"defg", b"hij"])
    assert folder.read("a", 100) == b"abcdefghij"


def test_more_buffers_than_one_call_takes_are_written(folder: PrivateDir) -> None:
    parts = [bytes([i % 256]) for i in range(3000)]
    folder.write_atomic("a", list(parts))
    assert folder.read("a", 3000) == b"".join(parts)


def test_a_mapped_file_stays_readable_after_unlink_and_close(tmp_path: Path) -> None:
    folder = PrivateDir(tmp_path / "ours")
    folder.write_atomic("a", [b"content"])
    folder.write_atomic("empty", [])
    mapped, empty = folder.view("a", 10, map_above=0), folder.view("empty", 10, map_above=0)
    folder.unlink("a")
    folder.close()
    assert bytes(mapped) == b"content"
    assert mapped.readonly
    assert bytes(empty) == b""


def test_a_closed_folder_refuses_calls_and_is_released_after_the_call_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_files(collect=True)
    folder = PrivateDir(tmp_path / "ours")
    folder.write_atomic("a", [b"1"])
    real = os.listdir

    def closing(place: Any) -> list[str]:
        folder.close()
        return real(place)

    monkeypatch.setattr(os, "listdir", closing)
    assert folder.names() == ["a"]
    monkeypatch.undo()
    folder.close()
    assert open_files() == before
    for use in (folder.names, folder.free_bytes, lambda: folder.write_atomic("a", [])):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_write_waits_for_the_file_and_then_the_folder(
    folder: PrivateDir, durable: bool
) -> None:
    with recorded_writes() as log:
        folder.write_atomic("a", [b"1"], durable=durable)
    assert log.is_durable(folder.path / "a") is durable
    assert [call[0] for call in log.calls] == (
        ["sync", "rename", "sync"] if durable else ["rename"]
    )


def test_a_durable_append_syncs_the_file_and_once_the_folder(folder: PrivateDir) -> None:
    with recorded_writes() as log:
        folder.append("a", [b"12"], 0, durable=True)
        folder.append("a", [b"3"], 2, durable=True)
        folder.append("a", [b"4"], 3)
    file = ("sync", str(folder.path / "a"))
    assert log.calls == [file, ("sync", str(folder.path)), file]
    assert folder.read("a", 4) == b"1234"
    assert (folder.path / "a").stat().st_mode & 0o7777 == 0o600


def test_an_append_to_a_file_of_another_size_is_refused(folder: PrivateDir) -> None:
    before = open_files(collect=True)
    folder.append("a", [b"12"], 0)
    for at in (1, 3):
        with pytest.raises(RunFolderError, match=f"has 2 bytes in place of {at}") as caught:
            folder.append("a", [b"x"], at)
        assert caught.value.path == str(folder.path / "a")
    assert folder.read("a", 2) == b"12"
    assert open_files() == before


@pytest.mark.parametrize("call", ["open", "fstat", "writev", "fsync"])
def test_an_append_that_fails_leaves_the_file_as_it_was(folder: PrivateDir, call: str) -> None:
    folder.append("a", [b"12"], 0)
    before = open_files(collect=True)
    with failing_calls((call,), 1, errno.ENOSPC), pytest.raises(StorageFullError) as caught:
        folder.append("a", [b"34"], 2, durable=True)
    assert f"cannot write {folder.path / 'a'}" in str(caught.value)
    assert folder.read("a", 9) == b"12"
    assert open_files() == before


def test_rewrite_reuses_only_regular_files_with_one_name(
    tmp_path: Path, folder: PrivateDir
) -> None:
    (tmp_path / "secret").write_text("keep")
    with folder.sub("pool") as pool:
        (pool.path / "symlink").symlink_to(tmp_path / "secret")
        (pool.path / "hardlink").hardlink_to(tmp_path / "secret")
        os.mkfifo(pool.path / "fifo")
        for name in ("symlink", "hardlink", "fifo", "absent"):
            assert not folder.rewrite("a", [b"new"], pool, name)
    assert (tmp_path / "secret").read_text() == "keep"
    assert tree(folder.path) == ["pool"]


@pytest.mark.parametrize(
    ("call", "at"),
    [("rename", 1), ("open", 1), ("fstat", 1), ("writev", 1), ("close", 1), ("rename", 2)],
)
def test_whichever_call_fails_rewrite_keeps_the_old_file(
    folder: PrivateDir, call: str, at: int
) -> None:
    folder.write_atomic("a", [b"old"])
    with folder.sub("pool") as pool:
        pool.write_atomic("p", [b"pooled"])
        with failing_calls((call,), at, errno.EIO), pytest.raises(StorageFullError) as caught:
            folder.rewrite("a", [b"new"], pool, "p")
        assert caught.value.path == str(folder.path / "a")
        assert "cannot write" in str(caught.value)
    assert folder.read("a", 9) == b"old"
    assert tree(folder.path) == ["a", "pool", *(["pool/p"] if (call, at) == ("rename", 1) else [])]


TEMPORARY = ".tmp-0123456789abcdef"


def test_writer_whose_temporary_file_is_swept_writes_it_again(
    folder: PrivateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = os.rename, []

    def rename(*args: Any, **kwargs: Any) -> None:
        if not swept:
            swept.append(folder.sweep())
        real(*args, **kwargs)

    monkeypatch.setattr(os, "rename", rename)
    before = open_files(collect=True)
    folder.write_atomic("a", [b"1"], durable=True)
    assert folder.read("a", 1) == b"1"
    assert (swept, folder.names()) == ([1], ["a"])
    assert open_files() == before


def test_remove_tree_removes_own_files_and_keeps_foreign_ones(folder: PrivateDir) -> None:
    with folder.sub("tree") as tree_dir, tree_dir.sub("inner") as inner:
        tree_dir.write_atomic("a.bin", [b"1"])
        inner.write_atomic("b", [b"2"])
        (inner.path / TEMPORARY).write_bytes(b"half")
        (tree_dir.path / "link").symlink_to(folder.path)
        (inner.path / ".notes").write_text("somebody else's")
    assert not folder.remove_tree("tree")
    assert tree(folder.path) == ["tree", "tree/inner", "tree/inner/.notes"]
    (folder.path / "tree/inner/.notes").unlink()
    assert folder.remove_tree("tree")
    assert folder.remove_tree("tree")
    assert tree(folder.path) == []
    with pytest.raises(ProtocolError):
        folder.remove_tree("../ours")


@pytest.mark.parametrize(
    ("stops_after_s", "room_at_s", "tries"),
    [(99, 2, [0, 1, 2]), (99, 50, [0, 1, 2, 3]), (1, 50, [0, 1]), (0, 0, [0])],
    ids=["room", "no room", "stopped", "room at once"],
)
def test_patience_waits_for_room_until_its_limit_or_the_end_of_the_run(
    stops_after_s: int, room_at_s: int, tries: list[int]
) -> None:
    now, tried = [0.0], []

    def pause(seconds: float) -> bool:
        now[0] += seconds
        return now[0] >= stops_after_s

    def write() -> None:
        tried.append(now[0])
        if now[0] < room_at_s:
            raise StorageFullError("full", path="a", reason="ENOSPC")

    patience = Patience(3.0, pause, lambda: now[0])
    with contextlib.nullcontext() if room_at_s < 3 else pytest.raises(StorageFullError):
        patience(write)
    assert tried == tries
