"""Files that are either whole or absent: written aside, then renamed into place."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dingsdk.errors import RunFolderError

_ADVICE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EACCES: "choose a folder that you may write to, or change its permissions",
    errno.EPERM: "choose a folder that you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a file system that is mounted for writing",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "a part of the path is a file; choose another path",
    errno.EEXIST: "a file has that name; choose another path or remove it",
    errno.EISDIR: "a folder has that name; choose another path or remove it",
    errno.ELOOP: "a part of the path is a symbolic link that leads nowhere; remove it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


Buffer = bytes | bytearray | memoryview

TEMPORARY = ".tmp-"
"""How the name of a file that is being written begins."""

_BUFFERS_A_CALL = 512  # below IOV_MAX, 1024 on Linux


def atomic_write_bytes(path: str | os.PathLike[str], data: Buffer, durable: bool = False) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    The data goes to a new file of the same folder (readable by the owner only), which then
    takes the name. A symbolic link at ``path`` is replaced, never followed.

    Args:
        path: The file; its folder must exist.
        data: The whole content.
        durable: Whether to wait until the disk has it (survives a power cut).

    Raises:
        RunFolderError: the file cannot be written; whatever was there is untouched and
            nothing is left behind.
    """
    atomic_write_chunks(path, (data,), durable=durable)


def atomic_write_chunks(
    path: str | os.PathLike[str], chunks: Iterable[Buffer], durable: bool = False
) -> None:
    """Write a file from its parts in order, the way of :func:`atomic_write_bytes`.

    Raises:
        RunFolderError: as there. An error of the iterable leaves nothing behind either.
    """
    target = Path(path)
    try:
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            replace_file(folder, target.name, chunks, durable=durable)
        finally:
            os.close(folder)
    except OSError as error:
        raise folder_error("write", target, error) from error


def replace_file(folder: int, name: str, chunks: Iterable[Buffer], *, durable: bool) -> None:
    """Write a file of an open folder, the way of :func:`atomic_write_bytes`.

    Args:
        folder: Descriptor of the folder.
        name: Of the file; no path.
        chunks: The content in order; a list or tuple is written in few calls.
        durable: Whether to wait until the disk has it.

    Raises:
        OSError: what the system said. The old file is there, or the new one where only the
            last wait for the disk failed.
    """
    temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
    _write_new(folder, temporary, chunks, durable)
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink_quietly(folder, temporary)
        raise
    if durable:
        os.fsync(folder)


def atomic_write_json(path: str | os.PathLike[str], value: Any, durable: bool = False) -> None:
    """Write ``value`` as indented JSON, the way of :func:`atomic_write_bytes`.

    Raises:
        RunFolderError: the file cannot be written.
        TypeError, ValueError: the value has no JSON form (NaN and infinities have none).
    """
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    atomic_write_bytes(path, text.encode(), durable=durable)


def ensure_dir(path: str | os.PathLike[str]) -> Path:
    """Create a folder with its parents where missing, and return it.

    Raises:
        RunFolderError: it cannot be created, or is a file.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise folder_error("create", folder, error) from error
    return folder


def folder_error(action: str, path: Path, error: OSError) -> RunFolderError:
    """Return the typed form of a failed file operation, with what to do about it."""
    reason = error.strerror or type(error).__name__
    advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
    return RunFolderError(f"cannot {action} {path}: {reason}; {advice}", path=str(path))


def _write_new(folder: int, name: str, chunks: Iterable[Buffer], durable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        try:
            write_chunks(descriptor, chunks)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _unlink_quietly(folder, name)
        raise


def write_chunks(descriptor: int, chunks: Iterable[Buffer]) -> None:
    """Write all of the chunks, in few calls where they are a list or tuple."""
    if isinstance(chunks, (list, tuple)):
        for start in range(0, len(chunks), _BUFFERS_A_CALL):
            _write_together(descriptor, chunks[start : start + _BUFFERS_A_CALL])
    else:
        for chunk in chunks:
            _write_all(descriptor, memoryview(chunk).cast("B"))


def _write_together(descriptor: int, chunks: Sequence[Buffer]) -> None:
    written = os.writev(descriptor, chunks)
    for chunk in chunks:
        size = memoryview(chunk).nbytes
        if written < size:  # a full disk, a signal, or more than the 2 GiB a call takes
            _write_all(descriptor, memoryview(chunk).cast("B")[written:])
        written = max(written - size, 0)


def _write_all(descriptor: int, rest: memoryview) -> None:
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _unlink_quietly(folder: int, name: str) -> None:
    # The error that led here is the one to report.
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return
