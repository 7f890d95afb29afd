"""Files of deleted payloads, which are reused for new payloads."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence

from dingsdk.data import Buffer, PrivateDir

_LIST_AGAIN_S = 0.01
"""Shortest time between two listings of the pool: a listing costs more than creating a file."""
_AT_A_TIME = 256
"""Names that are kept from one listing of a pool."""


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
        self._list_at = self._count_at = -_LIST_AGAIN_S

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
            now = self._clock()
            if self._limit <= 0 or now < self._count_at:
                return False
            self._count_at = now + _LIST_AGAIN_S
            self._room = self._limit - len(self.folder.names())
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
        try:
            return self._known.pop()
        except IndexError:
            pass
        now = self._clock()
        if now < self._list_at:
            return None
        self._list_at = now + _LIST_AGAIN_S
        names = self.folder.names()
        if not names:
            return None
        # A random start makes it rare that two writers try the same file.
        start = secrets.randbelow(len(names))
        self._known = (names[start:] + names[:start])[:_AT_A_TIME]
        return self._known.pop()
