"""A replay buffer whose inserts are in a log before they are acknowledged.

A file of the log holds records ``checksum, client, number, first, rows, env step, frame length |
frame``, one after another. ``first`` is how many rows were pushed before. The rows of a record
count where the next record begins after them, and those of the last record always: a record whose
rows the table then refused is followed by one with the same ``first``.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import xxhash

from dingsdk.data import Folder, SampleBatch, decode_json, encode_json
from dingsdk.data.container import checkpoint_errors
from dingsdk.data.files import locked_folder, write_chunks
from dingsdk.errors import (
    CheckpointCorruptError,
    ConfigError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    SchemaMismatchError,
    StorageFullError,
)
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer import RowListener, Table, persistence
from dingsdk.worker.replay_server.link import ROWS_KIND, decode_value

_log = logging.getLogger(__name__)

ROWS_FOLDER = "rows"
POINTER_NAME = "checkpoint.json"
_POINTER_KIND = "replay-server"
_POINTER_BYTES = 4 << 20
"""Largest file that names the newest checkpoint of a served buffer."""
SEGMENT_ROWS, SEGMENT_BYTES = 16_384, 4 << 20
"""Inserts wait while so much of a checkpoint is copied: 1 ms of small rows, 2 ms of large ones."""
LOG_BYTES = 512 << 20
"""Size of the log at which a checkpoint is due."""
CLIENTS_KEPT = 16_384
"""Clients whose last insert is remembered, so that it is not taken twice."""
_FIXED = struct.Struct("<Q16sQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_LOG_NAME = re.compile(r"inserts-([0-9]{6,18})\.log")
_LOG_MAX_BYTES = 1 << 50
"""Largest log of inserts: more than a disk has room for."""


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
                self._folder.unlink(_log_name(old))

    def records(self, first_number: int) -> Iterator[Record]:
        """Yield the records of the files from one on, without the torn end that a file may have."""
        numbers = sorted(each for each in self._numbers() if first_number <= each < self.number)
        if numbers != list(range(first_number, self.number)):
            path = str(self._folder.path)
            raise CheckpointCorruptError(
                f"the files {numbers} of the log in {path} do not follow each other from "
                f"{first_number} on; restore them, or begin with an empty folder",
                path=path,
            )
        for number in numbers:
            yield from _records(self._folder.view(_log_name(number), _LOG_MAX_BYTES))

    def close(self) -> None:
        """Close the file; once."""
        os.close(self._descriptor)

    def _open(self, number: int) -> int:
        self._folder.append(_log_name(number), b"", 0)
        return os.open(Path(self._folder.path, _log_name(number)), os.O_WRONLY | os.O_NOFOLLOW)

    def _numbers(self) -> list[int]:
        matches = [_LOG_NAME.fullmatch(name) for name in self._folder.names()]
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


def _log_name(number: int) -> str:
    return f"inserts-{number:06d}.log"


class _Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint has besides rows: the first file of the log that it does not cover."""

    log: int
    numbers: dict[str, int]


