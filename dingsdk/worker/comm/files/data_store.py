"""Step data in a shared folder: one checked file per payload, under a name that is used once.

The file is ``data/<hex digit>/<data_id>.ding``. Damaged files are moved to ``quarantine/``. Deleted
files are moved to ``pool-small/`` and ``pool-large/`` and reused: new pages of a file cost more
than the write itself (3.8 ms and 0.5 ms for 3.6 MB, 2 cores, ext4).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeVar

from dingsdk.data import FrameInfo, SampleBatch, decode_batch, encode_batch
from dingsdk.errors import (
    ClosedError,
    ConfigError,
    ConflictError,
    DataCorruptError,
    DataMissingError,
    RunFolderError,
    StorageFullError,
)
from dingsdk.runtime import Buffer, PrivateDir, check_id, checked_timeout
from dingsdk.worker.comm.transport import StepDataStore

DATA_FOLDERS = ("data", "quarantine", "pool-small", "pool-large")
_SUFFIX = ".ding"
_SHARDS = 16
"""Folders that payloads are spread over: two processes cannot change one folder at the same
time."""
_SMALL_BYTES = 64 << 10
"""Payloads up to this size reuse files of other small payloads."""
_COPIED_BYTES = 8 << 20
"""Payloads up to this size are read into memory, and their files are reused. Larger payloads are
memory-mapped: a map may still be in use when the payload is deleted, so the file is not reused."""
_MOST_POOLED = 1024
"""Files of deleted payloads that each of the two pools keeps for reuse."""
_KEEP_QUARANTINED = 16
"""Damaged files that are kept for inspection."""
_LIST_AGAIN_S = 0.01
"""Shortest time between two listings of a pool: a listing costs more than creating a file."""
_AT_A_TIME = 256
"""Names that are kept from one listing of a pool."""
_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class WaitingDataStore(StepDataStore):
    """Looks for a payload that is not there until it appears, or until a deadline.

    Args:
        max_payload_bytes: Largest payload to write or read.
        clock: Returns the time in seconds, from any start.
    """

    pauses_s: ClassVar[tuple[float, float]]
    """First and longest pause between two looks; each pause is twice the one before."""

    def __init__(self, max_payload_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_payload_bytes
        self._clock = clock
        self._closed = threading.Event()
        self.corrupt_count = 0
        """Number of damaged payloads found."""

    @abstractmethod
    def read(self, data_id: str) -> Buffer | None:
        """Return the frame of a payload if it is there now; raises DataCorruptError."""

    @abstractmethod
    def is_there(self, data_id: str) -> bool:
        """Return whether a payload is there now, damaged or not."""

    def set_aside(self, data_id: str, why: str) -> bool:
        """Remove a damaged payload, and log why; False if it was deleted meanwhile."""
        self.delete([data_id])
        _logger.warning("a damaged payload is deleted: %s", why)
        return True

    def load(self, data_id: str, digest: str | None) -> SampleBatch | None:
        """Return a payload if it is there now, as read-only views.

        Raises:
            DataCorruptError: the payload is not the one that was put; it is set aside.
        """
        try:
            frame = self.read(data_id)
            if frame is not None:
                return decode_batch(frame, self._max_bytes, expected_digest=digest)
        except DataCorruptError as error:
            text = f"payload {data_id!r}: {error}"  # the error itself would keep the frame in use
            if self.set_aside(data_id, text):
                self.corrupt_count += 1
                raise DataCorruptError(text, where=error.where, data_id=data_id) from error
        return None

    def get(self, data_id: str, timeout_s: float = 2.0, digest: str | None = None) -> SampleBatch:
        batch = self.load(data_id, digest)
        if batch is None:
            batch = self._wait(lambda: self.load(data_id, digest), timeout_s)
        if batch is None:
            raise DataMissingError(
                f"no payload {data_id!r} within {timeout_s} s: it was never put, or deleted since",
                data_id=data_id,
            )
        return batch

    def has(self, data_id: str, timeout_s: float = 2.0) -> bool:
        look = self.is_there
        return look(data_id) or bool(self._wait(lambda: look(data_id) or None, timeout_s))

    def _wait(self, look: Callable[[], _T | None], timeout_s: float) -> _T | None:
        """Repeat ``look`` after pauses until it does not return None, or until the deadline.

        Raises:
            ClosedError: the store was closed during the wait.
        """
        deadline = self._clock() + checked_timeout(timeout_s)
        pause_s, longest_s = self.pauses_s
        while (left_s := deadline - self._clock()) > 0:
            if self._closed.wait(min(pause_s, left_s)):
                raise ClosedError("the data store was closed", what="data store")
            if (found := look()) is not None:
                return found
            pause_s = min(2 * pause_s, longest_s)
        return None


class FileDataStore(WaitingDataStore):
    """Payloads as files that all processes with the folder can read. Safe to use from many threads.

    Args:
        path: Folder that all workers share; ``PrivateDir`` lists its requirements.
        min_free_bytes: Bytes to leave free on the disk.
        is_durable: Whether payloads survive a power cut (three times as slow).
        algorithm: Algorithm of the digests that readers verify payloads with: ``xxh3-128`` detects
            damage and mix-ups; ``sha256``, at a quarter of the speed, also detects forgeries;
            ``head`` only detects other kinds, dtypes and shapes.
        pool_bytes: About how many bytes of deleted files to keep for reuse.
    """

    pauses_s = (0.001, 0.1)  # shared file systems may show a file late

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_payload_bytes: int = 256 << 20,
        min_free_bytes: int = 128 << 20,
        is_durable: bool = False,
        algorithm: str = "xxh3-128",
        pool_bytes: int = 512 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(max_payload_bytes, clock)
        self._min_free_bytes = min_free_bytes
        self._is_durable = is_durable
        self._algorithm = algorithm
        self._ownerless_since: dict[str, float] = {}
        with PrivateDir(path) as root:
            with root.sub("data") as data:
                # Kept open: opening a folder takes a third of the time of a small payload's put.
                self._shards = [data.sub(f"{index:x}") for index in range(_SHARDS)]
            self._quarantine = root.sub("quarantine")
            # Files that must survive a power cut are never overwritten: a cut could leave them
            # half written.
            budget = 0 if is_durable else pool_bytes
            self._pools = [
                FilePool(root.sub(name), min(budget // (2 * size), _MOST_POOLED), size, clock)
                for name, size in (("pool-small", _SMALL_BYTES), ("pool-large", _COPIED_BYTES))
            ]

    def put(self, data_id: str, batch: SampleBatch) -> FrameInfo:
        folder, name = self._place_of(data_id)
        buffers, info = encode_payload(batch, self._algorithm, self._max_bytes)
        # Each id has one writer. If another write of this id happens between this check and the
        # rename, it is a repeat with the same content.
        if folder.stat(name) is not None and self._is_stored(data_id, batch):
            return info
        if folder.free_bytes() - info.size_bytes < self._min_free_bytes:
            self._empty_pools()
            check_free(folder, info.size_bytes, self._min_free_bytes)
        self._write(folder, name, buffers, info.size_bytes)
        return info

    def read(self, data_id: str) -> Buffer | None:
        """Return the content of a payload's file; that of a large one is memory-mapped."""
        folder, name = self._place_of(data_id)
        try:
            return folder.view(name, self._max_bytes, map_above=_COPIED_BYTES)
        except DataMissingError:
            return None

    def is_there(self, data_id: str) -> bool:
        folder, name = self._place_of(data_id)
        return folder.stat(name) is not None

    def set_aside(self, data_id: str, why: str) -> bool:
        folder, name = self._place_of(data_id)
        if folder.stat(name) is None:
            return False
        # A file of an earlier damaged payload may have this name, and is replaced.
        aside = f"{self.corrupt_count % _KEEP_QUARANTINED:02d}{_SUFFIX}"
        try:
            if folder.move(name, self._quarantine, aside):
                _logger.warning("damaged payload %s moved to quarantine/%s", data_id, aside)
        except (RunFolderError, StorageFullError) as error:
            _logger.warning("cannot set the damaged payload %s aside: %s", data_id, error)
        return True

    def delete(self, data_ids: Iterable[str]) -> None:
        for folder, name in [self._place_of(each) for each in data_ids]:
            self._remove(folder, name)

    def __len__(self) -> int:
        return sum(1 for _ in self.ids())

    def ids(self) -> Iterator[str]:
        """Yield the ids of all stored payloads."""
        for folder in self._shards:
            for name in folder.names():
                if name.endswith(_SUFFIX):
                    yield name.removesuffix(_SUFFIX)

    def sweep_orphans(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        """Delete payloads without an owner, and half-written files of dead writers.

        A file is deleted if it already had no owner in a sweep at least ``grace_s`` ago. Time is
        measured by this process's monotonic clock, as times in the file system may come from
        another host. Call it only from the process that knows which payloads are live.
        """
        now = self._clock()
        since: dict[str, float] = {}
        count = 0
        for folder in self._shards:
            for name in folder.names():
                if is_live(name.removesuffix(_SUFFIX)):
                    continue
                since[name] = self._ownerless_since.get(name, now)
                if now - since[name] >= grace_s:
                    count += self._remove(folder, name)
        self._ownerless_since = since
        return count

    def close(self) -> None:
        """End waiting calls with ClosedError, and close the file descriptors."""
        self._closed.set()
        for folder in (*self._shards, self._quarantine, *(pool.folder for pool in self._pools)):
            folder.close()

    def _place_of(self, data_id: str) -> tuple[PrivateDir, str]:
        name = check_id(data_id, "data_id") + _SUFFIX
        return self._shards[zlib.crc32(data_id.encode()) % _SHARDS], name

    def _write(
        self, folder: PrivateDir, name: str, buffers: Sequence[Buffer], size_bytes: int
    ) -> None:
        pool = self._pool_for(size_bytes)
        try:
            if pool is None or not pool.write(folder, name, buffers):
                folder.write_atomic(name, buffers, durable=self._is_durable)
        except StorageFullError:
            if not self._empty_pools():
                raise
            folder.write_atomic(name, buffers, durable=self._is_durable)

    def _pool_for(self, size_bytes: int) -> FilePool | None:
        return next((pool for pool in self._pools if size_bytes <= pool.max_bytes), None)

    def _empty_pools(self) -> int:
        return sum(pool.empty() for pool in self._pools)

    def _is_stored(self, data_id: str, batch: SampleBatch) -> bool:
        """Return whether the payload is stored undamaged; a damaged file is quarantined."""
        try:
            stored = self.load(data_id, None)
        except DataCorruptError:
            return False
        if stored is None:
            return False
        if encode_batch(stored)[1].digest != encode_batch(batch)[1].digest:
            raise conflict(data_id)
        return True

    def _remove(self, folder: PrivateDir, name: str) -> bool:
        try:
            return self._give_to_pool(folder, name) or folder.unlink(name)
        except (RunFolderError, StorageFullError) as error:
            # A later sweep removes a file that cannot be removed now.
            _logger.warning("cannot delete a payload: %s", error)
            return False

    def _give_to_pool(self, folder: PrivateDir, name: str) -> bool:
        found = folder.stat(name) if name.endswith(_SUFFIX) else None
        pool = self._pool_for(found.st_size) if found else None
        return bool(found and pool and pool.give(folder, name, found))


def encode_payload(
    batch: SampleBatch, algorithm: str, max_bytes: int
) -> tuple[list[Buffer], FrameInfo]:
    """Return the parts of a payload's frame, and the facts that announce it.

    Raises:
        ConfigError: the payload is larger than readers accept.
        SchemaMismatchError: a container cannot hold the batch.
    """
    buffers, info = encode_batch(batch, algorithm=algorithm)
    if info.size_bytes > max_bytes:
        raise ConfigError(
            f"a payload of {info.size_bytes} bytes; at most {max_bytes} are read. "
            "Lower policy.collect.n_sample",
            path="policy.collect.n_sample",
        )
    return buffers, info


def conflict(data_id: str) -> ConflictError:
    """Return the error for a payload whose id another payload has."""
    return ConflictError(
        f"payload {data_id!r} exists with another content, which stays; ids are used once",
        data_id=data_id,
    )


def check_free(folder: PrivateDir, size_bytes: int, min_free_bytes: int) -> None:
    """Check that a write leaves at least ``min_free_bytes`` free on the disk.

    Raises:
        StorageFullError: it does not.
    """
    free_bytes = folder.free_bytes()
    if free_bytes - size_bytes < min_free_bytes:
        raise StorageFullError(
            f"{folder.path}: {free_bytes} bytes free, {size_bytes} to write and "
            f"{min_free_bytes} to leave free; make room on the disk",
            path=str(folder.path),
            reason="low_space",
        )


class FilePool:
    """A folder of files that the processes of a run share.

    The file of a deleted payload is moved here, and a new payload is written into one of these
    files. No process owns the pool: a process takes a file by renaming it, so if two processes try
    to take the same file, only one gets it.
    """

    def __init__(
        self,
        folder: PrivateDir,
        limit: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._limit = limit
        self._clock = clock
        self._room = 0
        self._known: list[str] = []
        self._list_at = -_LIST_AGAIN_S

    def write(self, folder: PrivateDir, name: str, buffers: Sequence[Buffer]) -> bool:
        """Write a file of another folder by reusing a file of the pool; False if there is none.

        Raises:
            StorageFullError, RunFolderError: as ``PrivateDir.rewrite``.
        """
        pooled = self._take()
        return pooled is not None and folder.rewrite(name, buffers, self.folder, pooled)

    def give(self, folder: PrivateDir, name: str, found: os.stat_result) -> bool:
        """Move a file to the pool; False if it is gone, not a regular file, or the pool is full."""
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return False
        if self._room <= 0:
            self._list()
            if self._room <= 0:
                return False
        self._room -= 1
        return folder.move(name, self.folder, f"{secrets.token_hex(8)}.ding")

    def empty(self) -> int:
        """Delete all files of the pool to free disk space; return their number."""
        self._known = []
        return sum(self.folder.unlink(name) for name in self.folder.names())

    def _take(self) -> str | None:
        """Return the name of a file that probably still exists, or None."""
        if not self._known:
            self._list()
        with contextlib.suppress(IndexError):  # another thread may take the last one
            return self._known.pop()
        return None

    def _list(self) -> None:
        """Count the files and remember some of their names, unless that was done just now."""
        now = self._clock()
        if now < self._list_at:
            return
        self._list_at = now + _LIST_AGAIN_S
        names = self.folder.names()
        self._room = self._limit - len(names)
        # A random start makes it rare that two writers try the same file.
        start = secrets.randbelow(len(names) or 1)
        self._known = (names[start:] + names[:start])[:_AT_A_TIME]
