"""A lock between threads or between processes, with the same name as in DI-engine."""

from __future__ import annotations

import multiprocessing
import threading
from enum import Enum
from multiprocessing import synchronize


class LockContextType(Enum):
    """The scope of a ``LockContext``."""

    THREAD_LOCK = 1
    PROCESS_LOCK = 2


class LockContext:
    """A non-reentrant lock; use it in a ``with`` statement.

    Args:
        lock_type: ``THREAD_LOCK`` locks between the threads of this process; ``PROCESS_LOCK`` also
            between the processes that inherit the lock.
    """

    def __init__(self, lock_type: LockContextType = LockContextType.THREAD_LOCK) -> None:
        self._lock: synchronize.Lock | threading.Lock = threading.Lock()
        if lock_type is LockContextType.PROCESS_LOCK:
            self._lock = multiprocessing.get_context("spawn").Lock()

    def acquire(self) -> None:
        """Wait for the lock, and take it."""
        self._lock.acquire()

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> LockContext:
        self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
