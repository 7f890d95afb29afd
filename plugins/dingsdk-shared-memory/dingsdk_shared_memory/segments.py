"""Payloads in shared memory: where they are written, and how readers find them.

One file per payload would cost a dozen system calls, and new memory costs more than the copy: the
first use of 3.6 MB takes 10 ms, a copy of it 0.15 ms. So a writer (one process) reuses its files.
``<writer>-<number>.seg`` is a *segment*, which it appends to::

    header   64 bytes: magic, and one word with generation and number of entries
    entries  for each payload its id, size, place, a check of these, and a mark of its deletion
    frames   of payloads of up to 16 KiB, at places that are multiples of 64

A larger frame is alone in a *slot*, ``<writer>-<number>.slot``; its place is minus that number.

The word is written last, so that readers do not see an entry that a killed writer has not
finished. To delete a payload, a process marks its entry with the generation. When its segment is
full, a writer begins the next generation of a segment whose payloads are all deleted, or makes
another segment. It reuses a slot once its payload is deleted and no process views it.

The check of an entry depends on the generation. A reader computes it when it first reads the entry.
A payload whose entry is damaged is lost; the first reader that finds this deletes and counts it.

Readers copy a frame out of a segment, and check afterwards that it still belongs to the payload.
A frame in a slot is viewed, not copied. A view holds a shared lock on its slot (``flock``) until
the view or the process ends; a writer that cannot lock a slot exclusively uses another one.

A writer holds a lock on ``<writer>.lock`` until its process ends. The files of a writer without a
lock are removed once their payloads are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import mmap
import os
import secrets
import struct
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import xxhash

from dingsdk.errors import DataCorruptError, StorageFullError
from dingsdk.runtime import Buffer, PrivateDir, open_private
from dingsdk.worker.comm.files import check_free
from dingsdk_shared_memory.streaming import copy

INLINE_BYTES = 16 << 10
"""Largest frame in a segment."""
SEGMENT_BYTES = 1 << 20
"""Size of a segment, which holds small frames of one writer."""
MOST_ENTRIES = 256
"""Most frames in a segment."""
MAGIC = b"DINGSEG5"
SETTLED_NS = 100_000_000
"""If a folder's last change is older, a new change cannot have the same time stamp."""
MOST_MAPS = 256
"""Largest number of slots that a process keeps mapped; each map has a descriptor."""
FREE_BYTES = 128 << 20
"""Largest size of all free slots that a writer keeps for reuse."""
_WORD = struct.Struct("<Q")
_STATE_AT = len(MAGIC)
_ENTRY = struct.Struct("<64sQqQQ")  # id, size, place, check, mark
ENTRY_BYTES = _ENTRY.size
_PLACE = struct.Struct("<64sQq")
_CHECK_AT, _MARK_AT = 80, 88
_DELETED = 0x9E3779B97F4A7C15
"""The mark is this xor the generation. One flipped bit cannot turn the 0 of a payload into it."""
_ENTRIES_AT = 64
_FRAMES_AT = _ENTRIES_AT + MOST_ENTRIES * ENTRY_BYTES
_ALIGNMENT = 64
_COLUMNS = np.dtype(
    [("id", "S64"), ("size", "<u8"), ("place", "<i8"), ("check", "<u8"), ("mark", "<u8")]
)
_log = logging.getLogger(__name__)


