"""Folders in shared memory: files stay mapped, and a view keeps its file from being written again.

The first touch of each page of a map costs more than to copy the page (3.6 MB: 12 ms against
0.07 ms, a virtual machine of 2026-11), so that each process keeps the maps of the files that it
reads and writes, and files are written again in place of new ones. Who reads a file holds a shared
lock on it, an ``flock`` of the open file, as long as the view lives: the kernel takes it away with
the process, however that ends. Who writes a file again has to get an exclusive lock first.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Self

import numpy as np

from dingsdk.data.files import Buffer, PrivateDir, close_reader
from dingsdk.errors import DataMissingError

_KEPT_MAPS, _KEPT_BYTES = 256, 1 << 30
_MAPPED_BYTES = 64 << 10
"""Files up to this size are written by a call of the system, which costs less than to map them."""

_Key = tuple[int, int, int]
"""Device and number of a file, and the access."""


class _Maps:
    """The maps that a process keeps, by file; the least used go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, tuple[mmap.mmap, int]] = OrderedDict()
        self._bytes = 0
        self.users: set[int] = set()
        """The folders that are open, and share the maps."""

    def of(self, descriptor: int, found: os.stat_result, size: int, access: int) -> mmap.mmap:
        """Return a map of at least ``size`` bytes, which the file has, too."""
        # As long as a file is mapped, no other one gets its number.
        key = (found.st_dev, found.st_ino, access)
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._bytes -= len(kept[0])
                if len(kept[0]) < size:
                    close_reader(kept[1])
                    kept = None
            if kept is None:
                self._forget_deleted()
                # Opened again: a map of the same open file would hold its lock for good.
                flags = os.O_RDWR if access == mmap.ACCESS_WRITE else os.O_RDONLY
                own = os.open(f"/proc/self/fd/{descriptor}", flags)
                try:
                    kept = mmap.mmap(own, size, access=access), own
                except BaseException:
                    close_reader(own)
                    raise
            self._kept[key] = kept
            self._bytes += len(kept[0])
            while len(self._kept) > _KEPT_MAPS or (
                self._bytes > _KEPT_BYTES and len(self._kept) > 1
            ):
                self._drop(next(iter(self._kept)))
            return kept[0]

    def leave(self, user: int) -> None:
        """Forget all with the last user; views that are in use keep theirs."""
        with self._lock:
            self.users.discard(user)
            for key in () if self.users else list(self._kept):
                self._drop(key)

    def _forget_deleted(self) -> None:
        """Forget files that have no name any more: their memory is free once nobody maps them."""
        for key, (_, descriptor) in list(self._kept.items()):
            if os.fstat(descriptor).st_nlink == 0:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        whole, descriptor = self._kept.pop(key)
        self._bytes -= len(whole)
        close_reader(descriptor)


class SharedDir(PrivateDir):
    """A folder of a memory file system whose larger files are read and written through maps.

    :meth:`view` returns views of the file itself. :meth:`rewrite` leaves a file alone that
    somebody views.
    """

    _overwrite_flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK

    def __init__(self, path: str | os.PathLike[str], create: bool = True) -> None:
        super().__init__(path, create)
        self._maps = _Maps()
        self._maps.users.add(id(self))

    def sub(self, name: str, create: bool = True) -> Self:
        opened = super().sub(name, create)
        opened._maps = self._maps
        opened._maps.users.add(id(opened))
        return opened

    def close(self) -> None:
        super().close()
        self._maps.leave(id(self))

    def _map(self, name: str, descriptor: int, found: os.stat_result) -> memoryview:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{self.path / name} went away: its file is being written again"
            raise DataMissingError(text, data_id=name) from None
        self._check_read(name, found)
        whole = self._maps.of(descriptor, found, found.st_size, mmap.ACCESS_READ)
        pinned = np.frombuffer(whole, np.uint8, found.st_size)
        # A second descriptor of the same open file, and so of its lock.
        weakref.finalize(pinned, close_reader, os.dup(descriptor)).atexit = False
        return pinned.data.toreadonly()

    def _fill(self, descriptor: int, found: os.stat_result, buffers: Sequence[Buffer]) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody views it
            return False
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        if size <= _MAPPED_BYTES:
            return super()._fill(descriptor, found, buffers)
        if found.st_size < size:
            # A full file system is noticed here; a write to a map would end the process.
            os.posix_fallocate(descriptor, 0, size)
        elif found.st_size > size:
            os.ftruncate(descriptor, size)
        target = memoryview(self._maps.of(descriptor, found, size, mmap.ACCESS_WRITE))
        end = 0
        for buffer in buffers:
            source = memoryview(buffer).cast("B")
            start, end = end, end + source.nbytes
            target[start:end] = source
        return True
