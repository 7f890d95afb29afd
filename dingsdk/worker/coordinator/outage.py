"""Waiting for free storage: logged at its start and end, and limited in time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dingsdk.errors import StorageFullError

_log = logging.getLogger(__name__)


class StorageOutage:
    """How long workers have been waiting for free storage. The caller locks.

    Args:
        limit_s: Seconds without anything stored after which the run ends.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._waiting: dict[str, str] = {}
        self._still_since = 0.0

    @property
    def text(self) -> str:
        """The error of the worker that waits longest; empty if no worker waits."""
        return next(iter(self._waiting.values())) if self._waiting else ""

    def note(self, task_id: str, why: str) -> None:
        """Store why a task's worker waits; empty if it does not wait."""
        had = bool(self._waiting)
        if why:
            self._waiting.setdefault(task_id, why)
        else:
            self._waiting.pop(task_id, None)
        if self._waiting and not had:
            self._still_since = self._clock()
            text = "there is no room in the storage, so the run waits for up to %.0f s: %s"
            _log.warning(text, self._limit_s, why)
        elif had and not self._waiting:
            _log.warning("there is room in the storage again")

    def forget(self, task_id: str) -> None:
        """Do not count a task that ended while it may have waited; there is no room yet."""
        self._waiting.pop(task_id, None)

    def note_progress(self) -> None:
        """Note that something was stored; the time limit starts again."""
        self._still_since = self._clock()

    def failure(self) -> StorageFullError | None:
        """Return the error that ends the run if nothing could be stored for too long, else None."""
        still_s = self._clock() - self._still_since
        if not self._waiting or still_s <= self._limit_s:
            return None
        return StorageFullError(
            f"nothing could be stored for {still_s:.0f} s "
            f"(system.coordinator.storage_timeout_s): {self.text}; make room, or let the run "
            "write to another disk (exp_name, system.transport.data_dir)",
            reason="timeout",
        )
