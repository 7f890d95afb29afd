"""Single files of saved rows: one column as ``.npy``, or objects as lines of JSON.

Nothing in them is ever executed: ``.npy`` headers are compared with what the manifest says
before anything is allocated, and dtypes with an allow-list.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dingsdk.data import decode_message, encode_message
from dingsdk.data.columns import NUMERIC_KINDS
from dingsdk.data.container import digest_of
from dingsdk.data.files import Buffer, write_chunks
from dingsdk.errors import CheckpointCorruptError, ProtocolError, SchemaMismatchError

FILE_NAME = re.compile(r"(?:rows|facts|state)-[0-9]{1,19}-[0-9]{1,4}-[0-9a-f]{16}\.(?:npy|jsonl)")
_DTYPE = re.compile(rf"[<|][{NUMERIC_KINDS}][0-9]{{1,2}}")
_BLOCK_BYTES = 1 << 20

# What numpy writes; its reader would hand anything else to the parser of Python.
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    re.escape(_MAGIC) + rb"([\0-\xff]{2})\{'descr': '([!-&(-~]+)', 'fortran_order': (False|True), "
    rb"'shape': \(([0-9, ]*)\), \} *\n"
)
_HEADER_MAX_BYTES = 4096
_NUMBER = re.compile(rb"[0-9]{1,19}")


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a column is in a nest of dicts, its dtype, and the shape of one row."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Size of one row of the column."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype.

        Raises:
            ValueError: it is none that a column may have.
        """
        try:
            if _DTYPE.fullmatch(self.dtype):
                return np.dtype(self.dtype)
        except TypeError:
            pass
        raise ValueError(f"dtype {self.dtype!r:.40}")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as the manifest knows it."""

    file: str
    size_bytes: int
    digest: str


# --- writing -----------------------------------------------------------------------------


def write_column(folder: int, name: str, array: NDArray[Any]) -> FileEntry:
    """Write a new file; the descriptor is that of its folder.

    Raises:
        OSError: what the system said; a part of the file may be there.
    """
    # A copy only where the array is not as it is to lie on disk.
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(data))
    return _write_file(folder, name, [header.getvalue(), *_content(data)])


def write_objects(folder: int, name: str, rows: list[Any], first: int) -> FileEntry:
    """Write a new file of the rows ``first`` and later.

    Raises:
        SchemaMismatchError: a row has no JSON form.
        OSError: what the system said; a part of the file may be there.
    """
    lines = [_encoded(first + index, row) for index, row in enumerate(rows)]
    return _write_file(folder, name, lines)


def _content(array: NDArray[Any]) -> list[Buffer]:
    # Empty arrays have no bytes to look at.
    return [array.reshape(-1).view(np.uint8).data] if array.size else []


def _write_file(folder: int, name: str, chunks: Sequence[Buffer]) -> FileEntry:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        write_chunks(descriptor, chunks)
    finally:
        os.close(descriptor)
    size_bytes = sum(memoryview(chunk).nbytes for chunk in chunks)
    return FileEntry(name, size_bytes, digest_of(chunks))


def _encoded(index: int, row: Any) -> bytes:
    try:
        return encode_message(row) + b"\n"
    except ProtocolError as error:
        raise SchemaMismatchError(
            f"row {index} cannot be saved: {error}. Saving object storage takes None, bools, "
            "numbers, strings, lists, dicts and numeric arrays",
            key=str(error.where),
            row=index,
            expected="JSON values and numeric arrays",
            found=str(error),
        ) from error


# --- reading -----------------------------------------------------------------------------


def check_file(folder: Path, entry: FileEntry) -> None:
    """Compare a file with its entry, in little memory.

    Raises:
        CheckpointCorruptError: it is missing, or another.
        ValueError: the entry names no file of saved rows.
    """
    with _opened(folder, entry) as file:
        _compare(folder, entry, _blocks(file))


def read_column(folder: Path, entry: FileEntry, column: Column, rows: int) -> NDArray[Any]:
    """Return the array of a column file, ``[rows, *column.shape]``.

    Raises:
        CheckpointCorruptError: the file is missing, altered, or not such an array.
        ValueError: the entry itself is wrong.
    """
    dtype, shape = column.numpy_dtype, (rows, *column.shape)
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {shape!r:.80}")
    path = folder / entry.file
    with _opened(folder, entry) as file:
        found = _HEADER.match(file.read(_HEADER_MAX_BYTES))
        if found is None:
            raise corrupt(path, "it is no .npy file of version 1.0")
        length, descr, order, numbers = found.groups()
        header_bytes = len(_MAGIC) + 2 + int.from_bytes(length, "little")
        if (descr.decode(), order, tuple(map(int, _NUMBER.findall(numbers)))) != (
            dtype.str,
            b"False",
            shape,
        ):
            raise corrupt(path, f"its header is not that of {shape} of {dtype}")
        # Checked before anything is allocated: a header can ask for any size.
        if entry.size_bytes - header_bytes != math.prod(shape) * dtype.itemsize:
            raise corrupt(path, "its size does not fit its shape")
        file.seek(0)
        header = file.read(header_bytes)
        array = np.fromfile(file, dtype=dtype, count=math.prod(shape)).reshape(shape)
    _compare(folder, entry, [header, *_content(array)])
    return array


def read_objects(folder: Path, entry: FileEntry) -> list[Any]:
    """Return the objects of a file.

    Raises:
        CheckpointCorruptError: it is missing, altered, or not of JSON lines.
        ValueError: the entry itself is wrong.
    """
    with _opened(folder, entry) as file:
        lines = file.readlines()
    _compare(folder, entry, lines)
    try:
        return [decode_message(line, entry.size_bytes) for line in lines]
    except ProtocolError as error:
        raise corrupt(folder / entry.file, str(error)) from error


def corrupt(path: Path, what: str) -> CheckpointCorruptError:
    """Return the error for a file that cannot be used."""
    return CheckpointCorruptError(
        f"{path} cannot be used: {what}; save the buffer's data again", path=str(path)
    )


@contextmanager
def _opened(folder: Path, entry: FileEntry) -> Iterator[IO[bytes]]:
    """Open a file of the size that its entry says."""
    if not FILE_NAME.fullmatch(entry.file):
        raise ValueError(f"file name {entry.file!r:.80}")
    path = folder / entry.file
    try:
        # Without blocking: the name could be that of a pipe by now.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise corrupt(path, f"it cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise corrupt(path, "it is no regular file")
        if facts.st_size != entry.size_bytes:
            raise corrupt(path, f"it has {facts.st_size} bytes, not {entry.size_bytes}")
        yield file


def _compare(folder: Path, entry: FileEntry, parts: Any) -> None:
    if digest_of(parts) != entry.digest:
        raise corrupt(folder / entry.file, "its checksum differs")


def _blocks(file: IO[bytes]) -> Iterator[memoryview]:
    block = memoryview(bytearray(_BLOCK_BYTES))
    while size := file.readinto(block):  # type: ignore[attr-defined]
        yield block[:size]
