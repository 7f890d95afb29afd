"""The coordinator and the storage: waiting while it is full, and keeping it free of orphans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from dingsdk.errors import StorageFullError
from dingsdk.worker.comm.scheduler import Condition
from dingsdk.worker.comm.transport import StepDataStore
from dingsdk.worker.coordinator.experience import Experience
from dingsdk.worker.coordinator.tasks import TaskState

_log = logging.getLogger(__name__)

MANY_LOST = 8
"""Payloads lost at once after which all others are looked for."""


class StorageOutage:
    """How long workers have been waiting for free storage. The caller locks.

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
        """The error of the worker that waits longest; empty where nobody waits."""
        return next(iter(self._waiting.values()), "")

    def note(self, task_id: str, why: str) -> None:
        """Note why a task's worker waits; empty where it does not."""
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
        """Note that something was stored: the run does not stand still."""
        self._still_since = self._clock()

    def failure(self) -> StorageFullError | None:
        """Return the error that ends the run, once it has stood still for too long."""
        still_s = self._clock() - self._still_since
        if not self._waiting or still_s <= self._limit_s:
            return None
        return StorageFullError(
            f"nothing could be stored for {still_s:.0f} s "
            f"(system.coordinator.storage_timeout_s): {self.text}; make room, or let the run "
            "write to another disk (exp_name, system.transport.data_dir)",
            reason="timeout",
        )


class PayloadUpkeep:
    """Deletes payloads that nobody needs, and finds those that are gone.

    Args:
        store: The run's step data store.
        condition: Guards what the coordinator knows; held while it is asked, never while the
            store is.
        orphan_grace_s: Age at which an unannounced payload is deleted.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: StepDataStore,
        condition: Condition,
        orphan_grace_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._condition = condition
        self._orphan_grace_s = orphan_grace_s
        self._clock = clock
        self._swept_at = clock()

    def sweep(self, find_live: Callable[[], Callable[[str], bool]]) -> None:
        """Delete unannounced payloads of dead workers, twice in each ``orphan_grace_s``.

        Args:
            find_live: Returns a function that tells whether a payload may still be announced
                or read.
        """
        grace_s = self._orphan_grace_s
        if self._clock() - self._swept_at < grace_s / 2:
            return
        self._swept_at = self._clock()
        with self._condition:
            is_live = find_live()
        count = self._store.sweep_orphans(is_live, grace_s)
        if count:
            _log.info("deleted %d payloads that nobody announced", count)

    def look(self, experience: Experience, state: TaskState, info: Mapping[str, Any]) -> None:
        """After a learner lost many payloads at once, give up all others that are gone.

        Otherwise the learner would wait in vain for those of each batch. It may hold the
        payloads that were announced to it, whether they are stored or not.
        """
        if len(info["lost_payloads"]) < MANY_LOST:
            return
        with self._condition:
            names = experience.readable(state.announced)
        gone = [name for name in names if not self._store.has(name, 0.0)]
        with self._condition:
            experience.give_up_missing(gone)
        _log.warning("%d more payloads are gone; their samples are given up", len(gone))
