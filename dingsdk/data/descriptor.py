"""A file descriptor that several threads use and one closes."""

from __future__ import annotations

import contextlib
import os
import threading

from dingsdk.errors import ClosedError


def close_reader(number: int) -> None:
    """Close a descriptor that nothing was written through, so that a failure loses nothing."""
    with contextlib.suppress(OSError):
        os.close(number)


class SharedDescriptor:
    """A folder's descriptor, given back after its last user as the system reuses numbers at once.

    Args:
        number: An open descriptor, owned from now on.
    """

    __slots__ = ("_is_closed", "_lock", "_number", "_users")

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    def __enter__(self) -> int:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the folder is closed", what="folder")
            self._users += 1
        return self._number

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._is_closed and self._users == 0
        if is_last:
            close_reader(self._number)

    def close(self) -> None:
        """Refuse further users; idempotent, and waits for none."""
        with self._lock:
            is_last = not self._is_closed and self._users == 0
            self._is_closed = True
        if is_last:
            close_reader(self._number)