class _Segment:
    """A mapped segment.

    Args:
        name: Name of its file.
        map_: Its memory.
        is_own: Whether this process writes it; then its header is written now.

    Attributes:
        generation: Last generation that this process has seen, below 2**32.
        seen: How many entries of ``generation`` this process knows.
        ids: Ids of the entries that it knows, in order.
    """

    def __init__(self, name: str, map_: mmap.mmap, is_own: bool) -> None:
        self.name = name
        self.writer = name.partition("-")[0]
        self.is_own = is_own
        self.map = map_
        self.generation = 0
        self.seen = 0
        self.ids: list[str] = []
        self.end = _FRAMES_AT
        if is_own:
            self.begin_generation()
            map_[: len(MAGIC)] = MAGIC  # last: readers may use the segment from now on

    def word(self) -> int:
        """Return the word of the header: it changes when a payload is added."""
        return int(_WORD.unpack_from(self.map, _STATE_AT)[0])

    def state(self) -> tuple[int, int]:
        """Return generation and number of entries."""
        word = self.word()
        return word >> 32, min(word & 0xFFFF_FFFF, MOST_ENTRIES)

    def is_live(self, number: int, generation: int) -> bool:
        """Return whether a payload of that generation was not deleted."""
        mark = _WORD.unpack_from(self.map, _entry_at(number) + _MARK_AT)[0]
        return bool(mark != generation ^ _DELETED) and self.is_of(generation)

    def is_of(self, generation: int) -> bool:
        """Return whether it holds payloads of that generation."""
        return self.word() >> 32 == generation

    def delete(self, number: int) -> None:
        self._store(_entry_at(number) + _MARK_AT, self.generation ^ _DELETED)

    def live_slots(self) -> list[int]:
        """Return the place of each payload that was not deleted; 0 if it is in no slot."""
        generation, count = self.state()
        columns = np.frombuffer(self.map, _COLUMNS, count, _ENTRIES_AT)
        places = columns["place"][columns["mark"] != generation ^ _DELETED]
        return [min(int(place), 0) for place in places]

    def has_room(self, size: int) -> bool:
        return self.seen < MOST_ENTRIES and self.end + size <= SEGMENT_BYTES

    def append(self, data_id: str, size: int, place: int) -> _Entry:
        number, generation = self.seen, self.generation
        name = data_id.encode()
        check = _check_of(_PLACE.pack(name, size, place), generation)
        _ENTRY.pack_into(self.map, _entry_at(number), name, size, place, check, 0)
        self.seen = number + 1
        self._store(_STATE_AT, generation << 32 | self.seen)
        self.ids.append(data_id)
        return self, number, generation, size, place

    def learn(self, count: int) -> Iterator[tuple[str, _Entry, bool]]:
        """Yield id and entry of each new payload up to ``count``, and whether the entry is whole.

        A damaged entry is left out if it is deleted, or if a new generation has begun.
        """
        first, generation = self.seen, self.generation
        table = self.map[_entry_at(first) : _entry_at(count)]
        for index, (name, size, place, check, mark) in enumerate(_ENTRY.iter_unpack(table)):
            at = index * ENTRY_BYTES
            is_whole = check == _check_of(table[at : at + _CHECK_AT], generation)
            if is_whole or (mark != generation ^ _DELETED and self.is_of(generation)):
                data_id = name.rstrip(b"\0").decode("latin-1")
                yield data_id, (self, first + index, generation, size, place), is_whole
        self.seen = count

    def begin_generation(self) -> None:
        """Begin the next generation, without payloads; all old ones must be deleted."""
        self.generation = (self.generation + 1) & 0xFFFF_FFFF
        self.seen, self.end, self.ids = 0, _FRAMES_AT, []
        self._store(_STATE_AT, self.generation << 32)

    def _store(self, at: int, word: int) -> None:
        # In one step: ``pack_into`` writes zeros first, which others may read.
        self.map[at : at + _WORD.size] = _WORD.pack(word)


_Entry = tuple[_Segment, int, int, int, int]
"""Segment, number of the entry in it, and generation; size and place of the frame."""


