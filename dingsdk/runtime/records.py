"""Append-only files of records, and one rule for reading them after a crash.

A record is ``length, uint32 | crc32 of the content, uint32 | crc32 of the first 8 bytes, uint32 |
content``. A process that is killed, or a power cut, may leave an incomplete record at the end of a
file, which is dropped. Damage anywhere else is an error, so that no later record is lost unnoticed.
"""

from __future__ import annotations

import logging
import struct
import zlib

from dingsdk.errors import CheckpointCorruptError
from dingsdk.runtime.files import Buffer

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
