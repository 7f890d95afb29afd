"""Small payloads, many in one segment that stays mapped by all who use it.

A file for each payload costs a dozen calls of the system. A writer appends to a segment instead,
which it alone appends to::

    header   64 bytes: magic, generation, number of entries
    entries  of each payload its id, size, place, and the generation in which it was deleted
    frames   at the places, which are multiples of 64

The number of entries is written last: what a writer that is killed had not finished is seen by
nobody. Whoever deletes a payload notes the generation. A writer whose segment is full begins the
next generation of one in which all payloads are deleted, or makes another one. Readers copy a
frame, and look again afterwards whether it is still that of the payload.

A writer holds a lock on its segments, which goes with its process. Without one, a segment is
removed once its payloads are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from dingsdk.data import PrivateDir, open_private
from dingsdk.errors import StorageFullError

SEGMENT_BYTES = 4 << 20
MOST_ENTRIES = 1024
SETTLED_NS = 100_000_000
MAGIC = b"DINGSEG1"
_HEADER = struct.Struct("<8sQQ")
_COUNT = struct.Struct("<Q")
_COUNT_AT, _GENERATION_AT = 16, 8
_ENTRY = struct.Struct("<64sIIQ")
_DELETED = struct.Struct("<Q")
_DELETED_AT = 72
_ENTRIES_AT = 64
_FRAMES_AT = _ENTRIES_AT + MOST_ENTRIES * _ENTRY.size
_ALIGNMENT = 64
_COLUMNS = np.dtype([("id", "S64"), ("size", "<u4"), ("place", "<u4"), ("deleted", "<u8")])


class _Segment:
    """A mapped segment.

    Attributes:
        seen: How many entries of ``generation`` this process knows.
        ids: Those of the entries that it knows, in order.
        lock: Descriptor that holds the writer's lock; -1 for the segment of another writer.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.map = mmap.mmap(descriptor, SEGMENT_BYTES)
        self.generation = 0
        self.seen = 0
        self.ids: list[str] = []
        self.end = _FRAMES_AT
        self.lock = -1

    def state(self) -> tuple[int, int]:
        """Return generation and number of entries."""
        _, generation, count = _HEADER.unpack_from(self.map)
        return generation, min(count, MOST_ENTRIES)

    def entry(self, number: int) -> tuple[str, int, int, int]:
        """Return id, size, place and generation of the deletion."""
        name, size, place, deleted = _ENTRY.unpack_from(self.map, _entry_at(number))
        return name.rstrip(b"\0").decode("latin-1"), size, place, deleted

    def delete(self, number: int) -> None:
        _DELETED.pack_into(self.map, _entry_at(number) + _DELETED_AT, self.generation)

    def live(self) -> list[int]:
        """Return the numbers of the entries that were not deleted."""
        generation, count = self.state()
        columns = np.frombuffer(self.map, _COLUMNS, count, _ENTRIES_AT)
        return [int(each) for each in np.flatnonzero(columns["deleted"] != generation)]

    def has_room(self, size: int) -> bool:
        return self.seen < MOST_ENTRIES and self.end + size <= SEGMENT_BYTES

    def append(self, data_id: str, frame: bytes) -> int:
        number, place = self.seen, self.end
        self.map[place : place + len(frame)] = frame
        _ENTRY.pack_into(self.map, _entry_at(number), data_id.encode(), len(frame), place, 0)
        _COUNT.pack_into(self.map, _COUNT_AT, number + 1)
        self.end = -(-(place + len(frame)) // _ALIGNMENT) * _ALIGNMENT
        self.seen = number + 1
        self.ids.append(data_id)
        return number

    def begin_generation(self) -> None:
        """Forget all payloads, which are deleted."""
        _COUNT.pack_into(self.map, _COUNT_AT, 0)
        self.generation += 1
        _COUNT.pack_into(self.map, _GENERATION_AT, self.generation)
        self.seen, self.end, self.ids = 0, _FRAMES_AT, []

    def close(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


class Segments:
    """Small payloads by id. Safe for use from many threads.

    Args:
        folder: That all processes of the run share; closed with this object.
        check_free: Raises StorageFullError where so many more bytes must not be taken.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        folder: PrivateDir,
        check_free: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._path = str(folder.path)
        self._check_free = check_free
        self._clock = clock
        self._lock = threading.Lock()
        self._segments: dict[str, _Segment] = {}
        self._own: _Segment | None = None
        self._index: dict[str, tuple[_Segment, int, int]] = {}
        self._listed_ns = -1
        self._ownerless: dict[str, float] = {}

    def add(self, data_id: str, frame: bytes) -> None:
        """Store a payload.

        Raises:
            StorageFullError: there is no room for a segment.
        """
        with self._lock:
            own = self._own
            if own is None or not own.has_room(len(frame)):
                own = self._own = self._next_own()
            self._index[data_id] = own, own.append(data_id, frame), own.generation

    def read(self, data_id: str) -> bytes | None:
        """Return a copy of a payload's frame; None where there is none of that id."""
        with self._lock:
            found = self._find(data_id)
            if found is None:
                return None
            segment, number, generation = found
            _, size, place, _ = segment.entry(number)
            frame = segment.map[place : place + size]
            return frame if self._is_there(segment, number, generation) else None

    def has(self, data_id: str) -> bool:
        """Return whether there is a payload of that id."""
        with self._lock:
            return self._find(data_id) is not None

    def delete(self, data_id: str) -> bool:
        """Delete a payload; return whether there was one."""
        with self._lock:
            found = self._find(data_id)
            if found is not None:
                found[0].delete(found[1])
                del self._index[data_id]
            return found is not None

    def sweep(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        """Delete payloads without an owner, as ``StepDataStore.sweep_orphans`` has it.

        Segments of dead writers without payloads are removed.
        """
        now = self._clock()
        names = self.ids()
        since = {name: self._ownerless.get(name, now) for name in names if not is_live(name)}
        ripe = [name for name, first in since.items() if now - first >= grace_s]
        count = sum(map(self.delete, ripe))
        self._ownerless = {name: first for name, first in since.items() if name not in set(ripe)}
        with self._lock:
            for segment in list(self._segments.values()):
                if segment.lock < 0 and not segment.live():
                    self._remove_if_dead(segment)
        return count

    def ids(self) -> list[str]:
        """Return the ids of all payloads."""
        with self._lock:
            self._refresh()
            return [
                name
                for name, (segment, number, generation) in self._index.items()
                if self._is_there(segment, number, generation)
            ]

    def close(self) -> None:
        """Let go of the segments."""
        with self._lock:
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()
            self._index.clear()
            self._own = None
            self._folder.close()

    def _find(self, data_id: str) -> tuple[_Segment, int, int] | None:
        found = self._index.get(data_id)
        if found is None or not self._is_there(*found):
            self._refresh()
            found = self._index.get(data_id)
        return found if found is not None and self._is_there(*found) else None

    def _is_there(self, segment: _Segment, number: int, generation: int) -> bool:
        return segment.entry(number)[3] != generation and segment.state()[0] == generation

    def _refresh(self) -> None:
        """Learn the entries that were added since the last look."""
        try:
            changed_ns = os.stat(self._path).st_mtime_ns  # noqa: PTH116 - a third of the time
        except FileNotFoundError:  # the run is over
            changed_ns = -1
        if changed_ns != self._listed_ns:
            # Another change within a tick of the file system's clock would not show.
            is_settled = time.time_ns() - changed_ns > SETTLED_NS
            self._listed_ns = changed_ns if is_settled else -1
            self._list()
        for segment in self._segments.values():
            generation, count = segment.state()
            if generation != segment.generation:
                self._forget(segment)
                segment.generation, segment.seen, segment.ids = generation, 0, []
            for number in range(segment.seen, count):
                name = segment.entry(number)[0]
                self._index[name] = segment, number, generation
                segment.ids.append(name)
            segment.seen = max(segment.seen, count)

    def _list(self) -> None:
        names = set(self._folder.names())
        for name in names - self._segments.keys():
            segment = self._opened(name)
            if segment is not None:
                self._segments[name] = segment
            else:
                self._listed_ns = -1
        for name in self._segments.keys() - names:
            self._forget(self._segments.pop(name))

    def _opened(self, name: str) -> _Segment | None:
        """Return another writer's segment, None while it is being made or removed."""
        try:
            with self._open(name) as descriptor:
                segment = _Segment(name, descriptor)
        except (OSError, ValueError):
            return None
        return segment if segment.map[: len(MAGIC)] == MAGIC else None

    def _forget(self, segment: _Segment) -> None:
        for name in segment.ids:
            found = self._index.get(name)
            if found is not None and found[0] is segment:
                del self._index[name]

    def _next_own(self) -> _Segment:
        for segment in self._segments.values():
            if segment.lock >= 0 and not segment.live():
                self._forget(segment)
                segment.begin_generation()
                return segment
        return self._make()

    def _make(self) -> _Segment:
        self._check_free(SEGMENT_BYTES)
        name = f"{secrets.token_hex(8)}.seg"
        path = f"{self._path}/{name}"
        try:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise _full(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
            if os.fstat(descriptor).st_nlink == 0:  # swept before it was locked
                raise StorageFullError(f"{path} was removed", path=path, reason="swept")
            with self._open(name) as mapped:  # a map of the same open file would keep the lock
                segment = _Segment(name, mapped)
            segment.generation = 1
            _HEADER.pack_into(segment.map, 0, MAGIC, 1, 0)
        except BaseException as error:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self._folder.unlink(name)
            if isinstance(error, OSError) and not isinstance(error, StorageFullError):
                raise _full(path, error) from error
            raise
        segment.lock = descriptor
        self._segments[name] = segment
        return segment

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[int]:
        descriptor = os.open(self._folder.path / name, os.O_RDWR | os.O_NOFOLLOW)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _remove_if_dead(self, segment: _Segment) -> None:
        """Remove a segment whose writer holds no lock any more."""
        with contextlib.suppress(OSError), self._open(segment.name) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder.unlink(segment.name)


def _full(path: str, error: OSError) -> StorageFullError:
    reason = errno.errorcode.get(error.errno or 0, "")
    return StorageFullError(f"cannot make {path}: {error.strerror}", path=path, reason=reason)


def _entry_at(number: int) -> int:
    return _ENTRIES_AT + number * _ENTRY.size