class _Slot:
    """A slot of this writer; ``entry`` is the entry of the payload in it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.number = int(name.partition("-")[2].partition(".")[0])
        self.size = size
        self.entry: _Entry | None = None

    @property
    def is_free(self) -> bool:
        if self.entry is None:
            return False
        segment, number, generation, *_ = self.entry
        return not segment.is_live(number, generation)


class Segments:
    """Frames by id. Safe for use from many threads.

    Args:
        folder: Folder that all processes of the run share; closed with this object.
        min_free_bytes: Bytes of memory to leave free.
        clock: Seconds, monotonic.

    Attributes:
        damaged_count: Number of damaged entries that were found.
    """

    def __init__(
        self,
        folder: PrivateDir,
        min_free_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._path = str(folder.path)
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self.damaged_count = 0
        self._lock = threading.Lock()
        self._segments: dict[str, _Segment] = {}
        self._index: dict[str, _Entry] = {}
        self._listed_ns: int | None = None
        self._ownerless: dict[str, float] = {}
        self._maps: OrderedDict[str, mmap.mmap] = OrderedDict()
        # As a writer:
        self._writer = ""
        self._writer_lock = -1
        self._own: _Segment | None = None
        self._numbers = itertools.count(1)
        self._slots: set[_Slot] = set()
        self._free: list[_Slot] = []

    def add(self, data_id: str, buffers: Sequence[Buffer], size: int) -> None:
        """Store a frame.

        Raises:
            StorageFullError: there is no room for it.
        """
        if size <= INLINE_BYTES:
            with self._lock:
                own = self._segment_for(size)
                place = own.end
                _fill(own.map, place, buffers)
                self._index[data_id] = own.append(data_id, size, place)
                own.end = -(-(place + size) // _ALIGNMENT) * _ALIGNMENT
            return
        slot, target = self._take_slot(size)
        try:
            _fill(target, 0, buffers)  # without the lock, so that other threads can run
            with self._lock:
                own = self._segment_for(0)
                self._index[data_id] = slot.entry = own.append(data_id, size, -slot.number)
        except BaseException:
            self._free.append(slot)
            raise

    def read(self, data_id: str, is_new: bool = False) -> Buffer | None:
        """Return a frame, or None: a copy of a small one, a read-only view of a larger one.

        Args:
            data_id: Id of the payload.
            is_new: Whether to search only the payloads that this process knows: its own, and
                those of others that it has seen before.
        """
        with self._lock:
            found = self._find(data_id, is_new)
            if found is None:
                return None
            segment, _, generation, size, place = found
            if place < 0:
                return self._view(found)
            frame = segment.map[place : place + size]
            return frame if segment.is_of(generation) else None

    def has(self, data_id: str) -> bool:
        """Return whether there is a payload of that id."""
        with self._lock:
            return self._find(data_id) is not None

    def delete(self, data_id: str) -> None:
        """Delete a payload, if there is one."""
        with self._lock:
            found = self._find(data_id)
            if found is not None:
                found[0].delete(found[1])
                del self._index[data_id]

    def sweep(self, is_live: Callable[[str], bool], grace_s: float) -> int:
        """Delete payloads without an owner; see ``StepDataStore.sweep_orphans``.

        Files of dead writers without payloads are removed.
        """
        now = self._clock()
        since = {name: self._ownerless.get(name, now) for name in self.ids() if not is_live(name)}
        ripe = {name for name, first in since.items() if now - first >= grace_s}
        for name in ripe:
            self.delete(name)
        self._ownerless = {name: first for name, first in since.items() if name not in ripe}
        self.clear_dead()
        return len(ripe)

    def clear_dead(self) -> None:
        """Remove the files of dead writers that hold no payloads."""
        with self._lock:
            for name in self._folder.names():
                if name.endswith(".lock") and name != f"{self._writer}.lock":
                    self._clear_dead(name.removesuffix(".lock"))

    def ids(self, prefix: str = "") -> list[str]:
        """Return the ids of all payloads that begin with ``prefix``."""
        with self._lock:
            self._refresh()
            self._index = {
                name: found for name, found in self._index.items() if found[0].is_live(*found[1:3])
            }
            return [name for name in self._index if name.startswith(prefix)]

    def close(self) -> None:
        """Release the memory; views that are in use stay valid."""
        with self._lock:
            for segment in self._segments.values():
                segment.map.close()
            self._segments.clear()
            self._index.clear()
            self._maps.clear()
            self._slots.clear()
            self._free.clear()
            self._own = None
            if self._writer_lock >= 0:
                os.close(self._writer_lock)
            self._writer, self._writer_lock = "", -1
            self._folder.close()

    # Readers.

    def _find(self, data_id: str, is_new: bool = False) -> _Entry | None:
        entry = self._index.get(data_id)
        if entry is not None and entry[0].is_live(entry[1], entry[2]):
            return entry
        if is_new and self._listed_ns is not None:
            return None
        self._refresh()
        entry = self._index.get(data_id)
        return entry if entry is not None and entry[0].is_live(entry[1], entry[2]) else None

    def _view(self, entry: _Entry) -> memoryview | None:
        segment, number, generation, size, place = entry
        name = f"{segment.writer}-{-place}.slot"
        lock = self._locked(name, fcntl.LOCK_SH)
        if lock is None:  # its writer has locked it, or it is removed: the payload was deleted
            return None
        try:
            if not segment.is_live(number, generation):
                os.close(lock)
                return None
            whole = self._map(name)
            if len(whole) < size:
                raise DataCorruptError(f"{name} has {len(whole)} of {size} bytes", where=name)
        except BaseException:
            os.close(lock)
            raise
        pinned = np.frombuffer(whole, np.uint8, size)
        weakref.finalize(pinned, os.close, lock).atexit = False
        return pinned.data.toreadonly()

    def _locked(self, name: str, how: int) -> int | None:
        """Return a descriptor that holds a lock on a slot, or None if it cannot be locked."""
        try:
            descriptor = os.open(f"{self._path}/{name}", os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _refresh(self) -> None:
        """Read the entries that were added since the last call."""
        try:
            changed_ns = os.stat(self._path).st_mtime_ns  # noqa: PTH116 - a third of the time
        except FileNotFoundError:  # the run is over
            changed_ns = -2  # not -1, which means that the folder must be listed again
        if changed_ns != self._listed_ns:
            # Another change within a tick of the file system's clock has the same time stamp.
            is_settled = time.time_ns() - changed_ns > SETTLED_NS
            self._listed_ns = changed_ns if is_settled else -1
            self._list()
        for segment in self._segments.values():
            generation, count = segment.state()
            if generation != segment.generation:
                self._forget(segment)
                segment.generation, segment.seen, segment.ids = generation, 0, []
            if segment.seen < count:
                for name, entry, is_whole in segment.learn(count):
                    if is_whole:
                        self._index[name] = entry
                        segment.ids.append(name)
                    else:
                        segment.delete(entry[1])
                        self.damaged_count += 1
                        _log.warning(
                            "a payload is lost: its entry in %s is damaged (id %r)",
                            segment.name,
                            name,
                        )

    def _list(self) -> None:
        names = set(self._folder.names())
        for name in names - self._segments.keys():
            if name.endswith(".seg"):
                try:
                    found = self._map_file(name, os.O_RDWR)
                except (OSError, ValueError):  # it is being made, or removed
                    found = None
                if found and len(found) == SEGMENT_BYTES and found[: len(MAGIC)] == MAGIC:
                    self._segments[name] = _Segment(name, found, is_own=False)
                else:
                    self._listed_ns = -1
        for name in self._segments.keys() - names:
            self._forget(self._segments.pop(name))
        for name in self._maps.keys() - names:
            del self._maps[name]

    def _forget(self, segment: _Segment) -> None:
        for name in segment.ids:
            found = self._index.get(name)
            if found is not None and found[0] is segment:
                del self._index[name]

    # Writers.

    def _segment_for(self, size: int) -> _Segment:
        """Return a segment of this writer that has room for ``size`` bytes."""
        if self._own is None or not self._own.has_room(size):
            for segment in self._segments.values():
                if segment.is_own and not segment.live_slots():
                    self._forget(segment)
                    segment.begin_generation()
                    self._own = segment
                    break
            else:
                name, found = self._make("seg", SEGMENT_BYTES)
                self._own = self._segments[name] = _Segment(name, found, is_own=True)
        return self._own

    def _take_slot(self, size: int) -> tuple[_Slot, mmap.mmap]:
        """Return a slot that no other thread or process uses, and its memory."""
        with self._lock:
            for is_again in (False, True):
                if is_again:
                    self._find_free()
                for index in range(len(self._free) - 1, -1, -1):
                    slot = self._free[index]
                    if size <= slot.size <= 2 * size:
                        lock = self._locked(slot.name, fcntl.LOCK_EX)
                        if lock is not None:
                            # A process that opens it from now on finds its payload deleted.
                            os.close(lock)
                            del self._free[index]
                            return slot, self._map(slot.name)
            # Slots have few different sizes, so that a free one often fits.
            step = max(mmap.PAGESIZE, 1 << (size.bit_length() - 4))
            slot_size = -(-size // step) * step
            try:
                name, found = self._make("slot", slot_size)
            except StorageFullError:
                self._drop_free(0)  # this may free enough room
                name, found = self._make("slot", slot_size)
            slot = _Slot(name, slot_size)
            self._slots.add(slot)
            self._keep_map(name, found)
        return slot, found

    def _find_free(self) -> None:
        """Add the slots of deleted payloads to the free ones."""
        for slot in self._slots:
            if slot.is_free:
                slot.entry = None
                self._free.append(slot)
        self._drop_free(FREE_BYTES)

    def _drop_free(self, most_bytes: int) -> None:
        """Remove free slots until they have at most ``most_bytes``."""
        left = sum(slot.size for slot in self._free)
        while left > most_bytes:
            slot = self._free.pop(0)
            left -= slot.size
            self._slots.remove(slot)
            self._maps.pop(slot.name, None)
            self._folder.unlink(slot.name)

    def _make(self, kind: str, size: int) -> tuple[str, mmap.mmap]:
        """Make a file of this writer; return its name and its memory."""
        check_free(self._folder, size, self._min_free_bytes)
        name = ""
        try:
            if self._writer_lock < 0:
                self._begin_writing()
            name = f"{self._writer}-{next(self._numbers)}.{kind}"
            path = f"{self._path}/{name}"
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
            return name, self._map_file(name, os.O_RDWR)
        except OSError as error:
            with contextlib.suppress(OSError):
                if name:
                    self._folder.unlink(name)
            reason = errno.errorcode.get(error.errno or 0, "")
            raise StorageFullError(
                f"cannot make {self._path}/{name}: {error.strerror}", path=self._path, reason=reason
            ) from error

    def _begin_writing(self) -> None:
        """Choose a name as a writer, and take the lock that shows that this process lives."""
        while self._writer_lock < 0:
            self._writer = secrets.token_hex(8)
            path = f"{self._path}/{self._writer}.lock"
            lock = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            with contextlib.suppress(BlockingIOError):  # another process is removing it as dead
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink:
                    self._writer_lock = lock
                    return
            os.close(lock)

    def _clear_dead(self, writer: str) -> None:
        """Remove the files of a writer without a lock that hold no payloads."""
        with contextlib.suppress(OSError):
            lock = open_private(f"{self._path}/{writer}.lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._listed_ns = -1  # its last files must be listed too
                self._refresh()
                kept = set()
                for segment in self._segments.values():
                    if segment.writer == writer and (places := segment.live_slots()):
                        kept |= {segment.name, *(f"{writer}-{-place}.slot" for place in places)}
                for name in self._folder.names():
                    if name.startswith(f"{writer}-") and name not in kept:
                        self._folder.unlink(name)
                if not kept:
                    self._folder.unlink(f"{writer}.lock")
            finally:
                os.close(lock)

    def _map(self, name: str) -> mmap.mmap:
        """Return the memory of a slot; the map is kept, as the first use of one is slow."""
        found = self._maps.pop(name, None)
        if found is None:
            is_own = name.startswith(f"{self._writer}-")
            found = self._map_file(name, os.O_RDWR if is_own else os.O_RDONLY)
        self._keep_map(name, found)
        return found

    def _keep_map(self, name: str, found: mmap.mmap) -> None:
        self._maps[name] = found
        if len(self._maps) > MOST_MAPS:
            self._maps.popitem(last=False)

    def _map_file(self, name: str, flags: int) -> mmap.mmap:
        # Opened only for the map, which would keep a lock of the same open file.
        descriptor = os.open(f"{self._path}/{name}", flags | os.O_NOFOLLOW)
        try:
            access = mmap.ACCESS_READ if flags == os.O_RDONLY else mmap.ACCESS_WRITE
            return mmap.mmap(descriptor, 0, access=access)
        finally:
            os.close(descriptor)


def _fill(target: mmap.mmap, start: int, buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        if size <= INLINE_BYTES:
            target[start : start + size] = buffer
        else:  # unlike the assignment above, this copy lets other threads run
            copy(np.frombuffer(target, np.uint8, size, start), np.frombuffer(buffer, np.uint8))
        start += size


def _check_of(content: bytes, generation: int) -> int:
    return xxhash.xxh3_64_intdigest(content, generation)


def _entry_at(number: int) -> int:
    return _ENTRIES_AT + number * ENTRY_BYTES
