"""Deleting the files of rows that have left a buffer (``enable_track_used_data``).

Terms: a row names its file in ``data_id``, and several rows may name the same file. An id is
*tracked* while a row with it is in the buffer, and *leased* while a user of a sampled row may still
read the file. A file is deleted when its id is neither tracked nor leased.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.data.columns import mismatch
from dingsdk.errors import DataMissingError, RunFolderError, SchemaMismatchError, StorageFullError
from dingsdk.runtime.files import Folder, check_id
from dingsdk.worker.replay_buffer.interface import RowListener
from dingsdk.worker.replay_buffer.storage import Rows

_KEY = "data_id"
_RETRY_S = 5.0
"""Pause before another attempt to delete files that could not be deleted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UsedDataStats:
    """Ids tracked and leased now; files deleted, found missing, and still to be deleted."""

    tracked: int
    leased: int
    deleted: int
    missing: int
    pending: int


class UsedData(RowListener):
    """Deletes ``<root>/<data_id>`` when the last row of a buffer with that id has left.

    A row that leaves because it was sampled ``max_use`` times is in the batch that the caller
    receives next. Its file is kept until the same thread uses up other rows, or the buffer is
    closed. Code that reads files for longer, or in another thread, must lease them.

    Thread-safe; starts no threads. A file that could not be deleted is tried again by later calls,
    and when the buffer is closed. Do not use an id again for other data: the new file could be
    deleted when the last old row leaves.
    """

    def __init__(
        self, root: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.root = Path(root).absolute()
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: Counter[str] = Counter()
        self._leases: Counter[str] = Counter()
        self._used_up: dict[int, Lease] = {}
        self._undeleted: set[str] = set()
        self._retry_at_s = 0.0
        self._deleted = self._missing = 0

    def check(self, rows: Rows) -> None:
        """Refuse rows that could not be tracked.

        Raises:
            SchemaMismatchError: a row has no ``data_id`` that is a str or integer.
            ProtocolError: an id is not a valid file name (``[A-Za-z0-9_-]{1,64}``).
        """
        _count(rows)

    def on_insert(self, rows: Rows) -> None:
        """Track the ids of rows."""
        counts = _count(rows)
        with self._lock:
            self._rows.update(counts)
            self._undeleted.difference_update(counts)

    def on_remove(self, rows: Rows, reason: str) -> None:
        """Delete the files that only these rows named; files of used-up rows are deleted later."""
        counts = _count(rows)
        earlier = None
        if reason == "used_up":
            with self._lock:
                self._leases.update(counts)
                earlier = self._used_up.get(threading.get_ident())
                self._used_up[threading.get_ident()] = Lease(self, counts)
        self._subtract(self._rows, counts)
        if earlier is not None:
            earlier.release()

    def on_close(self) -> None:
        """Delete the files of used-up rows, and try again files that could not be deleted."""
        with self._lock:
            leases, self._used_up = list(self._used_up.values()), {}
            self._retry_at_s = self._clock()
        for lease in leases:
            lease.release()
        self._delete(())

    def lease(self, ids: Iterable[str | int]) -> Lease:
        """Keep the files of tracked or leased ids until the lease is released.

        Raises:
            DataMissingError: an id is neither, so its file is deleted or may be at any moment;
                nothing is leased. Fact ``data_id``.
            ProtocolError: an id is not a valid file name.
        """
        counts = Counter(check_id(str(data_id), _KEY) for data_id in ids)
        with self._lock:
            for data_id in counts:
                if data_id not in self._rows and data_id not in self._leases:
                    raise DataMissingError(
                        f"no row in the buffer names the data {data_id!r} any more; lease ids "
                        "when their rows are sampled",
                        data_id=data_id,
                    )
            self._leases.update(counts)
        return Lease(self, counts)

    def stats(self) -> UsedDataStats:
        """Return consistent totals."""
        with self._lock:
            return UsedDataStats(
                tracked=len(self._rows),
                leased=len(self._leases),
                deleted=self._deleted,
                missing=self._missing,
                pending=len(self._undeleted),
            )

    def _subtract(self, users: Counter[str], counts: Counter[str]) -> None:
        """Reduce the user counts of ids, and delete the files that have no users left."""
        with self._lock:
            known = [data_id for data_id in counts if data_id in users]
            for data_id in known:
                users[data_id] -= counts[data_id]
                if users[data_id] <= 0:
                    del users[data_id]
            unused = [each for each in known if not self._is_needed(each)]
        self._delete(unused)

    def _is_needed(self, data_id: str) -> bool:
        return data_id in self._rows or data_id in self._leases

    def _delete(self, unused: Iterable[str]) -> None:
        with self._lock:
            chosen = set(unused)
            if self._clock() >= self._retry_at_s:
                chosen |= self._undeleted
                self._undeleted.clear()
        if not chosen:
            return
        found = 0
        failed: dict[str, Exception] = {}
        try:
            with Folder(self.root, create=False) as folder:
                for data_id in chosen:
                    try:
                        found += folder.unlink(data_id)
                    except (RunFolderError, StorageFullError) as error:
                        failed[data_id] = error
        except (RunFolderError, StorageFullError) as error:
            failed = dict.fromkeys(chosen, error)
        with self._lock:
            self._deleted += found
            self._missing += len(chosen) - found - len(failed)
            # Rows with these ids may have been pushed again in the meantime.
            self._undeleted.update(each for each in failed if not self._is_needed(each))
            if failed:
                self._retry_at_s = self._clock() + _RETRY_S
                one = next(iter(failed.values()))
                _log.warning("%d files of used data stay for now: %s", len(failed), one)


class Lease:
    """Keeps files from deletion until :meth:`release`, or the end of its ``with`` block."""

    def __init__(self, used: UsedData, counts: Counter[str]) -> None:
        self._used = used
        self._counts = counts

    def release(self) -> None:
        """End the lease, and delete the files that are not needed otherwise; idempotent."""
        with self._used._lock:
            counts, self._counts = self._counts, Counter()
        self._used._subtract(self._used._leases, counts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _count(rows: Rows) -> Counter[str]:
    """Return how many rows name each id."""
    if not isinstance(rows, SampleBatch):
        return Counter(_id_of(row, index) for index, row in enumerate(rows))
    column = rows.columns.get(_KEY)
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iu":
        raise _no_id(0, "no such column of integers [rows]")
    ids, counts = np.unique(column, return_counts=True)
    pairs = zip(ids.tolist(), counts.tolist(), strict=True)
    return Counter({check_id(str(data_id), _KEY): count for data_id, count in pairs})


def _id_of(row: Any, index: int) -> str:
    if not isinstance(row, Mapping) or _KEY not in row:
        raise _no_id(index, "none")
    data_id = row[_KEY]
    if isinstance(data_id, bool) or not isinstance(data_id, str | int | np.integer):
        raise _no_id(index, type(data_id).__name__)
    return check_id(str(data_id), _KEY)


def _no_id(row: int, found: str) -> SchemaMismatchError:
    hint = "with enable_track_used_data every row names its file"
    return mismatch(f"{_KEY} of row {row}", _KEY, "a str or integer", found, hint, row=row)
