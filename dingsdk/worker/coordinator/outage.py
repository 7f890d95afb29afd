"""Storage without room: who waits for it, and for how long the run may stand still."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dingsdk.errors import StorageFullError

_log = logging.getLogger(__name__)


class StorageOutage:
    """Since when workers have found no room for what they store. The caller locks.

    Args:
        limit_s: How long nothing may be stored before the run ends.
        clock: Monotonic seconds.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._waiting: dict[str, str] = {}
        self._since = self._still_since = 0.0

    @property
    def text(self) -> str:
        """What the one that waits longest has met with; empty where nobody waits."""
        return next(iter(self._waiting.values()), "")

    def note(self, task_id: str, why: str) -> None:
        """Note what a task's worker says: why it waits for room, or nothing."""
        had, now = bool(self._waiting), self._clock()
        if why:
            self._waiting.setdefault(task_id, why)
        else:
            self._waiting.pop(task_id, None)
        if self._waiting and not had:
            self._since = self._still_since = now
            text = "no room in the storage, the run holds back for up to %.0f s: %s"
            _log.warning(text, self._limit_s, why)
        elif had and not self._waiting:
            _log.warning("there is room in the storage again, after %.1f s", now - self._since)

    def note_progress(self) -> None:
        """Note that something was stored all the same: the run does not stand still."""
        self._still_since = self._clock()

    def failure(self) -> StorageFullError | None:
        """Return what ends the run, once it has stood still for too long."""
        still_s = self._clock() - self._still_since
        if not self._waiting or still_s <= self._limit_s:
            return None
        return StorageFullError(
            f"nothing could be stored for {still_s:.0f} s "
            f"(system.coordinator.storage_timeout_s): {self.text}; make room, or let the run "
            "write to another disk (exp_name, system.transport.data_dir)",
            reason="timeout",
        )
