"""A replay buffer that writes each insert to a log before the insert is acknowledged.

A file of the log holds records (:mod:`dingsdk.runtime.records`) of ``client, number, first, rows,
env step | frame``. ``first`` is how many rows were pushed before. If the table refused the rows of
a record after it was written, the next record has the same ``first``: then the rows do not count.
The rows of the last record always count.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dingsdk.data import SampleBatch, decode_json, encode_json
from dingsdk.data.channel import decode_value
from dingsdk.data.container import checkpoint_errors
from dingsdk.errors import (
    CheckpointCorruptError,
    CheckpointError,
    ConfigError,
    DataCorruptError,
    DataMissingError,
    ProtocolError,
    SchemaMismatchError,
)
from dingsdk.runtime import Buffer, Folder
from dingsdk.runtime.deadline import Closing
from dingsdk.runtime.files import locked_folder
from dingsdk.runtime.records import RecordFiles, record_of
from dingsdk.worker.factory import create_buffer
from dingsdk.worker.replay_buffer import RowListener, Table, persistence
from dingsdk.worker.replay_server.messages import ROWS_KIND

_log = logging.getLogger(__name__)

ROWS_FOLDER = "rows"
POINTER_NAME = "checkpoint.json"
_POINTER_KIND = "replay-server"
_POINTER_BYTES = 4 << 20
"""Largest ``checkpoint.json``, which describes the newest checkpoint of a replay server."""
SEGMENT_ROWS, SEGMENT_BYTES = 16_384, 4 << 20
"""Largest segment of a checkpoint. Inserts wait while it is copied: 1 ms for small rows, 2 ms for
large ones."""
LOG_BYTES = 512 << 20
"""Size of the log at which a checkpoint is due."""
CLIENTS_KEPT = 16_384
"""Clients whose last insert number is stored, so that no insert is added twice."""
_FIXED = struct.Struct("<16sQQQQ")
_ADVICE = "restore it, or begin with an empty folder"


class Record(NamedTuple):
    """An insert: its client and number, its rows and their frame."""

    client: str
    number: int
    first: int
    rows: int
    env_step: int
    frame: memoryview


class InsertLog(RecordFiles):
    """The inserts since the newest checkpoint. The caller must hold a lock.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder, "inserts-", ".log", _ADVICE)
        self._opened = -1
        """The file that is written; opening it for each insert would double the time of ``add``."""

    def start(self) -> None:
        """Write to a new file."""
        number = max(self.numbers(), default=0) + 1
        self.create(number)
        self.begin(number)

    def begin(self, number: int, *record: Buffer) -> None:
        opened = self._folder.open_to_append(self.name_of(number))
        self.close()
        self._opened = opened
        super().begin(number, *record)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._opened >= 0:
            os.close(self._opened)
        self._opened = -1

    def _write(self, number: int, at: int, record: tuple[Buffer, ...], durable: bool) -> int:
        parts = record_of(*record)
        return self._folder.append_to(self._opened, self.name_of(number), parts, at)

    def add(self, record: Record) -> None:
        """Write a record; raises as ``append``."""
        self.append(_FIXED.pack(bytes.fromhex(record.client), *record[1:-1]), record.frame)

    def records(self, first_number: int) -> Iterator[Record]:
        """Yield the records of the files from ``first_number`` on; raises as ``read``."""
        least = first_number if first_number > 1 else 0  # a checkpoint has a file after it
        for file in range(first_number, max([least, *self.numbers()]) + 1):
            for _, content in self.read(file)[0]:
                client, number, first, rows, env_step = _FIXED.unpack_from(content)
                frame = content[_FIXED.size :]
                yield Record(client.hex(), number, first, rows, env_step, frame)


