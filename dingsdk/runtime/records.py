"""Append-only files of records, and one rule for reading them after a crash.

A record is ``length, uint32 | crc32 of the content, uint32 | crc32 of the first 8 bytes, uint32 |
content``. A process that is killed, or a power cut, may leave an incomplete record at the end of a
file, which is dropped. Damage anywhere else is an error, so that no later record is lost unnoticed.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib

from dingsdk.errors import CheckpointCorruptError, DataCorruptError, DataMissingError
from dingsdk.runtime.files import Buffer, Folder

_MAX_BYTES = 1 << 50
"""Largest file: larger than any disk."""
_COPIED_BYTES = 64 << 20
"""Larger files are mapped into memory in place of being read."""
_HEADER, _CHECKED = struct.Struct("<III"), struct.Struct("<II")
_log = logging.getLogger(__name__)


def record_of(*content: Buffer) -> list[Buffer]:
    """Return the buffers of a record whose content is less than 4 GiB."""
    crc = length = 0
    for part in content:
        crc, length = zlib.crc32(part, crc), length + len(part)
    head = _CHECKED.pack(length, crc)
    return [head + zlib.crc32(head).to_bytes(4, "little"), *content]


def records_in(data: Buffer, path: object, advice: str) -> tuple[list[tuple[int, memoryview]], int]:
    """Return offset and content of each record of a file, and the size of an incomplete last one.

    An incomplete record is logged.

    Args:
        data: The content of the file.
        path: Its path, for messages.
        advice: What to do about a damaged file, for the message.

    Raises:
        CheckpointCorruptError: it is damaged before its end; facts ``path`` and ``offset``.
    """
    found: list[tuple[int, memoryview]] = []
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(view):
        length, crc, head_crc = _HEADER.unpack_from(view, at)
        start, end = at + _HEADER.size, at + _HEADER.size + length
        if zlib.crc32(view[at : at + _CHECKED.size]) != head_crc:
            if any(view[at:]):
                raise damaged_at(path, at, advice)
            break  # a power cut can leave zeros at the end of a file
        if end > len(view):
            break
        if zlib.crc32(view[start:end]) != crc:
            if end < len(view):
                raise damaged_at(path, at, advice)
            break
        found.append((at, view[start:end]))
        at = end
    if torn := len(view) - at:
        _log.warning("%s: dropped an incomplete record of %d bytes at its end", path, torn)
    return found, torn


def damaged_at(path: object, offset: int, advice: str) -> CheckpointCorruptError:
    """Return the error for a file that is damaged before its end."""
    return CheckpointCorruptError(
        f"{path} is damaged at byte {offset}, before its end; {advice}",
        path=str(path),
        offset=offset,
    )


class RecordFiles:
    """Numbered files of records, to the newest of which records are appended. The caller locks.

    Args:
        folder: Folder of the files.
        prefix: What is before the number in the name of a file.
        suffix: What is after the number.
        advice: What to do about a damaged file, for messages.
        fsync: Whether to sync each record to disk.

    Attributes:
        number: Number of the file that is written.
        size_bytes: Size of that file.
    """

    def __init__(
        self, folder: Folder, prefix: str, suffix: str, advice: str, fsync: bool = False
    ) -> None:
        self._folder, self._advice, self._fsync = folder, advice, fsync
        self._prefix, self._suffix = prefix, suffix
        self._name = re.compile(f"{re.escape(prefix)}([0-9]{{6,18}}){re.escape(suffix)}")
        self.number = self.size_bytes = 0

    def numbers(self) -> list[int]:
        """Return the numbers of the files."""
        matches = map(self._name.fullmatch, self._folder.names())
        return sorted(int(match[1]) for match in matches if match)

    def create(self, number: int) -> None:
        """Create an empty file, for a later ``begin``; that may take long."""
        self._folder.append(self.name_of(number), [], 0, self._fsync)

    def begin(self, number: int, *record: Buffer) -> None:
        """Write to another file from now on.

        A first record, if there is one, is synced to disk. If that raises, as ``append`` does, the
        previous file stays the one that is written.
        """
        size = self._write(number, 0, record, True) if record else 0
        self.number, self.size_bytes = number, size

    def append(self, *record: Buffer) -> int:
        """Write a record, given in parts, which then survives the process; return its size.

        Raises:
            StorageFullError, RunFolderError: it cannot be written; nothing is written.
        """
        size = self._write(self.number, self.size_bytes, record, self._fsync)
        self.size_bytes += size
        return size

    def read(self, number: int) -> tuple[list[tuple[int, memoryview]], int]:
        """Return the records of a file with their offsets, and its size without a torn record.

        Raises:
            CheckpointCorruptError: it is missing, no regular file, or damaged before its end.
        """
        name = self.name_of(number)
        path = self._folder.path / name
        try:
            content = self._folder.view(name, _MAX_BYTES, map_above=_COPIED_BYTES)
        except (DataCorruptError, DataMissingError) as error:
            text = f"{path} cannot be used: {error}; {self._advice}"
            raise CheckpointCorruptError(text, path=str(path)) from error
        found, torn_bytes = records_in(content, path, self._advice)
        return found, len(content) - torn_bytes

    def remove_before(self, number: int) -> None:
        """Delete the files with a lower number."""
        for old in self.numbers():
            if old < number:
                self._folder.unlink(self.name_of(old))

    def name_of(self, number: int) -> str:
        """Return the name of a file."""
        return f"{self._prefix}{number:06d}{self._suffix}"

    def _write(self, number: int, at: int, record: tuple[Buffer, ...], durable: bool) -> int:
        return self._folder.append(self.name_of(number), record_of(*record), at, durable)