class ServedBuffer(RowListener):
    """A table, and what makes its inserts happen once and survive the process. Thread safe.

    An insert is acknowledged once it is in the table and, where there is a folder, in the log: it
    then survives the end of the process, by any signal. What a power cut takes is what the
    operating system had not written yet; a checkpoint is waited for. Priorities, uses and the
    counts of the limiter are those of the last checkpoint after a restart.

    A repeated insert, one with a number that is not above the last of its client, changes nothing.

    Args:
        cfg: Config of the replay buffer, as ``policy.other.replay_buffer``.
        path: Folder of log and checkpoints, used by one process at a time; None keeps nothing.

    Attributes:
        table: The replay buffer.

    Raises:
        ConfigError: the buffer cannot be served.
        CheckpointCorruptError, CheckpointVersionError: what is in the folder cannot be used.
        RunFolderError: it is in use, or cannot be written.
    """

    def __init__(self, cfg: Mapping[str, Any], path: str | Path | None) -> None:
        buffer = create_buffer(cfg, instance_name="replay server")
        if not isinstance(buffer, Table):
            raise ConfigError(
                f"a replay server needs a buffer that is a Table, and type {cfg.get('type')!r} is "
                f"a {type(buffer).__name__}",
                path="type",
            )
        self.table: Table = buffer
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """The last insert of each client, the client that was heard last at the end."""
        self._entering = threading.local()
        self._saving = threading.Lock()
        self._folder: Folder | None = None
        self._log: InsertLog | None = None
        with ExitStack() as stack:
            stack.callback(buffer.close)
            if path is not None:
                self._folder = stack.enter_context(Folder(path))
                taken = f"another replay server uses {path}; give this one a folder of its own"
                stack.enter_context(locked_folder(self._folder.path, taken))
                self._log = InsertLog(self._folder)
                stack.callback(self._log.close)
                self._recover(self._folder, self._log)
            buffer.add_listener(self)
            self._until_close = stack.pop_all()

    def insert(
        self, client: str, number: int, env_step: int, frame: memoryview, timeout_s: float
    ) -> None:
        """Add the rows of a frame of kind ``replay-rows``, once; raises as ``ReplayClient.insert``.

        Args:
            client: 32 hex digits.
            number: Of the insert, above the last one of its client; else nothing happens.
            env_step: Env steps taken so far.
            frame: What ``Table.push`` takes.
            timeout_s: Seconds to wait for the limiter.
        """
        rows = decode_value(ROWS_KIND, frame)
        if self._is_known(client, number):
            return
        if not isinstance(rows, SampleBatch | list):
            raise ProtocolError("an insert is a SampleBatch or a list of samples", where="frame")
        if len(rows) > self.table.replay_buffer_size:
            raise SchemaMismatchError(
                f"{len(rows)} rows at once, for a replay server of "
                f"{self.table.replay_buffer_size}; insert fewer",
                rows=len(rows),
            )
        self._entering.record = Record(client, number, 0, len(rows), env_step, frame)
        with suppress(_RepeatedInsertError):
            self.table.push(rows, env_step, timeout_s=timeout_s)

    def check(self, rows: Any) -> None:
        """Write the insert that this thread pushes to the log; called under the table's lock."""
        record: Record = self._entering.record
        if self._is_known(record.client, record.number):
            raise _RepeatedInsertError  # by another connection, while this one waited
        if self._log is not None:
            self._log.append(record._replace(first=self.table.push_count))

    def on_insert(self, rows: Any) -> None:
        """Note that the rows are in the table; called under its lock."""
        record: Record | None = getattr(self._entering, "record", None)
        if record is not None:  # else they were there before this listener
            self._note(record.client, record.number)

    def figures(self) -> dict[str, Any]:
        """Return the counts of ``BufferStats``."""
        stats = self.table.stats()
        return {name: getattr(stats, name) for name in stats.__slots__}

    @property
    def is_save_due(self) -> bool:
        """Whether the log has grown so long that a checkpoint is worth it."""
        return self._log is not None and self._log.size_bytes >= LOG_BYTES

    def save(self) -> None:
        """Write a checkpoint, while others insert and sample; delete the log that it covers.

        Inserts wait for the copy of one segment, or of as many priorities, at a time: 2 ms at most.
        The state of a remover that is not ``fifo`` is copied at once.

        Raises:
            StorageFullError, RunFolderError: it cannot be written; log and checkpoint before it
                stay.
        """
        folder, log = self._folder, self._log
        if folder is None or log is None:
            return
        with self._saving:
            with log.next_file() as rotate, self.table.snapshot():
                number, numbers = rotate(), dict(self._numbers)
            if self.table.push_count:
                rows = folder.path / ROWS_FOLDER
                persistence.save(rows, self.table, SEGMENT_ROWS, SEGMENT_BYTES)
            pointer = {"log": number, "numbers": numbers}
            text = encode_json(_POINTER_KIND, pointer)
            folder.write_atomic(POINTER_NAME, [text], durable=True)
            log.remove_before(number)

    def close(self) -> None:
        """Close table and log; calls that wait end with BufferClosedError. Idempotent."""
        self.table.close()
        with self._saving:
            self._until_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_known(self, client: str, number: int) -> bool:
        return number <= self._numbers.get(client, 0)

    def _note(self, client: str, number: int) -> None:
        self._numbers[client] = max(number, self._numbers.get(client, 0))
        self._numbers.move_to_end(client)
        if len(self._numbers) > CLIENTS_KEPT:
            self._numbers.popitem(last=False)

    def _recover(self, folder: Folder, log: InsertLog) -> None:
        """Load the checkpoint, then what the log has after it."""
        begun = time.monotonic()
        folder.sweep()
        pointer = _read_pointer(folder)
        saved = folder.path / ROWS_FOLDER
        if (saved / persistence.MANIFEST).exists():
            self.table.resume_data(str(saved))
        self._numbers.update(pointer.numbers)
        at = self.table.push_count
        waiting: Record | None = None
        for record in log.records(pointer.log):
            if waiting is not None and record.first != waiting.first:
                at = self._push_again(waiting, at)
            waiting = record
        if waiting is not None:
            # Nobody can tell whether the table took the last one; its client may ask again.
            with suppress(SchemaMismatchError):
                at = self._push_again(waiting, at)
        if at:
            rows, seconds = self.table.count(), time.monotonic() - begun
            _log.info("%d rows are back from %s after %.1f s", rows, folder.path, seconds)

    def _push_again(self, record: Record, at: int) -> int:
        """Push the rows of a record unless the checkpoint has them; return the new count."""
        if record.first > at or record.first < at < record.first + record.rows:
            raise CheckpointCorruptError(
                f"the log of the replay server goes on after {record.first} rows, and its "
                f"checkpoint ends after {at}; restore the files, or begin with an empty folder"
            )
        if record.first == at:
            try:
                rows = decode_value(ROWS_KIND, record.frame)
            except DataCorruptError as error:
                text = f"the log of the replay server is damaged: {error}"
                raise CheckpointCorruptError(text) from error
            self.table.load_state_dict({"data": rows})
            at = self.table.push_count
        self._note(record.client, record.number)
        return at


class _RepeatedInsertError(Exception):
    """An insert that is in the table already."""


def _read_pointer(folder: Folder) -> _Pointer:
    path, advice = folder.path / POINTER_NAME, "restore it, or begin with an empty folder"
    with suppress(DataMissingError), checkpoint_errors(path, advice):
        content = folder.read(POINTER_NAME, _POINTER_BYTES)
        return msgspec.convert(decode_json(_POINTER_KIND, content, _POINTER_BYTES), _Pointer)
    return _Pointer(1, {})
