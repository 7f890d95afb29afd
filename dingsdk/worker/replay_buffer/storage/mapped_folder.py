"""A folder of files of rows, which one process uses at a time and can reopen after a crash.

``header.json``, written last, describes the files. ``cursor.bin`` holds the last two records, each
of which says where the files hold rows. A record is written to mapped memory, which the system
keeps when the process dies: a process that is killed at any point leaves at least one record
intact. (Nothing is guaranteed after a power cut.)
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from dingsdk.data.container import checkpoint_errors, decode_json, encode_json
from dingsdk.errors import CheckpointCorruptError, DataMissingError, DingError
from dingsdk.runtime import PrivateDir
from dingsdk.runtime.files import FULL, file_error, locked_folder, open_private

_KIND = "mapped-rows"
_HEADER = "header.json"
_HEADER_MAX_BYTES = 1 << 20
"""Largest ``header.json``, which describes the columns of a mapped folder."""
_CURSOR = "cursor.bin"
_FULL = FULL | {errno.EFBIG}
_RECORD_BYTES = 4096
"""Size of each of the two records that say where the files of a mapped folder hold rows."""
_NO_ROWS = {"tail": 0, "valid_count": 0, "shift": 0}
_PREFIX = struct.Struct("<QQI")  # checksum of the rest, running number, length of the text


class MappedFolder:
    """Files of arrays in a private folder, locked against other buffers.

    Files are new, and full of zeros, unless :meth:`read_header` found those of an earlier process.
    A file that is asked for again is made longer; its earlier maps stay valid.

    Args:
        path: The folder; created with mode 0700 if missing.

    Raises:
        RunFolderError: the folder cannot be used, is not private, or another buffer uses it.
        StorageFullError: the system has no disk space or no file descriptor for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._until_close = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(PrivateDir(path))
            taken = (
                f"{path} is in use by another buffer (perhaps of another process); close that "
                "one, or choose another storage.path"
            )
            stack.enter_context(locked_folder(path, taken))
            self._until_close = stack.pop_all()
        self._cursor: NDArray[np.uint8] | None = None
        self._number = 0
        self._in_use: set[str] = set()
        self._reopens = False

    @staticmethod
    def is_taken(path: Path) -> bool:
        """Whether the folder holds rows, even if its header is lost."""
        if (path / _HEADER).exists():
            return True
        with contextlib.suppress(OSError):
            descriptor = _open(path / _CURSOR, 0)
            try:
                cursor = os.read(descriptor, 2 * _RECORD_BYTES)
            finally:
                os.close(descriptor)
            # Of an unfinished creation or deletion, the newest record counts no pushes.
            return "push_count" in _newest_record(cursor)[1]
        return False

    def map(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Map a sparse file as an array.

        Raises:
            CheckpointCorruptError: the file to open is missing, a link, or too short.
            StorageFullError: the system has no room for the file.
        """
        size = math.prod(shape) * dtype.itemsize
        descriptor = self._open(name, size)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            if size == 0:
                return np.zeros(shape, dtype)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            raise self.error("map", name, error) from error
        finally:
            os.close(descriptor)
        if len(shape) > 1:
            # Rows are drawn at random, so reading ahead would fetch rows that are not needed.
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype).reshape(shape)

    def _open(self, name: str, size_bytes: int) -> int:
        is_new = not self._reopens and name not in self._in_use
        if is_new:
            self._folder.unlink(name)  # an unfinished creation may have left it
        elif name not in self._in_use:
            found = self._folder.stat(name)
            if found is None or not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise self.corrupt(f"{name} is missing, or no plain file")
            if found.st_size < size_bytes:
                raise self.corrupt(f"{name} is cut off")
        try:
            descriptor = _open(self.path / name, os.O_CREAT | os.O_EXCL if is_new else 0)
        except OSError as error:
            raise self.error("open", name, error) from error
        self._in_use.add(name)
        return descriptor

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Allocate disk space for the given sizes of files (by name), or raise StorageFullError.

        Without it, writing to a mapped file on a full disk would kill the process.
        """
        files = {name: size for name, size in sizes.items() if size}
        found = {name: self._folder.stat(name) for name in files}
        held = {name: each.st_blocks * 512 for name, each in found.items() if each}
        missing = sum(max(0, size - held.get(name, 0)) for name, size in files.items())
        disk = os.statvfs(self.path)
        # Checked first, because ext4 keeps the part that it allocated of a failed reservation. Some
        # file systems without a limit report a size of 0.
        if disk.f_blocks and missing > disk.f_bavail * disk.f_frsize:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise self.error("reserve", next(iter(files)), full)
        for name, size in files.items():
            self._allocate(name, size)

    def _allocate(self, name: str, size_bytes: int) -> None:
        try:
            descriptor = _open(self.path / name, os.O_CREAT)
            try:
                os.posix_fallocate(descriptor, 0, size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self.error("reserve", name, error) from error

    def error(self, action: str, name: str, error: OSError) -> DingError:
        """Return the error class of dingsdk for a failed file operation."""
        return file_error(action, self.path / name, error, _FULL)

    def write_header(self, facts: dict[str, Any]) -> None:
        """Create the cursor, then write the header; from now on the folder holds rows."""
        self._cursor = self.map(_CURSOR, (2 * _RECORD_BYTES,), np.dtype(np.uint8))
        self.reserve({_CURSOR: 2 * _RECORD_BYTES})
        self._number = 0
        self.write_record(_NO_ROWS)
        self._folder.write_atomic(_HEADER, [encode_json(_KIND, facts)])

    def read_header(self) -> dict[str, Any] | None:
        """Return the facts of :meth:`write_header`, or None if there is no header.

        Raises:
            CheckpointCorruptError: the header is damaged.
            CheckpointVersionError: this version does not read the format of the header.
        """
        advice = "delete the folder or choose another storage.path"
        with contextlib.suppress(DataMissingError), checkpoint_errors(self.path / _HEADER, advice):
            text = self._folder.read(_HEADER, _HEADER_MAX_BYTES)
            self._reopens = True
            return msgspec.convert(decode_json(_KIND, text, _HEADER_MAX_BYTES), dict[str, Any])
        return None

    def erase(self) -> None:
        """Delete the header, then the other files; without a header the folder counts as empty."""
        if self._cursor is not None:
            self.write_record(_NO_ROWS)
        for name in sorted(self._folder.names(), key=lambda name: name != _HEADER):
            if name == _HEADER or name.endswith(".bin"):
                self._folder.unlink(name)
        self._cursor = None
        self._in_use.clear()
        self._reopens = False

    def write_record(self, state: dict[str, int]) -> None:
        """Replace the older of the two records."""
        text = msgspec.json.encode(state)
        self._number += 1
        rest = struct.pack("<QI", self._number, len(text)) + text
        start = self._number % 2 * _RECORD_BYTES
        record = struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest
        assert self._cursor is not None
        self._cursor[start : start + len(record)] = np.frombuffer(record, np.uint8)

    def read_record(self) -> dict[str, int]:
        """Return the newer of the intact records.

        Raises:
            CheckpointCorruptError: neither record is intact.
        """
        self._cursor = self.map(_CURSOR, (2 * _RECORD_BYTES,), np.dtype(np.uint8))
        self._number, state = _newest_record(self._cursor.tobytes())
        if not self._number:
            raise self.corrupt("neither record of its cursor is whole")
        return state

    def corrupt(self, why: str) -> CheckpointCorruptError:
        """Return the error for a folder that cannot be reopened."""
        return CheckpointCorruptError(
            f"{self.path} cannot be reopened: {why}; delete the folder or choose another "
            "storage.path",
            path=str(self.path),
        )

    def close(self) -> None:
        """Release the folder for other buffers; idempotent."""
        self._until_close.close()


def _newest_record(cursor: bytes) -> tuple[int, dict[str, int]]:
    """Return number and content of the newer intact record; ``(0, {})`` if neither is intact."""
    newest: tuple[int, dict[str, int]] = 0, {}
    for start in (0, _RECORD_BYTES):
        record = cursor[start : start + _RECORD_BYTES].ljust(_PREFIX.size, b"\0")
        checksum, number, length = _PREFIX.unpack_from(record)
        rest = record[8 : _PREFIX.size + length]
        if number > newest[0] and xxhash.xxh3_64_intdigest(rest) == checksum:
            with contextlib.suppress(msgspec.MsgspecError):
                newest = number, msgspec.json.decode(rest[12:], type=dict[str, int])
    return newest


def _open(path: Path, flags: int) -> int:
    return open_private(str(path), flags | os.O_RDWR | os.O_NONBLOCK)
