"""A lock between threads or between processes, under the name that DI-engine gives it."""

from __future__ import annotations

import multiprocessing
import threading
from enum import Enum
from multiprocessing import synchronize


class LockContextType(Enum):
    """Among whom a ``LockContext`` holds."""

    THREAD_LOCK = 1
    PROCESS_LOCK = 2


class LockContext:
    """A lock that its holder cannot take again; use it in a ``with`` statement.

    Args:
        lock_type: ``THREAD_LOCK`` holds among the threads of this process, ``PROCESS_LOCK`` also
            among the processes that inherit it.
    """

    def __init__(self, lock_type: LockContextType = LockContextType.THREAD_LOCK) -> None:
        self._lock: synchronize.Lock | threading.Lock = threading.Lock()
        if lock_type is LockContextType.PROCESS_LOCK:
            self._lock = multiprocessing.get_context("spawn").Lock()

    def acquire(self) -> None:
        """Wait for the lock, and take it."""
        self._lock.acquire()

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> LockContext:
        self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
