"""The schedule of a run: the order in which its jobs ran, with the times."""

from __future__ import annotations

import zlib
from pathlib import Path

from dingsdk.errors import CheckpointCorruptError
from dingsdk.runtime.files import open_private

_HEADER = b"dingsdk-schedule 1\n"
_NEW = 0
_FLUSH_BYTES = 64 << 10
"""Bytes of a recorded schedule that are kept in memory before they are written."""


class ScheduleWriter:
    """Writes a schedule to a file; it must be closed.

    The file is a header and a zlib stream of events. An event is the number of a job plus one and
    the milliseconds since the previous turn, as varints; or 0 and the name of a new job.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", opener=open_private)  # noqa: SIM115
        self._file.write(_HEADER)
        self._zip = zlib.compressobj(6)
        self._pending = bytearray()
        self._ms = 0

    def add_job(self, name: str) -> None:
        """Record that a job begins; it gets the next number."""
        text = name.encode()
        self._pending += _varint(_NEW) + _varint(len(text)) + text

    def add_turn(self, number: int, ms: int) -> None:
        """Record that the job with this number runs, ``ms`` milliseconds after the start."""
        self._pending += _varint(number + 1)
        self._pending += _varint(ms - self._ms)
        self._ms = ms
        if len(self._pending) >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the rest; idempotent."""
        if not self._file.closed:
            self._flush()
            self._file.write(self._zip.flush())
            self._file.close()

    def _flush(self) -> None:
        self._file.write(self._zip.compress(bytes(self._pending)))
        self._pending.clear()


def read_schedule(path: Path) -> list[tuple[str, int, int]]:
    """Return the events of a file: ``(name, -1, 0)`` of a new job, ``("", number, ms)`` of a turn.

    Raises:
        CheckpointCorruptError: the file is cut off, damaged or not a schedule.
    """
    with open(path, "rb", opener=open_private) as file:
        content = file.read()
    events: list[tuple[str, int, int]] = []
    try:
        if not content.startswith(_HEADER):
            raise ValueError("it has another header")
        unzip = zlib.decompressobj()
        data = unzip.decompress(content[len(_HEADER) :])
        if not unzip.eof:
            raise ValueError("it is cut off")
        at, ms = 0, 0
        while at < len(data):
            head, at = _read_varint(data, at)
            size, at = _read_varint(data, at)
            if head == _NEW:
                events.append((data[at : at + size].decode(), -1, 0))
                at += size
            else:
                ms += size
                events.append(("", head - 1, ms))
    except (ValueError, IndexError, zlib.error) as error:
        raise CheckpointCorruptError(f"the schedule {path} cannot be used: {error}") from error
    return events


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