class _Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data of a checkpoint besides rows.

    ``log`` is the number of the first log file that the checkpoint does not cover; ``numbers``
    holds the last insert number of each client. ``run`` is the id of the run whose buffer it is, or
    ``""`` if that was not known.
    """

    log: int
    numbers: dict[str, int]
    run: str = ""


class ServedBuffer(RowListener, Closing):
    """A table whose inserts happen only once and survive the process. Thread-safe.

    An insert is acknowledged when it is in the table and, if there is a folder, in the log. It then
    survives if the process is killed. A power cut loses inserts that the operating system had not
    yet written to disk, but no checkpoint. After a restart, priorities, uses and the number of
    samples that the limiter knows are those of the last checkpoint.

    A repeated insert (its number is not above the last number of its client) changes nothing.

    Args:
        cfg: Config of the replay buffer, as ``policy.other.replay_buffer``.
        path: Folder of log and checkpoints, used by one process at a time; None stores nothing.
        run: Id of the run whose buffer it is, if any.

    Attributes:
        table: The replay buffer.

    Raises:
        ConfigError: the buffer cannot be served.
        CheckpointError: the folder is of another run.
        CheckpointCorruptError, CheckpointVersionError: the files in the folder cannot be used.
        RunFolderError: the folder is in use, or cannot be written.
    """

    def __init__(self, cfg: Mapping[str, Any], path: str | Path | None, run: str = "") -> None:
        self._run = run
        buffer = create_buffer(cfg, instance_name="replay server")
        if not isinstance(buffer, Table):
            raise ConfigError(
                f"a replay server needs a buffer that is a Table, and type {cfg.get('type')!r} is "
                f"a {type(buffer).__name__}",
                path="type",
            )
        self.table: Table = buffer
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """The last insert number of each client; the most recently active client is last."""
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
                check_run(self._folder, run)
                if run and self._folder.stat(POINTER_NAME) is None:
                    _write_pointer(self._folder, _Pointer(1, {}, run))
                self._log = InsertLog(self._folder)
                stack.callback(self._log.close)
                self._recover(self._folder, self._log)
                self._log.start()
            buffer.add_listener(self)
            self._until_close = stack.pop_all()

    def insert(
        self, client: str, number: int, env_step: int, frame: memoryview, timeout_s: float
    ) -> None:
        """Add the rows of a frame of kind ``replay-rows``, once; raises as ``ReplayClient.insert``.

        Args:
            client: Name of the client, 32 hex digits.
            number: Number of the insert; if it is not above the client's last one, nothing happens.
            env_step: Env steps taken so far.
            frame: The encoded rows for ``Table.push``.
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
            raise _RepeatedInsertError  # another connection inserted it while this one waited
        if not self._is_newest(record.client):
            self.table.end_newest_trajectory()
        if self._log is not None:
            self._log.add(record._replace(first=self.table.push_count))

    def on_insert(self, rows: Any) -> None:
        """Record that the insert is in the table; called under the table's lock."""
        record: Record | None = getattr(self._entering, "record", None)
        if record is not None:  # None: the rows were stored before this listener was added
            self._note(record.client, record.number)

    def figures(self) -> dict[str, Any]:
        """Return the counts of ``BufferStats``."""
        stats = self.table.stats()
        return {name: getattr(stats, name) for name in stats.__slots__}

    @property
    def is_save_due(self) -> bool:
        """Whether the log is so large that a checkpoint should be written."""
        return self._log is not None and self._log.size_bytes >= LOG_BYTES

    def save(self) -> None:
        """Write a checkpoint, and delete the log files that it covers; others may use the buffer.

        Inserts wait about 1 ms at a time, for the copy of one segment, and once for that of the
        state of the remover.

        Raises:
            StorageFullError, RunFolderError: the checkpoint cannot be written; the log and the
                previous checkpoint stay.
        """
        folder, log = self._folder, self._log
        if folder is None or log is None:
            return
        with self._saving:
            number = log.number + 1
            log.create(number)
            with self.table.snapshot():
                log.begin(number)
                numbers = dict(self._numbers)
            if self.table.push_count:
                rows = folder.path / ROWS_FOLDER
                persistence.save(rows, self.table, SEGMENT_ROWS, SEGMENT_BYTES)
            _write_pointer(folder, _Pointer(number, numbers, self._run))
            log.remove_before(number)

    def close(self) -> None:
        """Close table and log; waiting calls raise BufferClosedError. Idempotent."""
        self.table.close()
        with self._saving:
            self._until_close.close()

    def _is_known(self, client: str, number: int) -> bool:
        return number <= self._numbers.get(client, 0)

    def _is_newest(self, client: str) -> bool:
        """Whether the newest rows are of this client."""
        return bool(self._numbers) and next(reversed(self._numbers)) == client

    def _note(self, client: str, number: int) -> None:
        self._numbers[client] = max(number, self._numbers.get(client, 0))
        self._numbers.move_to_end(client)
        if len(self._numbers) > CLIENTS_KEPT:
            self._numbers.popitem(last=False)

    def _recover(self, folder: Folder, log: InsertLog) -> None:
        """Load the checkpoint, then push the newer rows of the log."""
        begun = time.monotonic()
        folder.sweep()
        pointer = _read_pointer(folder)
        self._run = self._run or pointer.run
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
            # It is not known whether the table accepted the last insert; its client may repeat it.
            with suppress(SchemaMismatchError):
                at = self._push_again(waiting, at)
        if at:
            rows, seconds = self.table.count(), time.monotonic() - begun
            _log.info("%d rows are back from %s after %.1f s", rows, folder.path, seconds)

    def _push_again(self, record: Record, at: int) -> int:
        """Push the rows of a record unless the checkpoint contains them; return the new count."""
        if record.first > at or record.first < at < record.first + record.rows:
            raise CheckpointCorruptError(
                f"the log of the replay server continues after {record.first} rows, and its "
                f"checkpoint ends after {at}; restore the files, or begin with an empty folder"
            )
        if record.first == at:
            try:
                rows = decode_value(ROWS_KIND, record.frame)
            except DataCorruptError as error:
                text = f"the log of the replay server is damaged: {error}"
                raise CheckpointCorruptError(text) from error
            if not self._is_newest(record.client):
                self.table.end_trajectory()
            self.table.load_state_dict({"data": rows})
            at = self.table.push_count
        self._note(record.client, record.number)
        return at


class _RepeatedInsertError(Exception):
    """An insert that is in the table already."""


def check_run(folder: Folder, run: str) -> None:
    """Check that the files of a replay server in a run folder are of that run.

    Raises:
        CheckpointError: they are of another run; if an id is not known, they are accepted.
    """
    if run and (found := _read_pointer(folder).run) not in ("", run):
        raise CheckpointError(
            f"the replay buffer in {folder.path} is of another run: its id is {found!r:.80}, and "
            f"that of this run is {run!r}; put that of this run there",
            path=str(folder.path),
            found=found,
            expected=run,
        )


def _write_pointer(folder: Folder, pointer: _Pointer) -> None:
    content = encode_json(_POINTER_KIND, msgspec.to_builtins(pointer))
    folder.write_atomic(POINTER_NAME, [content], durable=True)


def _read_pointer(folder: Folder) -> _Pointer:
    path = folder.path / POINTER_NAME
    with suppress(DataMissingError), checkpoint_errors(path, _ADVICE):
        content = folder.read(POINTER_NAME, _POINTER_BYTES)
        return msgspec.convert(decode_json(_POINTER_KIND, content, _POINTER_BYTES), _Pointer)
    return _Pointer(1, {})
