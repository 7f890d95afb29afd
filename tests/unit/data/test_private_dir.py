"""Private folders: checked names, refused links, whole files or the old ones."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dingsdk.data import PrivateDir, check_id
from dingsdk.data.descriptor import SharedDescriptor
from dingsdk.errors import (
    ClosedError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.testing import failing_calls

BAD_IDS = [
    *("../x", "/etc/passwd", "a/b", "a\0b", "%2e%2e", "..\\", "a" * 300, "x; touch P", ".", ".."),
    *("\u2024\u2024/x", "CON", "com1", "", "a\n", "a b", "\uff0e\uff0e", None, 7, b"x"),
]
CALLS = ("open", "writev", "write", "fsync", "close", "rename", "fstat", "mkdir", "unlink")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrivateDir]:
    with PrivateDir(tmp_path / "ours") as made:
        yield made


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("text", BAD_IDS)
def test_what_is_no_id_is_refused_and_touches_nothing(
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
            lambda: folder.read(text, 10),
            lambda: folder.unlink(text),
            lambda: folder.stat(text),
            lambda: folder.move(text, folder, "fine"),
            lambda: folder.move("fine", folder, text),
        ):
            with pytest.raises(ProtocolError):
                use()
    assert tree(tmp_path) == before


def test_ids_of_workers_pass() -> None:
    for text in ("a", "A_b-9", "x" * 64, "collector-0-17"):
        assert check_id(text) == text


def test_folder_and_files_are_for_us_alone(folder: PrivateDir) -> None:
    folder.write_atomic("a.bin", [b"1", memoryview(b"23")], durable=True)
    inner = folder.sub("inner")
    inner.close()
    modes = [stat.S_IMODE((folder.path / name).stat().st_mode) for name in ("", "a.bin", "inner")]
    assert modes == [0o700, 0o600, 0o700]
    assert folder.read("a.bin", 3) == b"123"
    assert bytes(folder.view("a.bin", 3, map_above=0)) == b"123"
    assert folder.names() == ["a.bin", "inner"]


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    before = descriptors()
    with pytest.raises(RunFolderError, match="others can write") as caught:
        PrivateDir(tmp_path / "open")
    assert caught.value.path == str(tmp_path / "open")
    assert descriptors() == before


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(RunFolderError, match="12345"):
        PrivateDir(tmp_path / "theirs")


def test_links_and_files_are_no_folders(tmp_path: Path, folder: PrivateDir) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("")
    (folder.path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError):
            PrivateDir(path)
    with pytest.raises(RunFolderError):
        folder.sub("link")
    with pytest.raises(RunFolderError):
        PrivateDir(tmp_path / "absent", create=False)
    with pytest.raises(DataMissingError):
        folder.sub("absent", create=False)
    assert tree(tmp_path / "elsewhere") == []


def test_only_plain_files_of_ours_are_read(tmp_path: Path, folder: PrivateDir) -> None:
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
    names = ["symlink", "hardlink", "folder", "fifo", "socket"]
    if os.geteuid() == 0:
        (folder.path / "theirs").write_text("x")
        os.chown(folder.path / "theirs", 12345, -1)
        names.append("theirs")
    before = descriptors()
    for name in names:
        for use in (folder.read, folder.view):
            with pytest.raises(DataCorruptError) as caught:
                use(name, 100)
            assert caught.value.where == name
    with pytest.raises(DataMissingError):
        folder.read("absent", 100)
    assert descriptors() == before


def test_a_file_above_the_cap_is_not_read(folder: PrivateDir) -> None:
    with (folder.path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for use in (folder.read, folder.view):
        with pytest.raises(DataCorruptError, match="at most"):
            use("huge", 1 << 20)


def test_planted_links_are_replaced_or_removed_never_followed(
    tmp_path: Path, folder: PrivateDir
) -> None:
    (tmp_path / "secret").write_text("keep")
    (folder.path / "a").symlink_to(tmp_path / "secret")
    (folder.path / "b").symlink_to(tmp_path / "secret")
    (folder.path / "c").hardlink_to(tmp_path / "secret")
    folder.write_atomic("a", [b"new"])
    folder.write_atomic("c", [b"new"])
    assert folder.unlink("b")
    assert not folder.unlink("b")
    assert folder.read("a", 9) == folder.read("c", 9) == b"new"
    assert (tmp_path / "secret").read_text() == "keep"


def test_a_folder_in_the_way_is_a_typed_error(folder: PrivateDir) -> None:
    (folder.path / "taken").mkdir()
    with pytest.raises(RunFolderError):
        folder.write_atomic("taken", [b"x"])
    with pytest.raises(RunFolderError):
        folder.unlink("taken")
    assert folder.names() == ["taken"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("persistent", [False, True])
def test_whichever_call_fails_the_file_is_old_or_new(
    tmp_path: Path, number: int, persistent: bool
) -> None:
    open_before = descriptors()
    at = 0
    while True:
        at += 1
        with PrivateDir(tmp_path / f"run{at}") as folder:
            inner = folder.sub("inner")
            inner.write_atomic("a", [b"old"])
            with failing_calls(CALLS, at, number, persistent) as calls:
                raised = None
                try:
                    inner.write_atomic("a", [b"n", b"ew"], durable=True)
                except StorageFullError as error:
                    raised = error
            inner.close()
            content = (inner.path / "a").read_bytes()
            assert content in ({b"old", b"new"} if raised else {b"new"})
            assert raised is None or raised.reason == errno.errorcode[number]
            assert raised is None or raised.retryable
            assert tree(folder.path) == ["inner", "inner/a"]
        assert descriptors() == open_before
        if at > calls():
            assert raised is None
            break
    assert at > 5


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_whichever_call_fails_opening_leaves_no_descriptor(tmp_path: Path, number: int) -> None:
    open_before = descriptors()
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
        assert descriptors() == open_before
        if at > calls():
            break
    assert made >= 1


def test_short_writes_are_finished(folder: PrivateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [b"".join(parts)[:5]]))
    folder.write_atomic("a", [b"abc", b"", b"defg", b"hij"])
    assert folder.read("a", 100) == b"abcdefghij"


def test_more_buffers_than_one_call_takes_are_written(folder: PrivateDir) -> None:
    parts = [bytes([i % 256]) for i in range(3000)]
    folder.write_atomic("a", list(parts))
    assert folder.read("a", 3000) == b"".join(parts)


def test_move_takes_whatever_stands_there(folder: PrivateDir) -> None:
    with folder.sub("aside") as aside:
        folder.write_atomic("a", [b"1"])
        (folder.path / "link").symlink_to("nowhere")
        assert folder.move("a", aside, "a-1")
        assert folder.move("link", aside, "link-1")
        assert not folder.move("a", aside, "a-2")
        assert aside.names() == ["a-1", "link-1"]
        assert not folder.remove_sub("aside")
        assert aside.unlink("a-1")
        assert aside.unlink("link-1")
    assert folder.remove_sub("aside")
    assert folder.remove_sub("aside")


def test_a_map_outlives_the_file_and_the_folder(tmp_path: Path) -> None:
    folder = PrivateDir(tmp_path / "ours")
    folder.write_atomic("a", [b"content"])
    folder.write_atomic("empty", [])
    mapped, empty = folder.view("a", 10, map_above=0), folder.view("empty", 10, map_above=0)
    folder.unlink("a")
    folder.close()
    assert bytes(mapped) == b"content"
    assert mapped.readonly
    assert bytes(empty) == b""


def test_a_closed_folder_refuses_and_gives_its_descriptor_back(tmp_path: Path) -> None:
    before = descriptors()
    folder = PrivateDir(tmp_path / "ours")
    folder.close()
    folder.close()
    assert descriptors() == before
    for use in (folder.names, folder.free_bytes, lambda: folder.write_atomic("a", [])):
        with pytest.raises(ClosedError):
            use()


def test_a_descriptor_in_use_is_closed_by_its_last_user() -> None:
    number = os.open("/dev/null", os.O_RDONLY)
    shared = SharedDescriptor(number)
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        with shared as held:
            entered.set()
            leave.wait(5.0)
            os.fstat(held)

    thread = threading.Thread(target=use)
    thread.start()
    entered.wait(5.0)
    shared.close()
    os.fstat(number)
    leave.set()
    thread.join(5.0)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)


def test_free_space_is_that_of_the_disk(folder: PrivateDir) -> None:
    disk = os.statvfs(folder.path)
    assert abs(folder.free_bytes() - disk.f_bavail * disk.f_frsize) < 1 << 30


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_write_waits_for_the_file_and_then_the_folder(
    folder: PrivateDir, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    waited: list[tuple[bool, list[str]]] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        waited.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), folder.names()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    folder.write_atomic("a", [b"1"], durable=durable)
    assert [is_folder for is_folder, _ in waited] == ([False, True] if durable else [])
    assert not durable or "a" not in waited[0][1]
    assert not durable or waited[1][1] == ["a"]
