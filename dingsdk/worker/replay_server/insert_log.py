"""The log of a replay server: every insert, as it came, before it is acknowledged.

A file holds records ``checksum, client, number, first, rows, env step, frame length | frame``, one
after another. ``first`` is how many rows were pushed before. The rows of a record count where the
next record begins after them, and those of the last record always: a record whose rows the table
then refused is followed by one with the same ``first``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from dingsdk.data import Folder
from dingsdk.data.files import write_chunks
from dingsdk.errors import CheckpointCorruptError, StorageFullError

_FIXED = struct.Struct("<Q16sQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_NAME = re.compile(r"inserts-([0-9]{6,18})\.log")
_MAX_BYTES = 1 << 50


class Record(NamedTuple):
    """An insert: whose, which rows, and their frame."""

    client: str
    number: int
    first: int
    rows: int
    env_step: int
    frame: memoryview


class InsertLog:
    """The files of a log, one of which is being written. The caller locks.

    Args:
        folder: Where they are.

    Attributes:
        number: Of the file that is being written.
        size_bytes: Of that file.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.number = max(self._numbers(), default=0) + 1
        self.size_bytes = 0
        self._descriptor = self._open(self.number)

    def append(self, record: Record) -> None:
        """Write a record, which then outlives the process, or nothing (StorageFullError)."""
        client, size = bytes.fromhex(record.client), len(record.frame)
        fixed = bytearray(_FIXED.pack(0, client, *record[1:-1], size))
        _CHECKSUM.pack_into(fixed, 0, xxhash.xxh3_64_intdigest(fixed))
        try:
            write_chunks(self._descriptor, [fixed, record.frame])
        except OSError as error:
            os.ftruncate(self._descriptor, self.size_bytes)
            os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
            raise StorageFullError(
                f"the replay server cannot write to {self._folder.path}: {error.strerror}",
                path=str(self._folder.path),
            ) from error
        self.size_bytes += len(fixed) + size

    @contextmanager
    def next_file(self) -> Iterator[Callable[[], int]]:
        """Make another file, and yield what begins to use it and returns its number.

        To make and to close a file may take long, so the caller locks for the call alone.
        """
        spare = self._open(self.number + 1)

        def rotate() -> int:
            nonlocal spare
            self.number += 1
            spare, self._descriptor, self.size_bytes = self._descriptor, spare, 0
            return self.number

        try:
            yield rotate
        finally:
            os.close(spare)

    def remove_before(self, number: int) -> None:
        """Delete the files before one."""
        for old in self._numbers():
            if old < number:
                self._folder.unlink(_name(old))

    def records(self, first_number: int) -> Iterator[Record]:
        """Yield the records of the files from one on, without the torn end that a file may have."""
        numbers = sorted(each for each in self._numbers() if first_number <= each < self.number)
        if numbers and numbers != list(range(first_number, self.number)):
            path = str(self._folder.path)
            raise CheckpointCorruptError(
                f"the files {numbers} of the log in {path} do not follow each other from "
                f"{first_number} on; restore them, or begin with an empty folder",
                path=path,
            )
        for number in numbers:
            yield from _records(self._folder.view(_name(number), _MAX_BYTES))

    def close(self) -> None:
        """Close the file; once."""
        os.close(self._descriptor)

    def _open(self, number: int) -> int:
        self._folder.append(_name(number), b"", 0)
        return os.open(Path(self._folder.path, _name(number)), os.O_WRONLY | os.O_NOFOLLOW)

    def _numbers(self) -> list[int]:
        matches = [_NAME.fullmatch(name) for name in self._folder.names()]
        return [int(match[1]) for match in matches if match]


def _records(content: memoryview) -> Iterator[Record]:
    at = 0
    while at + _FIXED.size <= len(content):
        fixed = bytearray(content[at : at + _FIXED.size])
        checksum, client, number, first, rows, env_step, size = _FIXED.unpack(fixed)
        _CHECKSUM.pack_into(fixed, 0, 0)
        at += _FIXED.size
        if checksum != xxhash.xxh3_64_intdigest(fixed) or at + size > len(content):
            return
        yield Record(client.hex(), number, first, rows, env_step, content[at : at + size])
        at += size


def _name(number: int) -> str:
    return f"inserts-{number:06d}.log"
